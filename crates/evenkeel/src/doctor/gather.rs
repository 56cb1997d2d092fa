//! Gathers the facts: from the configuration file, the running server, this machine and the
//! backends.
//!
//! What cannot be read is absent from the facts, with its reason where a check can use it. Nothing
//! is judged here: `examine`.

use super::facts::{BackendFacts, FileFacts, MetricSeries, RecentLoad, ServerFacts, SetupFacts};
use super::probe;
use crate::cli::check;
use crate::cli::remote::{AdminClient, AdminClientError};
use evenkeel_config::cpus::cgroup::{CgroupLoad, backend_cgroups};
use evenkeel_config::host::{self, HostFacts};
use evenkeel_config::machine::Machine;
use evenkeel_config::settings::{BackendAddress, ProxySettings, Settings};
use evenkeel_config::source::{ConfigSource, default_path};
use evenkeel_telemetry::printable::printable;
use evenkeel_telemetry::snapshot::{ClientRow, ROWS_MAX, TopQuery, TopSnapshot};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The number of different lines of the configuration that are named.
const DIFFERENCES_MAX: usize = 3;
/// The length of the history that counts as recent, in seconds.
const RECENT_SECS: u64 = 600;
/// The number of clients in debt whose history is examined.
const DEBTORS_MAX: usize = 3;
/// The time limit for the program that knows whether the clock is synchronised.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Where facts come from.
pub struct DoctorSources<'a> {
    /// The configuration file; `None`: that of the server, else the default one.
    pub config: Option<&'a Path>,
    /// The server.
    pub remote: AdminClient<'a>,
    /// Whether backends are asked.
    pub probes: bool,
}

/// Gathers all facts.
pub async fn gather(sources: &DoctorSources<'_>) -> SetupFacts {
    let is_here = is_here(sources.remote.address);
    let server = server(&sources.remote).await.map_err(|error| error.to_string());
    let path = match (sources.config, &server) {
        (Some(path), _) => Some(path.to_owned()),
        (None, _) if !is_here => None,
        (None, Ok((server, _))) => server.setup.config_file.as_ref().map(PathBuf::from),
        (None, Err(_)) => default_path().ok(),
    };
    let running = server.as_ref().ok().map(|(_, native)| native.as_str());
    let (file, of_file) = path.map_or_else(Default::default, |path| file(&path, running));
    let of_server = running
        .and_then(|native| evenkeel_config::parse("", native.as_bytes(), Machine::here()).ok());
    let settings = of_server.map(|config| config.settings).or(of_file);
    let server = server.map(|(server, _)| server);
    let mut host = match &server {
        Ok(server) => server.setup.host.clone(),
        Err(_) => HostFacts::read(),
    };
    if is_here && host.clock_follows.is_none() {
        host.clock_follows = clock_follows().await;
    }
    let proxy = settings.as_ref().and_then(|settings| settings.proxy.as_ref());
    let proxy = proxy.filter(|proxy| !proxy.listen.is_empty() && is_here);
    let mut backends = Vec::new();
    for backend in proxy.iter().flat_map(|proxy| &proxy.backends) {
        backends.extend(proxy.map(|proxy| (backend, proxy)));
    }
    let mut examined = Vec::new();
    for (backend, proxy) in backends {
        examined.push(backend_facts(backend, proxy, sources.probes).await);
    }
    let token = settings.as_ref().and_then(|all| all.admin.as_ref()?.token_file.as_deref());
    SetupFacts {
        token_readable: token.and_then(host::is_readable_by_others),
        file,
        server,
        admin: sources.remote.address.to_owned(),
        settings,
        host,
        backends: examined,
    }
}

/// Whether the admin address is of this machine.
fn is_here(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// The facts about the server, and its configuration.
async fn server(remote: &AdminClient<'_>) -> Result<(ServerFacts, String), AdminClientError> {
    let setup = remote.setup().await?;
    let (_, top) = remote.snapshot(&TopQuery { limit: None, rows: ROWS_MAX }).await?;
    let metrics = MetricSeries::parse(&remote.metrics().await?);
    let recent = recent(&remote.history(RECENT_SECS).await?);
    let longest_debt = longest_debt(remote, &top).await;
    let server = ServerFacts { setup, top, metrics, recent, longest_debt };
    Ok((server, remote.config().await?))
}

/// Sums up the columns of `/api/history`, which have a value for each second.
fn recent(history: &serde_json::Value) -> RecentLoad {
    let column = |name: &str| -> Vec<f64> {
        let values = history[name].as_array().into_iter().flatten();
        values.map(|value| value.as_f64().unwrap_or(0.0)).collect()
    };
    let sum = |name: &str| column(name).into_iter().fold(0.0, |sum, value| sum + value);
    RecentLoad {
        seconds: column("t").len() as f64,
        requests: sum("credit_n") + sum("debt_n"),
        failed: sum("failed"),
        used: sum("busy") / sum("cpus"),
    }
}

/// The client with the longest debt of those that owe most now.
async fn longest_debt(remote: &AdminClient<'_>, top: &TopSnapshot) -> Option<(String, f64)> {
    let table = top.limits.iter().find(|table| table.door == "proxy")?;
    let level = |row: &&ClientRow| row.level.unwrap_or(0.0);
    let mut debtors: Vec<&ClientRow> = table.rows.iter().filter(|row| level(row) < 0.0).collect();
    debtors.sort_by(|a, b| level(a).total_cmp(&level(b)));
    let mut longest: Option<(String, f64)> = None;
    for row in debtors.into_iter().take(DEBTORS_MAX) {
        let Ok(history) = remote.client_history(table, row).await else { continue };
        let seconds = debt_seconds(&history);
        if longest.as_ref().is_none_or(|(_, most)| seconds > *most) {
            longest = Some((row.key.clone(), seconds));
        }
    }
    longest
}

/// For how many seconds a client has been in debt, by the points of `/api/client`.
fn debt_seconds(history: &serde_json::Value) -> f64 {
    let numbers = |name: &str| history[name].as_array().into_iter().flatten().rev();
    let points = numbers("t").zip(numbers("level"));
    let times = points.map(|(at, level)| Some((at.as_f64()?, level.as_f64()?)));
    let mut times = times.map_while(|point| point.filter(|(_, level)| *level < 0.0));
    let Some((last, _)) = times.next() else { return 0.0 };
    times.last().map_or(0.0, |(first, _)| last - first)
}

/// The facts about the file, and its settings if it has no errors.
fn file(path: &Path, running: Option<&str>) -> (FileFacts, Option<Settings>) {
    let mut source = ConfigSource::new(path);
    // The sockets of a server that runs are in use, or need privileges that this user has not.
    let checked = match running {
        Some(_) => check::check_text(path),
        None => check::check_start(path),
    };
    let lines = |text: String| text.lines().map(|line| printable(line).into_owned()).collect();
    let loaded = source.load(Machine::here()).ok();
    let differences =
        running.zip(loaded.as_ref()).map(|(running, config)| differences(&config.native, running));
    let facts = FileFacts {
        path: Some(path.display().to_string()),
        checked: Some(checked.map_err(lines)),
        differences,
        names_cpus: source.names(&["proxy", "cpus"]),
    };
    (facts, loaded.map(|config| config.settings))
}

/// The lines in which two configurations differ.
fn differences(file: &str, running: &str) -> Vec<String> {
    let beyond = |one: &str, other: &str| -> Vec<String> {
        let mut others: Vec<&str> = other.lines().collect();
        let is_extra = |line: &&str| match others.iter().position(|other| other == line) {
            Some(at) => {
                others.swap_remove(at);
                false
            }
            None => true,
        };
        one.lines().filter(is_extra).map(|line| line.trim().to_owned()).collect()
    };
    let new = beyond(file, running).into_iter().map(|line| format!("file has `{line}`"));
    let old = beyond(running, file).into_iter().map(|line| format!("server has `{line}`"));
    let all: Vec<String> = new.chain(old).map(|line| printable(&line).into_owned()).collect();
    let more = all.len().saturating_sub(2 * DIFFERENCES_MAX);
    let shown = all.into_iter().take(2 * DIFFERENCES_MAX);
    shown.chain((more > 0).then(|| format!("and {more} more lines"))).collect()
}

async fn backend_facts(
    backend: &BackendAddress,
    proxy: &ProxySettings,
    probes: bool,
) -> BackendFacts {
    let loops_to = match backend.scheme.is_file() {
        true => None,
        false => loops_to(backend, &proxy.listen).await,
    };
    let groups = backend_cgroups(backend);
    let quota = groups.iter().filter_map(|path| CgroupLoad::read(Path::new(path))?.quota);
    // A request to the proxy itself would be one of its requests.
    let answer = match probes && loops_to.is_none() {
        true => Some(probe::ask(backend, &proxy.backend_tls).await),
        false => None,
    };
    BackendFacts {
        name: backend.to_string(),
        is_local: backend.is_local(),
        is_tcp: !backend.scheme.is_file(),
        loops_to,
        quota: quota.reduce(f64::min),
        answer: answer.map(|answer| answer.map_err(|why| printable(&why).into_owned())),
    }
}

/// The address of the proxy that the name of the backend resolves to.
async fn loops_to(backend: &BackendAddress, listen: &[SocketAddr]) -> Option<SocketAddr> {
    let found = tokio::net::lookup_host(&*backend.place).await.ok()?;
    let of_this_machine = |ip| UdpSocket::bind((ip, 0)).is_ok();
    found.into_iter().find_map(|to| {
        let own = listen.iter().find(|own| {
            let all = own.ip().is_unspecified() && of_this_machine(to.ip());
            own.port() == to.port() && (own.ip() == to.ip() || all)
        });
        own.copied()
    })
}

/// Whether the clock follows a time server, if systemd is there to say it.
async fn clock_follows() -> Option<bool> {
    let asked = tokio::task::spawn_blocking(|| {
        let mut command = Command::new("timedatectl");
        command.args(["show", "--property=NTPSynchronized", "--value"]);
        command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()
    });
    let output = tokio::time::timeout(CLOCK_TIMEOUT, asked).await.ok()?.ok()??;
    match str::from_utf8(&output.stdout).ok()?.trim() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_are_named_on_both_sides() {
        let (file, running) = ("a: 1\nb:\n  c: 2\n", "a: 1\nb:\n  c: 3\n");
        assert_eq!(differences(file, running), ["file has `c: 2`", "server has `c: 3`"]);
        assert!(differences(file, file).is_empty());
        let many: String = (0..20).map(|n| format!("x{n}: 1\n")).collect();
        let found = differences(&many, "");
        assert_eq!((found.len(), &*found[6]), (7, "and 14 more lines"));
    }

    #[test]
    fn histories_are_summed_up() {
        let history = serde_json::json!({
            "t": [1.0, 2.0], "credit_n": [5.0, null], "debt_n": [1.0, 0.0], "failed": [0.0, 2.0],
            "busy": [1.0, 2.0], "cpus": [2.0, 2.0],
        });
        let expected = RecentLoad { seconds: 2.0, requests: 6.0, failed: 2.0, used: 0.75 };
        assert_eq!(recent(&history), expected);
        assert!(recent(&serde_json::json!({})).used.is_nan());
        for (levels, expected) in [
            (serde_json::json!([-1.0, 1.0, -1.0, -2.0, -3.0]), 10.0),
            (serde_json::json!([-1.0, -1.0, -1.0, -1.0, -1.0]), 20.0),
            (serde_json::json!([-1.0, -1.0, -1.0, null, -1.0]), 0.0),
            (serde_json::json!([-1.0, -1.0, -1.0, -1.0, 1.0]), 0.0),
        ] {
            let client = serde_json::json!({"t": [5.0, 10.0, 15.0, 20.0, 25.0], "level": levels});
            assert_eq!(debt_seconds(&client), expected, "{client}");
        }
    }

    #[tokio::test]
    async fn a_name_of_the_proxy_itself_is_a_loop() {
        let backend = BackendAddress::http("localhost:4711");
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert_eq!(loops_to(&backend, &[at("127.0.0.1:4711")]).await, Some(at("127.0.0.1:4711")));
        assert_eq!(loops_to(&backend, &[at("0.0.0.0:4711")]).await, Some(at("0.0.0.0:4711")));
        assert_eq!(loops_to(&backend, &[at("127.0.0.1:4712")]).await, None);
        assert_eq!(loops_to(&backend, &[at("192.0.2.1:4711")]).await, None);
    }

    #[test]
    fn only_loopback_is_here() {
        for (address, expected) in [
            ("127.0.0.1:9970", true),
            ("localhost:1", true),
            ("[::1]:9970", true),
            ("10.0.0.1:9970", false),
            ("example.org:9970", false),
        ] {
            assert_eq!(is_here(address), expected, "{address}");
        }
    }
}
