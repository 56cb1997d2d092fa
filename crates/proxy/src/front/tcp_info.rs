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

/// The time since data last arrived, in milliseconds.
const SINCE_DATA: usize = 13;

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

/// The unit in which the system counts milliseconds, at least.
const TICK: Duration = Duration::from_millis(4);

/// What TCP knows about a connection.
pub(super) struct TcpTimes {
    /// The estimate of the round trip.
    pub(super) round_trip: Duration,
    /// The time since data last arrived, or less.
    pub(super) since_data: Duration,
}

/// Returns what TCP knows about a connection. `None`: no round trip, or segments were lost, so that
/// other times of this connection say nothing.
pub(super) fn times(socket: &TcpStream) -> Option<TcpTimes> {
    let info = TcpInfo.get(socket).ok()?;
    let micros = Some(info[RTT]).filter(|micros| *micros > 0 && info[RETRANSMITTED] == 0)?;
    let since_data = Duration::from_millis(u64::from(info[SINCE_DATA]));
    Some(TcpTimes {
        round_trip: Duration::from_micros(u64::from(micros)),
        since_data: since_data.saturating_sub(TICK),
    })
}
