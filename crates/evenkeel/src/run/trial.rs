//! Finds out why a start would fail, without a start: each socket of a configuration is bound as at
//! a start, and closed at once.
//!
//! No client can connect in the meantime: TCP sockets do not listen, and a Unix socket is bound
//! under another name next to its path. A socket that is impossible on this machine is a fault. An
//! address in use by another program is only a warning, because it may be free at the start; an
//! address in use by another Evenkeel is fine. The list of sockets is `config::settings::sockets`.

use super::files;
use evenkeel_config::cpus::processes;
use evenkeel_config::settings::Settings;
use evenkeel_config::settings::sockets::{SocketOpening, SocketSpec};
use evenkeel_config::{StartProblem, StartProblems};
use evenkeel_peers::multicast;
use evenkeel_serve::handover::shared;
use rustix::fs::{Access, FileType, access, stat, unlink};
use std::ffi::OsString;
use std::io;
use std::net::UdpSocket;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Problems that a start with these settings would have, and its warnings.
pub fn trial(settings: &Settings) -> StartProblems {
    let mut found = StartProblems::default();
    for opening in settings.openings() {
        let Err(error) = bind(&opening.socket) else { continue };
        let taken = error.kind() == io::ErrorKind::AddrInUse;
        if taken && processes::held_by_evenkeel(&opening.socket) {
            continue;
        }
        let of = if taken { &mut found.doubts } else { &mut found.faults };
        of.push(describe_error(&opening, &error));
    }
    found.doubts.extend(snapshot(settings));
    found
        .doubts
        .extend(files::too_few(settings).map(|what| -> StartProblem { (&["proxy"], what) }));
    found
}

fn describe_error(opening: &SocketOpening, error: &io::Error) -> StartProblem {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => "another program uses it, so a start would fail",
        io::ErrorKind::AddrNotAvailable => "it is not an address of this machine",
        io::ErrorKind::PermissionDenied if matches!(opening.socket, SocketSpec::File(_)) => {
            "this user may not write into its folder"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE",
        io::ErrorKind::NotFound => {
            "create its folder first (RuntimeDirectory= of a systemd unit creates it at each start)"
        }
        io::ErrorKind::AlreadyExists => "a file that is not a socket exists there",
        _ => "name another",
    };
    (opening.way, format!("cannot listen on {}: {error}; {advice}", opening.socket))
}

fn bind(socket: &SocketSpec) -> io::Result<()> {
    match socket {
        SocketSpec::Tcp(address) => shared::try_bind(*address),
        SocketSpec::Datagrams(address) => UdpSocket::bind(address).map(drop),
        SocketSpec::File(path) => bind_file(path),
        SocketSpec::Group { group, interface, hops } => {
            let plan =
                multicast::MulticastPlan { group: *group, interface: *interface, hops: *hops };
            multicast::try_join(plan).map_err(|why| match why {
                multicast::MulticastStartError::Join { why, .. } => why,
                other => io::Error::other(other.to_string()),
            })
        }
    }
}

/// Binds next to the file, because another program may use the file itself.
fn bind_file(path: &Path) -> io::Result<()> {
    if UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    if let Ok(there) = stat(path)
        && !FileType::from_raw_mode(there.st_mode).is_socket()
    {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut beside: OsString = path.into();
    beside.push(".try");
    let beside = PathBuf::from(beside);
    // May remain from a check that was killed.
    let _ = unlink(&beside);
    UnixListener::bind(&beside)?;
    Ok(unlink(&beside)?)
}

/// Warning for a folder that is not writable. A start would succeed, but write no snapshots.
fn snapshot(settings: &Settings) -> Option<StartProblem> {
    let file = settings.state.file.as_ref()?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let error = access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    // A missing folder is reported by `config`.
    (error != rustix::io::Errno::NOENT).then(|| -> StartProblem {
        let what = format!("no snapshot can be written in {}: {error}", folder.display());
        (&["state", "file"], what)
    })
}
