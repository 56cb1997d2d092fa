//! `memcpy` and `memmove` in place of musl's, on x86-64.
//!
//! A request of the proxy copies some 60 times, often no more than the name or the value of a
//! header. musl's functions use `rep movsq`, which takes longer to begin than to copy so little,
//! and single bytes before and after it: up to 5 % of the CPU time of a request. For 64-bit ARM
//! musl has quick ones.
//!
//! The only unsafe code of Evenkeel. miri runs its tests (`ci/long`). A program that is linked with
//! another C library keeps the functions of that.

// Otherwise the compiler might make a loop that copies into a call of `memcpy`.
#![no_builtins]
#![cfg(target_arch = "x86_64")]

use core::arch::x86_64::__m128i;

/// What longer copies are made of. One that is too small takes more steps, one that is too large
/// leaves more copies to the steps of `copy_short`.
type Block = [__m128i; 4];
type HalfBlock = [__m128i; 2];

/// The bytes of a block.
const BLOCK: usize = size_of::<Block>();
const _: () = assert!(BLOCK == 2 * size_of::<HalfBlock>(), "copy_short copies two halves");

/// Copies `len` bytes to memory that does not overlap.
///
/// # Safety
/// `len` bytes at `from` are readable, `len` bytes at `to` are writable, and none is in both.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: as of this function.
    unsafe {
        match len {
            0..=BLOCK => copy_short(to, from, len),
            _ => copy_forward(to, from, len),
        }
    }
    to
}

/// Copies `len` bytes to memory that may overlap.
///
/// # Safety
/// `len` bytes at `from` are readable, and `len` bytes at `to` are writable.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // Wraps if `to` is in front of `from`.
    let ahead = to.addr().wrapping_sub(from.addr());
    // SAFETY: as of this function. If `to` is in front of all that is read, or behind it, then
    // `copy_forward` writes no byte before it is read; otherwise `copy_backward` does not.
    unsafe {
        match len {
            0..=BLOCK => copy_short(to, from, len),
            _ if ahead >= len => copy_forward(to, from, len),
            _ => copy_backward(to, from, len),
        }
    }
    to
}

/// Copies at most a block.
///
/// # Safety
/// As of [`memmove`]; `len` is at most [`BLOCK`].
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: in each call, `T` has at most `len` bytes.
    unsafe {
        match len {
            32.. => copy_ends::<HalfBlock>(to, from, len),
            16.. => copy_ends::<__m128i>(to, from, len),
            8.. => copy_ends::<u64>(to, from, len),
            4.. => copy_ends::<u32>(to, from, len),
            2.. => copy_ends::<u16>(to, from, len),
            1 => *to = *from,
            0 => {}
        }
    }
}

/// Copies the first and the last bytes, as many as `T` has of each; the two may overlap. All are
/// read before any is written.
///
/// # Safety
/// As of [`memmove`]; `len` is at least the size of `T`.
#[inline(always)]
unsafe fn copy_ends<T>(to: *mut u8, from: *const u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: a `T` ends at `len` at the latest.
    unsafe {
        let (head, tail) = (load::<T>(from, 0), load::<T>(from, last));
        store(to, 0, head);
        store(to, last, tail);
    }
}

/// Copies block after block from the front. The last one, which may overlap the one before it, is
/// read first.
///
/// # Safety
/// As of [`memmove`]; `len` is at least [`BLOCK`]; `to` is not behind the first byte that is read
/// and in front of the last.
#[inline(always)]
unsafe fn copy_forward(to: *mut u8, from: *const u8, len: usize) {
    let last = len - BLOCK;
    // SAFETY: no block begins after `last`.
    unsafe {
        let tail = load::<Block>(from, last);
        let mut at = 0;
        while at < last {
            store(to, at, load::<Block>(from, at));
            at += BLOCK;
        }
        store(to, last, tail);
    }
}

/// Copies block after block from the back. The first one, which may overlap the one after it, is
/// read first.
///
/// # Safety
/// As of [`memmove`]; `len` is at least [`BLOCK`]; `to` is not in front of what is read.
#[inline(always)]
unsafe fn copy_backward(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: no block begins before 0 or ends after `len`.
    unsafe {
        let head = load::<Block>(from, 0);
        let mut end = len;
        while end > BLOCK {
            end -= BLOCK;
            store(to, end, load::<Block>(from, end));
        }
        store(to, 0, head);
    }
}

/// # Safety
/// A `T` at `from + at` is readable.
#[inline(always)]
unsafe fn load<T>(from: *const u8, at: usize) -> T {
    // SAFETY: as of this function.
    unsafe { from.add(at).cast::<T>().read_unaligned() }
}

/// # Safety
/// A `T` at `to + at` is writable.
#[inline(always)]
unsafe fn store<T>(to: *mut u8, at: usize, value: T) {
    // SAFETY: as of this function.
    unsafe { to.add(at).cast::<T>().write_unaligned(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lengths of up to two blocks, and one of many; not as many under miri, which is slow.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..=2 * BLOCK + 1).chain([if cfg!(miri) { 300 } else { 16_385 }])
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 + n / 256) as u8).collect()
    }

    #[test]
    fn copies_between_buffers() {
        for len in lengths() {
            for (to_at, from_at) in [(0, 0), (0, 1), (3, 0), (5, 7), (8, 8), (15, 2)] {
                let from = bytes(from_at + len);
                let mut to = vec![0xEE; to_at + len + 3];
                let at = to[to_at..].as_mut_ptr();
                // SAFETY: the two buffers are long enough, and are not the same.
                let returned = unsafe { memcpy(at, from[from_at..].as_ptr(), len) };
                assert_eq!(returned, at);
                assert_eq!(to[to_at..to_at + len], from[from_at..], "{len} bytes");
                assert!(to[..to_at].iter().all(|byte| *byte == 0xEE), "{len} bytes: in front");
                assert_eq!(to[to_at + len..], [0xEE; 3], "{len} bytes: behind");
            }
        }
    }

    #[test]
    fn moves_within_a_buffer() {
        for len in lengths() {
            for distance in [0, 1, 8, 15, 17, BLOCK - 1, BLOCK, BLOCK + 1, 100] {
                for (to_at, from_at) in [(distance, 0), (0, distance)] {
                    let mut buffer = bytes(distance + len);
                    let mut expected = buffer.clone();
                    expected.copy_within(from_at..from_at + len, to_at);
                    let start = buffer.as_mut_ptr();
                    // SAFETY: both ranges are within the buffer.
                    unsafe { memmove(start.add(to_at), start.add(from_at), len) };
                    assert_eq!(buffer, expected, "{len} bytes from {from_at} to {to_at}");
                }
            }
        }
    }
}
