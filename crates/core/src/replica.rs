//! The state machine of instances that count together; it has no IO, no clock and no buckets.
//!
//! Each instance decides alone. Every period it reports its charges since the last report, and the
//! others charge them to their own buckets. Reports contain sums, never levels, so their order does
//! not matter. Their parts are numbered, and a receiver charges each number once (`window`). Over
//! links, unacknowledged reports are sent again for a minute (`log`), so sums are exact over
//! shorter outages. Over a group, lost reports are only counted. Either way a healed partition
//! charges clients for at most its last minute. Empty reports are sent too, so that silence means
//! that an instance is down.
//!
//! `handle_*` takes input, `poll_*` returns output, and charges of other instances go to the
//! caller, which has the limits. See `send` for what is sent and when, `state` for what an instance
//! gets that joins, `wire` and `content` for the bytes.

mod answer;
mod bounds;
mod clients;
mod content;
mod limit;
mod log;
mod peer;
mod queue;
mod queue_wire;
mod send;
mod sender_check;
mod state;
mod successor;
mod unsent;
mod update;
mod window;
mod wire;

use crate::key::{KeyHash, KeyHasher, KeySeed};
use crate::units::{Cost, Nanos, SECOND, Time};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use answer::StateAnswer;
pub use bounds::{LIMITS_MAX, REPLICA_BOUNDS, ReplicaBounds};
use content::{ChargeReport, FrameContent, ReplicaHello};
pub use limit::ReplicatedLimit;
use log::ResendLog;
use peer::ReplicaPeer;
pub use peer::{PeerSnapshot, PeerTraffic};
pub use queue::QueueApart;
use unsent::UnsentCharges;
pub use update::{PeerDeficit, ReplicaEvent, ReplicaTotals, ReplicaUpdate};
use window::SequenceWindow;
pub use wire::PeerFrameError;
use wire::{PeerFrameKind, PeerFrameSender};

/// Maximum difference between the time in a frame of a group and the local clock; other frames are
/// refused.
const CLOCK_SKEW_MAX: Nanos = Nanos::from_secs(60);
/// Maximum number of periods for which the charges of a key are held back.
const HELD_BACK_PERIODS_MAX: u64 = 10;
/// Divisor of the cost that a limit lets pass in a period: the unreported charges of a key may
/// reach this part of it, over all instances together.
const HELD_BACK_DIVISOR: u64 = 1_000;

/// The settings of one instance.
#[derive(Clone, Debug)]
pub struct ReplicaSettings {
    /// Identity of the instance: a number that no other instance has, such as a random one.
    pub node: u64,
    /// Number of this life of the instance. It must be greater than those of earlier lives, such as
    /// the time of the start.
    pub life: u64,
    /// The readable name of the instance.
    pub name: String,
    /// Interval between two reports.
    pub period: Nanos,
    /// The maximum length of a frame to send, in bytes.
    pub frame_max: usize,
    /// Whether each link leads to one peer and keeps the order (a mesh); else a link leads to the
    /// group of all instances.
    pub reliable: bool,
    /// CPUs that this instance shares out, in thousandths.
    pub cpus_milli: u32,
    /// Maximum number of instances that are accepted, including this one.
    pub nodes_max: usize,
}

/// A link to one peer, or to the group.
struct ReplicaLink {
    /// The instance at the other end, once its hello has arrived. Always `None` over a group.
    speaker: Option<PeerFrameSender>,
}

/// Progress of fetching the present state, which is requested once, from one peer after the other.
enum StateRequest {
    /// The state has arrived, or the replica has given up.
    No,
    /// The next able peer is asked; `asked` peers have been asked before.
    Anybody { asked: u8 },
    /// `node` was asked at `since`.
    Of { node: u64, since: Time, asked: u8, answer: StateAnswer },
}

/// One instance among those that count together.
pub struct Replica {
    settings: ReplicaSettings,
    limits: Vec<ReplicatedLimit>,
    /// Maps the fingerprint of a limit to its index in `limits`.
    places: BTreeMap<u64, usize>,
    digest: u64,
    tally: UnsentCharges,
    log: ResendLog,
    peers: BTreeMap<u64, ReplicaPeer>,
    links: BTreeMap<u64, ReplicaLink>,
    out: VecDeque<(u64, Arc<[u8]>)>,
    /// Frames about queues, which overtake those in `out`.
    queue_out: VecDeque<(u64, Arc<[u8]>)>,
    /// The queues of this instance that others may share, in order.
    queues: Vec<u64>,
    /// Those that were shared before the last change.
    queues_gone: Vec<u64>,
    events: VecDeque<ReplicaEvent>,
    /// The number of the next frame of a report.
    next: u64,
    /// The numbers of the first frames of the last periods. Over a group, older frames are too
    /// late.
    firsts: VecDeque<u64>,
    /// Number of periods since the start.
    period: u64,
    next_tick: Time,
    /// Whether a hello is due on all links.
    hello_due: bool,
    wanting: StateRequest,
    /// Whether the buckets have charges from before the start, or from the state of a peer.
    is_restored: bool,
    handovers: successor::Handovers,
    totals: ReplicaTotals,
}

impl Replica {
    /// An instance that starts now and has received nothing yet.
    #[must_use]
    pub fn new(settings: ReplicaSettings, limits: Vec<ReplicatedLimit>, now: Time) -> Replica {
        let period = settings.period.max(Nanos::from_millis(1));
        let mut replica = Replica {
            settings: ReplicaSettings { period, ..settings },
            limits: Vec::new(),
            places: BTreeMap::new(),
            digest: 0,
            tally: UnsentCharges::default(),
            log: ResendLog::default(),
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            out: VecDeque::new(),
            queue_out: VecDeque::new(),
            queues: Vec::new(),
            queues_gone: Vec::new(),
            events: VecDeque::new(),
            next: 0,
            firsts: VecDeque::new(),
            period: 0,
            next_tick: now.plus(period),
            hello_due: true,
            wanting: StateRequest::Anybody { asked: 0 },
            is_restored: false,
            handovers: successor::Handovers::default(),
            totals: ReplicaTotals::default(),
        };
        replica.set_limits(limits);
        // Each new link is greeted when it comes up.
        replica.hello_due = false;
        replica
    }

    /// Replaces the limits: at most [`LIMITS_MAX`], without two of the same fingerprint. Unreported
    /// charges of limits that stay are kept under their new indexes.
    pub fn set_limits(&mut self, mut limits: Vec<ReplicatedLimit>) {
        limits.truncate(LIMITS_MAX);
        limits.iter_mut().for_each(|limit| limit.unit = limit.unit.max(1));
        let places: BTreeMap<u64, usize> =
            limits.iter().enumerate().map(|(place, limit)| (limit.fingerprint, place)).collect();
        let old = core::mem::replace(&mut self.limits, limits);
        self.tally.remap_limits(|place| places.get(&old.get(place)?.fingerprint).copied());
        self.places = places;
        if let StateRequest::Of { answer, .. } = &mut self.wanting {
            answer.restart_sums();
        }
        let mut hasher = KeyHasher::new(&KeySeed([0; 16]));
        for limit in &self.limits {
            hasher.part(&limit.fingerprint.to_le_bytes());
            hasher.part(limit.numbers.as_bytes());
        }
        self.digest = hasher.finish().bits();
        self.hello_due = true;
    }

    /// The identity of this instance.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.settings.node
    }

    /// Sets the number of CPUs that this instance shares out, in thousandths.
    pub fn set_cpus(&mut self, cpus_milli: u32) {
        self.hello_due |= self.settings.cpus_milli != cpus_milli;
        self.settings.cpus_milli = cpus_milli;
    }

    /// Records that this instance charged `amount` to a key.
    pub fn charge(&mut self, limit: usize, context: u128, key: KeyHash, amount: Cost, now: Time) {
        if limit >= self.limits.len() || amount == Cost::ZERO {
            return;
        }
        if self.tally.add(limit, context, key, amount.0, self.period) {
            return;
        }
        // Held-back keys are reported too: otherwise they would keep the room from others, and each
        // further charge would search all of them again.
        self.cut(true, now);
        if !self.tally.add(limit, context, key, amount.0, self.period) {
            self.totals.dropped += 1;
        }
    }

    /// The index of the limit with this fingerprint.
    #[must_use]
    pub fn place(&self, fingerprint: u64) -> Option<usize> {
        self.places.get(&fingerprint).copied()
    }

    /// The unreported charges of a key, in nano-units.
    #[must_use]
    pub fn unsent(&self, limit: usize, context: u128, key: KeyHash) -> u64 {
        self.tally.unsent(limit, context, key)
    }

    /// Handles a new link.
    pub fn handle_up(&mut self, link: u64, now: Time) {
        if self.links.len() >= REPLICA_BOUNDS.links_max {
            return;
        }
        self.links.insert(link, ReplicaLink { speaker: None });
        self.send_hello(link, now);
    }

    /// Handles the loss of a link. Unacknowledged reports are sent again on another link.
    /// `is_gone`: the instance at the other end has closed the link, so it has ended; otherwise it
    /// may still run.
    pub fn handle_down(&mut self, link: u64, is_gone: bool, now: Time) {
        let speaker = self.links.remove(&link).and_then(|link| link.speaker);
        self.out.retain(|(to, _)| *to != link);
        let Some(node) = speaker.map(|speaker| speaker.node) else { return };
        self.handle_queue_link_end(link, node, is_gone);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.links.retain(|known| *known != link);
        if peer.ready == Some(link) {
            peer.ready = None;
            // On another link the peer answers with the reports that it has.
            let others = peer.links.clone();
            others.into_iter().for_each(|other| self.send_hello(other, now));
        }
        // The request or its answer may be lost with the link.
        self.give_up_state_request(node);
        self.ask_for_state(now);
    }

    /// Handles a received frame. Calls `told` with its effects on buckets before it returns.
    ///
    /// # Errors
    /// [`PeerFrameError`] if the frame is refused. In this case it changes nothing, and it is
    /// counted.
    pub fn handle_frame(
        &mut self,
        link: u64,
        bytes: &[u8],
        now: Time,
        told: &mut dyn FnMut(ReplicaUpdate<'_>),
    ) -> Result<(), PeerFrameError> {
        let result = self.frame(link, bytes, now, told);
        self.totals.refused += u64::from(result.is_err());
        if result.is_err() && bytes.get(1) == Some(&(PeerFrameKind::Queue as u8)) {
            self.push_event(ReplicaEvent::QueueLost { link });
        }
        result
    }

    fn frame(
        &mut self,
        link: u64,
        bytes: &[u8],
        now: Time,
        told: &mut dyn FnMut(ReplicaUpdate<'_>),
    ) -> Result<(), PeerFrameError> {
        let (head, said) = FrameContent::read(bytes)?;
        if head.sender.node == self.settings.node {
            return self.handle_own_frame(link, head.sender);
        }
        self.check_sender(link, &head, now)?;
        let period = self.settings.period;
        let peer = self.peers.entry(head.sender.node);
        let peer = peer.or_insert_with(|| ReplicaPeer::new(head.sender, period, now));
        match head.kind {
            PeerFrameKind::Queue => peer.queue_frames.add(now),
            _ => peer.frames += 1,
        }
        let age = peer.age(head.at, now);
        for counts in [&mut peer.counts, &mut self.totals.counts] {
            counts.frames_in += 1;
            counts.bytes_in += bytes.len() as u64;
        }
        let node = head.sender.node;
        match said {
            FrameContent::Hello(hello) => self.handle_hello(link, head.sender, hello, now),
            FrameContent::Limits { digest, part, limits } => {
                self.compare_limits(node, digest, part, &limits)
            }
            FrameContent::Report(report) => self.handle_report(node, report, (now, age), told),
            FrameContent::Ack { of, window } => self.handle_ack(link, node, of, &window, now),
            FrameContent::Want { of } => self.handle_state_request(node, of),
            FrameContent::Seen { answer, seen } => {
                if let Some(expected) = self.expected_answer(node, answer) {
                    expected.add_list(answer, seen);
                }
            }
            FrameContent::State { answer, groups } => {
                self.handle_clients(node, groups.clone(), told);
                self.handle_queues(link, node, groups.clone());
                self.handle_handovers(link, node, groups.clone());
                self.handle_state(node, (answer, groups), now, told);
            }
            FrameContent::Queue { queue, messages } => {
                self.handle_queue_messages(node, (queue, messages), now, told);
            }
            FrameContent::Names(names) => {
                for name in names.iter().take(REPLICA_BOUNDS.names_max) {
                    let Some(limit) = self.places.get(&name.limit) else { continue };
                    told(ReplicaUpdate::Name { limit: *limit, key: name.key, name: name.name });
                }
            }
        }
        Ok(())
    }

    /// Handles a frame with the identity of this instance: a group delivers every frame to all, and
    /// a list of peers may name its owner.
    fn handle_own_frame(
        &mut self,
        link: u64,
        sender: PeerFrameSender,
    ) -> Result<(), PeerFrameError> {
        if sender.life != self.settings.life {
            return Err(PeerFrameError::Twin);
        }
        if self.settings.reliable {
            self.push_event(ReplicaEvent::Own { link });
        }
        Ok(())
    }

    fn handle_hello(
        &mut self,
        link: u64,
        sender: PeerFrameSender,
        hello: ReplicaHello<'_>,
        now: Time,
    ) {
        let Some(peer) = self.peers.get_mut(&sender.node) else { return };
        let first = peer.name.is_empty();
        peer.name = if hello.name.is_empty() { "?".into() } else { hello.name.into() };
        peer.period = hello.period;
        peer.cpus_milli = hello.cpus_milli;
        peer.heard = peer.heard.max(now);
        if peer.digest != hello.digest {
            (peer.digest, peer.compared) = (hello.digest, 0);
        }
        let name = peer.name.clone();
        if self.settings.reliable {
            if !peer.links.contains(&link) {
                peer.links.push(link);
            }
            if let Some(known) = self.links.get_mut(&link) {
                known.speaker = Some(sender);
            }
            // The answer of the peer lists the reports that it has; until then it is sent none.
            self.acknowledge(link);
        }
        if first {
            self.hello_due |= !self.settings.reliable;
            self.push_event(ReplicaEvent::Joined { node: sender.node, name });
        }
    }

    /// Reports once each limit of a peer that differs from the limit here.
    fn compare_limits(
        &mut self,
        node: u64,
        digest: u64,
        part: u32,
        limits: &[content::AnnouncedLimit<'_>],
    ) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let bit = 1_u128.checked_shl(part).unwrap_or(0);
        if digest != peer.digest || bit == 0 || peer.compared & bit != 0 {
            return;
        }
        peer.compared |= bit;
        let name = if peer.name.is_empty() { "?".into() } else { peer.name.clone() };
        for limit in limits {
            let here = self.places.get(&limit.fingerprint).map(|place| &self.limits[*place]);
            let alike = self.limits.iter().find(|ours| *ours.name == *limit.name);
            let ours = match (here, alike) {
                (Some(here), _) if *here.numbers == *limit.numbers => continue,
                (Some(here), _) => Some(String::from(&*here.numbers)),
                (None, alike) => alike.map(|ours| String::from(&*ours.numbers)),
            };
            let counts = here.is_some();
            let (limit, theirs) = (limit.name.into(), limit.numbers.into());
            self.push_event(ReplicaEvent::Differs {
                name: name.clone(),
                limit,
                theirs,
                ours,
                counts,
            });
        }
    }

    fn handle_report(
        &mut self,
        node: u64,
        report: ChargeReport<'_>,
        (now, age): (Time, Nanos),
        told: &mut dyn FnMut(ReplicaUpdate<'_>),
    ) {
        // The state may contain the report. Over links the peer sends it again if it does not.
        if self.settings.reliable && self.awaits_state() {
            return self.ask_for_state(now);
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let first =
            if self.settings.reliable { report.oldest } else { report.number - report.part };
        let seen = peer.seen.get_or_insert_with(|| SequenceWindow::starting_at(first));
        let mut lost = seen.give_up(report.oldest);
        let (new, given_up) = seen.insert(report.number);
        lost = lost.saturating_add(given_up);
        peer.ack_due = self.settings.reliable;
        for counts in [&mut peer.counts, &mut self.totals.counts] {
            counts.lost_in = counts.lost_in.saturating_add(lost);
        }
        if !new {
            peer.counts.repeated += 1;
            self.totals.counts.repeated += 1;
            return;
        }
        peer.heard = peer.heard.max(now);
        peer.report = peer.report.max(report.period);
        for entry in report.groups {
            let Some(limit) = self.places.get(&entry.limit).copied() else {
                peer.counts.unshared += 1;
                self.totals.counts.unshared += 1;
                continue;
            };
            let amount = Cost(entry.amount.saturating_mul(self.limits[limit].unit));
            peer.counts.entries_in += 1;
            self.totals.counts.entries_in += 1;
            let (context, key) = (entry.context, entry.key);
            told(ReplicaUpdate::Charge { limit, context, key, amount, age });
        }
        self.ask_for_state(now);
    }

    /// Handles the list of reports of this instance that a peer has.
    fn handle_ack(
        &mut self,
        link: u64,
        node: u64,
        of: PeerFrameSender,
        window: &SequenceWindow,
        now: Time,
    ) {
        let sender = self.sender();
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.heard = peer.heard.max(now);
        // An acknowledgement for an earlier life says nothing about the reports of this life.
        if of == sender && window.base() <= self.next {
            peer.acked.join(window);
        }
        if peer.ready.is_none() && self.links.contains_key(&link) {
            peer.ready = Some(link);
            peer.next = 0;
            peer.resend_at = now.plus(Nanos(self.settings.period.0.saturating_mul(2)));
            self.flush();
        }
        self.ask_for_state(now);
    }

    fn push_event(&mut self, event: ReplicaEvent) {
        if self.events.len() < REPLICA_BOUNDS.events_max {
            self.events.push_back(event);
        }
    }

    fn sender(&self) -> PeerFrameSender {
        PeerFrameSender { node: self.settings.node, life: self.settings.life }
    }

    /// Returns the next event for the caller, if there is one.
    pub fn poll_event(&mut self) -> Option<ReplicaEvent> {
        self.events.pop_front()
    }

    /// The time at which `handle_timeout` must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Time {
        self.next_tick
    }

    /// Number of live instances, including this one.
    #[must_use]
    pub fn live_instances(&self, now: Time) -> usize {
        let period = self.settings.period;
        1 + self.peers.values().filter(|peer| peer.is_live(period, now)).count()
    }

    /// CPUs that all live instances together share out, in thousandths.
    #[must_use]
    pub fn cpus_milli(&self, now: Time) -> u64 {
        u64::from(self.settings.cpus_milli) + self.others_cpus_milli(now)
    }

    /// CPUs that the other live instances share out, in thousandths.
    #[must_use]
    pub fn others_cpus_milli(&self, now: Time) -> u64 {
        let period = self.settings.period;
        let live = self.peers.values().filter(|peer| peer.is_live(period, now));
        live.map(|peer| u64::from(peer.cpus_milli)).sum()
    }

    /// All other known instances.
    #[must_use]
    pub fn peers(&self, now: Time) -> Vec<PeerSnapshot> {
        let seen = |(node, peer): (&u64, &ReplicaPeer)| PeerSnapshot {
            node: *node,
            name: peer.name.clone(),
            links: peer.links.clone(),
            lives: peer.is_live(self.settings.period, now),
            since: peer.since,
            heard: peer.heard,
            period: peer.period,
            report: peer.report,
            cpus_milli: peer.cpus_milli,
            behind: self.behind(peer, now),
            counts: peer.counts,
        };
        self.peers.iter().map(seen).collect()
    }

    /// Age of the oldest report that a peer has not acknowledged; zero over a group.
    fn behind(&self, peer: &ReplicaPeer, now: Time) -> Nanos {
        let mut waiting = self.log.since(peer.acked.base());
        let oldest = waiting.find(|sent| !peer.acked.has(sent.number));
        oldest.filter(|_| self.settings.reliable).map_or(Nanos::ZERO, |sent| now.since(sent.cut))
    }

    /// Totals since the start.
    #[must_use]
    pub fn totals(&self) -> ReplicaTotals {
        self.totals
    }

    /// Number of keys with unreported charges, number of frames kept for resending, and bytes of
    /// these frames.
    #[must_use]
    pub fn backlog(&self) -> [usize; 3] {
        [self.tally.len(), self.log.len(), self.log.bytes()]
    }

    /// The shared limits.
    #[must_use]
    pub fn limits(&self) -> &[ReplicatedLimit] {
        &self.limits
    }
}

/// Unreported amount of a key that may be held back, in nano-units, while `live` instances count
/// together.
fn held_back_max(limit: &ReplicatedLimit, period: Nanos, live: usize) -> u64 {
    let per_period = u128::from(limit.per_second.0) * u128::from(period.0) / u128::from(SECOND);
    u64::try_from(per_period / u128::from(HELD_BACK_DIVISOR) / live.max(1) as u128)
        .unwrap_or(u64::MAX)
}
