//! The engine of a gatekeeper: one domain, as a master decides on it.
//!
//! A request is decided on by what the master has told so far, out of memory, and the master is
//! told afterwards; nobody waits for it. Of whom nothing is known, he passes. The table and the
//! decision are `evenkeel_core::limiter::orders`; what is told waits in `outbox`; who has the
//! connections is up to the door. How requests are held is up to whoever asks.

use super::outbox::{Note, Outbox, Status};
use crate::clock::Clock;
use crate::config::settings;
use crate::engine::counted::{Counted, Work};
use crate::engine::{GONE, Standing};
use crate::watch::Watch;
use crate::watch::counts::gatekeeper::{GatekeeperCounts, Passed};
use crate::watch::decision::Decision;
use crate::watch::registry::Held;
use aws_lc_rs::digest::{SHA256, digest};
use evenkeel_core::classify::{self, Attributes, readable};
use evenkeel_core::key::{KeyHash, Seed};
use evenkeel_core::limit::{Part, When};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::limiter::orders::{Orders, Word};
use evenkeel_core::top::{Row, Top};
use evenkeel_core::units::{Cost, Nanos, Time};
use parking_lot::Mutex;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The longest identifier; of a longer one only so much counts, here and at the master.
pub const IDENTIFIER_BYTES_MAX: usize = 65_536;
/// An order for longer than this is a mistake: no rule of a master holds anybody for so long.
const AHEAD_MAX: Nanos = Nanos::from_secs(400 * 86_400);
/// The longest text for the master's log; of a longer one only so much is sent.
const LOG_INFO_BYTES_MAX: usize = 1_024;
/// How many identifiers that were held up it remembers by name.
const TOP_KEYS: usize = 1_000;
/// Bytes of the digest that stands for a secret.
const VEIL_BYTES: usize = 16;

/// A gatekeeper, shared by everybody who asks it.
pub struct Gatekeeper {
    /// What goes to the master.
    pub outbox: Outbox,
    /// What is counted.
    pub counts: Arc<GatekeeperCounts>,
    domain: String,
    when: When,
    by: Vec<Part>,
    log_info: Vec<Part>,
    orders: Orders,
    held: AtomicUsize,
    held_max: usize,
    /// One of so many refused requests is told of; 0: none.
    rejected_one_in: u64,
    rejected: AtomicU64,
    top: Mutex<Top>,
    clock: Clock,
    watch: Arc<Watch>,
}

/// A request that has been decided on, and of which nobody has been told.
pub struct Judged {
    keeper: Arc<Gatekeeper>,
    identifier: Box<[u8]>,
    hash: KeyHash,
    came: Time,
    log_info: Box<[u8]>,
    word: Word,
    /// What became of it: nobody is held in shadow, and not everybody may be.
    passed: Passed,
    place: Option<Place>,
    shadow: bool,
}

/// A request that passes, at once or then.
pub struct Passage {
    until: Option<Time>,
    /// Whether it was counted as delayed or refused, even if nobody enforces that.
    held_up: bool,
    place: Option<Place>,
}

/// A place among those that are held; it is free when this is dropped.
struct Place {
    keeper: Arc<Gatekeeper>,
    _counted: Held,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.keeper.held.fetch_sub(1, Relaxed);
    }
}

impl Gatekeeper {
    /// One that has been told nothing yet.
    #[must_use]
    pub fn new(
        settings: &settings::Gatekeeper,
        seed: Seed,
        clock: Clock,
        watch: &Arc<Watch>,
    ) -> Arc<Gatekeeper> {
        let (name, by) = (settings.domain.as_str().into(), settings.identifier.clone());
        let at = [settings.master.to_string(), settings.control.to_string()];
        let counts = Arc::new(GatekeeperCounts::new(watch.registry(), &settings.domain, at));
        watch.gatekeepers.lock().push(Arc::clone(&counts));
        Arc::new(Gatekeeper {
            outbox: Outbox::default(),
            counts,
            domain: settings.domain.clone(),
            when: settings.when.clone(),
            by: by.clone(),
            log_info: settings.log_info.clone(),
            orders: Orders::new(name, by, settings.keys_max, settings.max_delay, seed),
            held: AtomicUsize::new(0),
            held_max: settings.held_max,
            rejected_one_in: settings.rejected_one_in,
            rejected: AtomicU64::new(0),
            top: Mutex::new(Top::new(TOP_KEYS)),
            clock,
            watch: Arc::clone(watch),
        })
    }

    /// The domain that it keeps the gate of.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Whether it keeps the gate of a request, if none before it does.
    #[must_use]
    pub fn keeps(&self, request: &impl Attributes) -> bool {
        classify::applies(&self.when, request)
    }

    /// What a request is called at the master.
    #[must_use]
    pub fn identifier(&self, request: &impl Attributes) -> Vec<u8> {
        classify::identifier(&self.by, request, veil)
    }

    /// What the master is sent of a request for its log: parts with spaces between.
    #[must_use]
    pub fn log_info(&self, request: &impl Attributes) -> Vec<u8> {
        let mut text = classify::identifier(&self.log_info, request, veil);
        text.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
        text
    }

    /// The master says that `identifier` has to wait until then. False if that is too far ahead to
    /// be meant.
    pub fn learn(&self, identifier: &[u8], until: Time, now: Time) -> bool {
        if until.since(now) > AHEAD_MAX {
            return false;
        }
        let hash = self.orders.hash(cut(identifier));
        self.orders.learn(hash, until, now);
        if let Some(mut top) = self.top.try_lock().filter(|_| until > now) {
            top.touch(hash, now, || shown(identifier));
        }
        true
    }

    /// Decides on a request of `identifier`, and takes a place for it if it is to wait. With
    /// `shadow` it passes whatever is decided.
    pub fn judge(self: &Arc<Self>, mut identifier: Vec<u8>, shadow: bool, now: Time) -> Judged {
        identifier.truncate(IDENTIFIER_BYTES_MAX);
        let hash = self.orders.hash(&identifier);
        let word = self.orders.decide(hash, now);
        let mut place = None;
        let passed = match word {
            Word::Accepted => Passed::Accepted,
            Word::Rejected(_) => Passed::Rejected,
            Word::Delayed(_) if shadow => Passed::Delayed,
            Word::Delayed(_) => {
                place = self.place();
                if place.is_some() { Passed::Delayed } else { Passed::Crowded }
            }
        };
        let keeper = Arc::clone(self);
        Judged {
            keeper,
            identifier: identifier.into(),
            hash,
            came: now,
            log_info: Box::default(),
            word,
            passed,
            place,
            shadow,
        }
    }

    fn place(self: &Arc<Self>) -> Option<Place> {
        let one_more = |held| (held < self.held_max).then_some(held + 1);
        self.held.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Place { keeper: Arc::clone(self), _counted: self.counts.held.hold() })
    }

    /// Counts those who have to wait. To be called about once a second.
    pub fn tick(&self) {
        let waiting = self.orders.in_force(self.clock.now());
        self.counts.identifiers.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Whether a refused request is to be told of.
    fn samples(&self) -> bool {
        let one_in = self.rejected_one_in;
        one_in > 0 && self.rejected.fetch_add(1, Relaxed).is_multiple_of(one_in)
    }
}

impl Judged {
    /// The same with a text for the master's log.
    #[must_use]
    pub fn noting(mut self, mut log_info: Vec<u8>) -> Judged {
        log_info.truncate(LOG_INFO_BYTES_MAX);
        self.log_info = log_info.into();
        self
    }

    /// How long the client has to wait before it may come again, if this request does not pass.
    #[must_use]
    pub fn refused(&self) -> Option<Nanos> {
        let refused = matches!(self.passed, Passed::Rejected | Passed::Crowded) && !self.shadow;
        refused.then(|| self.wait())
    }

    fn wait(&self) -> Nanos {
        match self.word {
            Word::Accepted => Nanos::ZERO,
            Word::Delayed(until) | Word::Rejected(until) => until.since(self.came),
        }
    }

    /// The request passes: the master is told.
    #[must_use]
    pub fn pass(mut self, client: Option<IpAddr>) -> Passage {
        self.report(client);
        let until = match self.word {
            Word::Delayed(until) if !self.shadow => Some(until),
            _ => None,
        };
        let place = self.place.take();
        let held_up = self.passed != Passed::Accepted;
        self.tell(until.map_or(Status::Accepted, Status::Delayed));
        Passage { until, held_up, place }
    }

    /// The request does not pass: the master is told, perhaps.
    pub fn refuse(self, client: Option<IpAddr>) {
        self.report(client);
        if self.keeper.samples() {
            self.tell(Status::Rejected);
        }
    }

    fn tell(self, status: Status) {
        let Judged { keeper, identifier, came, log_info, .. } = self;
        keeper.outbox.push(Note { status, identifier, came, log_info }, &keeper.counts);
    }

    /// Counts what became of the request, and tells those who look if it was held up.
    fn report(&self, client: Option<IpAddr>) {
        let keeper = &self.keeper;
        keeper.counts.passed(self.passed);
        let verdict = match self.passed {
            Passed::Accepted => return,
            Passed::Delayed => "delay",
            Passed::Rejected | Passed::Crowded => "reject",
        };
        let (name, wait) = (shown(&self.identifier), self.wait());
        let decision = Decision {
            verdict,
            limit: &keeper.domain,
            key: &name,
            client,
            level: None,
            wait,
            cost: None,
            shadow: self.shadow,
        };
        keeper.watch.decided(&decision, self.came);
        if let Some(mut top) = keeper.top.try_lock() {
            top.touch(self.hash, self.came, || name);
            top.add(self.hash, Cost::hits(1), wait, self.came);
        }
    }
}

impl Passage {
    /// Until when it is held.
    #[must_use]
    pub fn until(&self) -> Option<Time> {
        self.until
    }

    /// Whether it was counted as delayed, or as refused where nothing is enforced.
    #[must_use]
    pub fn held_up(&self) -> bool {
        self.held_up
    }

    /// It waits no longer: its place is for others.
    pub fn entered(&mut self) {
        self.place = None;
    }
}

fn cut(identifier: &[u8]) -> &[u8] {
    &identifier[..identifier.len().min(IDENTIFIER_BYTES_MAX)]
}

/// An identifier for people: its parts with spaces between.
fn shown(identifier: &[u8]) -> String {
    let bytes = &identifier[..identifier.len().min(256)];
    let spaced: Vec<u8> = bytes.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
    readable(&spaced)
}

/// What stands for a secret where others can read it: whoever has the secret finds the same.
fn veil(name: &str, secret: &[u8]) -> String {
    let mut text = format!("{name}#");
    for byte in &digest(&SHA256, secret).as_ref()[..VEIL_BYTES] {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl Counted for Gatekeeper {
    fn held(&self) -> Arc<Limiter> {
        Arc::clone(self.orders.limiter())
    }

    fn top(&self, _: usize) -> Vec<Standing> {
        let now = self.clock.now();
        let rows = self.top.lock().rows(now);
        let standing = |row: Row| {
            let reason = self.orders.limiter().standing_of(0, row.hash, now);
            Standing { level: reason.level, wait: reason.wait, row }
        };
        rows.into_iter().map(standing).collect()
    }

    fn clients_held(&self, _: usize, above: Nanos) -> Option<usize> {
        let now = self.clock.now();
        let rows = self.top.lock().rows(now);
        let held = |row: &&Row| row.wait > above && now.since(row.last_seen) < GONE;
        Some(rows.iter().filter(held).count())
    }

    fn work(&self) -> Option<Work> {
        None
    }
}

#[cfg(test)]
mod tests;
