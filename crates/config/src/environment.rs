//! `evenkeel ratelimit`: the reference server's environment variables as a configuration.
//!
//! Each variable becomes a key of the `ratelimit` section, so both forms are checked and shown in
//! the same way; faults name the variable. Booleans, numbers and durations have the syntax of Go,
//! the reference's language. Variables of the reference without a meaning here (its pools) are
//! ignored.

mod metrics;
mod redis;
mod traces;
mod unknown;
mod xds;

use super::fault::{ConfigFault, ConfigFaults, TextPlace};
use super::tree::{YamlNode, YamlValue};
use super::{Config, decode};
use crate::machine::Machine;
use std::path::{Path, PathBuf};

/// The syntax of a variable's value.
#[derive(Clone, Copy)]
enum VariableForm {
    Text,
    Truth,
    Duration,
    /// A duration with bounds, all in milliseconds: the value that 0 stands for, the minimum and
    /// the maximum. Values beyond a bound are clamped.
    Bounded(u64, [u64; 2]),
    /// A number that becomes a boolean: true if it is above zero.
    AboveZero,
}

/// A variable, the key that it becomes, below a section, and its syntax.
type Variable = (&'static str, &'static str, VariableForm);

/// Variables of `ratelimit` that correspond to one key each.
const PLAIN: [Variable; 19] = [
    ("NEAR_LIMIT_RATIO", "near_limit_ratio", VariableForm::Text),
    ("SHADOW_MODE", "shadow", VariableForm::Truth),
    ("QUOTA_MODE", "quota", VariableForm::Truth),
    ("MERGE_DOMAIN_CONFIG", "merge_domains", VariableForm::Truth),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "stop_when_over", VariableForm::Truth),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "spare_over", VariableForm::AboveZero),
    ("RESPONSE_DYNAMIC_METADATA", "dynamic_metadata", VariableForm::Truth),
    ("RUNTIME_IGNOREDOTFILES", "ignore_dot_files", VariableForm::Truth),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "healthy_with_rules", VariableForm::Truth),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "healthy_with_store", VariableForm::Truth),
    ("GRPC_MAX_CONNECTION_AGE", "connection_age", VariableForm::Duration),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "connection_age_grace", VariableForm::Duration),
    ("GRPC_UDS", "grpc_unix", VariableForm::Text),
    ("USE_CALENDAR_MONTH_RATE_LIMIT", "calendar", VariableForm::Truth),
    ("EVENKEEL_COMPAT_KEYS", "compat_keys", VariableForm::Truth),
    ("EVENKEEL_KEYS_MAX", "keys_max", VariableForm::Text),
    ("EVENKEEL_HANDSHAKE_TIMEOUT", "handshake_timeout", VariableForm::Duration),
    ("EVENKEEL_RLQS_TTL", "rlqs.ttl", VariableForm::Duration),
    ("EVENKEEL_RLQS_STREAMS", "rlqs.streams", VariableForm::Text),
];

/// Variables of `ratelimit.tls`, which is TLS for gRPC only, as in the reference.
const TLS: [Variable; 4] = [
    ("GRPC_SERVER_TLS_CERT", "cert", VariableForm::Text),
    ("GRPC_SERVER_TLS_KEY", "key", VariableForm::Text),
    ("GRPC_CLIENT_TLS_CACERT", "ca", VariableForm::Text),
    ("GRPC_CLIENT_TLS_SAN", "client_name", VariableForm::Text),
];

const FALSE: &[&str] = &["", "0", "f", "F", "false", "FALSE", "False"];
const TRUE: &[&str] = &["1", "t", "T", "true", "TRUE", "True"];

/// Builds the configuration from environment variables. `get` returns the value of a variable.
///
/// # Errors
/// All faults, with the names of the variables.
pub fn from_environment(
    get: impl Fn(&str) -> Option<String>,
    machine: impl Into<Machine>,
) -> Result<Config, ConfigFaults> {
    let (root, faults, warnings) = (YamlNode::map([]), Vec::new(), Vec::new());
    let mut reader = EnvironmentReader { get: &get, root, faults, warnings };
    reader.read();
    if !reader.faults.is_empty() {
        return Err(ConfigFaults::new("environment", reader.faults));
    }
    let mut config = decode("environment", &[], &reader.root, machine.into())?;
    config.warnings.append(&mut reader.warnings);
    Ok(config)
}

/// Builds the configuration from the environment of this process, with a warning for each unknown
/// variable that begins with `EVENKEEL_`.
///
/// # Errors
/// As [`from_environment`].
pub fn from_process(machine: impl Into<Machine>) -> Result<Config, ConfigFaults> {
    let mut config = from_environment(|name| std::env::var(name).ok(), machine)?;
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    config.warnings.extend(names.filter_map(|name| unknown::unknown_variable_warning(&name)));
    Ok(config)
}

struct EnvironmentReader<'g> {
    get: &'g dyn Fn(&str) -> Option<String>,
    /// The configuration so far.
    root: YamlNode,
    faults: Vec<ConfigFault>,
    /// Warnings about values that are interpreted differently.
    warnings: Vec<String>,
}

impl EnvironmentReader<'_> {
    fn read(&mut self) {
        self.plain("ratelimit", &PLAIN);
        self.listeners();
        self.tls();
        self.rules();
        self.headers();
        self.figures();
        self.log();
        self.traces();
        self.store();
        self.plain("state", &[("EVENKEEL_STATE", "file", VariableForm::Text)]);
        match self.text("EVENKEEL_ADMIN") {
            Some(text) if text == "off" => self.put("admin", YamlNode::text(text)),
            Some(text) => self.set("admin.listen", "EVENKEEL_ADMIN", text),
            None => {}
        }
    }

    /// Sets a key, such as `log.level`.
    fn put(&mut self, key: &str, node: YamlNode) {
        self.root.put(&key.split('.').collect::<Vec<_>>(), node);
    }

    /// Sets a key to the value of the variables `names`.
    fn set(&mut self, key: &str, names: &str, text: impl Into<String>) {
        self.put(key, YamlNode::text(text).from_input(names));
    }

    /// Sets the keys of a section for all variables in `table` that are set.
    fn plain(&mut self, section: &str, table: &[Variable]) {
        for (name, key, form) in table {
            if let Some(text) = self.written(name, *form) {
                self.set(&format!("{section}.{key}"), name, text);
            }
        }
    }

    fn fault(&mut self, what: String) {
        self.faults.push(ConfigFault::new(TextPlace::default(), what));
    }

    /// The value of a variable. `None` if it is unset or empty.
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|text| !text.is_empty())
    }

    fn text_or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    fn truth(&mut self, name: &str, default: bool) -> bool {
        match self.text(name) {
            None => default,
            Some(text) if TRUE.contains(&text.as_str()) => true,
            Some(text) if FALSE.contains(&text.as_str()) => false,
            Some(text) => {
                self.fault(format!("{name}={text}: must be true or false"));
                default
            }
        }
    }

    /// Converts the value of a variable into the syntax of a file.
    fn written(&mut self, name: &str, form: VariableForm) -> Option<String> {
        let text = self.text(name)?;
        match form {
            VariableForm::Text => Some(text),
            VariableForm::Truth => Some(self.truth(name, false).to_string()),
            VariableForm::AboveZero => match text.parse::<u64>() {
                Ok(number) => Some((number > 0).to_string()),
                Err(_) => {
                    self.fault(format!("{name}={text}: must be a whole number"));
                    None
                }
            },
            VariableForm::Duration => self.nanos(name, &text).map(|nanos| format!("{nanos}ns")),
            VariableForm::Bounded(zero, [least, most]) => self.nanos(name, &text).map(|nanos| {
                let millis = match nanos.div_ceil(1_000_000) {
                    0 => zero,
                    millis => millis.clamp(least, most),
                };
                format!("{millis}ms")
            }),
        }
    }

    fn nanos(&mut self, name: &str, text: &str) -> Option<u64> {
        let nanos = duration(text);
        if nanos.is_none() {
            self.fault(format!("{name}={text}: must be a duration, such as 24h or 1m30s"));
        }
        nanos
    }

    fn listeners(&mut self) {
        let unix = self.text("GRPC_UDS").is_some();
        for (key, host_name, port_name, default) in [
            ("ratelimit.http", "HOST", "PORT", "8080"),
            ("ratelimit.grpc", "GRPC_HOST", "GRPC_PORT", "8081"),
            ("ratelimit.debug", "DEBUG_HOST", "DEBUG_PORT", "6070"),
        ] {
            let grpc = key == "ratelimit.grpc";
            if grpc && unix {
                continue;
            }
            let host = self.text_or(host_name, "0.0.0.0");
            let port = self.text_or(port_name, default);
            if port == "off" && !grpc {
                self.put(key, YamlNode::made(YamlValue::List(Vec::new())));
                continue;
            }
            let bare = host.contains(':') && !host.starts_with('[');
            let address = if bare { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            self.set(key, &format!("{host_name}:{port_name}"), address);
        }
    }

    fn tls(&mut self) {
        if !self.truth("GRPC_SERVER_USE_TLS", false) {
            return;
        }
        self.plain("ratelimit.tls", &TLS);
        for (name, ..) in &TLS[..2] {
            if self.text(name).is_none() {
                self.fault(format!("GRPC_SERVER_USE_TLS=true needs {name}: a file in PEM"));
            }
        }
    }

    fn rules(&mut self) {
        match self.text_or("CONFIG_TYPE", "FILE").as_str() {
            "FILE" => {}
            "GRPC_XDS_SOTW" => return self.xds(),
            other => {
                self.fault(format!("CONFIG_TYPE={other}: must be FILE or GRPC_XDS_SOTW"));
            }
        }
        let root = PathBuf::from(self.text_or("RUNTIME_ROOT", "/srv/runtime_data/current"));
        let below = self.text_or("RUNTIME_SUBDIRECTORY", "");
        let above = root.parent().filter(|above| !above.as_os_str().is_empty());
        if !above.is_none_or(Path::exists) {
            let root = root.display();
            self.fault(format!("RUNTIME_ROOT={root}: its parent folder does not exist; create it"));
        }
        // The reference watches the root if there is no subdirectory, and then finds no rules.
        let path = match below.is_empty() && self.truth("RUNTIME_WATCH_ROOT", true) {
            true => "off".to_owned(),
            false => {
                let app = self.text_or("RUNTIME_APPDIRECTORY", "config");
                root.join(below).join(app).display().to_string()
            }
        };
        let names = "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY";
        self.set("ratelimit.rules", names, path);
    }

    fn headers(&mut self) {
        if !self.truth("LIMIT_RESPONSE_HEADERS_ENABLED", false) {
            return;
        }
        for (key, name, default) in [
            ("limit", "LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
            ("remaining", "LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
            ("reset", "LIMIT_RESET_HEADER", "RateLimit-Reset"),
        ] {
            let text = self.text_or(name, default);
            self.set(&format!("ratelimit.headers.{key}"), name, text);
        }
    }

    fn log(&mut self) {
        let written = self.text_or("LOG_LEVEL", "warn").to_lowercase();
        let level = match written.as_str() {
            "panic" | "fatal" | "error" => "error",
            "warn" | "warning" => "warn",
            known @ ("info" | "debug" | "trace") => known,
            _ => {
                let levels = "panic, fatal, error, warn, warning, info, debug or trace";
                self.fault(format!("LOG_LEVEL={written}: must be {levels}"));
                "warn"
            }
        };
        self.put("log.level", YamlNode::text(level));
        // In the reference, every format but JSON is text.
        let written = self.text_or("LOG_FORMAT", "text");
        let format = match written.to_lowercase().as_str() {
            "json" => "json",
            "text" => "text",
            _ => {
                self.warnings.push(format!(
                    "LOG_FORMAT={written}: unknown format; the log is written as text"
                ));
                "text"
            }
        };
        self.set("log.format", "LOG_FORMAT", format);
    }
}

/// A list that is separated by commas, each entry written anew by `each`.
fn list(text: &str, each: impl Fn(&str) -> String) -> YamlNode {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    YamlNode::made(YamlValue::List(items.map(|item| YamlNode::text(each(item))).collect()))
}

/// Parses `24h`, `1h30m`, `1.5s`, `150us` or `0` into nanoseconds.
fn duration(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(0);
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let nanos = match unit {
            "ns" => 1.0,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3_600e9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * nanos;
        rest = after;
    }
    (!text.is_empty() && total < 1e18).then_some(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{LogFormat, RatelimitSettings, Settings};
    use std::time::Duration;

    /// The `ratelimit` section for these variables.
    pub fn read(variables: &[(&str, &str)]) -> Result<RatelimitSettings, String> {
        settings(variables).map(|settings| settings.ratelimit.expect("its section"))
    }

    /// All settings for these variables.
    pub fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let get = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            let root = (name == "RUNTIME_ROOT").then_some("/tmp/current");
            found.map(|(_, value)| *value).or(root).map(str::to_owned)
        };
        let config = from_environment(get, 1.0).map_err(|faults| faults.to_string())?;
        Ok(config.settings)
    }

    #[test]
    fn without_any_variable_it_runs_as_the_reference_does() {
        let service = read(&[("RUNTIME_SUBDIRECTORY", "ratelimit")]).expect("sound");
        let all = |port: u16| vec![std::net::SocketAddr::from(([0, 0, 0, 0], port))];
        assert_eq!((service.grpc, service.http, service.debug), (all(8081), all(8080), all(6070)));
        assert_eq!(service.rules.path, Some("/tmp/current/ratelimit/config".into()));
        assert_eq!(service.connection_age, Duration::from_secs(86_400));
        let statsd = service.statsd.expect("on by default");
        assert_eq!((statsd.address.as_str(), statsd.udp), ("localhost:8125", false));
        assert!(service.prometheus.is_none() && service.answers.headers.is_none());
    }

    #[test]
    fn values_that_the_reference_takes_do_not_keep_it_from_starting() {
        let service = read(&[
            ("GRPC_MAX_CONNECTION_AGE", "0"),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", "0s"),
            ("NEAR_LIMIT_RATIO", "1.5"),
            ("STATS_FLUSH_INTERVAL", "+2h"),
        ]);
        let service = service.expect("sound");
        assert_eq!([service.connection_age, service.connection_age_grace], [Duration::MAX; 2]);
        assert_eq!(service.answers.near_limit_ratio, 1.5);
        assert_eq!(service.statsd.expect("on").every, Duration::from_secs(7_200));
        for (text, sampling) in [("2", 1.0), ("-0.5", 0.0), ("1e-1", 0.1), ("+Inf", 1.0)] {
            let all = [("TRACING_ENABLED", "true"), ("TRACING_SAMPLING_RATE", text)];
            let traces = settings(&all).expect("sound").traces.expect("on");
            assert_eq!(traces.sampling, sampling, "{text}");
        }
        for (text, millis) in [("0", 60_000), ("150us", 10), ("2s", 2_000), ("10m", 60_000)] {
            let all = [("REDIS_URL", "127.0.0.1:1"), ("REDIS_TIMEOUT", text)];
            let store = settings(&all).expect("sound").store.expect("on");
            assert_eq!(store.connect, Duration::from_millis(millis), "{text}");
        }
        let xds = read(&[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "0"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "0"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "0"),
        ]);
        let xds = xds.expect("sound").xds.expect("on");
        let waits = [xds.retry, xds.retry_stream, xds.retry_max].map(|wait| wait.as_millis());
        assert_eq!(waits, [1, 100, 10_000]);
    }

    #[test]
    fn the_log_is_json_if_that_is_written_in_any_case_and_else_text() {
        let config = |text: &str| {
            let get = |name: &str| match name {
                "LOG_FORMAT" => Some(text.to_owned()),
                "RUNTIME_ROOT" => Some("/tmp/current".to_owned()),
                _ => None,
            };
            from_environment(get, 1.0).expect("sound")
        };
        assert_eq!(config("JSON").settings.log.format, LogFormat::Json);
        let other = config("xml");
        assert_eq!(other.settings.log.format, LogFormat::Text);
        assert_eq!(other.warnings, ["LOG_FORMAT=xml: unknown format; the log is written as text"]);
    }

    #[test]
    fn ports_beside_grpc_can_be_left_closed() {
        let service = read(&[("PORT", "off"), ("DEBUG_PORT", "off")]).expect("sound");
        assert!(service.http.is_empty() && service.debug.is_empty());
        assert_eq!(service.grpc.len(), 1);
    }

    #[test]
    fn c80_without_a_subdirectory_the_root_is_watched_and_holds_no_rules() {
        assert_eq!(read(&[]).expect("sound").rules.path, None);
        let service = read(&[("RUNTIME_WATCH_ROOT", "false")]).expect("sound");
        assert_eq!(service.rules.path, Some("/tmp/current/config".into()));
    }

    #[test]
    fn c81_the_folder_that_the_root_is_in_must_be_there() {
        let told = read(&[("RUNTIME_ROOT", "/nowhere/at/all")]).expect_err("refused");
        assert!(told.contains("RUNTIME_ROOT=/nowhere/at/all: its parent folder"), "{told}");
    }

    #[test]
    fn variables_are_read_as_the_reference_writes_them() {
        let service = read(&[
            ("HOST", "::1"),
            ("PORT", "81"),
            ("GRPC_UDS", "/tmp/rl.sock"),
            ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
            ("SHADOW_MODE", "T"),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "1000"),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "1"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("LIMIT_RESET_HEADER", "X-Reset"),
            ("USE_STATSD", "false"),
            ("USE_DOG_STATSD", "true"),
            ("EXTRA_TAGS", "a:b,c:d"),
            ("STATS_FLUSH_INTERVAL", "150ms"),
            ("USE_PROMETHEUS", "true"),
            ("EVENKEEL_COMPAT_KEYS", "true"),
        ])
        .expect("sound");
        assert_eq!(service.http, ["[::1]:81".parse().expect("an address")]);
        assert!(service.grpc.is_empty() && service.grpc_unix == Some("/tmp/rl.sock".into()));
        assert_eq!(service.connection_age, Duration::from_secs(5_400));
        assert!(service.answers.shadow && service.answers.policy.spare_over);
        assert!(service.answers.policy.stop_when_over && service.rules.compat_keys);
        let headers = service.answers.headers.expect("on");
        assert_eq!(headers, ["RateLimit-Limit", "RateLimit-Remaining", "X-Reset"]);
        let statsd = service.statsd.expect("on");
        assert!(statsd.dog && statsd.udp && statsd.tags.len() == 2);
        assert_eq!(statsd.every, Duration::from_millis(150));
        assert_eq!(service.prometheus.expect("on").path, "/metrics");
    }

    #[test]
    fn tls_is_asked_for_as_in_the_reference() {
        let all = [
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "/tls/tls.crt"),
            ("GRPC_SERVER_TLS_KEY", "/tls/tls.key"),
            ("GRPC_CLIENT_TLS_CACERT", "/tls/ca.crt"),
            ("GRPC_CLIENT_TLS_SAN", "envoy.example"),
        ];
        let service = read(&all).expect("sound");
        let tls = service.tls.expect("on");
        let clients = tls.clients.expect("asked for");
        assert_eq!((tls.cert, tls.key), ("/tls/tls.crt".into(), "/tls/tls.key".into()));
        assert_eq!(
            (clients.ca, clients.name),
            ("/tls/ca.crt".into(), Some("envoy.example".into()))
        );
        assert!(!service.http_tls);
        assert_eq!(read(&all[..3]).expect("sound").tls.expect("on").clients, None);
        assert_eq!(read(&all[1..]).expect("sound").tls, None);
        let told = read(&[&all[..3], &all[4..]].concat()).expect_err("a name of nobody");
        assert!(told.contains("GRPC_CLIENT_TLS_SAN needs `ca`"), "{told}");
    }

    #[test]
    fn what_is_wrong_or_not_built_is_told_by_the_variables_name() {
        for (name, value, told) in [
            ("BACKEND_TYPE", "memcache", "BACKEND_TYPE=memcache: memcache is not supported"),
            ("CONFIG_TYPE", "ETCD", "CONFIG_TYPE=ETCD: must be FILE or GRPC_XDS_SOTW"),
            ("GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_USE_TLS=true needs GRPC_SERVER_TLS_KEY"),
            ("GRPC_SERVER_USE_TLS", "yes", "GRPC_SERVER_USE_TLS=yes: must be true or false"),
            ("SHADOW_MODE", "maybe", "SHADOW_MODE=maybe: must be true or false"),
            ("GRPC_MAX_CONNECTION_AGE", "1 day", "must be a duration"),
            ("NEAR_LIMIT_RATIO", "-2", "NEAR_LIMIT_RATIO is `-2`: must be at least 0"),
            ("STATS_FLUSH_INTERVAL", "0", "STATS_FLUSH_INTERVAL is `0ns`: must be from"),
            ("LOG_LEVEL", "loud", "LOG_LEVEL=loud: must be panic"),
            ("EVENKEEL_KEYS_MAX", "none", "EVENKEEL_KEYS_MAX is `none`: not a whole number"),
            ("EVENKEEL_RLQS_TTL", "2h", "EVENKEEL_RLQS_TTL is `7200000000000ns`"),
            ("PORT", "x", "HOST:PORT is `0.0.0.0:x`: not an address"),
            ("STATSD_PORT", "x", "STATSD_HOST:STATSD_PORT is `localhost:x`"),
            ("EVENKEEL_ADMIN", "x", "EVENKEEL_ADMIN is `x`: not an address"),
        ] {
            let all = read(&[(name, value)]).expect_err(name);
            assert!(all.contains(told), "{all}");
        }
    }
}
