//! The `store` section: one count for all instances, kept in Redis or Valkey.
//!
//! Passwords in the configuration are shown as stars. Names are not resolved, and no connection is
//! made. The settings are described in `settings::store`.

use super::tls;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, section};
use crate::reader::{SectionReader, settings};
use crate::tree::YamlValue;
use crate::values::{DAY, Read, word_enum};
use evenkeel_core::units::Nanos;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// One count for all instances, kept in Redis or Valkey.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StoreSettings from keys(section);

    /// The servers, and how they are reached.
    pub place: StoreServers = place(section);
    /// Servers for counters of one second: `redis`, `layout`, `master`, `credentials`,
    /// `credentials_file` and `tls`.
    pub per_second: Option<StoreServers>, PER_SECOND: SubsectionKey =
        SubsectionKey::one("per_second", &SERVERS).default_note("the same servers")
        => section.has("per_second").then(|| section.section(&PER_SECOND, self::place));
    /// `exact`: the store decides each request. `batched`: this instance decides by its local state
    /// and exchanges counts each `period`.
    pub mode: StoreMode, MODE: DefaultedKey<StoreMode> =
        ConfigKey::words("mode", StoreMode::WORDS).default(StoreMode::Exact);
    /// What happens if the store does not answer. `local`: the local state decides. `error`: the
    /// caller of `ratelimit` gets an error.
    pub fail: StoreFail, FAIL: DefaultedKey<StoreFail> =
        ConfigKey::words("fail", StoreFail::WORDS).default(StoreFail::Local);
    /// Whether windows have the names that envoyproxy/ratelimit gives them.
    pub compatible_keys: bool, COMPATIBLE_KEYS: DefaultedKey<bool> =
        ConfigKey::truth("compatible_keys").default(false);
    /// The longest time that a request waits for an answer. After that, the local state decides.
    pub deadline: Duration, DEADLINE: DefaultedKey<Nanos> = ConfigKey::duration("deadline")
        .within(Nanos::from_millis(1), Nanos::from_secs(10)).default(Nanos::from_millis(20))
        .low("slow answers are ignored, and limits are less exact")
        .high("requests wait for this time while the store stalls");
    /// Time to establish and verify a connection.
    pub connect: Duration, CONNECT_TIMEOUT: DefaultedKey<Nanos> =
        ConfigKey::duration("connect_timeout").within(Nanos::from_millis(10), Nanos::from_secs(60))
            .default(Nanos::from_secs(1)).low("a distant store is never reached");
    /// Time between two transfers of local counts and of the costs of requests to the store.
    pub period: Duration, PERIOD: DefaultedKey<Nanos> = ConfigKey::duration("period")
        .within(Nanos::from_millis(10), Nanos::from_secs(10)).default(Nanos::from_millis(100))
        .low("more work for the store")
        .high("`batched`: all instances together admit more; costs are known late to the others");
    /// Prefix of all keys.
    pub prefix: String, PREFIX: ConfigKey<String> = ConfigKey::text("prefix", prefix)
        .range_note("up to 64 bytes, without braces")
        .default_note("`evenkeel:`; none with `compatible_keys`").example("evenkeel:")
        => section.key_or(&PREFIX, default_prefix(compatible_keys));
    /// With compatible keys: each key exists for a random time of up to this length beyond its
    /// window.
    pub jitter: Duration, EXPIRATION_JITTER: DefaultedKey<Nanos> =
        ConfigKey::duration("expiration_jitter").within(Nanos::ZERO, DAY)
            .default(Nanos::from_secs(300)).low("many keys expire at once")
            .high("memory of the store");
    /// Number of counters per thread, and of buckets, whose hits are kept during an outage and sent
    /// to the store later.
    pub owed_max: usize, OWED_MAX: DefaultedKey<usize> = ConfigKey::whole("owed_max")
        .within(0, 10_000_000).default(100_000)
        .low("hits during an outage are lost to the other instances").high("memory");
}

settings! {
    /// The servers of a store and how to connect to them.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StoreServers from servers(section);

    /// Addresses: `redis://user:password@host:6379/0`, `rediss://` for TLS, `unix:///path`, or
    /// `host:port`. `evenkeel show` prints passwords as stars.
    pub servers: Vec<StoreServer>, REDIS: ListKey<StoreServer> = ConfigKey::opaque("redis", server)
        .list().required().masked(masked).example("redis://127.0.0.1:6379");
    /// `single`: one server. `sentinel`: `redis` names sentinels. `cluster`: `redis` names some
    /// nodes of a cluster. `ring`: independent servers, each with a part of the counters, by name.
    pub layout: StoreLayout, LAYOUT: ConfigKey<StoreLayoutName> =
        ConfigKey::words("layout", StoreLayoutName::WORDS)
            .default_note("one address: `single`; several: `cluster`") => layout(section, &servers);
    /// `user:password`, or a password, for addresses without one and for the masters of sentinels.
    pub login: Option<StoreLogin>, CREDENTIALS: ConfigKey<StoreLogin> =
        ConfigKey::opaque("credentials", |text| Ok(StoreLogin::parse(text)))
            .masked(|_| PASSWORD_MASK.to_owned()).example("user:password") => credentials(section);
    /// A file with the same content, read for each connection.
    pub credentials_file: Option<PathBuf>, CREDENTIALS_FILE: ConfigKey<PathBuf> =
        ConfigKey::path("credentials_file").example("/etc/evenkeel/redis");
    /// [TLS](#storetls) for addresses with `rediss://`.
    pub tls: StoreTls, TLS: SubsectionKey = SubsectionKey::one("tls", &tls::STORE)
        => if section.has("tls") { section.section(&TLS, tls) } else { StoreTls::default() };
}

/// The topology of a store's servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLayout {
    /// A single server.
    Single,
    /// Sentinels, which know the current master of this name.
    Sentinel(String),
    /// Nodes of one cluster. Further nodes are learned from these.
    Cluster,
    /// Independent servers. The name of a counter selects the server.
    Ring,
}

impl StoreLayout {
    /// The word that the file uses for this topology.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            StoreLayout::Single => "single",
            StoreLayout::Sentinel(_) => "sentinel",
            StoreLayout::Cluster => "cluster",
            StoreLayout::Ring => "ring",
        }
    }
}

/// A server of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreServer {
    /// Its address.
    pub end: StoreAddress,
    /// User and password, if the address contains them.
    pub login: Option<StoreLogin>,
    /// Number of the database on this server. A cluster has only database 0.
    pub database: u16,
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreAddress {
    /// A TCP address. The host is resolved at each connect.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
        /// Whether the connection uses TLS.
        tls: bool,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreAddress::Tcp { host, port, .. } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            StoreAddress::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            StoreAddress::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A user and a password. The `Debug` output does not contain the password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreLogin {
    /// Name of the user. `None`: the server's default user.
    pub user: Option<String>,
    /// The password, in plain text.
    pub password: String,
}

impl StoreLogin {
    /// Parses `user:password`, or a password alone. An empty user counts as none.
    #[must_use]
    pub fn parse(text: &str) -> StoreLogin {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (Some(user).filter(|user| !user.is_empty()), password),
            None => (None, text),
        };
        StoreLogin { user: user.map(str::to_owned), password: password.to_owned() }
    }
}

impl fmt::Debug for StoreLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How TLS servers of a store are authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// Trusted authorities.
    pub ca: Option<PathBuf>,
    /// Certificate and key that this instance shows if the server asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether a certificate of a trusted authority is accepted regardless of its name.
    pub any_name: bool,
}

word_enum! {
    /// Whether the store or the instance decides each request.
    pub enum StoreMode {
        /// The store decides each request.
        Exact = "exact",
        /// Each instance decides by its local state. Local counts are sent to the store, which
        /// returns the sum.
        Batched = "batched",
    }
}

word_enum! {
    /// What happens to a request if the store does not answer.
    pub enum StoreFail {
        /// The local state decides.
        Local = "local",
        /// The caller gets an error, as the reference server does.
        Error = "error",
    }
}

section! {
    TABLE = "store":
        REDIS, LAYOUT, MASTER, CREDENTIALS, CREDENTIALS_FILE, TLS, DEADLINE, CONNECT_TIMEOUT, MODE,
        PERIOD, FAIL, PREFIX, COMPATIBLE_KEYS, EXPIRATION_JITTER, OWED_MAX, PER_SECOND;
    SERVERS = "store.per_second": REDIS, LAYOUT, MASTER, CREDENTIALS, CREDENTIALS_FILE, TLS;
}

section! {
    /// `sentinel`: the name of the master at the sentinels.
    MASTER: ConfigKey<String> = ConfigKey::text("master", name)
        .default_note("required with `layout: sentinel`").example("main");
}

/// Maximum length of the prefix of all keys, in bytes.
const PREFIX_BYTES_MAX: usize = 64;
/// Replaces a password in the output of `show`.
const PASSWORD_MASK: &str = "***";

/// Reads the section.
pub(crate) fn read(section: &mut SectionReader<'_, '_>) -> StoreSettings {
    let settings = keys(section);
    if settings.mode == StoreMode::Batched && settings.fail == StoreFail::Error {
        let what = "`fail: error` needs `mode: exact`: in batches, requests do not wait for the \
                    store";
        section.fault("fail", what);
    }
    settings
}

fn default_prefix(compatible_keys: bool) -> String {
    if compatible_keys { String::new() } else { "evenkeel:".to_owned() }
}

fn place(section: &mut SectionReader<'_, '_>) -> StoreServers {
    let what = "a store needs `redis`: redis://127.0.0.1:6379, or a list";
    section.require(&["redis"], |_| what.to_owned());
    servers(section)
}

fn credentials(section: &mut SectionReader<'_, '_>) -> Option<StoreLogin> {
    match section.node("credentials").map(|node| &node.value) {
        None | Some(YamlValue::Text(_)) => section.key(&CREDENTIALS),
        Some(_) => {
            section.fault_of("credentials", "is `user:password`, or a password");
            None
        }
    }
}

fn layout(section: &mut SectionReader<'_, '_>, servers: &[StoreServer]) -> StoreLayout {
    let several = servers.len() > 1;
    let usual = if several { StoreLayoutName::Cluster } else { StoreLayoutName::Single };
    let layout = section.key_or(&LAYOUT, usual);
    let master = section.key(&MASTER);
    let named = master.is_some();
    let layout = match layout {
        StoreLayoutName::Sentinel => StoreLayout::Sentinel(master.unwrap_or_default()),
        StoreLayoutName::Cluster => StoreLayout::Cluster,
        StoreLayoutName::Ring => StoreLayout::Ring,
        StoreLayoutName::Single => StoreLayout::Single,
    };
    check_layout(section, servers, &layout, named);
    layout
}

/// Reports servers, layout and master that do not fit together.
fn check_layout(
    section: &mut SectionReader<'_, '_>,
    servers: &[StoreServer],
    layout: &StoreLayout,
    master: bool,
) {
    match layout {
        StoreLayout::Single if servers.len() > 1 => {
            let what = "several servers are a `cluster`, its `sentinel`s, or a `ring`";
            section.fault("layout", what);
        }
        StoreLayout::Sentinel(_) if !master => {
            section.fault("layout", "`layout: sentinel` needs `master`: its name");
        }
        StoreLayout::Cluster if servers.iter().any(|server| server.database > 0) => {
            section.fault("redis", "a cluster has only database 0");
        }
        StoreLayout::Cluster | StoreLayout::Sentinel(_)
            if servers.iter().any(|server| matches!(server.end, StoreAddress::Unix(_))) =>
        {
            section.fault("redis", "sentinels and nodes of a cluster have a host and a port");
        }
        _ => {}
    }
    if master && !matches!(layout, StoreLayout::Sentinel(_)) {
        section.fault_of("master", "belongs to `layout: sentinel`; remove it, or use that");
    }
}

fn tls(tls: &mut SectionReader<'_, '_>) -> StoreTls {
    let ca = tls.key(&tls::CA);
    let cert = tls.key(&tls::OWN_CERT);
    let key = tls.key(&tls::OWN_KEY);
    if cert.is_some() != key.is_some() {
        tls.fault_of("cert", "and `key` go together");
    }
    let any_name = tls.key(&tls::ANY_NAME);
    StoreTls { ca, identity: cert.zip(key), any_name }
}

word_enum! {
    /// The layout, in the words of the file.
    pub(crate) enum StoreLayoutName {
        Single = "single",
        Sentinel = "sentinel",
        Cluster = "cluster",
        Ring = "ring",
    }
}

fn masked(text: &str) -> String {
    match server(text) {
        Ok(server) => shown(&server, PASSWORD_MASK),
        Err(_) => PASSWORD_MASK.to_owned(),
    }
}

fn name(text: &str) -> Read<String> {
    let good = !text.is_empty() && text.len() <= 256 && !text.contains(char::is_whitespace);
    good.then(|| text.to_owned())
        .ok_or_else(|| "the name of the master at its sentinels".to_owned())
}

fn prefix(text: &str) -> Read<String> {
    let good = text.len() <= PREFIX_BYTES_MAX && !text.contains(['{', '}']);
    let wrong = || format!("at most {PREFIX_BYTES_MAX} bytes, without braces");
    good.then(|| text.to_owned()).ok_or_else(wrong)
}

/// Default port of a server.
const DEFAULT_PORT: u16 = 6379;
const ADDRESS_ADVICE: &str = "write redis://127.0.0.1:6379, rediss://user:password@host:6379/0 or \
                     unix:///run/redis.sock";

/// What [`escaped`] escapes; `***` stays as it is.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'*');

/// Reads an address.
fn server(text: &str) -> Read<StoreServer> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("redis", text));
    let tls = match scheme {
        "redis" => false,
        "rediss" => true,
        "unix" | "redis+unix" => return socket(rest),
        _ => return Err(ADDRESS_ADVICE.to_owned()),
    };
    let (rest, database) = match rest.split_once('/') {
        None | Some((_, "")) => (rest.trim_end_matches('/'), 0),
        Some((rest, number)) => (rest, number.parse().map_err(|_| ADDRESS_ADVICE.to_owned())?),
    };
    let (login, authority) = match rest.rsplit_once('@') {
        None => (None, rest),
        Some((login, authority)) => (Some(self::login(login)?), authority),
    };
    let authority: http::uri::Authority =
        authority.parse().map_err(|_| ADDRESS_ADVICE.to_owned())?;
    let host = authority.host().trim_matches(['[', ']']);
    let port = match authority.port_u16() {
        Some(port) => port,
        None if authority.host().len() == authority.as_str().len() => DEFAULT_PORT,
        None => 0,
    };
    if host.is_empty() || port == 0 {
        return Err(ADDRESS_ADVICE.to_owned());
    }
    Ok(StoreServer { end: StoreAddress::Tcp { host: host.to_owned(), port, tls }, login, database })
}

fn socket(rest: &str) -> Read<StoreServer> {
    let (login, path) = match rest.rsplit_once('@') {
        Some((login, path)) if path.starts_with('/') => (Some(self::login(login)?), path),
        _ => (None, rest),
    };
    match path.starts_with('/') && path.len() > 1 {
        true => Ok(StoreServer { end: StoreAddress::Unix(path.into()), login, database: 0 }),
        false => Err(ADDRESS_ADVICE.to_owned()),
    }
}

/// Reads `user:password` or `:password`. A password is required.
fn login(text: &str) -> Read<StoreLogin> {
    let (user, password) = text.split_once(':').ok_or_else(|| ADDRESS_ADVICE.to_owned())?;
    let (user, password) = (plain(user)?, plain(password)?);
    Ok(StoreLogin { user: (!user.is_empty()).then_some(user), password })
}

/// Decodes percent-encoded text.
fn plain(text: &str) -> Read<String> {
    let hex = |code: &[u8]| code.iter().all(u8::is_ascii_hexdigit);
    let mut codes = text.split('%').skip(1).map(|after| after.as_bytes().get(..2));
    if !codes.all(|code| code.is_some_and(hex)) {
        return Err("a percent sign is written %25".to_owned());
    }
    let plain = percent_decode_str(text).decode_utf8();
    plain.map(Cow::into_owned).map_err(|_| "a user and a password are text".to_owned())
}

/// Percent-encodes text, so that [`plain`] decodes it again.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Formats an address as [`server`] reads it, with `password` instead of the real one.
fn shown(server: &StoreServer, password: &str) -> String {
    let login = server.login.as_ref().map_or(String::new(), |login| {
        let user = login.user.as_deref().map(escaped).unwrap_or_default();
        format!("{user}:{}@", escaped(password))
    });
    match &server.end {
        StoreAddress::Unix(path) => format!("unix://{login}{}", path.display()),
        StoreAddress::Tcp { tls, .. } => {
            let scheme = if *tls { "rediss" } else { "redis" };
            let database = match server.database {
                0 => String::new(),
                number => format!("/{number}"),
            };
            format!("{scheme}://{login}{}{database}", server.end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("127.0.0.1:6380", "redis://127.0.0.1:6380"),
            ("redis://store.example", "redis://store.example:6379"),
            ("rediss://ann:p%40ss@store.example:7000/3", "rediss://ann:***@store.example:7000/3"),
            ("redis://:secret@[::1]:6379/", "redis://:***@[::1]:6379"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ] {
            let read = server(text).expect(text);
            assert_eq!(super::shown(&read, "***"), shown, "{text}");
            let again = super::shown(&read, read.login.as_ref().map_or("", |l| &l.password));
            assert_eq!(server(&again), Ok(read), "{again}");
        }
        let login = server("redis://a:p%40ss@h").expect("read").login.expect("a login");
        assert_eq!((login.user.as_deref(), &*login.password), (Some("a"), "p@ss"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "redis://",
            "http://h:1",
            "h:0",
            "h:70000",
            "h:x",
            "redis://user@h",
            "unix://",
            "unix:///",
            "redis://h/x",
            "redis://h/-1",
            "redis://a:%zz@h",
            "redis://a:%f@h",
            "redis://a:%ff@h",
            "redis://a:%+1@h",
            "redis://a:%4%31@h",
            "redis://h:1:2",
        ] {
            assert!(server(text).is_err(), "{text}");
        }
    }
}
