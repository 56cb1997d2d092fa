//! Listening sockets that outlive a process: inherited at the start, and passed to the successor.
//!
//! Sockets are inherited as in socket activation (`LISTEN_FDS`), so systemd and a predecessor look
//! the same. A socket is identified by its address or its path. A door that finds its address among
//! the inherited sockets uses that socket and binds none. Passing sockets on: `successor.rs`; the
//! time of it: `replace.rs`.

pub mod shared;
pub mod successor;

use evenkeel_config::settings::sockets::{SocketOpening, SocketSpec};
use listenfd::ListenFd;
use parking_lot::Mutex;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use tokio::sync::watch;

/// Message of a successor to its predecessor when all its doors are open.
pub const READY_MESSAGE: &[u8] = b"READY=1";

/// Inherited sockets that no door has taken yet, and open sockets that can be passed on.
#[derive(Debug, Default)]
pub struct ListenSockets {
    inherited: Mutex<Vec<InheritedSocket>>,
    /// A duplicate of each door's socket; `None` if none can be passed on.
    open: Mutex<Option<Vec<OwnedFd>>>,
    passed: watch::Sender<bool>,
    /// The only sockets that doors may open. `None`: no restriction.
    listed: Option<Vec<SocketSpec>>,
}

/// Tells whether a successor accepts clients at the sockets of this process.
#[derive(Clone, Debug)]
pub struct HandoverSignal(watch::Receiver<bool>);

impl Default for HandoverSignal {
    /// A value that never becomes true.
    fn default() -> HandoverSignal {
        HandoverSignal(watch::channel(false).1)
    }
}

impl HandoverSignal {
    /// Whether a successor accepts clients.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until a successor accepts clients.
    pub async fn wait(&mut self) {
        if self.0.wait_for(|passed| *passed).await.is_err() {
            // The sender was dropped without a successor.
            std::future::pending::<()>().await;
        }
    }
}

/// An inherited socket.
#[derive(Debug)]
enum InheritedSocket {
    Tcp(TcpListener),
    File(UnixListener),
    Datagrams(UdpSocket),
}

impl InheritedSocket {
    /// The port of a TCP listener.
    fn port(&self) -> Option<u16> {
        match self {
            InheritedSocket::Tcp(listener) => listener.local_addr().ok().map(|at| at.port()),
            _ => None,
        }
    }

    /// The address, for messages.
    fn place(&self) -> Option<String> {
        match self {
            InheritedSocket::Tcp(listener) => listener.local_addr().ok().map(|at| at.to_string()),
            InheritedSocket::Datagrams(socket) => {
                socket.local_addr().ok().map(|at| format!("udp://{at}"))
            }
            InheritedSocket::File(listener) => {
                let address = listener.local_addr().ok()?;
                address.as_pathname().map(|path| format!("unix://{}", path.display()))
            }
        }
    }
}

impl ListenSockets {
    /// Restricts the doors to the sockets that the configuration lists.
    #[must_use]
    pub fn only(self, openings: Vec<SocketOpening>) -> ListenSockets {
        let listed = openings.into_iter().map(|opening| opening.socket).collect();
        ListenSockets { listed: Some(listed), ..self }
    }

    /// Checks whether a door may open `socket`.
    ///
    /// # Errors
    /// If the socket is not listed, so that `evenkeel check` would not know it.
    fn ensure_listed(&self, socket: &SocketSpec) -> io::Result<()> {
        match &self.listed {
            Some(listed) if !listed.contains(socket) => {
                Err(io::Error::other("the configuration does not list it"))
            }
            _ => Ok(()),
        }
    }

    /// Takes the sockets from the environment, and the socket on which to report that the doors are
    /// open. Must be called before another thread exists: it changes the environment, so that no
    /// child inherits the variables.
    #[must_use]
    pub fn from_environment() -> (ListenSockets, Option<UnixDatagram>) {
        let mut given = ListenFd::from_env();
        let (mut inherited, mut herald) = (Vec::new(), None);
        for index in 0..given.len() {
            // Other kinds of descriptors are left alone.
            if let Ok(Some(listener)) = given.take_tcp_listener(index) {
                inherited.push(InheritedSocket::Tcp(listener));
            } else if let Ok(Some(listener)) = given.take_unix_listener(index) {
                inherited.push(InheritedSocket::File(listener));
            } else if let Ok(Some(socket)) = given.take_udp_socket(index) {
                inherited.push(InheritedSocket::Datagrams(socket));
            } else if let Ok(Some(datagrams)) = given.take_unix_datagram(index) {
                herald = Some(datagrams);
            }
        }
        let open = Mutex::new(Some(Vec::new()));
        (
            ListenSockets { inherited: Mutex::new(inherited), open, ..ListenSockets::default() },
            herald,
        )
    }

    /// Takes the inherited sockets that listen on `address`: none, one, or all that share it.
    ///
    /// # Errors
    /// If a socket cannot be set to non-blocking mode.
    pub fn take(&self, address: SocketAddr) -> io::Result<Vec<TcpListener>> {
        self.ensure_listed(&SocketSpec::Tcp(address))?;
        let is_it = |handed: &InheritedSocket| match handed {
            InheritedSocket::Tcp(listener) => {
                listener.local_addr().is_ok_and(|at| is_for(at, address))
            }
            _ => false,
        };
        let taken = self.extract(is_it).into_iter().filter_map(|handed| match handed {
            InheritedSocket::Tcp(listener) => Some(listener),
            _ => None,
        });
        let taken: Vec<TcpListener> = taken.collect();
        taken.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        Ok(taken)
    }

    /// The socket that listens on `address`, inherited or newly bound. It is recorded for a
    /// successor.
    ///
    /// # Errors
    /// If no socket is inherited and none can be bound.
    pub fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let handed = self.take(address)?.into_iter().next();
        let bound =
            || TcpListener::bind(address).map_err(|error| self.with_neighbours(address, error));
        let listener = handed.map_or_else(bound, Ok)?;
        listener.set_nonblocking(true)?;
        self.record_open(&listener)?;
        Ok(listener)
    }

    /// The sockets that listen on `address` for each of `count` threads: inherited ones, or a new
    /// one for each thread. They are recorded for a successor. With fewer inherited sockets than
    /// threads, some threads share one; with more, some threads have several. The address that is
    /// returned with them has the port that the system assigned.
    ///
    /// # Errors
    /// If no socket is inherited and none can be bound.
    pub fn listen_each(
        &self,
        address: SocketAddr,
        count: usize,
    ) -> io::Result<(SocketAddr, Vec<Vec<TcpListener>>)> {
        let listeners = match self.take(address)? {
            handed if handed.is_empty() => shared::bind(address, count)
                .map_err(|error| self.with_neighbours(address, error))?,
            handed => handed,
        };
        listeners.iter().try_for_each(|listener| self.record_open(listener))?;
        let mut threads: Vec<Vec<TcpListener>> = (0..count).map(|_| Vec::new()).collect();
        for index in 0..count.max(listeners.len()) {
            threads[index % count].push(listeners[index % listeners.len()].try_clone()?);
        }
        Ok((listeners[0].local_addr()?, threads))
    }

    /// Takes the inherited Unix socket at one of `paths`. The first path is the one in the
    /// configuration.
    ///
    /// # Errors
    /// If the socket cannot be set to non-blocking mode.
    pub fn take_file(&self, paths: &[&Path]) -> io::Result<Option<UnixListener>> {
        paths.first().map_or(Ok(()), |path| self.ensure_listed(&SocketSpec::File(path.into())))?;
        let is_it = |handed: &InheritedSocket| match handed {
            InheritedSocket::File(listener) => listener
                .local_addr()
                .is_ok_and(|at| at.as_pathname().is_some_and(|bound| paths.contains(&bound))),
            _ => false,
        };
        match self.extract(is_it).into_iter().next() {
            Some(InheritedSocket::File(listener)) => {
                listener.set_nonblocking(true)?;
                Ok(Some(listener))
            }
            _ => Ok(None),
        }
    }

    /// Takes the inherited UDP socket at `address`.
    ///
    /// # Errors
    /// If the socket cannot be set to non-blocking mode.
    pub fn take_datagrams(&self, address: SocketAddr) -> io::Result<Option<UdpSocket>> {
        self.ensure_listed(&SocketSpec::Datagrams(address))?;
        let is_it = |handed: &InheritedSocket| match handed {
            InheritedSocket::Datagrams(socket) => {
                socket.local_addr().is_ok_and(|at| is_for(at, address))
            }
            _ => false,
        };
        match self.extract(is_it).into_iter().next() {
            Some(InheritedSocket::Datagrams(socket)) => {
                socket.set_nonblocking(true)?;
                Ok(Some(socket))
            }
            _ => Ok(None),
        }
    }

    /// Adds to `error` the inherited sockets with the same port that are not for `address`, because
    /// one of them may be the cause. The result then has an inner error.
    fn with_neighbours(&self, address: SocketAddr, error: io::Error) -> io::Error {
        let inherited = self.inherited.lock();
        let near = inherited.iter().filter(|handed| handed.port() == Some(address.port()));
        let near: Vec<String> = near.filter_map(InheritedSocket::place).collect();
        if near.is_empty() || error.kind() != io::ErrorKind::AddrInUse {
            return error;
        }
        let near = near.join(", ");
        io::Error::new(error.kind(), format!("{error}; inherited but not used: {near}"))
    }

    fn extract(&self, is_it: impl Fn(&InheritedSocket) -> bool) -> Vec<InheritedSocket> {
        let mut inherited = self.inherited.lock();
        let all = std::mem::take(&mut *inherited);
        let (taken, left) = all.into_iter().partition(is_it);
        *inherited = left;
        taken
    }

    /// Records a door's socket for a successor.
    ///
    /// # Errors
    /// If the system provides no descriptor for the duplicate.
    pub fn record_open(&self, socket: &impl AsFd) -> io::Result<()> {
        if let Some(open) = &mut *self.open.lock() {
            open.push(socket.as_fd().try_clone_to_owned()?);
        }
        Ok(())
    }

    /// A handle that tells when a successor accepts clients.
    #[must_use]
    pub fn passed(&self) -> HandoverSignal {
        HandoverSignal(self.passed.subscribe())
    }

    /// Announces that a successor accepts clients from now on. Existing clients are still served.
    pub fn pass(&self) {
        self.passed.send_replace(true);
    }

    /// Closes the inherited sockets that no door has taken, and returns their addresses.
    #[must_use]
    pub fn close_untaken(&self) -> Vec<String> {
        let rest = std::mem::take(&mut *self.inherited.lock());
        rest.iter().filter_map(InheritedSocket::place).collect()
    }

    /// Closes the duplicates for a successor. While any process has a socket open, the system
    /// accepts connections on it.
    pub fn release(&self) {
        *self.open.lock() = None;
    }
}

/// Whether a socket bound to `bound` serves a door at `address`.
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
        let handed = listeners.into_iter().map(InheritedSocket::Tcp).collect();
        let sockets = ListenSockets { inherited: Mutex::new(handed), ..ListenSockets::default() };
        assert_eq!(sockets.take(at[0]).expect("taken").len(), 1);
        assert!(sockets.take(at[0]).expect("none").is_empty());
        assert_eq!(sockets.close_untaken(), [at[1].to_string()]);
        assert!(sockets.take(at[1]).expect("none").is_empty());
    }

    #[test]
    fn a_door_has_what_is_listed_and_nothing_else() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let opening = SocketOpening { way: &["line", "listen"], socket: SocketSpec::Tcp(address) };
        let sockets = ListenSockets::default().only(vec![opening]);
        assert!(sockets.listen(address).is_ok());
        let other = "127.0.0.2:0".parse().expect("an address");
        let refused = [
            sockets.listen(other).err(),
            sockets.listen_each(other, 2).err(),
            sockets.take_datagrams(address).err(),
            sockets.take_file(&[Path::new("/a.sock")]).err(),
        ];
        for error in refused {
            let told = error.expect("it is not listed").to_string();
            assert!(told.contains("the configuration does not list it"), "{told}");
        }
    }

    #[test]
    fn who_is_in_the_way_is_named() {
        let listener = TcpListener::bind("0.0.0.0:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        let handed = vec![InheritedSocket::Tcp(listener)];
        let sockets = ListenSockets { inherited: Mutex::new(handed), ..ListenSockets::default() };
        let asked = SocketAddr::from(([127, 0, 0, 1], at.port()));
        let alone = sockets.listen(asked).expect_err("it is taken");
        let each = sockets.listen_each(asked, 2).expect_err("it is taken");
        for error in [alone, each] {
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            assert!(error.get_ref().is_some());
            let said = error.to_string();
            assert!(said.ends_with(&format!("; inherited but not used: {at}")), "{said}");
        }
        let other = TcpListener::bind("127.0.0.1:0").expect("a port");
        let error = sockets.listen(other.local_addr().expect("bound")).expect_err("taken too");
        assert!(!error.to_string().contains("inherited but"), "{error}");
    }

    #[test]
    fn kinds_are_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.sock");
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = tcp.local_addr().expect("bound");
        // The same port number, but UDP.
        let datagrams = UdpSocket::bind(at).expect("a port");
        let file = UnixListener::bind(&path).expect("a socket");
        let handed = vec![
            InheritedSocket::Datagrams(datagrams),
            InheritedSocket::File(file),
            InheritedSocket::Tcp(tcp),
        ];
        let sockets = ListenSockets { inherited: Mutex::new(handed), ..ListenSockets::default() };
        assert!(sockets.take_file(&[Path::new("/b.sock")]).expect("none").is_none());
        assert!(sockets.take_datagrams(at).expect("taken").is_some());
        assert!(sockets.take_datagrams(at).expect("none").is_none());
        let (_, threads) = sockets.listen_each(at, 3).expect("taken");
        assert_eq!(threads.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
        assert!(sockets.take_file(&[Path::new("/b.sock"), &path]).expect("taken").is_some());
        assert!(sockets.close_untaken().is_empty());
    }

    #[test]
    fn every_socket_that_is_handed_in_is_listened_on() {
        let shared = || {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let socket = socket.expect("a socket");
            socket.set_reuse_port(true).expect("a mode");
            socket
        };
        let first = shared();
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        first.bind(&any.into()).expect("a port");
        let at = first.local_addr().expect("bound");
        let rest = (0..2).map(|_| shared()).inspect(|socket| socket.bind(&at).expect("shared"));
        let handed = std::iter::once(first).chain(rest);
        let handed = handed.map(|socket| InheritedSocket::Tcp(socket.into())).collect();
        let sockets = ListenSockets { inherited: Mutex::new(handed), ..ListenSockets::default() };
        let at = at.as_socket().expect("a port");
        let (_, threads) = sockets.listen_each(at, 2).expect("taken");
        assert_eq!(threads.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }
}
