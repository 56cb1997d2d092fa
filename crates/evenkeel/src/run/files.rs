//! Open files: as many as the system allows, and no more connections than it has files for.
//!
//! Without this a busy hour ends in accept failing, which costs clients their requests. Nothing
//! here decides what happens to a connection: the doors do, by their bounds.

use crate::config::settings::{Line, Proxy, Settings};
use crate::doors::check;
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

/// A connection of the line door takes one descriptor.
pub fn line_within_open_files(line: &Line) -> Line {
    let mut line = line.clone();
    let Some(files) = getrlimit(Resource::Nofile).current else { return line };
    let spare = FILES_BESIDES.min(files / 2);
    let affordable = usize::try_from(files - spare).unwrap_or(usize::MAX).max(1);
    if line.connections == 0 || line.connections > affordable {
        line.connections = affordable;
    }
    line
}

/// The usual soft limit of 1024 is for programs that use `select`. If there are too few for the
/// connections that the doors may have, that is told.
pub fn raise_open_files(settings: &Settings) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit on open files could not be raised");
    }
    if let Some(what) = too_few(settings) {
        tracing::warn!("{what}");
    }
}

/// What is wrong if there are too few for the connections that the doors may have.
pub fn too_few(settings: &Settings) -> Option<String> {
    let (limit, needed) = (getrlimit(Resource::Nofile).maximum, open_files(settings));
    limit.filter(|limit| *limit < needed).map(|limit| {
        format!(
            "the limit on open files is too low for the connections that are allowed \
             (`proxy.bounds.connections`, `line.connections`, `check.waiting_max`): they may need \
             {needed} files, and {limit} are allowed; raise the hard limit (LimitNOFILE= of a \
             systemd unit), or lower the bounds; till then fewer are let in"
        )
    })
}

/// How many open files all connections may need: one at the proxy takes two; without a bound
/// nobody knows. A proxy that is shut takes none.
fn open_files(settings: &Settings) -> u64 {
    let proxy = settings.proxy.as_ref().filter(|proxy| !proxy.listen.is_empty());
    let proxy = proxy.map_or(0, |proxy| proxy.bounds.connections);
    let line = settings.line.as_ref().map_or(0, |line| line.connections);
    let check = settings.check.as_ref().map_or(0, check::connections_max);
    let needed = proxy.saturating_mul(2).saturating_add(line).saturating_add(check);
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    if needed == 0 { 0 } else { needed.saturating_add(FILES_BESIDES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_doors_that_are_open_need_files() {
        let needed = |text: &str| {
            let config = crate::config::parse("t", text.as_bytes(), 1.0).expect("good");
            open_files(&config.settings)
        };
        assert_eq!(needed("proxy: {bounds: {connections: 100}}"), 456);
        assert_eq!(needed("proxy: {bounds: {connections: 0}}"), 0);
        let check = "check: {waiting_max: 10}\nproxy: {listen: off, bounds: {connections: 100}}";
        assert_eq!(needed(check), 10 + 1024 + 256);
    }
}
