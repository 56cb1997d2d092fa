//! Redis counts the same as memory at the same moment, and two instances together never admit more
//! than a limit allows, over thousands of random schedules.
//!
//! The store's clock cannot be set, so memory follows it: a model gets each request at the time
//! that the store reports in its answer.

use super::redis::Redis;
use evenkeel_config::settings::store::{
    StoreAddress, StoreFail, StoreLayout, StoreMode, StoreServer, StoreServers,
    StoreSettings as Settings, StoreTls,
};
use evenkeel_core::key::KeyHash;
use evenkeel_core::sim::random::SimRandom;
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_core::windows::{Hit, WindowAlgorithm, WindowCounters, WindowLength, WindowPolicy};
use evenkeel_engine::windows::Counters;
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::{CounterAsk, RedisStore, StoreLane};
use evenkeel_telemetry::Watch;
use evenkeel_testing::wait::until_async;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, LocalOptions};

/// If an answer takes longer than this, the instance may have reported hits that the store had
/// rightly forgotten.
const LATE: Nanos = Nanos::from_millis(100);

const KINDS: [WindowAlgorithm; 3] =
    [WindowAlgorithm::Fixed, WindowAlgorithm::Sliding, WindowAlgorithm::Bucket];

/// The length in seconds of a window that does not end during a test, at any time of day.
pub const YEAR: u32 = 31_536_000;

pub fn settings(redis: &Redis) -> Settings {
    settings_of(StoreLayout::Single, std::slice::from_ref(redis))
}

pub fn settings_of(layout: StoreLayout, servers: &[Redis]) -> Settings {
    let server = |redis: &Redis| {
        let end = StoreAddress::Tcp { host: "127.0.0.1".to_owned(), port: redis.port, tls: false };
        StoreServer { end, login: None, database: 0 }
    };
    Settings {
        place: StoreServers {
            servers: servers.iter().map(server).collect(),
            layout,
            login: None,
            credentials_file: None,
            tls: StoreTls::default(),
        },
        per_second: None,
        deadline: Duration::from_secs(20),
        connect: Duration::from_secs(20),
        mode: StoreMode::Exact,
        period: Duration::from_millis(100),
        fail: StoreFail::Error,
        prefix: "evenkeel:".to_owned(),
        compatible_keys: false,
        jitter: Duration::ZERO,
        owed_max: 1_000,
    }
}

/// A lane of a new instance, once it is connected.
pub async fn lane(redis: &Redis) -> Rc<StoreLane> {
    lane_by(&settings(redis)).await
}

pub async fn lane_by(settings: &Settings) -> Rc<StoreLane> {
    let clock = Clock::start();
    let counters = Arc::new(Counters::new(100_000, clock));
    let store = RedisStore::new(settings, counters, clock, &Watch::new(clock.now()));
    let lane = StoreLane::open(&store);
    until_async("a connection", || lane.store.counts.is_good()).await;
    lane
}

pub fn local<F: Future>(future: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
    runtime.expect("a runtime").block_on(future)
}

pub struct Dice(SimRandom);

impl Dice {
    pub fn new() -> Dice {
        let seed = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
        let seed = seed.unwrap_or_else(|| Clock::start().now().0);
        println!("SIM_SEED={seed}");
        Dice(SimRandom::new(seed, 0))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.bits() % bound
    }

    fn few(&mut self, bound: u32) -> u32 {
        self.below(bound.into()) as u32
    }
}

pub fn ask(
    name: &str,
    algorithm: WindowAlgorithm,
    length: WindowLength,
    limit: u32,
    now: Time,
) -> CounterAsk {
    let mut bits = [0; 8];
    let name = format!("evenkeel:{algorithm:?}:{length:?}:{name}");
    bits[..4].copy_from_slice(&crc32fast::hash(name.as_bytes()).to_le_bytes());
    bits[4..].copy_from_slice(&crc32fast::hash(&name.as_bytes()[3..]).to_le_bytes());
    let key = KeyHash::from_bits(u64::from_le_bytes(bits));
    let hit = Hit { algorithm, ..Hit::new(key, length.window(now), limit, 0) };
    CounterAsk {
        name,
        hit,
        length,
        compatible: None,
        per_second: false,
        known: 0,
        force: false,
        returned: false,
    }
}

/// Windows of one and two seconds begin and end during this test.
#[test]
fn the_store_counts_as_memory_does() {
    let redis = Redis::start(&[]);
    let lengths = [
        WindowLength::Seconds(1),
        WindowLength::Seconds(2),
        WindowLength::Seconds(3_600),
        WindowLength::Months(1),
    ];
    local(async {
        let lane = lane(&redis).await;
        let model = WindowCounters::new(100_000);
        let mut dice = Dice::new();
        let mut windows = std::collections::HashSet::new();
        let clock = Clock::start();
        let (mut now, mut seconds, mut era) = (clock.now(), 0, 0);
        while seconds < 5 {
            let policy = WindowPolicy { stop_when_over: dice.few(4) == 0, spare_over: false };
            let mut asks: Vec<CounterAsk> = (0..1 + dice.few(4))
                .map(|_| {
                    let algorithm = KINDS[dice.few(3) as usize];
                    let length = lengths[dice.few(4) as usize];
                    // Limits for which the steps of a rate are whole microseconds.
                    let limit = [0, 1, 10, 100][dice.few(4) as usize];
                    let name = format!("{} {era}", dice.few(3));
                    let mut ask = ask(&name, algorithm, length, limit, now);
                    ask.name = format!("{}:{limit}", ask.name);
                    ask.hit.key = KeyHash::from_bits(
                        ask.hit.key.bits() ^ u64::from(limit).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    );
                    ask.hit.hits = dice.few(4);
                    ask.hit.give_back = ask.hit.hits > 0 && dice.few(6) == 0;
                    ask
                })
                .collect();
            let mut hits: Vec<Hit> = asks.iter().map(|ask| ask.hit).collect();
            let time = lane.count(&mut asks, policy, now).await.expect("an answer");
            if clock.now().since(now) > LATE {
                // The state that the request was sent with is outdated by now, so the test
                // continues with new keys.
                (now, era) = (clock.now(), era + 1);
                continue;
            }
            for (hit, ask) in hits.iter_mut().zip(&asks) {
                hit.window = ask.length.window(time);
            }
            model.count(&mut hits, &mut Vec::new(), policy, time);
            for (hit, ask) in hits.iter().zip(&asks) {
                let (here, there) = ((hit.before, hit.after), (ask.hit.before, ask.hit.after));
                assert_eq!(here, there, "memory and store at {time:?}: {} {hit:?}", ask.name);
            }
            seconds += u32::from(windows.insert(time.0 / SECOND));
            now = clock.now();
        }
    });
}

/// Runs one schedule: two instances send requests for one key in any order, some at once. `ask`
/// gets the number of the instance and the number of hits, and returns whether they are admitted.
/// At most `limit` hits may be admitted.
pub async fn schedule<F>(dice: &mut Dice, limit: u64, what: &str, ask: impl Fn(usize, u64) -> F)
where
    F: Future<Output = bool> + 'static,
{
    let mut asked = Vec::new();
    for _ in 0..4 + dice.below(12) {
        let (which, hits) = (dice.below(2) as usize, 1 + dice.below(2));
        let task = tokio::task::spawn_local(ask(which, hits));
        // Some requests wait for the previous ones, others do not.
        match dice.below(3) {
            0 => asked.push((hits, Ok(task.await.expect("it ended")))),
            _ => asked.push((hits, Err(task))),
        }
    }
    let (mut granted, mut refused) = (0, false);
    for (hits, answer) in asked {
        let let_in = match answer {
            Ok(let_in) => let_in,
            Err(task) => task.await.expect("it ended"),
        };
        if let_in { granted += hits } else { refused = true }
    }
    assert!(granted <= limit, "{what}: {granted} of {limit}");
    // No request is refused while there is room for the largest one.
    assert!(!refused || granted + 2 > limit, "{what}: {granted} of {limit}, and refused");
}

#[test]
fn two_instances_never_let_in_more_than_the_limit() {
    let redis = Redis::start(&[]);
    local(async {
        let lanes = [lane(&redis).await, lane(&redis).await];
        let (mut dice, clock) = (Dice::new(), Clock::start());
        for number in 0..3_000 {
            let algorithm = KINDS[dice.few(3) as usize];
            let (limit, length) = (1 + dice.few(8), WindowLength::Seconds(YEAR));
            let count = |which: usize, hits: u64| {
                let lane = Rc::clone(&lanes[which]);
                let mut asks = [ask(&number.to_string(), algorithm, length, limit, clock.now())];
                asks[0].hit.hits = hits as u32;
                async move {
                    let counted = lane.count(&mut asks, WindowPolicy::default(), clock.now()).await;
                    counted.expect("an answer");
                    !asks[0].hit.is_over()
                }
            };
            schedule(&mut dice, limit.into(), &format!("{algorithm:?}"), count).await;
        }
    });
}
