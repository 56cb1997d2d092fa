//! The memory of a table: words that begin as zeros, at the start of a cache line.
//!
//! Making it writes no memory. The allocator asks the system for pages of zeros, and the
//! system provides each of them when it is first written to. So a table that is made for many keys
//! takes little memory while few of them are in use.

use super::set::{AtomicU64, LINE_WORDS};
use alloc::boxed::Box;

/// Words, all zero at first.
pub(super) struct ZeroedWords {
    /// Up to a cache line more than needed.
    words: Box<[AtomicU64]>,
    /// The first word that begins a cache line.
    begin: usize,
    length: usize,
}

impl ZeroedWords {
    /// `length` words.
    pub(super) fn new(length: usize) -> ZeroedWords {
        let words = zeros(length + LINE_WORDS - 1);
        let begin = first_aligned(&words).min(LINE_WORDS - 1);
        ZeroedWords { words, begin, length }
    }

    pub(super) fn as_slice(&self) -> &[AtomicU64] {
        &self.words[self.begin..self.begin + self.length]
    }
}

#[cfg(not(loom))]
fn zeros(length: usize) -> Box<[AtomicU64]> {
    let zeros = <[AtomicU64] as zerocopy::FromZeros>::new_box_zeroed_with_elems(length);
    // Without memory for them, the ordinary way fails as any allocation does.
    zeros.unwrap_or_else(|_| (0..length).map(|_| AtomicU64::new(0)).collect())
}

#[cfg(not(loom))]
fn first_aligned(words: &[AtomicU64]) -> usize {
    words.as_ptr().align_offset(LINE_WORDS * size_of::<AtomicU64>())
}

/// loom's atomics are not plain words.
#[cfg(loom)]
fn zeros(length: usize) -> Box<[AtomicU64]> {
    (0..length).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(loom)]
fn first_aligned(_words: &[AtomicU64]) -> usize {
    0
}
