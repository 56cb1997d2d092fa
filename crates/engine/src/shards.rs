//! The part that engines with limits have in common: the rules in force, and for each thread a lane
//! with the lists of the heaviest clients and the charges to report to other instances.
//!
//! A lane has a lock of its own, for which only a reload, the peers and the admin door contend.
//! Other state of the lanes of one engine is their own part. The decisions of the engine are not
//! known here. The interface to other instances: `replicated`.

use crate::replicated::{
    LimitIds, NamedClient, PendingDeltas, RemoteTops, Replicated, SharedAdmission, heaviest,
};
use crate::view::EngineView;
use arc_swap::{ArcSwap, Guard};
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::Limit;
use evenkeel_core::limiter::Limiter;
use evenkeel_core::queue::SharedClient;
use evenkeel_core::replica::ReplicatedLimit;
use evenkeel_core::top::{TopClient, TopClients};
use evenkeel_core::units::{Cost, Nanos};
use evenkeel_runtime::clock::Clock;
use parking_lot::Mutex;
use std::sync::Arc;

/// The rules of an engine, which a reload replaces as a whole.
pub trait LimitRules: Send + Sync {
    /// The limits and their buckets.
    fn limiter(&self) -> &Limiter;

    /// The fingerprints by which other instances know the limits.
    fn marks(&self) -> &LimitIds;

    /// The number of clients that each limit remembers by name, per lane.
    fn names_max(&self) -> usize;
}

pub struct Shards<R, X> {
    pub(crate) clock: Clock,
    rules: ArcSwap<R>,
    lanes: Vec<Arc<Mutex<LaneState<R, X>>>>,
    /// The heaviest clients as other instances report them.
    elsewhere: RemoteTops,
}

pub struct LaneState<R, X> {
    pub(crate) rules: Arc<R>,
    /// The heaviest clients of each limit, in the order of the limits.
    pub(crate) tops: Vec<TopClients>,
    /// The charges to report to other instances; `None` unless instances count together.
    pub(crate) spent: Option<PendingDeltas>,
    /// What this kind of engine keeps beside that.
    pub(crate) own: X,
}

impl<R: LimitRules, X> Shards<R, X> {
    /// Makes `lanes` lanes, at least one, without charges. `own` makes the own part of each.
    pub(crate) fn new(rules: R, lanes: usize, clock: Clock, own: impl Fn(usize) -> X) -> Self {
        let rules = Arc::new(rules);
        let top = |_: &Limit| TopClients::new(rules.names_max());
        let lane = |index| LaneState {
            rules: Arc::clone(&rules),
            tops: rules.limiter().limits().iter().map(top).collect(),
            spent: None,
            own: own(index),
        };
        Shards {
            clock,
            lanes: (0..lanes.max(1)).map(|index| Arc::new(Mutex::new(lane(index)))).collect(),
            rules: ArcSwap::new(Arc::clone(&rules)),
            elsewhere: RemoteTops::default(),
        }
    }

    pub(crate) fn rules(&self) -> Guard<Arc<R>> {
        self.rules.load()
    }

    pub(crate) fn lane(&self, index: usize) -> Arc<Mutex<LaneState<R, X>>> {
        Arc::clone(&self.lanes[index % self.lanes.len()])
    }

    /// Calls `each` with every lane. Locks the lanes one at a time.
    pub(crate) fn for_each(&self, mut each: impl FnMut(&mut LaneState<R, X>)) {
        self.lanes.iter().for_each(|lane| each(&mut lane.lock()));
    }

    /// Replaces the rules. A limit with the same name and key keeps its lists of the heaviest,
    /// unless their size has changed. Locks the lanes one at a time.
    pub(crate) fn replace(&self, rules: R) {
        let rules = Arc::new(rules);
        self.elsewhere.keep(rules.marks());
        self.rules.store(Arc::clone(&rules));
        self.for_each(|lane| {
            let mut before = std::mem::take(&mut lane.tops);
            if lane.rules.names_max() != rules.names_max() {
                before.clear();
            }
            let (old, new) = (lane.rules.limiter(), rules.limiter());
            lane.tops = carry_tops(before, old, new, rules.names_max());
            lane.rules = Arc::clone(&rules);
        });
    }

    /// The merged list of all lanes and instances for the limit at `index`, from at most `of_each`
    /// rows of each lane.
    pub(crate) fn rows(&self, index: usize, of_each: usize) -> Vec<TopClient> {
        let now = self.clock.now();
        let tops = self.lanes.iter().map(|lane| {
            let lane = lane.lock();
            lane.tops.get(index).map(|top| top.heaviest(of_each, now)).unwrap_or_default()
        });
        let elsewhere = self.elsewhere.rows(self.rules().marks().of(index), now);
        TopClients::merge(tops.chain([elsewhere]).collect())
    }
}

impl<R: LimitRules, X> LaneState<R, X> {
    /// The readable name of a key under the limit at `index` of `rules`, if it is among the
    /// heaviest.
    pub(crate) fn name(&self, rules: &Arc<R>, index: usize, hash: KeyHash) -> Option<String> {
        self.tops.get(self.place(rules, index)?).and_then(|top| top.name(hash))
    }

    /// The heaviest clients of the limit at `index` of `rules`; `None` if there is no such limit
    /// any more.
    pub(crate) fn top(&mut self, rules: &Arc<R>, index: usize) -> Option<&mut TopClients> {
        let place = self.place(rules, index)?;
        self.tops.get_mut(place)
    }

    /// The index in this lane's rules of the limit at `index` of `rules`. The two differ for a
    /// request that was open during a reload.
    fn place(&self, rules: &Arc<R>, index: usize) -> Option<usize> {
        if Arc::ptr_eq(rules, &self.rules) {
            return Some(index);
        }
        place_of(self.rules.limiter(), rules.limiter().limits().get(index)?)
    }
}

/// The index of the limit with the name and key of `limit`.
fn place_of(limiter: &Limiter, limit: &Limit) -> Option<usize> {
    limiter.limits().iter().position(|other| other.name == limit.name && other.by == limit.by)
}

/// The lists of the heaviest for the limits of `new`. A limit with the same name and key keeps its
/// list from `tops`, which has those of `old`; another one gets an empty list of `capacity`.
pub(crate) fn carry_tops(
    tops: Vec<TopClients>,
    old: &Limiter,
    new: &Limiter,
    capacity: usize,
) -> Vec<TopClients> {
    let mut tops: Vec<_> = tops.into_iter().map(Some).collect();
    let list = |limit: &Limit| {
        let carried = place_of(old, limit).and_then(|place| tops.get_mut(place)?.take());
        carried.unwrap_or_else(|| TopClients::new(capacity))
    };
    new.limits().iter().map(list).collect()
}

/// An engine that consists of [`Shards`], and is replicated by them.
pub trait ShardedEngine: EngineView {
    type Rules: LimitRules;
    /// The own part of its lanes.
    type Own: Send;

    fn shards(&self) -> &Shards<Self::Rules, Self::Own>;

    fn shared_limits(&self) -> Vec<ReplicatedLimit>;

    /// See [`Replicated::shared_queue`]; the fingerprint is that of the table of clients.
    fn admission(&self) -> Option<&dyn SharedAdmission> {
        None
    }

    /// See [`Replicated::end_sharing`].
    fn end_queue_sharing(&self) {}

    /// See [`Replicated::cpus`].
    fn shared_cpus(&self) -> Option<f64> {
        None
    }

    /// See [`Replicated::set_total_cpus`].
    fn share_cpus(&self, _cpus: f64) {}
}

impl<E: ShardedEngine> Replicated for E {
    fn start_sharing(&self) {
        self.shards().for_each(|lane| lane.spent = Some(PendingDeltas::default()));
    }

    fn shared(&self) -> Vec<ReplicatedLimit> {
        self.shared_limits()
    }

    fn spent(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64 {
        let lanes = self.shards().lanes.iter();
        let taken = lanes.filter_map(|lane| Some(lane.lock().spent.as_mut()?.take()));
        taken.map(|spent| spent.show(each)).sum()
    }

    fn apply_delta(&self, fingerprint: u64, _: u128, key: KeyHash, amount: Cost, age: Nanos) {
        let Shards { clock, elsewhere, .. } = self.shards();
        let (rules, now) = (self.shards().rules(), clock.now());
        if let Some(index) = rules.marks().place(fingerprint) {
            rules.limiter().absorb(index, key, amount, now.minus(age), now);
            elsewhere.add(fingerprint, key, amount, rules.names_max(), now);
        }
    }

    fn apply_deficit(&self, fingerprint: u64, key: KeyHash, amount: Cost) {
        let (rules, now) = (self.shards().rules(), self.shards().clock.now());
        if let Some(index) = rules.marks().place(fingerprint) {
            rules.limiter().absorb(index, key, amount, now, now);
        }
    }

    fn apply_name(&self, fingerprint: u64, key: KeyHash, name: &str) {
        let Shards { clock, elsewhere, .. } = self.shards();
        let rules = self.shards().rules();
        if rules.marks().place(fingerprint).is_some() {
            elsewhere.name(fingerprint, key, name, rules.names_max(), clock.now());
        }
    }

    fn short(&self, max: usize) -> Vec<(u64, KeyHash, Cost)> {
        let rules = self.shards().rules();
        rules.marks().short(rules.limiter(), max, self.shards().clock.now())
    }

    fn missing(&self, fingerprint: u64, key: KeyHash) -> Option<Cost> {
        let rules = self.shards().rules();
        let index = rules.marks().place(fingerprint)?;
        rules.limiter().missing(index, key, self.shards().clock.now())
    }

    fn clients(&self, all: bool, each: &mut dyn FnMut(u64, KeyHash, SharedClient)) {
        let Some(history) = self.client_history() else { return };
        let (table, now) = (self.shards().rules().marks().clients(), self.shards().clock.now());
        match all {
            true => history.for_each_shared(now, |key, client| each(table, key, client)),
            false => history.take_due(now, |key, client| each(table, key, client)),
        }
    }

    fn apply_clients(&self, records: &[(u64, KeyHash, u64)]) {
        let Some(history) = self.client_history() else { return };
        let (own, now) = (self.shards().rules().marks().clients(), self.shards().clock.now());
        for (_, key, record) in records.iter().filter(|(table, ..)| *table == own) {
            history.learn(*key, *record, now);
        }
    }

    fn shared_queue(&self) -> Option<(u64, &dyn SharedAdmission)> {
        Some((self.shards().rules().marks().clients(), self.admission()?))
    }

    fn end_sharing(&self) {
        self.end_queue_sharing();
    }

    fn heaviest(&self, max: usize) -> Vec<NamedClient> {
        heaviest(self, self.shards().rules().marks(), max)
    }

    fn cpus(&self) -> Option<f64> {
        self.shared_cpus()
    }

    fn set_total_cpus(&self, cpus: f64) {
        self.share_cpus(cpus);
    }
}
