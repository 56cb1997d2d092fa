//! A replay decides like the running proxy: the same requests pass through the proxy's engine in
//! the same way as in the proxy (a task for each request that awaits its turn, keys from HTTP
//! headers), on a clock that both share, and every decision is compared.
//!
//! For each request, the test compares whether it was refused, by which limit, how long it waited
//! and when its answer was sent, to the nanosecond. Afterwards it compares the content of every
//! bucket of every limit, and the counters of decisions. Both sides have the same processors to
//! work on; everything else runs twice, independently.

use evenkeel_config::settings::{ClientAddress, ProxySettings};
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::view::EngineView;
use evenkeel_engine::{AskOutcome, Engine, EngineLane, QueueAdmission};
use evenkeel_identity::address::ProxyTrust;
use evenkeel_lab::replay::{
    AccessLogFormat, BaselineSimulation, Processors, RecordedRequest, ReplayOutcome,
    ReplaySimulation, sample,
};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use http::request::Parts;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// The requests of a synthetic log of eight minutes, with the work that each needs.
fn requests(seed: u64) -> Vec<RecordedRequest> {
    let mut log = Vec::new();
    let about = sample::SampleLogOptions { lines: 6_000, days: 1, seed };
    sample::make(about, &mut log).expect("memory");
    let log = String::from_utf8(log).expect("text");
    let lines: Vec<String> = log.lines().map(str::to_owned).collect();
    let mut format = AccessLogFormat::of(&lines[..20]).expect("a format");
    let trust = ProxyTrust::new(&[], &ClientAddress::XForwardedFor);
    let mut entries = Vec::new();
    for (place, line) in lines.iter().enumerate() {
        let mut entry = format.read(line).expect("a request").entry(&trust).expect("an address");
        // A day is compressed into eight minutes, so that people and robots meet. No two requests
        // come at the same time.
        let after = entry.start.since(sample::SAMPLE_LOG_START).0 / 180;
        entry.start = sample::SAMPLE_LOG_START.plus(Nanos(after + place as u64 % 997));
        entry.took = None;
        entries.push(entry);
    }
    entries.sort_by_key(|entry| entry.start);
    let mut past = BaselineSimulation::new(sample::SAMPLE_CPUS, Nanos::from_millis(45));
    let mut all = Vec::new();
    for entry in entries {
        past.push(entry);
        all.extend(std::iter::from_fn(|| past.pop()));
    }
    past.finish();
    all.extend(std::iter::from_fn(|| past.pop()));
    all
}

fn settings(text: &str) -> ProxySettings {
    let config = evenkeel_config::parse("test", text.as_bytes(), 1.0).expect("it is good");
    config.settings.proxy.expect("a proxy")
}

/// The result of a request, as far as both sides have it.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    refused_by: Option<String>,
    waited: Nanos,
    ended: Time,
}

fn replayed(
    settings: &ProxySettings,
    requests: &[RecordedRequest],
) -> (Vec<Told>, Arc<Engine>, BTreeMap<String, u64>) {
    let mut play = ReplaySimulation::new(settings);
    let mut outcomes: Vec<ReplayOutcome> = Vec::new();
    for was in requests {
        play.push(was.clone());
        outcomes.extend(play.outcomes());
    }
    play.finish();
    outcomes.extend(play.outcomes());
    outcomes.sort_by_key(|outcome| outcome.number);
    let limits = play.engine().held().limits().to_vec();
    let name = |limit: u8| match limits.get(usize::from(limit)) {
        Some(limit) => limit.name.to_string(),
        None => "queue".to_owned(),
    };
    let mut counted = BTreeMap::new();
    for note in outcomes.iter().flat_map(|outcome| &outcome.notes) {
        let limit = limits.get(usize::from(note.reason.key.limit));
        let limit = limit.map_or("", |limit| &limit.name);
        *counted.entry(format!("{} {limit} {}", note.verdict, note.shadow)).or_default() += 1;
    }
    let told = |outcome: &ReplayOutcome| Told {
        refused_by: outcome.refused.then(|| {
            let note = outcome.decisive().expect("a refusal has a reason");
            name(note.reason.key.limit)
        }),
        waited: outcome.waited,
        ended: outcome.ended,
    };
    (outcomes.iter().map(told).collect(), Arc::clone(play.engine()), counted)
}

/// A request in the form that the proxy sees.
struct Seen {
    client: IpAddr,
    head: Parts,
}

impl Seen {
    fn of(was: &RecordedRequest) -> Seen {
        let entry = &was.entry;
        let target = match entry.query() {
            "" => entry.path().to_owned(),
            query => format!("{}?{query}", entry.path()),
        };
        let request = http::Request::builder()
            .method(entry.method())
            .uri(target)
            .header("user-agent", entry.agent())
            .body(())
            .expect("a request");
        Seen { client: entry.address, head: request.into_parts().0 }
    }
}

impl RequestAttributes for Seen {
    fn address(&self) -> IpAddr {
        self.client
    }

    fn method(&self) -> &str {
        self.head.method.as_str()
    }

    fn path(&self) -> &str {
        self.head.uri.path()
    }

    fn vhost(&self) -> &'static str {
        ""
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.head.headers.get(name).map(http::HeaderValue::as_bytes)
    }
}

/// A simulated world, in which time passes when all tasks wait.
struct World {
    lane: EngineLane,
    now: Cell<Time>,
    /// The tasks to wake, by time.
    timers: RefCell<BTreeMap<(Time, u64), usize>>,
    planned: Cell<u64>,
    processors: RefCell<Processors>,
    /// Whether the work of each request is done.
    done: RefCell<Vec<bool>>,
    waiting: Cell<usize>,
    expire: Cell<Time>,
    told: RefCell<Vec<Option<Told>>>,
}

impl World {
    fn set(&self, now: Time) {
        self.now.set(now);
        self.lane.stand_at(now);
    }

    async fn until(&self, task: usize, at: Time) {
        self.planned.set(self.planned.get() + 1);
        let timer = (at, self.planned.get());
        self.timers.borrow_mut().insert(timer, task);
        poll_fn(|_| match self.timers.borrow().contains_key(&timer) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }

    async fn work(&self, task: usize, needed: Nanos) {
        self.processors.borrow_mut().begin(task as u64, needed, self.now.get());
        poll_fn(|_| match self.done.borrow()[task] {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    fn tell(&self, task: usize, refused_by: Option<String>, waited: Nanos) {
        let told = Told { refused_by, waited, ended: self.now.get() };
        self.told.borrow_mut()[task] = Some(told);
    }
}

/// The path of a request through the proxy, step by step as in `proxy/exchange`.
async fn journey(world: Rc<World>, task: usize, was: RecordedRequest) {
    world.until(task, was.entry.start).await;
    let mut waited = Nanos::ZERO;
    let mut charge = match world.lane.ask(&Seen::of(&was)) {
        AskOutcome::Refused(refusal) => return world.tell(task, Some(refusal.limit), waited),
        AskOutcome::Pass(charge) => charge,
    };
    if let Some(at) = charge.delay_until().filter(|at| *at > world.now.get()) {
        waited = waited.plus(at.since(world.now.get()));
        world.until(task, at).await;
    }
    let entered = match charge.enter() {
        QueueAdmission::Room => Ok(()),
        QueueAdmission::Refused(refusal) => Err(refusal),
        QueueAdmission::Waits(turn) => {
            let since = world.now.get();
            if world.waiting.get() == 0 {
                world.expire.set(since.plus(Nanos::from_millis(250)));
            }
            world.waiting.set(world.waiting.get() + 1);
            let turned = turn.await;
            world.waiting.set(world.waiting.get() - 1);
            waited = waited.plus(world.now.get().since(since));
            charge.accept_turn(turned)
        }
    };
    if let Err(refusal) = entered {
        drop(charge);
        return world.tell(task, Some(refusal.limit), waited);
    }
    charge.work();
    world.work(task, was.needed).await;
    if let Some(until) = charge.head(None).filter(|until| *until > world.now.get()) {
        waited = waited.plus(until.since(world.now.get()));
        world.until(task, until).await;
    }
    drop(charge);
    world.tell(task, None, waited);
}

/// A waker that records its task.
struct Bell(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.1.lock().expect("a list").push(self.0);
    }
}

type Journey = Pin<Box<dyn Future<Output = ()>>>;

struct Tasks {
    all: Vec<Option<Journey>>,
    rung: Arc<Mutex<Vec<usize>>>,
}

impl Tasks {
    /// Continues a task, and then all tasks that it wakes.
    fn go(&mut self, task: usize) {
        let waker = Waker::from(Arc::new(Bell(task, Arc::clone(&self.rung))));
        if let Some(journey) = &mut self.all[task]
            && journey.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        {
            self.all[task] = None;
        }
        self.ring();
    }

    fn ring(&mut self) {
        loop {
            let rung = std::mem::take(&mut *self.rung.lock().expect("a list"));
            if rung.is_empty() {
                return;
            }
            rung.into_iter().for_each(|task| self.go(task));
        }
    }
}

fn lived(
    settings: &ProxySettings,
    requests: &[RecordedRequest],
) -> (Vec<Told>, Arc<Engine>, BTreeMap<String, u64>) {
    let watch = Arc::new(Watch::new(Time::ZERO));
    let clock = Clock::start();
    let engine = Engine::new(settings, 1, KeySeed([0x74; 16]), clock, Arc::clone(&watch));
    let world = Rc::new(World {
        lane: engine.lane(0),
        now: Cell::new(Time::ZERO),
        timers: RefCell::default(),
        planned: Cell::new(0),
        processors: RefCell::new(Processors::new(settings.cpus)),
        done: RefCell::new(vec![false; requests.len()]),
        waiting: Cell::new(0),
        expire: Cell::new(Time::ZERO),
        told: RefCell::new(vec![None; requests.len()]),
    });
    let journey = |(task, was): (usize, &RecordedRequest)| -> Option<Journey> {
        Some(Box::pin(journey(Rc::clone(&world), task, was.clone())))
    };
    let all = requests.iter().enumerate().map(journey).collect();
    let mut tasks = Tasks { all, rung: Arc::default() };
    (0..requests.len()).for_each(|task| tasks.go(task));
    loop {
        let timer = world.timers.borrow().first_key_value().map(|((at, _), _)| *at);
        let over = world.processors.borrow().poll_timeout();
        let expire = (world.waiting.get() > 0).then(|| world.expire.get());
        let Some(next) = [timer, over, expire].into_iter().flatten().min() else { break };
        world.set(next);
        loop {
            let over = world.processors.borrow_mut().poll_over(next);
            let Some(over) = over else { break };
            let task = over.id as usize;
            world.done.borrow_mut()[task] = true;
            tasks.go(task);
        }
        while let Some(task) = due(&world, next) {
            tasks.go(task);
        }
        if world.waiting.get() > 0 && world.expire.get() <= next {
            world.lane.expire();
            world.expire.set(next.plus(Nanos::from_millis(250)));
            tasks.ring();
        }
    }
    let told = world.told.borrow().iter().map(|told| told.clone().expect("it ended")).collect();
    (told, engine, decisions(&watch))
}

fn due(world: &World, now: Time) -> Option<usize> {
    let mut timers = world.timers.borrow_mut();
    let first = timers.first_entry().filter(|first| first.key().0 <= now)?;
    Some(first.remove())
}

/// The counters of decisions with a wait or a refusal, by verdict, limit and shadow.
fn decisions(watch: &Watch) -> BTreeMap<String, u64> {
    let text = evenkeel_telemetry::prometheus::text(watch.registry(), &[]);
    let word = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("{name}=\"")).expect("a label");
        rest.split('"').next().expect("its end").to_owned()
    };
    let lines = text.lines().filter(|line| line.starts_with("evenkeel_decisions_total{"));
    let counted = lines.map(|line| {
        let (_, count) = line.rsplit_once(' ').expect("a figure");
        let words = ["verdict", "limit", "shadow"].map(|label| word(line, label));
        let key = words.join(" ");
        (key, count.parse().expect("a figure"))
    });
    counted.filter(|(key, count)| !key.starts_with("allow") && *count > 0).collect()
}

fn compare(name: &str, text: &str, seed: u64) {
    let (settings, requests) = (settings(text), requests(seed));
    let (played, ours, noted) = replayed(&settings, &requests);
    let (lived, theirs, counted) = lived(&settings, &requests);
    assert_eq!(played.len(), requests.len());
    for (number, (played, lived)) in played.iter().zip(&lived).enumerate() {
        let entry = &requests[number].entry;
        assert_eq!(played, lived, "{name}: request {number} of {}", entry.address);
    }
    assert_eq!(noted, counted, "{name}");
    let (ours, theirs) = (ours.held(), theirs.held());
    let now = played.iter().map(|told| told.ended).max().expect("requests");
    for was in &requests {
        let keys = ours.keys(&was.entry);
        assert_eq!(keys.as_slice(), theirs.keys(&Seen::of(was)).as_slice(), "{name}");
        for key in keys.as_slice() {
            let limit = usize::from(key.limit);
            let (our, their) =
                (ours.standing_of(limit, key.hash, now), theirs.standing_of(limit, key.hash, now));
            assert_eq!(our, their, "{name}: {}", was.entry.address);
        }
    }
    let made_to_wait = played.iter().filter(|told| told.waited > Nanos::ZERO).count();
    let refused = played.iter().filter(|told| told.refused_by.is_some()).count();
    assert!(made_to_wait + refused > requests.len() / 50, "{name}: nothing happened");
}

#[test]
fn a_queue_serves_in_the_same_order() {
    let text = "proxy: {cpus: 4, action: queue}";
    compare("queue", text, 1);
    let tight = "proxy: {cpus: 4, action: queue, queue: {concurrency: 2, reserve: 1, len_max: 20, \
                 wait_max: 2s}, limits: [{name: ip, by: ip/32, share: 5%, burst: 1s}]}";
    compare("a short queue", tight, 2);
}

#[test]
fn answers_are_held_as_long() {
    let text = "proxy: {cpus: 4, action: hold, max_delay: 20s, limits: [\
                {name: ip, by: ip/32, share: 5%, burst: 2s}, \
                {name: net24, by: ip/24, share: 10%, burst: 2s}]}";
    compare("hold", text, 3);
}

#[test]
fn requests_are_delayed_and_refused_alike() {
    let delay = "proxy: {cpus: 4, action: delay, max_delay: 5s, limits: [\
                 {name: ip, by: ip/32, share: 5%, burst: 2s}, \
                 {name: agent, by: user-agent, share: 40%, burst: 5s}]}";
    compare("delay", delay, 4);
    let mixed = "proxy: {cpus: 4, cost: wall, action: reject, limits: [\
                 {name: ip, by: ip/32, share: 10%, burst: 3s}, \
                 {name: search, by: [ip/24, path], when: {path: /search}, rate: 30/m, burst: 40}, \
                 {name: window, by: ip/16, window: 10s, max: 5s}, \
                 {name: turns, by: user-agent, share: 20%, burst: 2s, action: queue}]}";
    compare("mixed", mixed, 5);
}

#[test]
fn limits_in_shadow_stop_nobody_and_are_counted_alike() {
    let text = "proxy: {cpus: 4, action: queue, limits: [\
                {name: crawlers, by: ip/32, share: 2%, burst: 1s, shadow: true}, \
                {name: logins, by: ip/32, rate: 2/s, burst: 3, shadow: true}, \
                {name: slow, by: ip/24, share: 3%, burst: 1s, action: hold, shadow: true}, \
                {name: net, by: ip/24, share: 5%, burst: 1s}]}";
    compare("shadow", text, 6);
    let (settings, requests) = (settings(text), requests(6));
    let (_, _, noted) = replayed(&settings, &requests);
    for (limit, verdict) in [("crawlers", "queue"), ("logins", "reject"), ("slow", "hold")] {
        assert!(noted.contains_key(&format!("{verdict} {limit} true")), "{noted:?}");
    }
    // A client in credit that waits is reported with its first limit, and it really waits.
    assert!(noted.contains_key("queue net false"), "{noted:?}");
    assert!(!noted.contains_key("reject logins false"), "{noted:?}");
}
