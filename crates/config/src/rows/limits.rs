//! The keys of a limit in `proxy.limits`, and of its condition `when`.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey, ValueSyntax};
use crate::values::{self, DAY, Read, count, header_name, token, within};
use evenkeel_core::bucket::sliding::WINDOW_MAX;
use evenkeel_core::classify::{host_name, normal_path};
use evenkeel_core::limit::{KEYS_MAX, KeyPart, LimitAction};
use evenkeel_core::units::{CpuShare, Nanos, QuantityParseError, Rate, Weight};

/// The rows of a limit.
pub static TABLE: SectionTable = SectionTable {
    path: "proxy.limits",
    keys: &[
        &NAME, &BY, &WHEN, &SHARE, &RATE, &WINDOW, &MAX, &ROUND, &BURST, &DEBT_MAX, &ACTION,
        &WEIGHT, &KEYS, &SHADOW,
    ],
};

/// The rows of a condition.
pub static CONDITION: SectionTable = SectionTable {
    path: "proxy.limits.when",
    keys: &[&METHOD, &PATH, &VHOST, &HEADER, &COOKIE, &NOT],
};

/// The rows of a negated condition.
pub static NEGATED: SectionTable =
    SectionTable { path: "proxy.limits.when.not", keys: &[&METHOD, &HEADER, &COOKIE] };

/// The largest burst, in requests.
pub(crate) const BURST_MAX: u64 = 1_000_000_000;
/// The coarsest `round` of a window limit.
const ROUND_MAX: Nanos = Nanos::from_secs(1);
/// Least and greatest `weight`. Beyond them a class almost shuts out the others, or is shut out.
const WEIGHTS: (Weight, Weight) = (Weight::new(10), Weight::new(100_000));

pub(crate) static NAME: ConfigKey<Box<str>> = ConfigKey::text(
    "name",
    values::name,
    "The unique name of the limit, in metrics and in the log.",
)
.range_note("1 to 64 letters, digits, `-`, `_`, `.`")
.example("logins")
.required();

pub(crate) static BY: ListKey<KeyTemplateWord> = ConfigKey::opaque(
    "by",
    part,
    "What the limit counts by: one [part](#what-by-takes), or a list of up to 8 (a composite key).",
)
.example("ip/24")
.required()
.list();

pub(crate) static WHEN: SubsectionKey =
    SubsectionKey::one("when", &CONDITION, "The [condition](#when) of the limit.")
        .default_note("all requests");

pub(crate) static SHARE: ConfigKey<CpuShare> = ConfigKey::opaque(
    "share",
    |text| text.parse().map_err(quantity),
    "CPU time as a share of `cpus`.",
)
.range_note("above 0, at most 100%")
.low("ordinary use is held")
.high("one client can use the whole server")
.example("10%");

pub(crate) static RATE: ConfigKey<Rate> = ConfigKey::opaque(
    "rate",
    |text| text.parse().map_err(quantity),
    "Requests per time. A client over it gets 429.",
)
.range_note("above 0")
.low("ordinary use is refused")
.high("the limit has no effect")
.example("10/s");

pub(crate) static WINDOW: ConfigKey<Nanos> = ConfigKey::duration(
    "window",
    "Length of a sliding window over which CPU time is summed, in whole seconds: exact to the \
     second up to 60 s, to a sixtieth of the window beyond. Needs `max`.",
)
.within(Nanos::from_secs(1), WINDOW_MAX)
.example("15s");

pub(crate) static MAX: ConfigKey<Nanos> = ConfigKey::opaque(
    "max",
    |text| cpu_time(text, Nanos::from_secs(1), 1.0),
    "With `window`: CPU time, or a share of `cpus` times the window. A client that reaches it is \
     blocked for one window, which `Retry-After` states.",
)
.range_note("1ms to 1d, or above 0 to 100%")
.default_note("required with `window`")
.low("ordinary use is blocked")
.high("the limit has no effect")
.example("7%");

pub(crate) static ROUND: ConfigKey<Nanos> = ConfigKey::duration(
    "round",
    "With `window`: each cost counts as the nearest multiple of this, a half upwards.",
)
.within(Nanos(1_000), ROUND_MAX)
.high("cheap requests count nothing")
.default_note("costs are not rounded")
.example("10ms");

/// The burst of a limit with `share`.
pub(crate) static BURST: ConfigKey<Nanos> = ConfigKey::text(
    "burst",
    values::duration,
    "What a client can save up. With `share`: CPU time, `30s` by default. With `rate`: requests, \
     by default those of one second and at least 1.",
)
.within(Nanos::from_millis(1), DAY)
.range_note("1ms to 1d; requests: 1 to 1 000 000 000")
.low("short peaks are held")
.high("a new client can use much before it is slowed")
.default_note("`30s`; the requests of one second")
.example("30s");

/// The burst of a limit with `rate`. It shares its place in the table with [`BURST`].
pub(crate) static BURST_REQUESTS: ConfigKey<u64> =
    ConfigKey::new("burst", ValueSyntax::Whole(&[]), requests_saved, "Requests to save up.");

pub(crate) static DEBT_MAX: ConfigKey<Nanos> = ConfigKey::duration(
    "debt_max",
    "With `share`: upper bound of the debt. Charges beyond it are forgiven.",
)
.within(Nanos::from_millis(1), DAY)
.low("a heavy client soon has full priority again")
.high("a heavy client pays for longer than any other client benefits")
.default_note("`proxy.queue.debt_max`; else with `action: queue` the burst, otherwise no bound")
.example("30s");

/// The words for each action.
pub(crate) const ACTIONS: [(&str, LimitAction); 4] = [
    ("queue", LimitAction::Queue),
    ("hold", LimitAction::Hold),
    ("delay", LimitAction::Delay),
    ("reject", LimitAction::Reject),
];

pub(crate) static ACTION: ConfigKey<LimitAction> = ConfigKey::words(
    "action",
    &ACTIONS,
    "What happens to a client over the limit; see [proxy](#proxy).",
)
.default_note("`proxy.action`; with `rate` and `window` `reject`");

pub(crate) static WEIGHT: DefaultedKey<Weight> = ConfigKey::new(
    "weight",
    ValueSyntax::Number,
    |text| text.parse().map_err(quantity),
    "How much more than others the clients of this limit get while requests \
     [queue](queue.md#some-get-more). The weights of several limits are multiplied.",
)
.within(WEIGHTS.0, WEIGHTS.1)
.low("these clients wait for all others")
.high("all others wait for these clients")
.default(Weight::ONE);

pub(crate) static KEYS: ConfigKey<usize> = keys_max(
    "Number of keys that are remembered, 24 bytes each; with `window` 228 to 768 bytes. The memory \
     is allocated at the start.",
)
.default_note("`state.keys_max`, else 262 144; with `window` 65 536");

pub(crate) static SHADOW: ConfigKey<bool> = ConfigKey::truth(
    "shadow",
    "Whether the limit decides, counts and reports, but [enforces \
     nothing](limits.md#try-it-on-nobody-first).",
)
.default_note("`false`");

pub(crate) static METHOD: ListKey<Box<str>> = ConfigKey::text(
    "method",
    |text| Ok(token(text)?.to_ascii_uppercase().into()),
    "Methods, in any case; a request has one of them.",
)
.default_note("any")
.example("POST")
.list();

pub(crate) static PATH: ListKey<Box<str>> = ConfigKey::text(
    "path",
    path,
    "Paths; the path of a request is one of them or lies below it. They match in any case and in \
     each spelling that a backend may treat as the same \
     ([details](limits.md#what-a-condition-sees)).",
)
.default_note("any")
.example("/login")
.list();

pub(crate) static VHOST: ListKey<Box<str>> =
    ConfigKey::text("vhost", vhost, "Host names without a port; a request names one of them.")
        .default_note("any")
        .example("www.example.com")
        .list();

pub(crate) static HEADER: ListKey<Box<str>> = ConfigKey::text(
    "header",
    |text| header_name(text).map_err(names_only),
    "Names of headers; a request has all of them. Values cannot be compared.",
)
.default_note("any")
.example("authorization")
.list();

pub(crate) static COOKIE: ListKey<Box<str>> = ConfigKey::text(
    "cookie",
    |text| token(text).map_err(names_only),
    "Names of cookies; a request has all of them. Values cannot be compared.",
)
.default_note("any")
.example("session")
.list();

pub(crate) static NOT: SubsectionKey = SubsectionKey::one(
    "not",
    &NEGATED,
    "A section with `method`, `header` and `cookie`, which must not match as a whole: `when: {not: \
     {cookie: session}}` is for requests without this cookie.",
);

/// The row of a number of keys.
pub(crate) const fn keys_max(doc: &'static str) -> ConfigKey<usize> {
    ConfigKey::whole("keys_max", doc)
        .within(1, KEYS_MAX)
        .low("the smallest debts are evicted early")
        .high("memory")
        .example("65536")
}

fn quantity(error: QuantityParseError) -> String {
    error.to_string()
}

fn names_only(why: String) -> String {
    format!("{why} Only names are allowed here, not values")
}

/// Reads CPU time, either as a duration or as a share of what `cpus` provide within the window.
pub(crate) fn cpu_time(text: &str, window: Nanos, cpus: f64) -> Read<Nanos> {
    if let Ok(share) = text.parse::<CpuShare>() {
        return Ok(Nanos::from_secs_f64(share.fraction() * cpus * window.as_secs_f64()));
    }
    let long = |_| "not CPU time or a share; write 1050ms or 7%".to_owned();
    within(text.parse().map_err(|_| ()).map_err(long)?, Nanos::from_millis(1)..=DAY)
}

/// Reads a burst in requests, at least 1.
pub fn requests_saved(text: &str) -> Read<u64> {
    match count(text)? {
        0 => Err("with 0 no request could pass: the minimum is 1, which allows no burst, like \
                  nginx's `burst=0`"
            .to_owned()),
        burst => within(burst, 1..=BURST_MAX),
    }
}

/// One element of `by`.
#[derive(Clone, PartialEq)]
pub(crate) enum KeyTemplateWord {
    V4(u8),
    V6(u8),
    Part(KeyPart),
}

/// Reads one part of a key.
pub(crate) fn part(text: &str) -> Read<KeyTemplateWord> {
    let bits = |text: &str, max: u64| within(count(text)?, 0..=max).map(|n| n as u8);
    if let Some(prefix) = text.strip_prefix("ip/") {
        return bits(prefix, 32).map(KeyTemplateWord::V4);
    }
    if let Some(prefix) = text.strip_prefix("ip6/") {
        return bits(prefix, 128).map(KeyTemplateWord::V6);
    }
    let part = match text.split_once(':') {
        Some(("header", name)) => KeyPart::Header(header_name(name)?),
        Some(("cookie", name)) => KeyPart::Cookie(token(name)?),
        Some(("path", n)) => KeyPart::Path(Some(within(count(n)?, 1..=255)? as u8)),
        _ => plain_part(text)?,
    };
    Ok(KeyTemplateWord::Part(part))
}

fn plain_part(text: &str) -> Read<KeyPart> {
    Ok(match text {
        "user-agent" => KeyPart::UserAgent,
        "method" => KeyPart::Method,
        "path" => KeyPart::Path(None),
        "vhost" => KeyPart::Vhost,
        "host" => KeyPart::Host,
        "all" => KeyPart::All,
        _ => {
            return Err(
                "must be ip/N, ip6/N, user-agent, header:NAME, cookie:NAME, method, path, \
                        path:N, vhost, host or all"
                    .to_owned(),
            );
        }
    })
}

fn path(text: &str) -> Read<Box<str>> {
    if !text.starts_with('/') || text.contains(['?', '#']) {
        return Err("a path begins with / and has no query".to_owned());
    }
    if text.contains(';') {
        return Err("a path is compared without `;parameters`".to_owned());
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in text.split('/').filter(|segment| !segment.is_empty()) {
        match segment {
            ".." => _ = kept.pop(),
            segment => kept.push(segment),
        }
    }
    let path = normal_path(&kept.join("/")).into_owned();
    if path == "/.." {
        return Err("a path has no encoded `..`".to_owned());
    }
    Ok(path.into())
}

fn vhost(text: &str) -> Read<Box<str>> {
    let v6 = text.starts_with('[') && text.ends_with(']');
    if text.is_empty() || (text.contains([':', '/']) && !v6) {
        return Err("a host name without a port, such as www.example.com".to_owned());
    }
    Ok(host_name(text).to_ascii_lowercase().into())
}
