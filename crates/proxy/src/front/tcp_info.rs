//! Asks the system for TCP's estimate of a connection's round trip (`TCP_INFO`).
//!
//! Neither the standard library nor rustix or socket2 have this option; nix has the macro with
//! which options are added to it.

use nix::sys::socket::GetSockOpt;
use nix::sys::socket::sockopt::GetStruct;
use std::time::Duration;
use tokio::net::TcpStream;

/// The start of Linux's `struct tcp_info`, as far as all versions of Linux have it: eight bytes,
/// then numbers of four bytes.
type TcpInfoStart = [u32; 26];

/// The smoothed round trip time, in microseconds.
const RTT: usize = 17;

/// The number of segments that were sent again.
const RETRANSMITTED: usize = 25;

#[derive(Clone, Copy)]
struct TcpInfo;

nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    TcpInfoStart,
    GetStruct<TcpInfoStart>
);

/// Returns TCP's estimate of the round trip. `None`: there is none, or segments were lost, so that
/// other times of this connection say nothing.
pub(super) fn round_trip(socket: &TcpStream) -> Option<Duration> {
    let info = TcpInfo.get(socket).ok()?;
    let micros = Some(info[RTT]).filter(|micros| *micros > 0 && info[RETRANSMITTED] == 0)?;
    Some(Duration::from_micros(u64::from(micros)))
}
