//! Free ports of loopback.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// A free port of loopback. It is outside of the range from which the system assigns ports, so that
/// no other test gets it before it is used.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // Other processes that run at the same time begin with another port.
        let begin = (std::process::id() % 100) as u16 * 100;
        let port = 20_000 + begin.wrapping_add(NEXT.fetch_add(1, Relaxed)) % 10_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
