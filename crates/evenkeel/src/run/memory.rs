//! Returns memory to the system after a burst.
//!
//! The allocator keeps freed memory for a second and returns it at its next call of the system.
//! Under load that is soon, but in an idle process it never happens. Allocating a block that is too
//! large for its caches makes it check. The block is never touched, so it costs two system calls.

use std::hint::black_box;

/// Size of the block in bytes: larger than the blocks that the allocator caches, which are at most
/// an eighth of its pages of four megabytes.
const UNCACHED_BLOCK_BYTES: usize = 1 << 20;

/// Makes the allocator return unused memory. Called regularly while there is little to do.
pub fn give_back() {
    drop(black_box(Vec::<u8>::with_capacity(UNCACHED_BLOCK_BYTES)));
}
