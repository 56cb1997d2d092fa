//! Checks of what clients are and what they owe: addresses behind proxies, the queue, debts,
//! tables.
//!
//! The figures come from the running server. A check with too few requests to judge says so.

use super::{Examined, NO_SERVER, RELOAD, fine, length, percent, problem, unknown, warning};
use crate::doctor::facts::{MetricSeries, ServerFacts, SetupFacts, label};
use evenkeel_config::settings::{ClientAddress, ProxySettings, TrustedProxies};
use evenkeel_core::limit::LimitAction;
use evenkeel_core::units::Nanos;
use evenkeel_telemetry::metrics::{DECISIONS, KEYS_DROPPED, KEYS_MAX, KEYS_USED, REQUESTS};
use evenkeel_telemetry::snapshot::setup::RequestFacts;
use evenkeel_telemetry::snapshot::{ClientRow, LimitTable, UNIT_CPU, UNIT_HITS};
use std::net::IpAddr;

/// Fewer requests than this say nothing about where clients come from.
const REQUESTS_MIN: u64 = 20;
/// Clients that asked within this many seconds are active.
const ACTIVE_SECS: f64 = 60.0;
/// A history shorter than this says nothing about how busy the backend is.
const BUSY_SECS_MIN: f64 = 60.0;
/// A client that has been in debt for longer than this does not go by itself.
const DEBT_SECS_MAX: f64 = 1_800.0;
/// With fewer active clients than this, it means nothing that all of them are in debt.
const ACTIVE_MIN: usize = 5;

pub fn trusted_proxies(facts: &SetupFacts) -> Option<Examined> {
    let proxy = facts.proxy()?;
    if proxy.client_address == ClientAddress::ProxyProtocol {
        return fine("clients are named by the PROXY protocol");
    }
    let Some(server) = facts.server() else { return unknown(NO_SERVER) };
    let seen = &server.setup.clients;
    let all = seen.trusted_with + seen.trusted_without + seen.other_with + seen.other_without;
    if all < REQUESTS_MIN {
        return unknown(format!("only {all} requests since this configuration is in force"));
    }
    let forwarding = 2 * seen.recent_forwarding > seen.recent && seen.recent >= REQUESTS_MIN;
    if forwarding {
        return untrusted(proxy, server);
    }
    if let Some(found) = single_address(proxy, server) {
        return found;
    }
    let trusted = seen.trusted_with + seen.trusted_without;
    let mut found = format!("{trusted} of {all} requests came from trusted proxies");
    if seen.other_with > 0 {
        let with = seen.other_with;
        found.push_str(&format!("; the header of {with} others is ignored"));
    }
    fine(found)
}

/// The finding if most requests come from untrusted proxies.
fn untrusted(proxy: &ProxySettings, server: &ServerFacts) -> Option<Examined> {
    let seen = &server.setup.clients;
    let mut peers = seen.peers.clone();
    peers.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named: Vec<String> = peers.iter().map(|(peer, _)| peer.to_string()).collect();
    let (of, recent, headers) = (seen.recent_forwarding, seen.recent, seen.headers.join(", "));
    let shown = named.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
    let found = format!(
        "{of} of the last {recent} requests came with {headers} from addresses that are not \
         trusted: {shown}"
    );
    let is_cloudflare = seen.headers.iter().any(|name| name == "cf-connecting-ip");
    let all_public = peers.iter().all(|(peer, _)| !is_private(*peer));
    let before = proxy.trusted_proxies.iter().map(ToString::to_string);
    let all: Vec<String> = before.chain(peers.iter().filter_map(own_network)).collect();
    let mut todo = vec!["proxy:".to_owned()];
    let list = proxy.trusted_proxies.iter().find_map(TrustedProxies::date);
    if let Some(date) = list.filter(|_| all_public && is_cloudflare) {
        todo.push(format!("  # only if these are Cloudflare's; this list of them is of {date}"));
        todo.push(format!("  trusted_proxies: [cloudflare, {}]", named.join(", ")));
    } else if all_public && is_cloudflare {
        todo.push("  trusted_proxies: [cloudflare]".to_owned());
        todo.push("  client_address: header:CF-Connecting-IP".to_owned());
    } else if all_public {
        todo.push(
            "  # only if these are proxies of yours; any client can send such a header".into(),
        );
        todo.push(format!("  trusted_proxies: [{}]", named.join(", ")));
    } else {
        todo.push(format!("  trusted_proxies: [{}]", all.join(", ")));
        if seen.headers.iter().all(|name| name == "forwarded") {
            todo.push("  client_address: forwarded".to_owned());
        }
    }
    todo.push(RELOAD.to_owned());
    problem(found, todo)
}

/// The network to trust for a private address: the address itself.
fn own_network((peer, _): &(IpAddr, u64)) -> Option<String> {
    is_private(*peer).then(|| match peer {
        IpAddr::V4(peer) => peer.to_string(),
        IpAddr::V6(peer) => format!("\"{peer}\""),
    })
}

/// The finding if all clients are one private address, without any header.
fn single_address(proxy: &ProxySettings, server: &ServerFacts) -> Option<Option<Examined>> {
    let requests = server.metrics.with(REQUESTS.name, "door", "proxy").sum::<f64>();
    let first = server.top.limits.iter().find(|limit| limit.door == "proxy")?;
    let [row] = &first.rows[..] else { return None };
    let address = row.key.parse().ok().filter(|address| is_private(*address))?;
    if requests < 100.0
        || !proxy.trusted_proxies.is_empty()
        || is_loopback(address) && requests < 1e3
    {
        return None;
    }
    let found = format!("all {requests:.0} requests came from {address}, none with a header");
    Some(warning(
        found,
        [
            format!("if {address} is a proxy, let it send X-Forwarded-For; nginx:"),
            "  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;".to_owned(),
            "proxy:".to_owned(),
            format!("  trusted_proxies: [{address}]"),
        ],
    ))
}

fn is_loopback(address: IpAddr) -> bool {
    address.is_loopback()
}

/// Whether an address is of a private network, as proxies of one's own mostly are.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

pub fn forwarded_headers(facts: &SetupFacts) -> Option<Examined> {
    let proxy = facts.proxy()?;
    let header = match &proxy.client_address {
        ClientAddress::XForwardedFor => "X-Forwarded-For",
        ClientAddress::Forwarded => "Forwarded",
        ClientAddress::Header(name) => name,
        ClientAddress::ProxyProtocol => return None,
    };
    if proxy.trusted_proxies.is_empty() {
        return None;
    }
    let Some(server) = facts.server() else { return unknown(NO_SERVER) };
    let seen = &server.setup.clients;
    let (with, trusted) = (seen.trusted_with, seen.trusted_with + seen.trusted_without);
    let others = seen.other_with + seen.other_without;
    if trusted == 0 && others >= REQUESTS_MIN {
        let networks: Vec<String> = proxy.trusted_proxies.iter().map(ToString::to_string).collect();
        let networks = networks.join(", ");
        return warning(
            format!("none of {others} requests came from trusted_proxies: {networks}"),
            ["compare it with the addresses in: evenkeel clients"],
        );
    }
    if trusted < REQUESTS_MIN {
        return unknown(format!("only {trusted} requests of trusted proxies so far"));
    }
    let found = format!("{with} of {trusted} requests of trusted proxies have {header}");
    // Health checks of a proxy are its own requests.
    match percent(with as f64, trusted as f64) {
        ..50.0 => problem(
            found,
            [
                format!("let the proxy set {header}; nginx, for X-Forwarded-For:"),
                "  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;".to_owned(),
                "or name the header that it sends: proxy.client_address".to_owned(),
            ],
        ),
        ..90.0 => warning(found, [format!("find the requests without {header} in its log")]),
        _ => fine(found),
    }
}

pub fn queue(facts: &SetupFacts) -> Option<Examined> {
    let proxy = facts.settings.as_ref()?.proxy.as_ref()?;
    if proxy.action != LimitAction::Queue {
        return None;
    }
    let queue = &proxy.queue;
    let wait_max = queue.wait_max;
    let is_tiny = wait_max < Nanos::from_secs(2);
    let written = format!("queue.wait_max is {} ms", wait_max.0 / 1_000_000);
    let longer = ["proxy:", "  queue: {wait_max: 30s}", RELOAD];
    let Some(server) = facts.server() else {
        return if is_tiny { warning(written, longer) } else { unknown(NO_SERVER) };
    };
    let RequestFacts { all, late, crowded } = server.setup.requests;
    let refused = late + crowded;
    let part = percent(refused as f64, all as f64);
    let found = format!("{refused} of {all} requests were refused by the queue");
    match (late > 0, is_tiny) {
        (true, true) => problem(format!("{found}, {late} because {written}"), longer),
        (false, true) => warning(format!("{written}: a short burst is refused"), longer),
        _ if part >= 1.0 => warning(
            format!(
                "{found} ({part:.1} %): {late} waited for {} s, {crowded} found it full",
                wait_max.as_secs_f64()
            ),
            [
                "evenkeel clients          # the clients and pages that use the capacity",
                "more capacity, or see docs/guide/queue.md",
            ],
        ),
        _ => fine(found),
    }
}

/// Limits that refuse most requests, and do not single out a client.
pub fn refusals(facts: &SetupFacts) -> Option<Examined> {
    facts.settings.as_ref()?.proxy.as_ref()?;
    let Some(server) = facts.server() else { return unknown(NO_SERVER) };
    let refuses = |limit: &&LimitTable| {
        limit.door == "proxy"
            && limit.unit == UNIT_HITS
            && limit.action == "reject"
            && !limit.shadow
    };
    let limits: Vec<&LimitTable> = server.top.limits.iter().filter(refuses).collect();
    if limits.is_empty() {
        return None;
    }
    let decided = |of: Option<&LimitTable>| -> f64 {
        let counts = |labels: &[(String, String)]| {
            label(labels, "shadow") == "false"
                && of.is_none_or(|limit| {
                    label(labels, "verdict") == "reject" && label(labels, "limit") == limit.name
                })
        };
        server.metrics.of(DECISIONS.name).filter(|(labels, _)| counts(labels)).map(|of| of.1).sum()
    };
    let all = decided(None);
    let most = |limit: &&LimitTable| decided(Some(limit));
    let limit = limits.into_iter().max_by(|a, b| most(a).total_cmp(&most(b)))?;
    let refused = most(&limit);
    let part = percent(refused, all);
    let found = format!(
        "limit {} has refused {refused:.0} of {all:.0} requests ({part:.0} %), more than any other",
        limit.name
    );
    if part <= 50.0 || all < REQUESTS_MIN as f64 || !refuses_most_clients(limit) {
        return fine(found);
    }
    warning(
        found,
        [
            format!("raise `rate` or `burst` of {}, or narrow it with `when`", limit.name),
            "to let all requests pass until then: `shadow: true` in that limit".to_owned(),
            RELOAD.to_owned(),
        ],
    )
}

/// Most of the present clients of a limit are refused more often than not.
fn refuses_most_clients(limit: &LimitTable) -> bool {
    let active: Vec<&ClientRow> =
        limit.rows.iter().filter(|row| row.last_seen <= ACTIVE_SECS).collect();
    let is_refused = |row: &&&ClientRow| row.uncounted_per_second() > row.requests_per_second / 2.0;
    let refused = active.iter().filter(is_refused).count();
    let counts_all = active.first().is_some_and(|row| row.key == "all");
    (counts_all || active.len() >= ACTIVE_MIN) && 2 * refused > active.len()
}

pub fn debts(facts: &SetupFacts) -> Option<Examined> {
    facts.settings.as_ref()?.proxy.as_ref()?;
    let Some(server) = facts.server() else { return unknown(NO_SERVER) };
    let table = |limit: &&LimitTable| limit.door == "proxy" && limit.unit == UNIT_CPU;
    let limit = server.top.limits.iter().find(table)?;
    let active: Vec<&ClientRow> =
        limit.rows.iter().filter(|row| row.last_seen <= ACTIVE_SECS).collect();
    let owes = |row: &&&ClientRow| row.level.is_some_and(|level| level < 0.0);
    let (indebted, all) = (active.iter().filter(owes).count(), active.len());
    let load = server.top.load.iter().find(|load| load.door == "proxy");
    let waits = load.and_then(|load| load.crowd).is_some_and(|crowd| crowd.waiting > 0);
    let is_busy = waits || (server.recent.seconds >= BUSY_SECS_MIN && server.recent.used > 0.9);
    let found =
        format!("{indebted} of {all} clients of the last minute are in debt ({})", limit.name);
    if all >= ACTIVE_MIN && 10 * indebted >= 9 * all {
        return warning(
            found,
            [
                "either too little is shared out: compare `cpus` above with the backend",
                "or costs are too high: pages wait for a database instead of computing",
                "see docs/guide/when-it-is-wrong.md, \"The cost of a request\"",
            ],
        );
    }
    if is_busy && indebted == 0 && all >= ACTIVE_MIN {
        return warning(
            format!("{found}, and the capacity is used up"),
            ["many clients with little each: see docs/guide/swarms.md"],
        );
    }
    match &server.longest_debt {
        Some((name, seconds)) if *seconds >= DEBT_SECS_MAX => warning(
            format!("{found}; {name} without a pause for {}", length(*seconds)),
            [
                "a crawler that does not stop is held back, and may stay so; to refuse it:",
                "  the page of the admin address, or `action: deny`: see docs/guide/limits.md",
                "an office or a program of yours: raise `share`, or name it in `exempt`",
            ],
        ),
        _ => fine(found),
    }
}

pub fn tables(facts: &SetupFacts) -> Option<Examined> {
    let metrics = &facts.server()?.metrics;
    let dropped: f64 = metrics.sum(KEYS_DROPPED.name);
    let fullest = fullest(metrics)?;
    let (limit, used, max) = (fullest.0, fullest.1, fullest.2);
    let part = percent(used, max);
    let found = format!("limit {limit}: {used:.0} of {max:.0} keys ({part:.0} %)");
    if dropped > 0.0 && part > 50.0 {
        let keys = (2.0 * max) as u64;
        return warning(
            format!("{found}, {dropped:.0} dropped since the start"),
            ["state:".to_owned(), format!("  keys_max: {keys}      # 24 bytes each")],
        );
    }
    fine(found)
}

fn fullest(metrics: &MetricSeries) -> Option<(String, f64, f64)> {
    let rows = metrics.of(KEYS_MAX.name).map(|(labels, max)| {
        let (door, limit) = (label(labels, "door"), label(labels, "limit"));
        let is_same = |other: &[(String, String)]| {
            label(other, "door") == door && label(other, "limit") == limit
        };
        let used = metrics.of(KEYS_USED.name).find(|(other, _)| is_same(other));
        (limit.to_owned(), used.map_or(0.0, |(_, used)| used), max)
    });
    rows.max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))
}
