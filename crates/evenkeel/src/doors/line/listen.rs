//! What the door listens on: TCP, one socket for each thread, and files that are sockets, shared.
//!
//! A socket's file is made under another name, given its permissions, and only then put in its
//! place, so nobody connects who may not. One that is left over from a program that is gone is
//! replaced; one that somebody listens on is not. It is removed at the end if it is still ours, and
//! no process that took our place has it.

use super::StartError;
use crate::config::settings::{Line, Listen};
use crate::run::handover::{Passed, Sockets};
use rustix::fs::{Mode, chmod, rename, stat, unlink};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// What is spoken behind a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tongue {
    /// Tags and newlines.
    Lines,
    /// The Redis protocol.
    Resp,
}

/// A listener of one thread.
pub enum Listener {
    /// With a port.
    Tcp(TcpListener, Tongue),
    /// A file.
    Unix(UnixListener),
}

/// Everything that is listened on.
#[derive(Default)]
pub struct Bound {
    /// The listeners of each thread.
    pub threads: Vec<Vec<Listener>>,
    /// Where, in the order of the settings, with the ports that the system gave.
    pub lines: Vec<Listen>,
    /// The same for Redis clients.
    pub resp: Vec<SocketAddr>,
    /// The files, to be removed at the end.
    pub files: Vec<SocketFile>,
}

/// Listens on everything that `settings` name, for `count` threads.
///
/// # Errors
/// Something cannot be listened on. Nothing is, then.
pub fn bind(settings: &Line, count: usize, sockets: &Sockets) -> Result<Bound, StartError> {
    let threads = (0..count).map(|_| Vec::new()).collect();
    let mut bound = Bound { threads, ..Bound::default() };
    for listen in &settings.listen {
        let failed = |error| StartError::listen(listen.to_string(), error);
        match listen {
            Listen::Tcp(address) => {
                let address = bound.tcp(*address, Tongue::Lines, sockets).map_err(failed)?;
                bound.lines.push(Listen::Tcp(address));
            }
            Listen::Unix(path) => {
                bound.unix(path, settings.socket_mode, sockets).map_err(failed)?;
                bound.lines.push(listen.clone());
            }
        }
    }
    for address in &settings.resp {
        let failed = |error| StartError::listen(address.to_string(), error);
        let address = bound.tcp(*address, Tongue::Resp, sockets).map_err(failed)?;
        bound.resp.push(address);
    }
    Ok(bound)
}

impl Bound {
    /// One socket for each thread; the system spreads connections over them.
    fn tcp(
        &mut self,
        address: SocketAddr,
        tongue: Tongue,
        sockets: &Sockets,
    ) -> io::Result<SocketAddr> {
        let each = sockets.listen_each(address, self.threads.len())?;
        let first = each.iter().flatten().next().map(TcpListener::local_addr).transpose()?;
        for (thread, listeners) in self.threads.iter_mut().zip(each) {
            thread.extend(listeners.into_iter().map(|listener| Listener::Tcp(listener, tongue)));
        }
        Ok(first.unwrap_or(address))
    }

    /// One socket for all: whoever is free takes a connection.
    fn unix(&mut self, path: &Path, mode: u32, sockets: &Sockets) -> io::Result<()> {
        // The system knows it by the name that it was made under.
        let handed = sockets.take_file(&[path, &beside(path)])?;
        let listener = handed.map_or_else(|| file_socket(path, mode), Ok)?;
        sockets.opened(&listener)?;
        self.files.push(SocketFile::of(path, sockets.passed())?);
        for listeners in &mut self.threads {
            listeners.push(Listener::Unix(listener.try_clone()?));
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
    // Left over from a start that was killed.
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

/// Under what name a socket is made before it is put in its place.
fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    PathBuf::from(beside)
}

/// A file that is a socket of ours; it is removed when this is dropped.
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    passed: Passed,
}

impl SocketFile {
    fn of(path: &Path, passed: Passed) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), identity: identity(path)?, passed })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.passed.is_so() && identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = unlink(&self.path);
        }
    }
}

/// What tells a file from another one under its name.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let there = stat(path)?;
    Ok((there.st_dev, there.st_ino))
}
