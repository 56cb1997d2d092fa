//! Memory that a burst has taken goes back to the system.
//!
//! What is freed the allocator keeps for a second, and gives back when it next has to do with the
//! system: while many ask that is at once, and when nobody does, never. A block too large for it to
//! keep makes it look. Nothing touches the block, so it costs two calls of the system.

use std::hint::black_box;

/// More than the allocator keeps, in bytes: it has pages of four megabytes for an eighth of that.
const TOO_LARGE: usize = 1 << 20;

/// To be called now and then while there is little to do.
pub fn give_back() {
    drop(black_box(Vec::<u8>::with_capacity(TOO_LARGE)));
}
