//! The doors on several servers: a ring that loses one server, and a cluster of six nodes, in which
//! slots move and one master dies. Two programs have all doors open and share one count.

use super::line::first;
use super::property::{all_kinds, charges_as_memory};
use super::requests::{backend, http};
use super::{Instance, ask, connect};
use crate::store::property::{lane_by, local, settings_of};
use crate::store::redis::Redis;
use crate::store::several::{all_good, cluster, kill_a_master, masters, move_a_slot};
use evenkeel_config::settings::store::StoreLayout;
use evenkeel_testing::wait::wait_for;
use std::cell::RefCell;
use std::collections::HashMap;

/// The hits that each door admits for one client; no capacity returns during a test.
const BURST: usize = 40;
/// The maximum number of requests in flight when a server dies, which may or may not be counted.
const UNDER_WAY: usize = 6;
const DOORS: [Door; 4] = [Door::Line, Door::Resp, Door::Proxy, Door::Check];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Door {
    Line,
    Resp,
    Proxy,
    Check,
}

/// Two programs, and the number of hits that each door has admitted for each client.
struct Two {
    programs: [Instance; 2],
    let_in: RefCell<HashMap<(Door, u8), usize>>,
}

impl Two {
    fn start(layout: &str, nodes: u64) -> Two {
        let programs = [0, 1].map(|_| {
            let sections = format!(
                "line: {{listen: 'tcp://127.0.0.1:0', resp: '127.0.0.1:0', rate: 1 per 365d, \
                 burst: {BURST}}}\ncheck: {{listen: '127.0.0.1:0'}}\nproxy: {{listen: \
                 '127.0.0.1:0', backend: 'http://{}', trusted_proxies: [127.0.0.1], limits: \
                 [{{name: one, by: ip/32, rate: 1/d, burst: {BURST}}}, {{name: two, by: [ip/32, \
                 method], rate: 1/d, burst: 1000}}, {{name: all, by: all, rate: 1/d, burst: \
                 5000}}]}}\nstore: {{deadline: 5s, connect_timeout: 5s, {layout}}}",
                backend()
            );
            Instance::alone(&sections, "proxy open")
        });
        let two = Two { programs, let_in: RefCell::default() };
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        two.until("good", |good| good >= nodes * threads as u64);
        two.until("failed", |failed| failed == 0);
        two
    }

    /// Waits until the number of connections in `state` is right in both programs.
    fn until(&self, state: &str, enough: impl Fn(u64) -> bool) {
        let series = format!("evenkeel_store_connections{{state=\"{state}\"}}");
        for program in &self.programs {
            wait_for(state, || enough(program.metric(&series)).then_some(()));
        }
    }

    /// Whether a client may pass.
    fn passes(&self, program: &Instance, door: Door, who: u8) -> bool {
        let lines = program.opened("line open");
        match door {
            Door::Line => ask(&mut connect(lines[0]), &format!("C{who}\n"), 3) == "OK\n",
            Door::Resp => {
                let call = format!("CL.THROTTLE K{who} {} 1 86400\r\n", BURST - 1);
                first(&mut connect(lines[1]), &call).starts_with("*5\r\n:0")
            }
            Door::Proxy => {
                let head = format!("GET / HTTP/1.1\r\nx-forwarded-for: 192.0.2.{who}\r\n");
                http(program.opened("proxy open")[0], &head).0 == 200
            }
            Door::Check => {
                let head = format!(
                    "GET /check HTTP/1.1\r\nx-real-ip: 198.51.100.{who}\r\nx-original-uri: /\r\n"
                );
                http(program.opened("check open")[0], &head).0 == 204
            }
        }
    }

    fn asks(&self, program: &Instance, door: Door, who: u8) -> bool {
        let passes = self.passes(program, door, who);
        *self.let_in.borrow_mut().entry((door, who)).or_default() += usize::from(passes);
        passes
    }

    /// Sends one request to each door of both programs, and checks that each is admitted.
    fn round(&self, who: u8) {
        for door in DOORS {
            for program in &self.programs {
                assert!(self.asks(program, door, who), "{door:?} of {who}");
            }
        }
    }

    /// Sends requests until both programs refuse, and returns the number that each door has
    /// admitted.
    fn exhaust(&self, who: u8) -> Vec<(Door, usize)> {
        let let_in = |door| {
            // The program that is asked first refuses what the second one refuses.
            while self.programs.iter().filter(|program| self.asks(program, door, who)).count() > 0 {
            }
            (door, self.let_in.borrow()[&(door, who)])
        };
        DOORS.map(let_in).to_vec()
    }

    /// Checks that each door has admitted its burst, and more only for requests without an answer
    /// of the store. On a busy machine, nodes without CPU time are declared dead by the others.
    fn exhausted(&self, who: u8) {
        let let_in = self.exhaust(who);
        let unanswered = self.unanswered();
        let fits = |(_, count): &(Door, usize)| (BURST..=BURST + unanswered).contains(count);
        assert!(let_in.iter().all(fits), "{let_in:?}, unanswered: {unanswered}");
    }

    /// The number of requests about a bucket so far that got no answer of the store.
    fn unanswered(&self) -> usize {
        let of = |program: &Instance| {
            let series = |result| format!("evenkeel_store_answers_total{{result=\"{result}\"}}");
            let all = ["late", "away", "refused"];
            let all = all.map(|result| program.metric(&series(result)) as usize);
            all.iter().sum::<usize>()
        };
        self.programs.iter().map(of).sum()
    }

    /// Waits until every hit has been reported to the store.
    fn told(&self) {
        for program in &self.programs {
            let owed = || program.metric("evenkeel_store_owed");
            wait_for("the store to be told", || (owed() == 0).then_some(()));
        }
    }

    /// Checks that each door has admitted its burst, apart from requests in flight when a server
    /// died, and from requests without an answer of the store since then, as in `exhausted`.
    fn about_all(&self, who: u8) {
        let before = self.unanswered();
        let let_in = self.exhaust(who);
        let doubt = UNDER_WAY + self.unanswered() - before;
        let bounds = BURST.saturating_sub(doubt)..=BURST + doubt;
        assert!(let_in.iter().all(|(_, count)| bounds.contains(count)), "{let_in:?}");
    }
}

fn keys(redis: &Redis) -> usize {
    redis.text(&["KEYS", "evenkeel:*"]).lines().count()
}

fn urls(servers: &[Redis]) -> String {
    servers.iter().map(Redis::url).collect::<Vec<_>>().join(", ")
}

#[test]
fn doors_on_a_cluster_whose_slots_move_and_whose_masters_die_have_one_count() {
    let nodes = cluster("4000");
    let two = Two::start(&format!("layout: cluster, redis: [{}]", urls(&nodes[..2])), 3);
    let all = || {
        two.round(1);
        two.round(2);
    };
    all();
    move_a_slot(&nodes, all);
    two.exhausted(1);
    two.told();
    let let_in = two.exhaust(1);
    assert_eq!(two.exhaust(1), let_in, "and no more");
    let masters_now = masters(&nodes);
    let dead = masters_now.iter().max_by_key(|node| keys(node)).expect("a master");
    assert!(masters_now.iter().all(|node| keys(node) > 0), "all have some");
    kill_a_master(dead);
    two.round(2);
    two.round(2);
    wait_for("another master", || (masters(&nodes).len() == 3).then_some(()));
    two.until("failed", |failed| failed == 0);
    two.told();
    two.about_all(2);
}

#[test]
fn doors_on_a_ring_have_one_count_while_one_of_its_servers_is_lost() {
    let servers = [(); 3].map(|()| Redis::start(&[]));
    let two = Two::start(&format!("layout: ring, redis: [{}]", urls(&servers)), 3);
    two.round(1);
    two.round(2);
    assert!(servers.iter().all(|server| keys(server) > 0), "all have some");
    two.exhausted(1);
    let lost = servers.iter().max_by_key(|server| keys(server)).expect("a server");
    lost.kill();
    two.until("failed", |failed| failed > 0);
    two.round(2);
    two.round(2);
    // The server returns empty.
    lost.restart();
    two.until("failed", |failed| failed == 0);
    two.told();
    two.about_all(2);
    let before = two.unanswered();
    let let_in = two.exhaust(1);
    let most = BURST + UNDER_WAY + two.unanswered() - before;
    for (door, count) in let_in {
        // Each program knew of nearly all hits, and admits as many as it did not know of.
        assert!((BURST..=most).contains(&count), "{door:?}: {count}, not {most}");
    }
}

/// Buckets of all kinds, also the histories of masters.
#[test]
fn buckets_on_a_cluster_and_on_a_ring_are_charged_as_in_memory() {
    let nodes = cluster("30000");
    let ring = [(); 3].map(|()| Redis::start(&[]));
    local(async {
        for settings in
            [settings_of(StoreLayout::Cluster, &nodes[..3]), settings_of(StoreLayout::Ring, &ring)]
        {
            let lane = lane_by(&settings).await;
            all_good(&lane).await;
            let refused = charges_as_memory(&lane, &all_kinds(), 600).await;
            assert!(refused > 0, "{:?}", settings.place.layout);
        }
    });
    assert!(ring.iter().all(|server| keys(server) > 0));
}
