//! Binds the door's listeners: for TCP one socket per thread, and socket files, which all threads
//! share.
//!
//! A socket file is created under another name, gets its permissions, and is then renamed, so no
//! client connects without permission. A file left over from a program that has ended is replaced;
//! one that a process listens on is not. The file is removed at the end if it is still the same
//! file and no other process has taken the socket over.

use evenkeel_config::settings::{LineSettings, StreamAddress};
use evenkeel_serve::handover::{HandoverSignal, ListenSockets};
use evenkeel_serve::start::ServerStartError;
use rustix::fs::{Mode, chmod, rename, stat, unlink};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineProtocol {
    /// Tags and newlines.
    Lines,
    Resp,
}

pub enum LineListener {
    Tcp(TcpListener, LineProtocol),
    /// A socket file, which speaks the line protocol.
    Unix(UnixListener),
}

#[derive(Default)]
pub struct LineListeners {
    pub threads: Vec<Vec<LineListener>>,
    /// The addresses of the line protocol, in the order of the settings, with the ports that the
    /// system assigned.
    pub lines: Vec<StreamAddress>,
    /// The addresses for Redis clients, in the order of the settings.
    pub resp: Vec<SocketAddr>,
    /// The socket files to be removed at the end.
    pub files: Vec<SocketFile>,
}

/// Listens on every address in `settings`, with `count` threads.
///
/// # Errors
/// The listener for an address cannot be opened. Then no listener is open.
pub fn bind(
    settings: &LineSettings,
    count: usize,
    sockets: &ListenSockets,
) -> Result<LineListeners, ServerStartError> {
    let threads = (0..count).map(|_| Vec::new()).collect();
    let mut bound = LineListeners { threads, ..LineListeners::default() };
    for listen in &settings.listen {
        let failed = ServerStartError::listen("line", listen);
        match listen {
            StreamAddress::Tcp(address) => {
                let address = bound.tcp(*address, LineProtocol::Lines, sockets).map_err(failed)?;
                bound.lines.push(StreamAddress::Tcp(address));
            }
            StreamAddress::Unix(path) => {
                bound.unix(path, settings.socket_mode, sockets).map_err(failed)?;
                bound.lines.push(listen.clone());
            }
        }
    }
    for address in &settings.resp {
        let failed = ServerStartError::listen("line", address);
        let address = bound.tcp(*address, LineProtocol::Resp, sockets).map_err(failed)?;
        bound.resp.push(address);
    }
    Ok(bound)
}

impl LineListeners {
    /// Binds one socket per thread. The system spreads connections over them.
    fn tcp(
        &mut self,
        address: SocketAddr,
        tongue: LineProtocol,
        sockets: &ListenSockets,
    ) -> io::Result<SocketAddr> {
        let (bound, each) = sockets.listen_each(address, self.threads.len())?;
        for (thread, listeners) in self.threads.iter_mut().zip(each) {
            thread
                .extend(listeners.into_iter().map(|listener| LineListener::Tcp(listener, tongue)));
        }
        Ok(bound)
    }

    /// Binds one socket for all threads: a free thread accepts the next connection.
    fn unix(&mut self, path: &Path, mode: u32, sockets: &ListenSockets) -> io::Result<()> {
        // The system knows the socket by the name that it was created under.
        let handed = sockets.take_file(&[path, &beside(path)])?;
        let listener = handed.map_or_else(|| file_socket(path, mode), Ok)?;
        sockets.record_open(&listener)?;
        self.files.push(SocketFile::of(path, sockets.passed())?);
        for listeners in &mut self.threads {
            listeners.push(LineListener::Unix(listener.try_clone()?));
        }
        Ok(())
    }
}

fn file_socket(path: &Path, mode: u32) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    if let Ok(there) = stat(path)
        && !rustix::fs::FileType::from_raw_mode(there.st_mode).is_socket()
    {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let beside = beside(path);
    // Remove a leftover of a start that was killed.
    let _ = unlink(&beside);
    let listener = UnixListener::bind(&beside)?;
    let placed = chmod(&beside, Mode::from_raw_mode(mode)).and_then(|()| rename(&beside, path));
    if let Err(error) = placed {
        let _ = unlink(&beside);
        return Err(error.into());
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns the name under which a socket file is created before it is renamed.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    PathBuf::from(beside)
}

/// A socket file of this process. Dropping this removes the file.
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    passed: HandoverSignal,
}

impl SocketFile {
    fn of(path: &Path, passed: HandoverSignal) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), identity: identity(path)?, passed })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.passed.has_passed()
            && identity(&self.path).is_ok_and(|there| there == self.identity)
        {
            let _ = unlink(&self.path);
        }
    }
}

/// Returns the device and inode of a file, which distinguish it from another file with its name.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let there = stat(path)?;
    Ok((there.st_dev, there.st_ino))
}
