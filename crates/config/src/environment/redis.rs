//! The reference's variables for Redis, converted into the `store` section.
//!
//! The section exists if `BACKEND_TYPE=redis` or `REDIS_URL` is set. Each thread of an instance has
//! one connection, which carries all commands at once, so the reference's variables about pools and
//! pipelines have no meaning here. By default Evenkeel uses the reference's keys, because it
//! replaces that server.

use super::{EnvironmentReader, Variable, VariableForm};
use crate::settings::store::escaped;
use crate::tree::{YamlNode, YamlValue};

/// Variables that correspond to one key each.
const PLAIN: [Variable; 7] = [
    // In the reference 0 means no timeout of its own.
    ("REDIS_TIMEOUT", "connect_timeout", VariableForm::Bounded(60_000, [10, 60_000])),
    ("EVENKEEL_STORE_DEADLINE", "deadline", VariableForm::Duration),
    ("EVENKEEL_STORE_PERIOD", "period", VariableForm::Duration),
    ("EVENKEEL_STORE_MODE", "mode", VariableForm::Text),
    ("EVENKEEL_STORE_FAIL", "fail", VariableForm::Text),
    ("EVENKEEL_STORE_OWED_MAX", "owed_max", VariableForm::Text),
    ("CACHE_KEY_PREFIX", "prefix", VariableForm::Text),
];

/// Variables about TLS.
const TLS: [Variable; 3] = [
    ("REDIS_TLS_CACERT", "ca", VariableForm::Text),
    ("REDIS_TLS_CLIENT_CERT", "cert", VariableForm::Text),
    ("REDIS_TLS_CLIENT_KEY", "key", VariableForm::Text),
];

impl EnvironmentReader<'_> {
    /// Sets the `store` section, if the variables ask for one.
    pub(super) fn store(&mut self) {
        let kind = self.text_or("BACKEND_TYPE", "");
        match kind.as_str() {
            "redis" => {}
            "" if self.text("REDIS_URL").is_some() => {}
            "" => return,
            "memcache" => {
                self.fault(
                    "BACKEND_TYPE=memcache: memcache is not supported; set BACKEND_TYPE=redis, or \
                     unset it to count in this process"
                        .to_owned(),
                );
                return;
            }
            other => {
                self.fault(format!("BACKEND_TYPE={other}: must be redis, or unset"));
                return;
            }
        }
        self.place("store", "REDIS_", "/var/run/nutcracker/ratelimit.sock");
        if self.truth("REDIS_PERSECOND", false) {
            let socket = "/var/run/nutcracker/ratelimitpersecond.sock";
            self.place("store.per_second", "REDIS_PERSECOND_", socket);
        }
        self.plain("store", &PLAIN);
        let compatible = self.truth("EVENKEEL_COMPATIBLE_KEYS", true).to_string();
        self.put("store.compatible_keys", YamlNode::text(compatible));
        let name = "EXPIRATION_JITTER_MAX_SECONDS";
        let jitter = self.text_or(name, "300");
        self.set("store.expiration_jitter", name, format!("{jitter}s"));
    }

    /// Sets the keys of one place for counters: the main store, or the one for windows of one
    /// second. Its variables begin with `start`; `socket` is the default of the reference.
    fn place(&mut self, section: &str, start: &str, socket: &str) {
        let variable = |name: &str| format!("{start}{name}");
        let key = |name: &str| format!("{section}.{name}");
        let url = self.text_or(&variable("URL"), socket);
        let tls = self.truth(&variable("TLS"), false);
        let auth = self.text(&variable("AUTH"));
        let kind = self.text_or(&variable("TYPE"), "SINGLE").to_lowercase();
        let mut parts: Vec<&str> = url.split(',').map(str::trim).collect();
        let layout = match kind.as_str() {
            "single" | "cluster" => kind.as_str(),
            "sentinel" => {
                self.put(&key("master"), YamlNode::text(parts.remove(0)));
                "sentinel"
            }
            _ => {
                let name = variable("TYPE");
                self.fault(format!("{name}={kind}: must be SINGLE, SENTINEL or CLUSTER"));
                "single"
            }
        };
        let login = match layout {
            "sentinel" => self.text(&variable("SENTINEL_AUTH")),
            _ => auth.clone(),
        };
        let servers = parts.iter().map(|part| YamlNode::text(address(part, login.as_deref(), tls)));
        self.put(&key("redis"), YamlNode::made(YamlValue::List(servers.collect())));
        self.put(&key("layout"), YamlNode::text(layout));
        if let Some(auth) = auth.filter(|_| layout == "sentinel") {
            self.put(&key("credentials"), YamlNode::text(auth));
        }
        self.plain(&key("tls"), &TLS);
        if self.truth("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", false) {
            self.put(&key("tls.any_name"), YamlNode::text("true"));
        }
    }
}

/// Converts an address into the syntax of the section. A text that is no URL is a host and port, or
/// the path of a socket.
fn address(part: &str, login: Option<&str>, tls: bool) -> String {
    let login = login.map_or(String::new(), |login| {
        let (user, password) = login.split_once(':').unwrap_or(("", login));
        format!("{}:{}@", escaped(user), escaped(password))
    });
    let (scheme, rest) = match part.split_once("://") {
        Some((scheme, rest)) => (scheme, rest),
        None if part.starts_with('/') => ("unix", part),
        None => ("redis", part),
    };
    let scheme = if tls && scheme == "redis" { "rediss" } else { scheme };
    let login = if rest.contains('@') { String::new() } else { login };
    format!("{scheme}://{login}{rest}")
}
