//! A ring of buffers for received bytes, which the kernel takes as bytes arrive
//! (`IORING_REGISTER_PBUF_RING`, Linux 5.19).

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use std::sync::atomic::{AtomicU16, Ordering};

pub const GROUP: u16 = 0;

pub struct Buffers {
    ring: *mut BufRingEntry,
    memory: *mut u8,
    count: u16,
    bytes: usize,
    tail: u16,
}

fn pages(bytes: usize) -> *mut u8 {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; nothing else knows it.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED, "mmap");
    address.cast()
}

impl Buffers {
    /// `count`, a power of two, of `bytes` each. They are never unmapped: a proxy runs until it is
    /// ended.
    pub fn new(ring: &IoUring, count: u16, bytes: usize) -> Self {
        let entries = pages(usize::from(count) * size_of::<BufRingEntry>());
        let memory = pages(usize::from(count) * bytes);
        // SAFETY: whole pages that stay mapped.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, count, GROUP, 0) }
            .expect("a ring of buffers (Linux 5.19)");
        let mut buffers = Self { ring: entries.cast(), memory, count, bytes, tail: 0 };
        for id in 0..count {
            buffers.give_back(id);
        }
        buffers
    }

    /// What was received into a buffer, until that is given back.
    pub fn get(&self, id: u16, bytes: usize) -> &[u8] {
        assert!(id < self.count && bytes <= self.bytes);
        // SAFETY: inside the mapping, and the kernel does not write into it before `give_back`.
        unsafe { std::slice::from_raw_parts(self.memory.add(usize::from(id) * self.bytes), bytes) }
    }

    pub fn give_back(&mut self, id: u16) {
        let at = usize::from(self.tail & (self.count - 1));
        // SAFETY: `at` is below `count`; the kernel reads entries before the tail only, and the
        // tail shares its place with a field of the first entry that no setter touches.
        unsafe {
            let entry = &mut *self.ring.add(at);
            entry.set_addr(self.memory.add(usize::from(id) * self.bytes) as u64);
            entry.set_len(self.bytes as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.ring).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
