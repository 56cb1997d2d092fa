//! Open files: as many as the system allows, and no more connections than it has files for.
//!
//! Without this a busy hour ends in accept failing, which costs clients their requests. Nothing
//! here decides what happens to a connection: the doors do, by their bounds.

use crate::config::settings::Proxy;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files besides those of requests: listeners, the admin door, the log, event queues.
const FILES_BESIDES: u64 = 256;

/// Every connection takes two descriptors. Without one, a client is not taken in or gets a 502: so
/// there are no more connections than descriptors, and those that are idle make room.
pub fn within_open_files(proxy: &Proxy) -> Proxy {
    let mut proxy = proxy.clone();
    let Some(files) = getrlimit(Resource::Nofile).current else { return proxy };
    let spare = FILES_BESIDES.min(files / 2);
    let affordable = usize::try_from((files - spare) / 2).unwrap_or(usize::MAX).max(1);
    let bound = &mut proxy.bounds.connections;
    if *bound == 0 || *bound > affordable {
        *bound = affordable;
    }
    proxy
}

/// Every connection takes two descriptors; the usual soft limit of 1024 is for programs that use
/// `select`. If there are too few for `connections` at once, that is told.
pub fn raise_open_files(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit on open files could not be raised");
    }
    let (limit, needed) = (getrlimit(Resource::Nofile).current, open_files(connections));
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            "the limit on open files is too low for `bounds.connections`: {connections} \
             connections may need {needed} files, and {limit} are allowed; raise the hard limit \
             (LimitNOFILE= of a systemd unit), or lower the bound; till then fewer are let in"
        );
    }
}

/// How many open files so many client connections may need; without a bound nobody knows.
fn open_files(connections: usize) -> u64 {
    let connections = u64::try_from(connections).unwrap_or(u64::MAX);
    if connections == 0 { 0 } else { connections.saturating_mul(2).saturating_add(FILES_BESIDES) }
}
