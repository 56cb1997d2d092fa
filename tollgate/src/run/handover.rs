//! Listening sockets that outlive a process: handed in by whoever started this one, and handed on
//! to the process that takes its place.
//!
//! The way in is that of socket activation (`LISTEN_FDS`), so systemd and a predecessor look alike:
//! sockets are known by their addresses. A door that finds its address among them takes them and
//! binds nothing. The way on: `successor.rs`. When: `replace.rs`. Sockets that are files, and ports
//! of datagrams, are not handed over.

pub mod successor;

use listenfd::ListenFd;
use parking_lot::Mutex;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;

/// What a successor says to its predecessor when all its doors are open.
pub const READY: &[u8] = b"READY=1";

/// Sockets handed in and not taken yet, and those that can be handed on.
#[derive(Debug, Default)]
pub struct Sockets {
    inherited: Mutex<Vec<TcpListener>>,
    /// Each of the doors' sockets once more; `None` where nothing is to be handed on.
    open: Mutex<Option<Vec<TcpListener>>>,
}

impl Sockets {
    /// What the environment names, and whom to tell that the doors are open. To be called before
    /// there is another thread: the environment is changed, so that no child inherits it.
    #[must_use]
    pub fn from_environment() -> (Sockets, Option<UnixDatagram>) {
        let mut given = ListenFd::from_env();
        let (mut inherited, mut herald) = (Vec::new(), None);
        for index in 0..given.len() {
            // What is none of these is left alone: it is not ours.
            if let Ok(Some(listener)) = given.take_tcp_listener(index) {
                inherited.push(listener);
            } else if let Ok(Some(datagrams)) = given.take_unix_datagram(index) {
                herald = Some(datagrams);
            }
        }
        let open = Mutex::new(Some(Vec::new()));
        (Sockets { inherited: Mutex::new(inherited), open }, herald)
    }

    /// Takes the sockets that listen on `address`: none, one, or as many as somebody bound to share
    /// it.
    ///
    /// # Errors
    /// If the system refuses to have one asked without waiting.
    pub fn take(&self, address: SocketAddr) -> io::Result<Vec<TcpListener>> {
        let mut inherited = self.inherited.lock();
        let all = std::mem::take(&mut *inherited);
        let is_it = |listener: &TcpListener| {
            listener.local_addr().is_ok_and(|bound| is_for(bound, address))
        };
        let (taken, left): (Vec<_>, Vec<_>) = all.into_iter().partition(is_it);
        *inherited = left;
        taken.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        Ok(taken)
    }

    /// Notes a door's socket, to hand it on.
    ///
    /// # Errors
    /// If the system has no descriptor for it.
    pub fn opened(&self, listener: &TcpListener) -> io::Result<()> {
        if let Some(open) = &mut *self.open.lock() {
            open.push(listener.try_clone()?);
        }
        Ok(())
    }

    /// Closes what nobody took, and says where it listened.
    #[must_use]
    pub fn refuse_rest(&self) -> Vec<SocketAddr> {
        let rest = std::mem::take(&mut *self.inherited.lock());
        rest.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Lets go of what could be handed on: as long as anybody has a socket, clients are taken in.
    pub fn release(&self) {
        *self.open.lock() = None;
    }
}

/// Whether a socket bound to `bound` is what a door at `address` needs.
fn is_for(bound: SocketAddr, address: SocketAddr) -> bool {
    let everywhere = bound.ip().is_unspecified() && address.ip().is_unspecified();
    let ip = bound.ip().to_canonical() == address.ip().to_canonical();
    bound.port() == address.port() && (ip || everywhere)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_known_by_its_address() {
        for (bound, address, same) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "0.0.0.0:80", false),
            ("[::]:80", "0.0.0.0:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
        ] {
            let at = |text: &str| text.parse().expect("an address");
            assert_eq!(is_for(at(bound), at(address)), same, "{bound} {address}");
        }
    }

    #[test]
    fn what_is_taken_is_taken_once_and_the_rest_is_told() {
        let listeners: Vec<_> =
            (0..2).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let at: Vec<_> = listeners.iter().map(|l| l.local_addr().expect("bound")).collect();
        let sockets = Sockets { inherited: Mutex::new(listeners), open: Mutex::default() };
        assert_eq!(sockets.take(at[0]).expect("taken").len(), 1);
        assert!(sockets.take(at[0]).expect("none").is_empty());
        assert_eq!(sockets.refuse_rest(), [at[1]]);
        assert!(sockets.take(at[1]).expect("none").is_empty());
    }
}
