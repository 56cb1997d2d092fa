//! The configuration of a door for the engine of requests.
//!
//! A reload makes new rules; open requests end by those that they began with. No state of a request
//! or a bucket is here. Their users: `engine`, `ask`, `charge`.

use crate::host_names;
use crate::replicated::LimitIds;
use crate::shards::LimitRules;
use evenkeel_config::settings::{self, BackendAddress, CostSource, DenyRule, ProxySettings};
use evenkeel_core::condition::Condition;
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::limit::{Limit, LimitAction, LimitUnit, RefusalKind};
use evenkeel_core::limiter::{Limiter, LimiterPolicy, Reason};
use evenkeel_core::meter;
use evenkeel_core::queue::WorkUnit;
use evenkeel_core::queue::concurrency::ConcurrencySearch;
use evenkeel_core::queue::standing::WaitingRoomEntry;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_identity::hosts::{HostDirectory, HostPolicy};
use evenkeel_identity::networks::live::NetworkTables;
use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;

/// The parts of a door's configuration that the engine uses. A reload replaces them as a whole.
pub struct EngineRules {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) cpus: f64,
    /// Whether all backends run on this machine.
    pub(crate) is_local: bool,
    pub(crate) cost: CostSource,
    pub(crate) exempt: Vec<IpNet>,
    pub(crate) exempt_when: Vec<Condition>,
    pub(crate) denials: Vec<DenyRule>,
    /// The table of client names and their groups; `None` if no limit or exemption depends on
    /// names.
    pub(crate) hosts: Option<Arc<HostDirectory>>,
    /// Facts about the networks of clients, from files.
    pub(crate) networks: Arc<NetworkTables>,
    pub(crate) shadow: bool,
    pub(crate) seed: KeySeed,
    /// Whether any action is `queue`, so that requests wait for a slot.
    pub(crate) queues: bool,
    /// Whether other instances share the queue.
    pub(crate) shares_queue: bool,
    /// Whether the cost is estimated before a request runs: an enforced limit needs it, or what is
    /// charged for an answer that cannot be read.
    pub(crate) foresees: bool,
    /// Whether shares refer to the measured capacity of the backend.
    pub(crate) measures_rate: bool,
    /// The number of clients that each limit remembers by name, per lane.
    pub(crate) names_max: usize,
    /// The fingerprints by which other instances know the limits.
    pub(crate) marks: LimitIds,
    /// Whether a limit counts hits. Hits are charged when a request is admitted.
    pub(crate) hits: bool,
}

impl LimitRules for EngineRules {
    fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    fn marks(&self) -> &LimitIds {
        &self.marks
    }

    fn names_max(&self) -> usize {
        self.names_max
    }
}

impl EngineRules {
    /// The group that a client counts as, and whether it is exempt by name. Locks [`HostDirectory`]
    /// for a moment. If only robots have names, most clients are not looked up.
    pub(crate) fn known(&self, client: IpAddr, now: Time) -> HostPolicy {
        let hosts = self.hosts.as_ref().filter(|hosts| hosts.settings().needs_all_names());
        hosts.map(|hosts| hosts.of(client, now)).unwrap_or_default()
    }

    /// The name of the group that a client counts as, if any.
    pub(crate) fn group(&self, known: HostPolicy) -> Option<&str> {
        self.hosts.as_ref().and_then(|hosts| hosts.group(known))
    }

    /// The readable name of a client's key, if its address is enough to make it.
    pub(crate) fn name(
        &self,
        limit: &Limit,
        hash: KeyHash,
        client: IpAddr,
        known: HostPolicy,
    ) -> Option<String> {
        host_names::name(limit, hash, client, self.group(known), &self.networks)
    }
}

pub(crate) fn policy(proxy: &ProxySettings) -> LimiterPolicy {
    LimiterPolicy { action: proxy.action, max_delay: proxy.max_delay }
}

pub(crate) fn rules(
    proxy: &ProxySettings,
    limiter: Limiter,
    seed: KeySeed,
    (hosts, networks): (Option<Arc<HostDirectory>>, &Arc<NetworkTables>),
) -> EngineRules {
    let actions = || {
        let enforced = limiter.limits().iter().filter(|limit| !limit.shadow);
        enforced.map(|limit| limit.action(proxy.action))
    };
    EngineRules {
        queues: proxy.action == LimitAction::Queue
            || actions().any(|action| action == LimitAction::Queue),
        shares_queue: proxy.queue.shared,
        foresees: proxy.cost == CostSource::Tokens
            || actions().any(|action| action != LimitAction::Hold),
        measures_rate: proxy.cost == CostSource::Tokens && proxy.tokens.per_second.is_none(),
        cpus: proxy.cpus,
        is_local: !proxy.backends.is_empty() && proxy.backends.iter().all(BackendAddress::is_local),
        cost: proxy.cost.clone(),
        exempt: proxy.exempt.clone(),
        exempt_when: proxy.exempt_when.clone(),
        denials: proxy.denials.clone(),
        hosts,
        networks: Arc::clone(networks),
        shadow: proxy.shadow,
        names_max: proxy.names_max,
        marks: LimitIds::new("proxy", limiter.limits()),
        hits: limiter.limits().iter().any(|limit| limit.unit == LimitUnit::Hits),
        seed,
        limiter: Arc::new(limiter),
    }
}

/// The search for the number of requests that the backend can work on at once; `None` if that
/// number is configured.
pub(crate) fn search(proxy: &ProxySettings) -> Option<ConcurrencySearch> {
    let is_auto = proxy.queue.concurrency == settings::ConcurrencySetting::Auto;
    is_auto.then(|| match proxy.cost.unit() {
        WorkUnit::CpuTime => ConcurrencySearch::new(proxy.queue.search_cpus(proxy.cpus)),
        WorkUnit::Tokens => ConcurrencySearch::for_tokens(),
    })
}

pub(crate) fn virtual_clock(proxy: &ProxySettings) -> meter::CpuClock {
    match proxy.cost {
        CostSource::Wall => meter::CpuClock::Wall,
        CostSource::Shared | CostSource::Header(_) | CostSource::Tokens => {
            meter::CpuClock::Shared { cpus: proxy.cpus }
        }
        CostSource::Cgroup(_) => meter::CpuClock::Cgroup { cpus: proxy.cpus },
    }
}

/// Why a request was refused, as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRefusal {
    /// The name of the limit or of the gatekeeper's domain.
    pub limit: String,
    /// The number of seconds, at least one, after which the request would be admitted. Zero if a
    /// rule denies it.
    pub retry_after_secs: u64,
    /// What refused it.
    pub kind: RefusalKind,
    /// Set if the queue sends the visitor to the waiting room. A door without one refuses.
    pub waiting_room: Option<WaitingRoomEntry>,
}

pub(crate) fn refusal(rules: &EngineRules, reason: Reason, retry_after: Nanos) -> RequestRefusal {
    let limit = &rules.limiter.limits()[usize::from(reason.key.limit)];
    let by_rate = limit.unit != LimitUnit::Cpu;
    RequestRefusal {
        limit: limit.name.to_string(),
        retry_after_secs: retry_after.retry_after_secs(),
        kind: if by_rate { RefusalKind::OverRate } else { RefusalKind::Busy },
        waiting_room: None,
    }
}
