//! The `proxy.queue` section: how requests wait for capacity at the backend.
//!
//! The queue itself is `evenkeel_core::queue`.

use super::engine_metrics::{self, EngineMetricsSetting};
use super::waiting_room::{self, WaitingRoomSettings};
use crate::keys::{ConfigKey, DefaultedKey, SubsectionKey, ValueSyntax};
use crate::reader::{SectionReader, settings};
use crate::settings::peers::{self, PeersSettings};
use crate::values::{Read, count, within};
use evenkeel_core::fact::{ClientFact, FactSet};
use evenkeel_core::queue::WorkUnit;
use evenkeel_core::queue::standing::KnownClients;
use evenkeel_core::units::Nanos;
use std::fmt;

settings! {
    /// How requests wait for capacity at the backend.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ProxyQueueSettings from keys(
        section, cpus: f64, peers: Option<&PeersSettings>
    ), TABLE = "proxy.queue";

    /// Number of requests that the backend works on at once. `auto` finds it by measuring.
    pub concurrency: ConcurrencySetting, CONCURRENCY: DefaultedKey<ConcurrencySetting> =
        ConfigKey::new("concurrency", ValueSyntax::Whole(&["auto"]), concurrency)
            .range_note("1 to 1 000 000, or `auto`").default(ConcurrencySetting::Auto)
            .low("the backend is idle while requests wait")
            .high("requests wait inside the backend, in no fair order");
    /// Number of requests that all backends together can work on at once, if you know it: the
    /// number of workers or threads (`pm.max_children` of PHP-FPM, workers times threads of
    /// gunicorn or Puma). The backend never gets more requests than this, whatever `auto` and
    /// reserved slots say.
    pub workers: Option<usize>, WORKERS: ConfigKey<usize> = ConfigKey::whole("workers")
        .within(1, SLOTS_MAX).default_note("not known").example("8")
        .low("the backend is idle while requests wait")
        .high("requests may wait inside the backend, in no fair order");
    /// Where [inference engines](models.md#requests-that-wait-inside-the-server) report how many
    /// requests wait inside. While requests wait inside, there are only as many slots as the
    /// backends run requests. `auto`: with `cost: tokens`, at `/metrics` of each backend in a
    /// private network; otherwise nowhere. A path: at this path of each backend.
    pub engine_metrics: EngineMetricsSetting, ENGINE_METRICS: DefaultedKey<EngineMetricsSetting> =
        ConfigKey::new("engine_metrics", ValueSyntax::Text, engine_metrics::read)
            .range_note("`auto`, `off` or a path").default(EngineMetricsSetting::Auto);
    /// Number of reserved slots, in addition to `concurrency`. They are for clients in credit that
    /// have no request at the backend and ask for little compared with the requests there. With
    /// `cost: tokens`, they are for clients in credit that have less than their part of the slots
    /// and are at most a few requests ahead of others. In total the backend gets at most `workers`
    /// requests, or the measured number.
    pub reserve: usize, RESERVE: ConfigKey<usize> = ConfigKey::whole("reserve").within(0, SLOTS_MAX)
        .default_note("two per CPU, at least two; two with `cost: tokens`")
        .low("new clients wait for a running request to end, or for each other")
        .high("a swarm of new clients overloads the backend")
        => section.key_or(&RESERVE, (2.0 * cpus).ceil().max(2.0) as usize);
    /// Upper bound of the debt of a bucket, in CPU time. A limit may have its own.
    pub debt_max: Option<Nanos>, DEBT_MAX: ConfigKey<Nanos> = ConfigKey::duration("debt_max")
        .within(Nanos::from_millis(1), Nanos::from_secs(86_400))
        .default_note("the burst of the bucket").example("30s")
        .low("a heavy client soon has full priority again")
        .high("a heavy client pays for longer than any other client benefits");
    /// Maximum number of requests that wait, with some 30 kB each for their connections. When the
    /// queue is full, the newest request of the client or network with most waiting requests gets
    /// 503 with `Retry-After`.
    pub len_max: usize, LEN_MAX: DefaultedKey<usize> = ConfigKey::whole("len_max")
        .within(1, 1_000_000).default(4_096).low("bursts are refused")
        .high("memory, and waits that clients give up on");
    /// The longest time that a request waits in the queue. Then it gets 503 with `Retry-After`.
    pub wait_max: Nanos, WAIT_MAX: DefaultedKey<Nanos> = ConfigKey::duration("wait_max")
        .within(Nanos::from_millis(1), Nanos::from_secs(86_400)).default(Nanos::from_secs(30))
        .low("refusals instead of waits").high("connections stay open for long");
    /// Whether clients that were here before go before strangers. `auto`: while the requests of
    /// clients in credit need more than the backend can do. `always`: at all times. `off`: never.
    pub known: KnownSetting, KNOWN: DefaultedKey<KnownSetting> =
        ConfigKey::words("known", KnownSetting::WORDS).default(KnownSetting::Auto);
    /// Number of clients that are remembered, 36 bytes each. Clients that were served often are
    /// forgotten last, so it need not hold a swarm: a few times the number of visitors of a day.
    /// `0`: as `known: off`.
    pub known_max: usize, KNOWN_MAX: DefaultedKey<usize> = ConfigKey::whole("known_max")
        .within(0, SLOTS_MAX).default(65_536)
        .low("a client that comes seldom is a stranger at each visit").high("memory");
    /// What a browser gets that has to wait for long: the [waiting page](#proxyqueuewaiting_room)
    /// and a cookie that keeps its place in line. `false`: the request waits for its turn. No
    /// effect with `known: off`.
    pub waiting_room: Option<WaitingRoomSettings>, WAITING_ROOM: SubsectionKey =
        SubsectionKey::one("waiting_room", &waiting_room::TABLE).default_note("`true`")
            .or_words(&["true", "false"]) => waiting_room::read(section, &WAITING_ROOM);
    /// Whether this instance has [one queue with its peers](peers.md#one-queue), because all of
    /// them are before one backend. Needs [`peers`](#peers) over a mesh.
    pub shared: bool, SHARED: ConfigKey<bool> = ConfigKey::truth("shared")
        .default_note("as `peers.cpus_shared`; `false` without a mesh")
        => section.key_or(&SHARED, peers::share_a_queue(peers));
}

impl ProxyQueueSettings {
    /// The facts by which the queue finds what strangers have in common. `rtt` is not among them,
    /// because the first request of a connection may have to wait for it, nor are those that need a
    /// file. The queue uses them where limits or conditions name them.
    pub(super) fn swarm_facts(&self) -> FactSet {
        let facts = [ClientFact::Ja4, ClientFact::H2, ClientFact::Fetch];
        facts.into_iter().filter(|_| self.known != KnownSetting::Off).collect()
    }

    /// The form that the core uses. With `Auto`, the search for the best concurrency starts at
    /// [`ProxyQueueSettings::search_cpus`].
    #[must_use]
    pub fn bounds(&self, cpus: f64, unit: WorkUnit) -> evenkeel_core::queue::QueueSettings {
        let concurrency = match self.concurrency {
            ConcurrencySetting::Auto => self.search_cpus(cpus).ceil().max(1.0) as usize,
            ConcurrencySetting::Fixed(count) => count,
        };
        evenkeel_core::queue::QueueSettings {
            concurrency,
            reserve: self.reserve,
            len_max: self.len_max,
            wait_max: self.wait_max,
            known: self.known.of(self.known_max),
            cpus_milli: (self.search_cpus(cpus) * 1e3).ceil().max(1.0) as u64,
            unit,
            workers: self.workers,
        }
    }

    /// The number of processors that the backend can use at once: `cpus`, or its workers if these
    /// are fewer.
    #[must_use]
    pub fn search_cpus(&self, cpus: f64) -> f64 {
        self.workers.map_or(cpus, |workers| cpus.min(workers as f64))
    }
}

/// Number of requests that the backend works on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencySetting {
    /// Found by measuring: the number up to which more requests at once still increase throughput.
    Auto,
    /// A fixed number, 1 to 1 000 000. Too low: the backend idles. Too high: requests wait there.
    Fixed(usize),
}

impl fmt::Display for ConcurrencySetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConcurrencySetting::Auto => f.write_str("auto"),
            ConcurrencySetting::Fixed(count) => write!(f, "{count}"),
        }
    }
}

/// Whether clients that were here before go before strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownSetting {
    /// While the requests of clients in credit need more than the backend can do.
    Auto,
    /// Never.
    Off,
    /// At all times.
    Always,
}

impl KnownSetting {
    const WORDS: &[(&str, KnownSetting)] = &[
        ("auto", KnownSetting::Auto),
        ("off", KnownSetting::Off),
        ("always", KnownSetting::Always),
    ];

    /// The form that the core uses, with so many clients to remember.
    fn of(self, clients_max: usize) -> KnownClients {
        match self {
            KnownSetting::Off => KnownClients::Off,
            _ if clients_max == 0 => KnownClients::Off,
            KnownSetting::Auto => KnownClients::Auto { clients_max },
            KnownSetting::Always => KnownClients::Always { clients_max },
        }
    }
}

/// Upper bound of `concurrency`, `workers`, `reserve` and `known_max`.
pub(crate) const SLOTS_MAX: usize = 1_000_000;

impl ProxyQueueSettings {
    /// The defaults for a backend with `cpus` CPUs.
    #[must_use]
    pub fn for_cpus(cpus: f64) -> ProxyQueueSettings {
        SectionReader::defaults(&TABLE, |section| read(section, cpus, None))
    }
}

/// Reads the section.
pub(super) fn read(
    section: &mut SectionReader<'_, '_>,
    cpus: f64,
    peers: Option<&PeersSettings>,
) -> ProxyQueueSettings {
    let settings = keys(section, cpus, peers);
    peers::refuse_without_mesh(section, settings.shared, peers);
    if let (ConcurrencySetting::Fixed(slots), Some(workers)) =
        (settings.concurrency, settings.workers)
        && slots > workers
    {
        let what = format!("{slots} is more than `workers`, {workers}; lower it, or write auto");
        section.fault_of("concurrency", what);
    }
    settings
}

/// Reads a number of slots, or `auto`.
pub(crate) fn concurrency(text: &str) -> Read<ConcurrencySetting> {
    if text == "auto" {
        return Ok(ConcurrencySetting::Auto);
    }
    let slots = within(count(text)?, 1..=SLOTS_MAX as u64).map(|n| n as usize);
    slots.map(ConcurrencySetting::Fixed).map_err(|why| format!("{why}, or auto"))
}
