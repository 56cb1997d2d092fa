//! Instances that count together: what to tell the others, and what to make of what they tell.
//!
//! Each instance decides alone and at once; every period it tells all others what it has charged
//! since, and they charge it to their own buckets. Sums, never values: whatever order reports
//! come in, all end at the same figure. A report is charged once: its parts are numbered, and a
//! receiver knows which numbers of which life of which instance it has seen (`window`). Over links
//! that acknowledge, what a peer has not got is kept and sent again for a minute (`log`), so sums
//! are exact over shorter outages; over a group, what is lost is lost, and counted. Either way a
//! partition that heals charges nobody for more than its last minute. A report is sent if it is
//! empty, too: the rate of messages is constant, and silence means absence.
//!
//! No IO, no clock, no buckets: `handle_*` takes what comes, `poll_*` gives what goes, and foreign
//! charges are handed to the caller, who has the limits. It does not decide, and does not know
//! `limiter`. What is sent and when: `send`; the bytes: `wire`, `said`.

mod bounds;
mod log;
mod peer;
mod said;
mod send;
mod tally;
mod told;
mod trust;
mod window;
mod wire;

use crate::key::{KeyHash, KeyHasher, Seed};
use crate::units::{Cost, Nanos, SECOND, Time};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
pub use bounds::{BOUNDS, Bounds};
use log::Log;
use peer::Peer;
pub use peer::{Counts, Seen};
use said::{Answer, Hello, Report, Said};
use tally::Tally;
pub use told::{Event, Told, Totals};
use window::Window;
pub use wire::Fault;
use wire::Sender;

/// The most limits that are shared.
pub const LIMITS_MAX: usize = 128;
/// Frames of a group that are older than this, or newer, are not believed.
const CLOCKS_DIFFER: Nanos = Nanos::from_secs(60);
/// A key waits for at most so many periods.
const WAITS_MAX: u64 = 10;
/// What a key may have untold, in all instances together, is one in so many of what its limit
/// lets pass in a period.
const SHARE: u64 = 1_000;

/// A limit that is counted together with other instances.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// Stands for everything that has to be equal: what counts under it, by what, in which unit.
    pub fingerprint: u64,
    /// Its name.
    pub name: Box<str>,
    /// Its numbers, for people: where they differ, sums are right and verdicts differ.
    pub numbers: Box<str>,
    /// Amounts are told in multiples of so many nano-units; what is left over waits. At least 1.
    pub unit: u64,
    /// What it lets pass in a second: keys with far less untold wait. Zero: none waits.
    pub per_second: Cost,
}

/// What an instance is told of itself.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its identity: a random number, or one that no other instance has.
    pub node: u64,
    /// Which of its lives this is: greater than those before, such as the time of its start.
    pub life: u64,
    /// Its name for people.
    pub name: String,
    /// How often it reports.
    pub period: Nanos,
    /// The longest frame that may be sent.
    pub frame_max: usize,
    /// Whether each link leads to one peer, in order (a mesh); else to the group of all.
    pub reliable: bool,
    /// Thousandths of CPUs that it has to share out.
    pub cpus_milli: u32,
    /// Instances that are listened to, this one included.
    pub nodes_max: usize,
}

/// A link to one peer, or to the group.
struct Link {
    /// Who speaks on it.
    speaker: Option<Sender>,
}

/// The state is asked for once, of one peer after the other.
enum Wanting {
    /// Not any more.
    No,
    /// Of the next who can be asked.
    Anybody { asked: u8 },
    /// Of this one, since then; of the answer with this number these parts have come that say what
    /// is in it, a bit for each.
    Of { node: u64, since: Time, asked: u8, number: u64, seen: u128 },
}

/// One instance among those that count together.
pub struct Replica {
    settings: Settings,
    limits: Vec<Shared>,
    /// From fingerprint to place.
    places: BTreeMap<u64, usize>,
    digest: u64,
    tally: Tally,
    log: Log,
    peers: BTreeMap<u64, Peer>,
    links: BTreeMap<u64, Link>,
    out: VecDeque<(u64, Arc<[u8]>)>,
    events: VecDeque<Event>,
    /// The number of the next frame of a report.
    next: u64,
    /// The first frames of the last periods: over a group, what comes from before is too late.
    firsts: VecDeque<u64>,
    /// How many periods there have been.
    period: u64,
    next_tick: Time,
    /// Whether all are to be told who this is.
    hello_due: bool,
    wanting: Wanting,
    totals: Totals,
}

impl Replica {
    /// An instance that begins now and has heard of nobody.
    #[must_use]
    pub fn new(settings: Settings, limits: Vec<Shared>, now: Time) -> Replica {
        let period = settings.period.max(Nanos::from_millis(1));
        let mut replica = Replica {
            settings: Settings { period, ..settings },
            limits: Vec::new(),
            places: BTreeMap::new(),
            digest: 0,
            tally: Tally::default(),
            log: Log::default(),
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            next: 0,
            firsts: VecDeque::new(),
            period: 0,
            next_tick: now.plus(period),
            hello_due: true,
            wanting: Wanting::Anybody { asked: 0 },
            totals: Totals::default(),
        };
        replica.set_limits(limits);
        // Whoever is met is greeted then.
        replica.hello_due = false;
        replica
    }

    /// The limits have changed; at most [`LIMITS_MAX`], and no two with one fingerprint. What is
    /// untold of those that stay is told under their new places.
    pub fn set_limits(&mut self, mut limits: Vec<Shared>) {
        limits.truncate(LIMITS_MAX);
        limits.iter_mut().for_each(|limit| limit.unit = limit.unit.max(1));
        let places: BTreeMap<u64, usize> =
            limits.iter().enumerate().map(|(place, limit)| (limit.fingerprint, place)).collect();
        let old = core::mem::replace(&mut self.limits, limits);
        self.tally.moved(|place| places.get(&old.get(place)?.fingerprint).copied());
        self.places = places;
        let mut hasher = KeyHasher::new(&Seed([0; 16]));
        for limit in &self.limits {
            hasher.part(&limit.fingerprint.to_le_bytes());
            hasher.part(limit.numbers.as_bytes());
        }
        self.digest = hasher.finish().bits();
        self.hello_due = true;
    }

    /// How many CPUs this instance has to share out has changed.
    pub fn set_cpus(&mut self, cpus_milli: u32) {
        self.hello_due |= self.settings.cpus_milli != cpus_milli;
        self.settings.cpus_milli = cpus_milli;
    }

    /// A key was charged here.
    pub fn charge(&mut self, limit: usize, context: u128, key: KeyHash, amount: Cost, now: Time) {
        if limit >= self.limits.len() || amount == Cost::ZERO {
            return;
        }
        if self.tally.add(limit, context, key, amount.0, self.period) {
            return;
        }
        self.cut(false, now);
        if !self.tally.add(limit, context, key, amount.0, self.period) {
            self.totals.dropped += 1;
        }
    }

    /// Where the limit is that has this fingerprint.
    #[must_use]
    pub fn place(&self, fingerprint: u64) -> Option<usize> {
        self.places.get(&fingerprint).copied()
    }

    /// What of a key's charges has not been told, in nano-units.
    #[must_use]
    pub fn unsent(&self, limit: usize, context: u128, key: KeyHash) -> u64 {
        self.tally.unsent(limit, context, key)
    }

    /// A link is there.
    pub fn handle_up(&mut self, link: u64, now: Time) {
        if self.links.len() >= BOUNDS.links_max {
            return;
        }
        self.links.insert(link, Link { speaker: None });
        self.say_hello(link, now);
    }

    /// A link is gone; what was sent on it and not acknowledged is sent on another.
    pub fn handle_down(&mut self, link: u64, now: Time) {
        let speaker = self.links.remove(&link).and_then(|link| link.speaker);
        self.out.retain(|(to, _)| *to != link);
        let Some(peer) = speaker.and_then(|speaker| self.peers.get_mut(&speaker.node)) else {
            return;
        };
        peer.links.retain(|known| *known != link);
        if peer.ready == Some(link) {
            peer.ready = None;
            // On another link it will answer what it has.
            let others = peer.links.clone();
            others.into_iter().for_each(|other| self.say_hello(other, now));
        }
    }

    /// A frame came. What it means for buckets is `told` before this returns.
    ///
    /// # Errors
    /// [`Fault`] if it is not believed; nothing was changed then, and it was counted.
    pub fn handle_frame(
        &mut self,
        link: u64,
        bytes: &[u8],
        now: Time,
        told: &mut dyn FnMut(Told<'_>),
    ) -> Result<(), Fault> {
        let result = self.frame(link, bytes, now, told);
        self.totals.refused += u64::from(result.is_err());
        result
    }

    fn frame(
        &mut self,
        link: u64,
        bytes: &[u8],
        now: Time,
        told: &mut dyn FnMut(Told<'_>),
    ) -> Result<(), Fault> {
        let (head, said) = Said::read(bytes)?;
        if head.sender.node == self.settings.node {
            return self.own(link, head.sender);
        }
        self.believe(link, &head, now)?;
        let period = self.settings.period;
        let peer = self.peers.entry(head.sender.node);
        let peer = peer.or_insert_with(|| Peer::new(head.sender, period, now));
        peer.frames += 1;
        let age = peer.age(head.at, now);
        for counts in [&mut peer.counts, &mut self.totals.counts] {
            counts.frames_in += 1;
            counts.bytes_in += bytes.len() as u64;
        }
        let node = head.sender.node;
        match said {
            Said::Hello(hello) => self.hello(link, head.sender, hello, now),
            Said::Limits { digest, part, limits } => self.compare(node, digest, part, &limits),
            Said::Report(report) => self.report(node, report, (now, age), told),
            Said::Ack { of, window } => self.acked(link, node, of, &window, now),
            Said::Want { of } => self.wanted(node, of),
            Said::Seen { answer, seen } => {
                if self.awaits(node, answer, false) {
                    self.have_seen(seen, now);
                }
            }
            Said::State { answer, groups } => {
                if self.awaits(node, answer, true) {
                    self.take_state(answer, groups, told);
                }
            }
            Said::Names(names) => {
                for name in names.iter().take(BOUNDS.names_max) {
                    let Some(limit) = self.places.get(&name.limit) else { continue };
                    told(Told::Name { limit: *limit, key: name.key, name: name.name });
                }
            }
        }
        Ok(())
    }

    /// A frame of our own: a group gives everybody everything, and a list may name its owner.
    fn own(&mut self, link: u64, sender: Sender) -> Result<(), Fault> {
        if sender.life != self.settings.life {
            return Err(Fault::Twin);
        }
        if self.settings.reliable {
            self.tell(Event::Own { link });
        }
        Ok(())
    }

    fn hello(&mut self, link: u64, sender: Sender, hello: Hello<'_>, now: Time) {
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
            // Its answer says what it has; before that it is sent nothing.
            self.acknowledge(link);
        }
        if first {
            self.hello_due |= !self.settings.reliable;
            self.tell(Event::Joined { node: sender.node, name });
        }
    }

    /// Tells of each limit that is another here, once.
    fn compare(&mut self, node: u64, digest: u64, part: u32, limits: &[said::Limit<'_>]) {
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
            self.tell(Event::Differs { name: name.clone(), limit, theirs, ours, counts });
        }
    }

    fn report(
        &mut self,
        node: u64,
        report: Report<'_>,
        (now, age): (Time, Nanos),
        told: &mut dyn FnMut(Told<'_>),
    ) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let first =
            if self.settings.reliable { report.oldest } else { report.number - report.part };
        let seen = peer.seen.get_or_insert_with(|| Window::starting_at(first));
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
            told(Told::Charge { limit, context, key, amount, age });
        }
        self.ask_for_state(now);
    }

    /// A peer says what it has of our reports.
    fn acked(&mut self, link: u64, node: u64, of: Sender, window: &Window, now: Time) {
        let sender = self.sender();
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.heard = peer.heard.max(now);
        // Of an earlier life it may have much; that says nothing.
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

    fn wanted(&mut self, node: u64, of: u64) {
        let Some(peer) = self.peers.get_mut(&node).filter(|_| of == self.settings.node) else {
            return;
        };
        if peer.given < BOUNDS.given_max {
            peer.given += 1;
            self.tell(Event::Wanted { node });
        }
    }

    /// The state that follows has these reports in it: they are not charged again.
    fn have_seen(&mut self, seen: Vec<(Sender, Window)>, now: Time) {
        for (sender, window) in seen {
            let own = sender.node == self.settings.node;
            let period = self.settings.period;
            let full = self.peers.len() + 1 >= self.settings.nodes_max;
            if own || (full && !self.peers.contains_key(&sender.node)) {
                continue;
            }
            let peer = self.peers.entry(sender.node);
            let peer = peer.or_insert_with(|| {
                // Known of, but not heard: it counts for nobody until it speaks.
                Peer { heard: Time::ZERO, ..Peer::new(sender, period, now) }
            });
            if peer.life == sender.life {
                peer.seen.get_or_insert_with(Window::default).join(&window);
            }
        }
    }

    fn take_state(
        &mut self,
        answer: Answer,
        groups: wire::Groups<'_>,
        told: &mut dyn FnMut(Told<'_>),
    ) {
        if answer.part + 1 == answer.parts {
            self.wanting = Wanting::No;
        }
        for entry in groups {
            if let Some(limit) = self.places.get(&entry.limit) {
                let missing = Cost(entry.amount);
                told(Told::Short { limit: *limit, key: entry.key, missing });
            }
        }
    }

    /// Whether a part of an answer is waited for. The state is not taken before all is known that
    /// it contains: else that would be charged again when its reports come.
    fn awaits(&mut self, node: u64, answer: Answer, state: bool) -> bool {
        let Wanting::Of { node: asked, number, seen, .. } = &mut self.wanting else { return false };
        if *asked != node || answer.to != self.settings.node || answer.parts > 128 {
            return false;
        }
        if state {
            return *number == answer.number && *seen == u128::MAX;
        }
        if *number != answer.number {
            (*number, *seen) = (answer.number, u128::MAX << answer.parts.min(127));
            if answer.parts == 128 {
                *seen = 0;
            }
        }
        *seen |= 1 << answer.part;
        true
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < BOUNDS.events_max {
            self.events.push_back(event);
        }
    }

    fn sender(&self) -> Sender {
        Sender { node: self.settings.node, life: self.settings.life }
    }

    /// Something for the caller to know, if there is anything.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When `handle_timeout` is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Time {
        self.next_tick
    }

    /// How many instances live, this one included.
    #[must_use]
    pub fn live(&self, now: Time) -> usize {
        let period = self.settings.period;
        1 + self.peers.values().filter(|peer| peer.lives(period, now)).count()
    }

    /// CPUs that all live instances have to share out, in thousandths.
    #[must_use]
    pub fn cpus_milli(&self, now: Time) -> u64 {
        u64::from(self.settings.cpus_milli) + self.others_cpus_milli(now)
    }

    /// Those of the others.
    #[must_use]
    pub fn others_cpus_milli(&self, now: Time) -> u64 {
        let period = self.settings.period;
        let live = self.peers.values().filter(|peer| peer.lives(period, now));
        live.map(|peer| u64::from(peer.cpus_milli)).sum()
    }

    /// All other instances that are known.
    #[must_use]
    pub fn peers(&self, now: Time) -> Vec<Seen> {
        let seen = |(node, peer): (&u64, &Peer)| Seen {
            node: *node,
            name: peer.name.clone(),
            links: peer.links.clone(),
            lives: peer.lives(self.settings.period, now),
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

    /// For how long the oldest report has waited that a peer has not acknowledged.
    fn behind(&self, peer: &Peer, now: Time) -> Nanos {
        let mut waiting = self.log.since(peer.acked.base());
        let oldest = waiting.find(|sent| !peer.acked.has(sent.number));
        oldest.filter(|_| self.settings.reliable).map_or(Nanos::ZERO, |sent| now.since(sent.cut))
    }

    /// What was done since the start.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Keys that wait to be told; frames kept to be sent again, and their bytes.
    #[must_use]
    pub fn kept(&self) -> [usize; 3] {
        [self.tally.len(), self.log.len(), self.log.bytes()]
    }

    /// The limits that are shared.
    #[must_use]
    pub fn limits(&self) -> &[Shared] {
        &self.limits
    }
}

/// How much untold of a key may wait, in nano-units, while `live` instances count together.
fn quiet(limit: &Shared, period: Nanos, live: usize) -> u64 {
    let per_period = u128::from(limit.per_second.0) * u128::from(period.0) / u128::from(SECOND);
    u64::try_from(per_period / u128::from(SHARE) / live.max(1) as u128).unwrap_or(u64::MAX)
}
