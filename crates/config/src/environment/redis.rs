//! The reference's variables for Redis, converted into the `store` section.
//!
//! The section exists if `BACKEND_TYPE=redis` or `REDIS_URL` is set. Each thread of an instance has
//! one connection, which carries all commands at once, so the reference's variables about pools and
//! pipelines have no meaning here. By default Evenkeel uses the reference's keys, because it
//! replaces that server.

use super::{EnvironmentReader, Keys, VariableForm, map, named};
use crate::address::store::escaped;
use crate::tree::{YamlNode, YamlValue};

/// Default sockets of the reference.
const SOCKETS: [(&str, &str); 2] = [
    ("REDIS_", "/var/run/nutcracker/ratelimit.sock"),
    ("REDIS_PERSECOND_", "/var/run/nutcracker/ratelimitpersecond.sock"),
];

/// Variables that correspond to one key each.
const PLAIN: [(&str, &str, VariableForm); 7] = [
    // In the reference 0 means no timeout of its own.
    ("REDIS_TIMEOUT", "connect_timeout", VariableForm::Bounded(60_000, [10, 60_000])),
    ("EVENKEEL_STORE_DEADLINE", "deadline", VariableForm::Duration),
    ("EVENKEEL_STORE_PERIOD", "period", VariableForm::Duration),
    ("EVENKEEL_STORE_MODE", "mode", VariableForm::Text),
    ("EVENKEEL_STORE_FAIL", "fail", VariableForm::Text),
    ("EVENKEEL_STORE_OWED_MAX", "owed_max", VariableForm::Text),
    ("CACHE_KEY_PREFIX", "prefix", VariableForm::Text),
];

impl EnvironmentReader<'_> {
    /// The `store` section, if the variables ask for one.
    pub(super) fn store(&mut self) -> Option<YamlNode> {
        let kind = self.text_or("BACKEND_TYPE", "");
        match kind.as_str() {
            "redis" => {}
            "" if self.text("REDIS_URL").is_some() => {}
            "" => return None,
            "memcache" => {
                self.fault(
                    "BACKEND_TYPE=memcache: memcache is not supported; set BACKEND_TYPE=redis, or \
                     unset it to count in this process"
                        .to_owned(),
                );
                return None;
            }
            other => {
                self.fault(format!("BACKEND_TYPE={other}: must be redis, or unset"));
                return None;
            }
        }
        let mut keys = self.place(0);
        if self.truth("REDIS_PERSECOND", false) {
            keys.push((named("per_second"), map(self.place(1))));
        }
        self.plain(&PLAIN, &mut keys);
        let compatible = self.truth("EVENKEEL_COMPATIBLE_KEYS", true).to_string();
        keys.push((named("compatible_keys"), YamlNode::text(compatible)));
        let jitter = self.text_or("EXPIRATION_JITTER_MAX_SECONDS", "300");
        let name = "EXPIRATION_JITTER_MAX_SECONDS";
        keys.push(self.pair("expiration_jitter", name, format!("{jitter}s")));
        Some(map(keys))
    }

    /// The keys of one place for counters: 0 is the main store, 1 the one for windows of one
    /// second.
    fn place(&mut self, which: usize) -> Keys {
        let (start, socket) = SOCKETS[which];
        let variable = |name: &str| format!("{start}{name}");
        let url = self.text_or(&variable("URL"), socket);
        let tls = self.truth(&variable("TLS"), false);
        let auth = self.text(&variable("AUTH"));
        let kind = self.text_or(&variable("TYPE"), "SINGLE").to_lowercase();
        let mut parts: Vec<&str> = url.split(',').map(str::trim).collect();
        let mut keys = Keys::new();
        let layout = match kind.as_str() {
            "single" | "cluster" => kind.as_str(),
            "sentinel" => {
                keys.push((named("master"), YamlNode::text(parts.remove(0))));
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
        keys.push((named("redis"), YamlNode::made(YamlValue::List(servers.collect()))));
        keys.push((named("layout"), YamlNode::text(layout)));
        if let Some(auth) = auth.filter(|_| layout == "sentinel") {
            keys.push((named("credentials"), YamlNode::text(auth)));
        }
        keys.extend(self.store_tls().map(|tls| (named("tls"), map(tls))));
        keys
    }

    fn store_tls(&mut self) -> Option<Keys> {
        let mut keys = Keys::new();
        let files = [
            ("REDIS_TLS_CACERT", "ca", VariableForm::Text),
            ("REDIS_TLS_CLIENT_CERT", "cert", VariableForm::Text),
            ("REDIS_TLS_CLIENT_KEY", "key", VariableForm::Text),
        ];
        self.plain(&files, &mut keys);
        if self.truth("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", false) {
            keys.push((named("any_name"), YamlNode::text("true")));
        }
        (!keys.is_empty()).then_some(keys)
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
