//! The keys of `proxy`: where the proxy listens, the backend, and what a request costs.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address::{self, ExemptEntry};
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey, ValueSyntax};
use crate::rows::{bounds, limits, merge, queue, timeouts, tls};
use crate::settings::{BackendAddress, ClientAddress, CostSource};
use crate::values::{self, DAY, Read, header_name};
use evenkeel_core::limit::LimitAction;
use evenkeel_core::top;
use evenkeel_core::units::Nanos;
use ipnet::IpNet;
use std::net::SocketAddr;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "proxy",
    keys: &[
        &LISTEN,
        &TLS,
        &HTTP2,
        &BACKEND,
        &BACKEND_TLS,
        &UPGRADES,
        &CPUS,
        &COST,
        &COST_HEADER,
        &ACTION,
        &QUEUE,
        &MAX_DELAY,
        &TRUSTED_PROXIES,
        &CLIENT_ADDRESS,
        &TIMEOUTS,
        &BOUNDS,
        &EXEMPT,
        &MERGE,
        &RESOLVER,
        &SHADOW,
        &HEADERS,
        &NAMES_MAX,
        &LIMITS,
    ],
};

pub(crate) static LISTEN: ListKey<SocketAddr> = ConfigKey::text(
    "listen",
    address::listen,
    "Addresses to listen on, at most 64. `off` opens no listener, if only [`check`](#check) uses \
     the limits.",
)
.restart()
.example("127.0.0.1:8888")
.list_with(|| vec![SocketAddr::from(([0, 0, 0, 0], 8888))]);

pub(crate) static TLS: SubsectionKey = SubsectionKey::one(
    "tls",
    &tls::FRONT,
    "[Certificates](#proxytls), and the addresses that use them. Files that change are read again \
     without a restart.",
)
.restart()
.default_note("no TLS");

pub(crate) static HTTP2: DefaultedKey<bool> = ConfigKey::truth(
    "http2",
    "Whether clients may use HTTP/2: with TLS if both sides agree on it, without TLS if the \
     client begins with it.",
)
.default(true);

pub(crate) static BACKEND: ListKey<BackendAddress> = ConfigKey::text(
    "backend",
    address::backend,
    "The server behind the proxy, or a [list](#proxybackend) of at most 64.",
)
.list_with(|| vec![BackendAddress::http("127.0.0.1:80")]);

pub(crate) static BACKEND_TLS: SubsectionKey = SubsectionKey::one(
    "backend_tls",
    &tls::BACKEND,
    "[TLS](#proxybackend_tls) to backends of `https://`.",
);

pub(crate) static UPGRADES: ListKey<String> = ConfigKey::text(
    "upgrades",
    upgrade,
    "Protocols that a client may switch to by `Upgrade` or [over \
     HTTP/2](tls.md#websockets-on-a-stream); `[]` permits none. Bytes after the switch are not \
     inspected and not charged. `h2c` is never permitted.",
)
.list_with(|| vec!["websocket".to_owned()]);

pub(crate) static CPUS: ConfigKey<f64> = ConfigKey::new(
    "cpus",
    ValueSyntax::Number,
    cpus,
    "CPU-seconds per second that the clients share.",
)
.within(0.01, 65_536.0)
.low("clients wait while the server is idle")
.high("the server is overloaded before any client is in debt")
.default_note("the smaller of the cores of this process and the quota of its cgroup (v1 or v2)")
.example("4");

pub(crate) static COST: DefaultedKey<CostSource> = ConfigKey::text(
    "cost",
    cost,
    "How the cost of a request is measured. `wall`: elapsed time while the backend works. \
     `shared`: the same, divided among the running requests if there are more of them than `cpus`. \
     `header:NAME`: the value that the backend sends in this header, else as `shared`. \
     `cgroup:PATH`: as `shared`, corrected ten times a second by the CPU time of this cgroup \
     (version 2, as in `/proc/PID/cgroup`). `evenkeel check` names the cgroups of a backend on \
     this machine.",
)
.range_note("`wall`, `shared`, `header:NAME`, `cgroup:PATH`")
.default(CostSource::Shared);

pub(crate) static COST_HEADER: DefaultedKey<bool> = ConfigKey::words(
    "cost_header",
    &[("keep", true), ("strip", false)],
    "Whether the header of `cost: header:NAME` is passed on to the client.",
)
.default(false);

pub(crate) static ACTION: DefaultedKey<LimitAction> = ConfigKey::words(
    "action",
    &limits::ACTIONS,
    "What happens to a client in debt, if its limit has no action of its own. `queue`: while the \
     backend has capacity, no request waits; otherwise clients in credit go first, and the others \
     share the rest. `hold`: the request runs, and the head of its answer is held. `delay`: the \
     request waits before the backend gets it. `reject`: 503 with `Retry-After`.",
)
.default(LimitAction::Queue);

pub(crate) static QUEUE: SubsectionKey = SubsectionKey::one(
    "queue",
    &queue::TABLE,
    "The [queue](#proxyqueue) of requests that wait, if the action is `queue`.",
);

pub(crate) static MAX_DELAY: DefaultedKey<Nanos> = ConfigKey::duration(
    "max_delay",
    "The longest wait. A request that would have to wait longer before it runs gets 503 with \
     `Retry-After`, or 429 if its limit is a `rate`. A held answer is released after this time.",
)
.within(Nanos::ZERO, DAY)
.low("refusals instead of waits")
.high("connections stay open for long")
.default(Nanos::from_secs(30));

pub(crate) static TRUSTED_PROXIES: ListKey<IpNet> = ConfigKey::text(
    "trusted_proxies",
    address::network,
    "Networks from which forwarded headers are trusted. Too narrow: all users behind a proxy \
     share one bucket. Too wide: any host in these networks can forge client addresses.",
)
.example("10.0.0.0/8")
.list_with(Vec::new);

pub(crate) static CLIENT_ADDRESS: DefaultedKey<ClientAddress> = ConfigKey::text(
    "client_address",
    client_address,
    "Where a trusted proxy writes the address of the client. `xff`: `X-Forwarded-For`, read from \
     the right past trusted proxies, else `X-Real-IP`. `forwarded`: `Forwarded` (RFC 7239). \
     `header:NAME`: a header with one address, such as `CF-Connecting-IP`. `proxy-protocol`: \
     version 1 or 2, with which each connection of a trusted proxy then has to begin; its headers \
     are not trusted. The last three need `trusted_proxies`.",
)
.range_note("`xff`, `forwarded`, `header:NAME`, `proxy-protocol`")
.default(ClientAddress::XForwardedFor);

pub(crate) static TIMEOUTS: SubsectionKey = SubsectionKey::one(
    "timeouts",
    &timeouts::TABLE,
    "[Time limits](#proxytimeouts) of connections and requests.",
);

pub(crate) static BOUNDS: SubsectionKey = SubsectionKey::one(
    "bounds",
    &bounds::TABLE,
    "[Upper bounds](#proxybounds) of connections, sizes and streams.",
);

pub(crate) static EXEMPT: ListKey<ExemptEntry> = ConfigKey::text(
    "exempt",
    address::exempt,
    "Requests that are neither counted nor held: `ip:` and a network, `host:` and a \
     [name](#clients-by-name), or `cookie:` and the name of a cookie. A client that makes up such \
     a cookie is exempt, so the backend must not serve it; `evenkeel check` warns about it.",
)
.example("ip:192.0.2.0/24")
.list_with(Vec::new);

pub(crate) static MERGE: SubsectionKey = SubsectionKey::list(
    "merge",
    &merge::TABLE,
    "Sections with `match` and `as`, such as `{match: \"host:*.googlebot.com\", as: \
     googlebot.com}`, at most 1024: clients with a [name](#clients-by-name) that matches count as \
     one under limits by `host`. The first match applies.",
);

pub(crate) static RESOLVER: ListKey<SocketAddr> = ConfigKey::text(
    "resolver",
    address::name_server,
    "Name servers for the [names of clients](#clients-by-name); without a port it is 53.",
)
.default_note("those of the system")
.example("192.0.2.53")
.list();

pub(crate) static SHADOW: DefaultedKey<bool> = ConfigKey::truth(
    "shadow",
    "Whether Evenkeel decides, counts and logs, but lets each request pass at once.",
)
.default(false);

pub(crate) static HEADERS: DefaultedKey<bool> = ConfigKey::truth(
    "headers",
    "Whether answers state the client's standing under limits with `rate`, in the headers \
     `RateLimit-Policy` and `RateLimit` (IETF draft 10). `\"logins\";q=5;w=60` means 5 requests in \
     60 seconds; `\"logins\";r=4;t=12` means that 4 are left, and that all are available again in \
     12 seconds. A refused request is only sent the limit that refused it, and `t` is its \
     `Retry-After`.",
)
.default(false);

pub(crate) static NAMES_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "names_max",
    "Number of clients per limit that each thread can show by name, for `evenkeel doctor` and the \
     metric of held clients; some 300 bytes each.",
)
.within(1, top::CAPACITY_MAX)
.low("busy clients appear as `?`")
.high("memory")
.default(1_000);

pub(crate) static LIMITS: SubsectionKey =
    SubsectionKey::list("limits", &limits::TABLE, "The [limits](#proxylimits), at most 32.")
        .default_note("`ip`, `net24`, `net16`");

/// Reads the name of a protocol as it is written in `Upgrade`.
fn upgrade(text: &str) -> Read<String> {
    let name = header_name(text)?;
    match &*name {
        // These protocols would bypass the accounting of requests.
        "h2c" | "h2" | "tls" | "http" => Err("it would carry requests that are not counted".into()),
        _ => Ok(name.into()),
    }
}

fn cpus(text: &str) -> Read<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = text.parse().ok().filter(|_| plain);
    number.ok_or_else(|| "not a number of CPUs; write 4 or 0.5".to_owned())
}

fn cost(text: &str) -> Read<CostSource> {
    match text.split_once(':') {
        None if text == "wall" => Ok(CostSource::Wall),
        None if text == "shared" => Ok(CostSource::Shared),
        Some(("header", name)) => Ok(CostSource::Header(header_name(name)?.into())),
        Some(("cgroup", path)) if path.starts_with('/') => Ok(CostSource::Cgroup(path.into())),
        Some(("cgroup", _)) => Err("write cgroup:/system.slice/app.service".to_owned()),
        _ => Err("must be wall, shared, header:NAME or cgroup:PATH".to_owned()),
    }
}

fn client_address(text: &str) -> Read<ClientAddress> {
    match text {
        "xff" => Ok(ClientAddress::XForwardedFor),
        "forwarded" => Ok(ClientAddress::Forwarded),
        "proxy-protocol" => Ok(ClientAddress::ProxyProtocol),
        _ => match text.strip_prefix("header:") {
            Some(name) => Ok(ClientAddress::Header(values::header_name(name)?.into())),
            None => Err("must be xff, forwarded, proxy-protocol or header:NAME".to_owned()),
        },
    }
}
