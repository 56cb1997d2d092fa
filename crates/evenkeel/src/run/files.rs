//! Open files: raises the limit to the hard limit, and bounds the number of connections by it.
//!
//! Without this, accept fails under load, and clients lose their requests. The doors decide about
//! single connections, by their bounds.

use evenkeel_ask::{check, ext_proc};
use evenkeel_config::settings::Settings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Reserve of open files for listeners, the admin door, the log and event queues.
const FILES_RESERVE: u64 = 256;

/// Returns `settings` with the connections of proxy and line door bounded by the limit of open
/// files. A connection of the proxy needs two descriptors, one of the line door needs one. Without
/// a descriptor, a client is not accepted or gets a 502; with the bound, idle connections are
/// closed instead.
pub fn within_open_files(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    let Some(files) = getrlimit(Resource::Nofile).current else { return settings };
    let spare = files - FILES_RESERVE.min(files / 2);
    let bound = |connections: &mut usize, files_each: u64| {
        let affordable = usize::try_from(spare / files_each).unwrap_or(usize::MAX).max(1);
        if *connections == 0 || *connections > affordable {
            *connections = affordable;
        }
    };
    settings.proxy.iter_mut().for_each(|proxy| bound(&mut proxy.bounds.connections, 2));
    settings.line.iter_mut().for_each(|line| bound(&mut line.connections, 1));
    settings
}

/// Raises the soft limit to the hard limit; the usual soft limit of 1024 is meant for programs that
/// use `select`. Logs a warning if the limit is too low for the configured connections.
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

/// The warning if the limit is too low for the configured connections.
pub fn too_few(settings: &Settings) -> Option<String> {
    let (limit, needed) = (getrlimit(Resource::Nofile).maximum, open_files(settings));
    limit.filter(|limit| *limit < needed).map(|limit| {
        let keys = needs(settings).filter(|(_, files)| *files > 0).map(|(key, _)| key);
        let keys = keys.collect::<Vec<_>>().join("`, `");
        format!(
            "the limit on open files is too low for the allowed connections (`{keys}`): they may \
             need {needed} files, and the limit is {limit}; until the hard limit is raised \
             (LimitNOFILE= of a systemd unit) or the bounds are lowered, fewer connections are \
             accepted"
        )
    })
}

/// Number of open files that all connections may need.
pub fn open_files(settings: &Settings) -> u64 {
    let needed = needs(settings).fold(0, |sum: usize, (_, files)| sum.saturating_add(files));
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    if needed == 0 { 0 } else { needed.saturating_add(FILES_RESERVE) }
}

/// The key that bounds the connections of each door, and how many open files they may need: two for
/// each connection of the proxy. Doors without a bound and a proxy that does not listen need none.
fn needs(settings: &Settings) -> impl Iterator<Item = (&'static str, usize)> {
    let proxy = settings.proxy.as_ref().filter(|proxy| !proxy.listen.is_empty());
    let envoys = ext_proc::connections_max(settings.ext_proc.as_ref(), settings.ext_authz.as_ref());
    [
        (
            "proxy.bounds.connections",
            proxy.map_or(0, |proxy| proxy.bounds.connections.saturating_mul(2)),
        ),
        ("line.connections", settings.line.as_ref().map_or(0, |line| line.connections)),
        ("check.waiting_max", settings.check.as_ref().map_or(0, check::connections_max)),
        ("ext_proc.connections_max", envoys),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_doors_that_are_open_need_files() {
        let needed = |text: &str| {
            let config = evenkeel_config::parse("t", text.as_bytes(), 1.0).expect("good");
            open_files(&config.settings)
        };
        assert_eq!(needed("proxy: {bounds: {connections: 100}}"), 456);
        assert_eq!(needed("proxy: {bounds: {connections: 0}}"), 0);
        let check = "check: {waiting_max: 10}\nproxy: {listen: off, bounds: {connections: 100}}";
        assert_eq!(needed(check), 10 + 1024 + 256);
        let config = evenkeel_config::parse("t", check.as_bytes(), 1.0).expect("good");
        let keys = needs(&config.settings).filter(|(_, files)| *files > 0);
        assert_eq!(keys.map(|(key, _)| key).collect::<Vec<_>>(), ["check.waiting_max"]);
    }
}
