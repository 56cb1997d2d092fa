//! A list with inline room for four elements. Most doors have four limits or fewer, and the
//! per-request state should not be sized, moved and cleared for the maximum that a door may have.
//!
//! The fifth element moves all elements to the heap. Elements cannot be removed.

use alloc::vec::Vec;

/// Number of elements that are stored inline.
const INLINE_MAX: usize = 4;

/// A list of elements in the order of insertion.
#[derive(Clone, Debug)]
pub(crate) struct InlineList<T> {
    len: u8,
    near: [T; INLINE_MAX],
    /// All elements, if there are more than [`INLINE_MAX`]; else empty.
    far: Vec<T>,
}

impl<T: Copy> InlineList<T> {
    /// A list of `len` times `value`, for `len` up to 255. Unused inline room holds `value` too.
    pub(crate) fn filled(len: usize, value: T) -> InlineList<T> {
        let far = if len > INLINE_MAX { alloc::vec![value; len] } else { Vec::new() };
        InlineList { len: len.min(INLINE_MAX) as u8, near: [value; INLINE_MAX], far }
    }

    /// Appends an element.
    pub(crate) fn push(&mut self, value: T) {
        match self.near.get_mut(usize::from(self.len)) {
            Some(place) => {
                *place = value;
                self.len += 1;
            }
            None => {
                if self.far.is_empty() {
                    self.far.extend_from_slice(&self.near);
                }
                self.far.push(value);
            }
        }
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        if self.far.is_empty() { &self.near[..usize::from(self.len)] } else { &self.far }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        if self.far.is_empty() { &mut self.near[..usize::from(self.len)] } else { &mut self.far }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_as_good_as_many() {
        let mut few = InlineList::filled(0, 0);
        for n in 0..20 {
            assert_eq!(few.as_slice(), (0..n).collect::<Vec<_>>());
            few.push(n);
        }
        for n in 0..20 {
            let mut filled = InlineList::filled(n, 7);
            filled.as_mut_slice().iter_mut().for_each(|value| *value += 1);
            assert_eq!(filled.as_slice(), alloc::vec![8; n]);
        }
    }
}
