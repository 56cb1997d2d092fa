//! The `line.turns` section: how programs take turns with `TAKE` and `DONE`.
//!
//! The order of turns is that of `evenkeel_core::queue`, with tags as clients. Which tags are in
//! debt: one limit, the share of all turns.

use crate::keys::{ConfigKey, DefaultedKey, SubsectionKey, ValueSyntax, section};
use crate::reader::{SectionReader, settings};
use crate::settings::limits::{WEIGHTS, quantity};
use crate::settings::line;
use crate::settings::peers::{self, PeersSettings};
use crate::settings::proxy::{ConcurrencySetting, SLOTS_MAX, concurrency};
use crate::settings::tags::tag_limit;
use crate::values::DAY;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::classify::prefix::PrefixTable;
use evenkeel_core::limit::{Limit, LimitUnit};
use evenkeel_core::queue::standing::KnownClients;
use evenkeel_core::queue::{QueueSettings, WorkUnit};
use evenkeel_core::units::{Cost, CpuShare, ExactRate, Nanos, Rate, Weight};
use std::sync::Arc;

/// The name of the limit that turns count by.
pub const TURNS_LIMIT_NAME: &str = "turns";

settings! {
    /// How programs take turns.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TurnSettings from keys(
        section, keys_max: usize, peers: Option<&PeersSettings>
    ), TABLE = "line.turns";

    /// Number of turns at once. `auto` finds the number at which most turns end per second; it
    /// begins with one per CPU.
    pub slots: ConcurrencySetting, SLOTS: DefaultedKey<ConcurrencySetting> =
        ConfigKey::new("slots", ValueSyntax::Whole(&["auto"]), concurrency)
            .range_note("1 to 1 000 000, or `auto`").default(ConcurrencySetting::Auto)
            .low("the machine is idle while programs wait")
            .high("programs slow each other down");
    /// Number of these slots that only tags without a turn may use, if they ask for little. Not
    /// with `auto`.
    pub reserve: usize, RESERVE: DefaultedKey<usize> = ConfigKey::whole("reserve")
        .within(0, SLOTS_MAX).default(0).low("a tag that uses little waits for a turn to end")
        .high("slots are free while programs wait");
    /// The longest time that a program waits for its turn. After that the answer is `LATE`.
    pub wait_max: Nanos, WAIT_MAX: DefaultedKey<Nanos> = ConfigKey::duration("wait_max")
        .within(Nanos::from_millis(1), Nanos(7 * DAY.0)).default(Nanos::from_secs(60))
        .low("programs get `LATE` and have to come back").high("programs hang for long");
    /// The longest time that a program can keep a turn. After that the turn ends, as if the program
    /// had sent `DONE`.
    pub hold_max: Nanos, HOLD_MAX: DefaultedKey<Nanos> = ConfigKey::duration("hold_max")
        .within(Nanos::from_millis(1), Nanos(30 * DAY.0)).default(DAY)
        .low("more programs run at once than there are slots")
        .high("a program that hangs keeps its slot for long");
    /// Number of programs that may wait. With more, the newest program of the tag with most waiting
    /// programs gets `BUSY`.
    pub len_max: usize, LEN_MAX: DefaultedKey<usize> = ConfigKey::whole("len_max")
        .within(1, 1_000_000).default(100_000).low("programs are turned away").high("memory");
    /// The part of all slots that a tag may use for a long time. A tag that has used more waits
    /// behind all others, as a client in debt does in the proxy's [queue](queue.md).
    pub share: f64, SHARE: ConfigKey<CpuShare> =
        ConfigKey::opaque("share", |text| text.parse().map_err(quantity))
            .range_note("above 0, at most 100%").default_note("25%").example("50%")
            .low("ordinary use is in debt").high("no tag is ever in debt")
        => section.key(&SHARE).map_or(SHARE_DEFAULT, CpuShare::fraction);
    /// The time of turns that a tag can use before `share` applies to it.
    pub burst: Nanos, BURST: DefaultedKey<Nanos> = ConfigKey::duration("burst")
        .within(Nanos::from_millis(1), DAY).default(Nanos::from_secs(60))
        .low("a tag with some long turns is in debt").high("a heavy tag is in credit for long");
    /// [Weights](#lineturnsweights) of tags: one with weight 2 gets two times as much as another.
    pub weights: TurnWeights, WEIGHT_LIST: SubsectionKey = SubsectionKey::list("weights", &WEIGHT)
        => weights(section);
    /// Whether this instance shares one queue of turns with its peers, because all turns are for
    /// the same machine or service. Needs [`peers`](#peers) over a mesh.
    pub shared: bool, SHARED: ConfigKey<bool> = ConfigKey::truth("shared")
        .default_note("as `peers.cpus_shared`; `false` without a mesh")
        => section.key_or(&SHARED, peers::share_a_queue(peers));
    /// Number of tags that are remembered, 24 bytes each.
    pub keys_max: usize = keys_max;
}

section! {
    WEIGHT = "line.turns.weights";

    /// The beginning of the tags; the longest prefix counts.
    WEIGHT_PREFIX: ConfigKey<String> = ConfigKey::text("prefix", line::prefix)
        .range_note("1 to 256 bytes, no newline").required().example("paid:");
    /// The weight of the tags.
    WEIGHT_OF: ConfigKey<Weight> =
        ConfigKey::new("weight", ValueSyntax::Number, |text| text.parse().map_err(quantity))
            .within(WEIGHTS.0, WEIGHTS.1).required().example("2");
}

/// The default of `share`.
const SHARE_DEFAULT: f64 = 0.25;

/// The weights of tags by prefix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnWeights {
    prefixes: Arc<PrefixTable>,
    weights: Vec<Weight>,
}

impl TurnWeights {
    /// The weight of a tag: that of its longest prefix, else one.
    #[must_use]
    pub fn of(&self, tag: &[u8]) -> Weight {
        let found = self.prefixes.find(tag).and_then(|rule| self.weights.get(rule as usize));
        found.copied().unwrap_or(Weight::ONE)
    }
}

fn weights(section: &mut SectionReader<'_, '_>) -> TurnWeights {
    let mut found: Vec<(String, Weight)> = Vec::new();
    let nodes = section.nodes_of(&WEIGHT_LIST).unwrap_or_default();
    section.sections(&WEIGHT_LIST, nodes, |section| {
        let missing = |key: &str| format!("a weight of turns needs `{key}`");
        section.require(&["prefix", "weight"], missing);
        let (prefix, weight) = (section.key(&WEIGHT_PREFIX), section.key(&WEIGHT_OF));
        let (Some(prefix), Some(weight)) = (prefix, weight) else { return };
        if found.iter().any(|(other, _)| *other == prefix) {
            section.fault("prefix", format!("two weights are of `{prefix}`; remove one"));
        }
        found.push((prefix, weight));
    });
    let prefixes = (0..).zip(&found).map(|(at, (prefix, _))| (prefix.as_bytes(), at));
    TurnWeights {
        prefixes: Arc::new(PrefixTable::new(prefixes)),
        weights: found.iter().map(|(_, weight)| *weight).collect(),
    }
}

/// Reads the section.
pub(super) fn read(
    section: &mut SectionReader<'_, '_>,
    keys_max: usize,
    peers: Option<&PeersSettings>,
) -> TurnSettings {
    let settings = keys(section, keys_max, peers);
    peers::refuse_without_mesh(section, settings.shared, peers);
    match settings.slots {
        ConcurrencySetting::Fixed(slots) if settings.reserve >= slots => {
            section.fault("reserve", format!("must be less than `slots`, which is {slots}"));
        }
        ConcurrencySetting::Auto if settings.reserve > 0 => {
            section.fault("reserve", "needs a number of `slots`");
        }
        _ => {}
    }
    settings
}

impl TurnSettings {
    /// The bounds of the queue. `cpus`: what a search for the number of slots begins with.
    #[must_use]
    pub fn bounds(&self, cpus: usize) -> QueueSettings {
        let (concurrency, workers) = match self.slots {
            ConcurrencySetting::Auto => (cpus.max(1), None),
            ConcurrencySetting::Fixed(slots) => (slots - self.reserve.min(slots - 1), Some(slots)),
        };
        QueueSettings {
            concurrency,
            reserve: self.reserve,
            len_max: self.len_max,
            wait_max: self.wait_max,
            known: KnownClients::Off,
            cpus_milli: 1_000 * concurrency as u64,
            unit: WorkUnit::CpuTime,
            workers,
        }
    }

    /// The limit that decides which tags are in debt.
    #[must_use]
    pub fn limit(&self, cpus: usize) -> Limit {
        let slots = match self.slots {
            ConcurrencySetting::Auto => cpus.max(1),
            ConcurrencySetting::Fixed(slots) => slots,
        };
        let second = Cost::cpu(Nanos::from_secs_f64(self.share * slots as f64));
        let rate = Rate::per(second, Nanos::from_secs(1));
        let rate = rate.unwrap_or_else(|| ExactRate::ONE_PER_SECOND.rate());
        let algorithm = Algorithm::Debt(DebtBucket::new(rate, Cost::cpu(self.burst)));
        let limit = tag_limit(TURNS_LIMIT_NAME.into(), algorithm, self.keys_max);
        Limit { unit: LimitUnit::Cpu, ..limit }
    }
}
