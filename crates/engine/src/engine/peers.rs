//! The engine of requests as one of several instances: how it notes its charges and applies those
//! of other instances.
//!
//! Hits are noted when a request is admitted, CPU time when it has ended. Shares are of the CPUs of
//! all live instances, as far as their numbers are known. The interface: `replicated`.

use super::{Engine, RequestLists};
use crate::replicated::queue::SharedAdmission;
use crate::rules::EngineRules;
use crate::shards::{ShardedEngine, Shards};
use evenkeel_core::replica::ReplicatedLimit;

/// The smallest relative change of the shares for which a new limiter is made.
const SHARE_CHANGE_MIN: f64 = 0.001;

impl ShardedEngine for Engine {
    type Rules = EngineRules;
    type Own = RequestLists;

    fn shards(&self) -> &Shards<EngineRules, RequestLists> {
        &self.shards
    }

    fn shared_limits(&self) -> Vec<ReplicatedLimit> {
        let given = self.given.lock();
        self.shards.rules().marks.shared(&given.proxy.limits, given.proxy.cpus)
    }

    fn admission(&self) -> Option<&dyn SharedAdmission> {
        let rules = self.shards.rules();
        (rules.queues && rules.shares_queue).then_some(&self.gate as &dyn SharedAdmission)
    }

    fn end_queue_sharing(&self) {
        self.gate.end_sharing(self.shards.clock.now());
    }

    fn shared_cpus(&self) -> Option<f64> {
        Some(self.given.lock().proxy.cpus)
    }

    fn share_cpus(&self, cpus: f64) {
        // Lock order: the outermost lock, held while `take_over` takes the others.
        let mut given = self.given.lock();
        let factor = cpus / given.proxy.cpus.max(f64::EPSILON);
        if (factor / given.together - 1.0).abs() < SHARE_CHANGE_MIN {
            return;
        }
        given.together = factor;
        self.take_over(&given.scaled());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AskOutcome;
    use crate::replicated::Replicated;
    use crate::view::EngineView;
    use evenkeel_core::classify::RequestAttributes;
    use evenkeel_core::key::KeySeed;
    use evenkeel_core::units::Nanos;
    use evenkeel_runtime::clock::Clock;
    use evenkeel_telemetry::Watch;
    use std::net::IpAddr;
    use std::sync::Arc;

    struct Client;

    impl RequestAttributes for Client {
        fn address(&self) -> IpAddr {
            IpAddr::from([192, 0, 2, 1])
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

    fn engine() -> Arc<Engine> {
        let text = "proxy: {cost: 'header:x-cost', cpus: 4, limits: [{name: cpu, by: ip/32, \
                    share: 10%, burst: 30s}, {name: hits, by: ip/24, rate: 1/d, burst: 10}]}";
        let config = evenkeel_config::parse("t.yaml", text.as_bytes(), 4.0).expect("good");
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let proxy = config.settings.proxy.expect("open");
        Engine::new(&proxy, 2, KeySeed([7; 16]), clock, watch)
    }

    fn serve(engine: &Arc<Engine>, cost: &[u8]) -> bool {
        let AskOutcome::Pass(mut charge) = engine.lane(1).ask(&Client) else { return false };
        charge.work();
        charge.head(Some(cost));
        true
    }

    /// The level under each limit, in units.
    fn left(engine: &Engine) -> Vec<f64> {
        let left = |index| {
            let level = engine.top(index).first().and_then(|standing| standing.level);
            level.map_or(f64::NAN, |level| level as f64 / 1e9)
        };
        vec![left(0), left(1)]
    }

    fn is_about(left: &[f64], expected: [f64; 2]) -> bool {
        left.iter().zip(expected).all(|(left, expected)| (left - expected).abs() < 0.5)
    }

    #[test]
    fn what_one_engine_charges_the_other_charges_too() {
        let (a, b) = (engine(), engine());
        assert!(serve(&a, b"9s"), "before anybody counts along");
        a.start_sharing();
        assert!((0..3).all(|_| serve(&a, b"2s")));
        let mut told = Vec::new();
        a.spent(&mut |mark, context, key, amount| told.push((mark, context, key, amount)));
        told.sort_by_key(|told| told.3);
        let amounts: Vec<f64> = told.iter().map(|told| told.3.as_units()).collect();
        assert_eq!(amounts, [3.0, 6.0], "three hits, and six seconds");
        assert_eq!(a.spent(&mut |_, _, _, _| panic!("told twice")), 0);
        for (mark, context, key, amount) in &told {
            b.apply_delta(*mark, *context, *key, *amount, Nanos::ZERO);
            b.apply_name(*mark, *key, "192.0.2.1");
        }
        assert_eq!(b.top(0)[0].row.name, "192.0.2.1", "the other has told it");
        assert!(is_about(&left(&b), [24.0, 7.0]), "{:?}", left(&b));
        assert!((0..7).all(|_| serve(&b, b"0s")) && !serve(&b, b"0s"), "seven were left");
        // A joining instance gets deficits.
        for (mark, key, missing) in a.short(100) {
            b.apply_deficit(mark, key, missing);
            assert!(
                b.missing(mark, key).is_some_and(|here| here > missing),
                "added to what it had"
            );
        }
        assert!(is_about(&left(&b), [9.0, -4.0]), "{:?}", left(&b));
    }

    #[test]
    fn what_was_charged_before_an_engine_joined_is_shown_once_its_key_has_a_name() {
        let (a, joins) = (engine(), engine());
        assert!(serve(&a, b"9s"));
        for (mark, key, missing) in a.short(100) {
            joins.apply_deficit(mark, key, missing);
        }
        for named in Replicated::heaviest(&*a, 100) {
            joins.apply_name(named.fingerprint, named.key, &named.name);
        }
        assert!(is_about(&left(&joins), [21.0, 9.0]), "{:?}", left(&joins));
    }

    #[test]
    fn shares_are_of_the_cpus_of_all_and_follow_a_reload() {
        let engine = engine();
        let rate = |engine: &Engine| {
            let held = engine.held();
            held.limits()[0].algorithm.per_second().expect("a rate").as_units()
        };
        let before = engine.shared();
        engine.set_total_cpus(12.0);
        assert!((rate(&engine) - 1.2).abs() < 1e-6);
        assert_eq!(engine.shared(), before, "peers compare what is written");
        let given = engine.given.lock().proxy.clone();
        engine.reload(&given);
        assert!((rate(&engine) - 1.2).abs() < 1e-6);
        engine.set_total_cpus(4.0);
        assert!((rate(&engine) - 0.4).abs() < 1e-6);
        assert!((engine.cpus().expect("some") - 4.0).abs() < 1e-9);
    }
}
