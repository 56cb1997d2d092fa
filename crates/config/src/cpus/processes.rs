//! Finds processes of this machine by their sockets, as far as this process may see them.
//!
//! Sockets are found in the tables of `/proc/net`, and their owners by the links in `/proc/PID/fd`.

use crate::settings::sockets::SocketSpec;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// State of a listening socket in `/proc/net/tcp`.
const TCP_STATE_LISTEN: &str = "0A";
/// State of an unconnected socket in `/proc/net/udp`, which receives datagrams from any sender.
const UDP_STATE_UNCONNECTED: &str = "07";

/// Folders in `/proc` of the processes that listen on the TCP port `port`.
pub fn listening_on(port: u16) -> Vec<PathBuf> {
    having(&sockets(["/proc/net/tcp", "/proc/net/tcp6"], TCP_STATE_LISTEN, port))
}

/// Whether all processes that have this socket open run a program with the same file name as this
/// one. False if no such process is visible.
#[must_use]
pub fn held_by_evenkeel(socket: &SocketSpec) -> bool {
    let holders = match socket {
        SocketSpec::Tcp(address) => listening_on(address.port()),
        SocketSpec::Datagrams(address) => having(&sockets(
            ["/proc/net/udp", "/proc/net/udp6"],
            UDP_STATE_UNCONNECTED,
            address.port(),
        )),
        SocketSpec::File(path) => {
            let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
            having(&bound_to(&table, &path.display().to_string()))
        }
        SocketSpec::Group { .. } => return false,
    };
    !holders.is_empty() && holders.iter().all(|process| runs_evenkeel(process))
}

/// The processes that listen on the TCP port `port` and run a program with the same file name as
/// this one.
#[must_use]
pub fn evenkeel_on(port: u16) -> Vec<i32> {
    let ours = listening_on(port).into_iter().filter(|process| runs_evenkeel(process));
    ours.filter_map(|process| process.file_name()?.to_str()?.parse().ok()).collect()
}

/// Whether the process runs a program with the same file name as this one.
fn runs_evenkeel(process: &Path) -> bool {
    let own = std::env::current_exe().ok();
    let own = own.as_ref().and_then(|path| path.file_name()?.to_str());
    let program = fs::read_link(process.join("exe")).ok();
    let name = program.as_ref().and_then(|path| path.file_name()?.to_str());
    // After an upgrade, the old process runs a file that no longer exists.
    name.is_some_and(|name| own.is_some() && name.strip_suffix(" (deleted)").or(Some(name)) == own)
}

fn having(sockets: &BTreeSet<String>) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let has_one = |process: &PathBuf| {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut links = open.filter_map(|fd| fs::read_link(fd.path()).ok());
        links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
    };
    processes.map(|process| process.path()).filter(has_one).collect()
}

fn sockets(tables: [&str; 2], state: &str, port: u16) -> BTreeSet<String> {
    let tables = tables.into_iter().map(fs::read_to_string).filter_map(Result::ok);
    tables.flat_map(|table| listed(&table, state, port)).collect()
}

/// The sockets of a table with this state and port, in the form of the links in `/proc/PID/fd`.
fn listed(table: &str, state: &str, port: u16) -> Vec<String> {
    let sockets = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, hex) = words.get(1)?.rsplit_once(':')?;
        let is_it = words.get(3) == Some(&state) && u16::from_str_radix(hex, 16) == Ok(port);
        is_it.then(|| words.get(9).map(|inode| format!("socket:[{inode}]")))?
    });
    sockets.collect()
}

/// The sockets that are bound to `path`, or that were bound to `path` with `.new` appended and then
/// renamed.
fn bound_to(table: &str, path: &str) -> BTreeSet<String> {
    let sockets = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bound = words.get(7)?;
        let is_it = *bound == path || bound.strip_suffix(".new") == Some(path);
        is_it.then(|| words.get(6).map(|inode| format!("socket:[{inode}]")))?
    });
    sockets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_found_by_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1\n\
            1: 0100007F:1F90 0100007F:0001 01 00000000:00000000 00:00000000 00000000 0 0 4712 1\n\
            2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4713 1\n";
        assert_eq!(listed(table, TCP_STATE_LISTEN, 8080), ["socket:[4711]"]);
        assert!(
            listed(table, TCP_STATE_LISTEN, 1).is_empty()
                && listed("", TCP_STATE_LISTEN, 80).is_empty()
        );
    }

    #[test]
    fn files_are_found_under_the_name_that_they_were_bound_by() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 4711 /run/a.sock.new\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 4712 /run/b.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 4713\n";
        let found = |path| bound_to(table, path).into_iter().collect::<Vec<_>>();
        assert_eq!(found("/run/a.sock"), ["socket:[4711]"]);
        assert_eq!(found("/run/b.sock"), ["socket:[4712]"]);
        assert!(found("/run/c.sock").is_empty());
    }

    #[test]
    fn what_this_program_has_is_ours() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        assert!(held_by_evenkeel(&SocketSpec::Tcp(at)));
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        assert!(held_by_evenkeel(&SocketSpec::Datagrams(datagrams.local_addr().expect("bound"))));
        drop(listener);
        assert!(!held_by_evenkeel(&SocketSpec::File("/nowhere/a.sock".into())));
    }

    #[test]
    fn fuzz_whatever_the_tables_say_nothing_breaks() {
        evenkeel_fuzz::fuzz().with_type::<(String, u16)>().for_each(|(text, port)| {
            let _ = (listed(text, TCP_STATE_LISTEN, *port), bound_to(text, "/a"));
        });
    }
}
