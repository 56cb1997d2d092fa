//! Changes of a running engine: a reload while requests are open, and overrides that are set at the
//! same time.

use evenkeel_config::settings::ProxySettings;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::units::Time;
use evenkeel_engine::view::EngineView;
use evenkeel_engine::view::overrides::{Override, OverrideEffect};
use evenkeel_engine::{AskOutcome, Engine};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::net::IpAddr;
use std::sync::{Arc, Barrier};

struct Client(u8);

impl RequestAttributes for Client {
    fn address(&self) -> IpAddr {
        IpAddr::from([192, 0, 2, self.0])
    }

    fn method(&self) -> &'static str {
        "GET"
    }

    fn path(&self) -> &'static str {
        "/"
    }

    fn vhost(&self) -> &'static str {
        ""
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

fn proxy(limits: &str) -> ProxySettings {
    let text = format!("proxy: {{cost: 'header:x-cost', cpus: 4, limits: [{limits}]}}");
    let config = evenkeel_config::parse("t.yaml", text.as_bytes(), 4.0).expect("good");
    config.settings.proxy.expect("open")
}

fn engine(limits: &str, lanes: usize) -> Arc<Engine> {
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    Engine::new(&proxy(limits), lanes, KeySeed([7; 16]), clock, watch)
}

/// The names in the list of the limit at `index`, and the cost of each row in whole seconds.
fn rows(engine: &Engine, index: usize) -> Vec<(String, u64)> {
    let top = engine.top(index).into_iter();
    top.map(|client| (client.row.name, client.row.total.as_units().round() as u64)).collect()
}

const ONE: &str = "{name: one, by: ip/32, share: 10%, burst: 30s}";
const LANES: usize = 64;
const NET: &str = "{name: net, by: ip/24, share: 10%, burst: 30s}";

#[test]
fn a_request_that_is_open_during_a_reload_ends_in_the_lists_of_its_own_limits() {
    let engine = engine(&format!("{ONE}, {NET}"), 1);
    let lane = engine.lane(0);
    let AskOutcome::Pass(mut charge) = lane.ask(&Client(1)) else { panic!("nothing is owed") };
    engine.reload(&proxy(&format!("{NET}, {ONE}")));
    charge.work();
    charge.head(Some(b"2s"));
    drop(charge);
    let expected = [("192.0.2.0/24", 0), ("192.0.2.1", 1)];
    for (name, index) in expected {
        assert_eq!(rows(&engine, index), [(name.to_owned(), 2)], "{index}");
    }
    // A limit that is gone has no list.
    let AskOutcome::Pass(mut charge) = lane.ask(&Client(1)) else { panic!("within the burst") };
    engine.reload(&proxy(ONE));
    charge.head(Some(b"3s"));
    drop(charge);
    assert_eq!(rows(&engine, 0), [("192.0.2.1".to_owned(), 5)]);
}

fn exempt(hash: KeyHash) -> Override {
    Override {
        id: 0,
        limit: Some("one".to_owned()),
        key: "a client".to_owned(),
        hash,
        effect: OverrideEffect::Exempt,
        since: Time::ZERO,
        until: Time(u64::MAX),
        by: "127.0.0.1".to_owned(),
    }
}

#[test]
fn overrides_that_are_set_at_the_same_time_all_reach_each_lane() {
    // With many lanes it takes long to copy the overrides to all of them.
    let engine = engine(ONE, LANES);
    let begin = |lane: usize, client: u8| engine.lane(lane).begin(&Client(client)).expect("passes");
    let hashes: Vec<KeyHash> = (0..2).map(|client| begin(0, client).keys()[0].hash).collect();
    for round in 0..1_000 {
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            for hash in &hashes {
                scope.spawn(|| {
                    start.wait();
                    engine.set_override(exempt(*hash)).expect("room");
                });
            }
        });
        for lane in 0..LANES {
            let missing = (0..2).find(|client| !begin(lane, *client).keys().is_empty());
            assert_eq!(missing, None, "round {round}, lane {lane}");
        }
        for set in engine.overrides().expect("some") {
            engine.remove_override(set.id).expect("is set");
        }
    }
}

#[test]
fn processors_are_watched_where_the_backend_runs_on_them() {
    let engine = engine(ONE, 1);
    let is_watched = |keys: &str| {
        let text = format!("proxy: {{cpus: 4, {keys}}}");
        let config = evenkeel_config::parse("t.yaml", text.as_bytes(), 4.0).expect("good");
        engine.reload(&config.settings.proxy.expect("open"));
        engine.watched_processors().map(|watched| (watched.is_local, watched.cgroup.is_some()))
    };
    for (keys, expected) in [
        ("backend: 'unix:///run/app.sock'", Some((true, false))),
        ("backend: 'http://127.0.0.1:81', cost: 'cgroup:/app'", Some((true, true))),
        // A container on this machine has an address of its own.
        ("backend: 'http://172.17.0.2', cost: 'cgroup:/app'", Some((false, true))),
        ("backend: 'http://172.17.0.2'", None),
        ("backend: ['http://127.0.0.1:81', 'http://172.17.0.2']", None),
        ("backend: 'http://127.0.0.1:81', queue: {concurrency: 4}", None),
    ] {
        assert_eq!(is_watched(keys), expected, "{keys}");
    }
}
