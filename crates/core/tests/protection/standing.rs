//! Swarms with a new address for each request, when strangers share what those leave that were
//! here before, and visitors wait in the waiting room.
//!
//! One processor, pages of 25 to 30 ms, six regulars with a page a second. Every two seconds a new
//! person comes, for four pages, and gives up after a minute. Every five seconds a feed reader
//! comes, that knows no cookies. A part of the swarm keeps its tickets and comes back like people.

use super::newcomers::{LENGTH, REGULARS, SWARM_FROM, connections, page, regular, swarm};
use super::*;
use evenkeel_core::sim::client::SimBrowser;

const MINUTE: Nanos = Nanos::from_secs(60);
const SECOND: Nanos = Nanos::from_secs(1);

fn browser(keeps: f64) -> SimBrowser {
    SimBrowser {
        keeps,
        pages: 4,
        think: RandomDuration::Between(SECOND, Nanos::from_secs(3)),
        share_ticket: false,
    }
}

/// New people, each with four pages.
fn people(every: Nanos) -> SimClient {
    let arrivals = Arrivals::Open { gap: RandomDuration::Fixed(every) };
    let mut people = SimClient::new(address(1, 1, 1), arrivals, page());
    (people.path, people.ever_new, people.patience) = ("/page".into(), true, Some(MINUTE));
    people.browser = Some(browser(1.0));
    people
}

fn feeds() -> SimClient {
    SimClient { browser: None, ..people(Nanos::from_secs(5)) }
}

fn keeping(swarm: SimClient, keeps: f64) -> SimClient {
    SimClient { browser: Some(browser(keeps)), ..swarm }
}

fn open(per_second: u64) -> Arrivals {
    Arrivals::Open { gap: RandomDuration::Exponential(Nanos(1_000_000_000 / per_second)) }
}

/// The scene: the regulars, the new people, the feed readers, and the others.
struct Siege {
    name: String,
    others: Vec<SimClient>,
    /// When the first people came. The swarm is there from [`SWARM_FROM`] on.
    from: u64,
    people_every: Nanos,
    seed: u64,
}

impl Siege {
    fn new(name: &str, others: Vec<SimClient>) -> Siege {
        let people_every = Nanos::from_secs(2);
        Siege { name: name.into(), others, from: 0, people_every, seed: 1 }
    }

    fn run(&self, known: KnownClients) -> SiegeRun {
        let from = Nanos::from_secs(self.from);
        let later = |one: SimClient| SimClient { from: one.from.plus(from), ..one };
        let regulars = (0..REGULARS as u8).map(regular);
        let browsing = regulars.map(|one| SimClient { browser: Some(browser(1.0)), ..one });
        let all = browsing.chain([people(self.people_every), feeds()]).map(later);
        let limits = limits_of_one_cpu();
        let queue = QueueSettings { reserve: 2, known, cpus_milli: 1_000, ..queue() };
        let outcome = Sim::new(SimScene {
            backend: SimBackend::new(1.0, 8, SimScheduling::Shared),
            clock: CpuClock::Shared { cpus: 1.0 },
            limits,
            queue: Some(queue),
            length: Nanos::from_secs(LENGTH),
            seed: self.seed,
            ..scene(all.chain(self.others.iter().cloned()).collect())
        })
        .run();
        SiegeRun::of(&self.name, &outcome, self.others.len())
    }
}

/// The default limits, on one processor.
fn limits_of_one_cpu() -> Vec<Limit> {
    let shares = [0.1, 0.25, 0.5];
    let limits = limits(false).into_iter().zip(shares).map(|(limit, share)| {
        let rate = CpuShare::new(share).and_then(|share| share.of(1.0)).expect("a rate");
        let burst = Cost::cpu(Nanos::from_secs(30));
        let algorithm = Algorithm::Debt(DebtBucket::new(rate, burst).capped(burst));
        Limit { algorithm, keys_max: 100_000, ..limit }
    });
    limits.collect()
}

/// Requests that were sent while the swarm was there.
#[derive(Debug)]
struct Part {
    answered: usize,
    /// Refused, given up, or sent away.
    lost: usize,
    refused: usize,
    /// In seconds.
    p50: f64,
    p95: f64,
    worst: f64,
}

impl Part {
    /// The part of the requests that were answered.
    fn part_in(&self) -> f64 {
        self.answered as f64 / (self.answered + self.lost).max(1) as f64
    }

    fn of(records: &[SimRecord], is_wanted: impl Fn(&SimRecord) -> bool) -> Part {
        // What is asked for at the very end may not be served before it.
        let sent = Nanos::from_secs(SWARM_FROM)..Nanos::from_secs(LENGTH - 10);
        let all = records.iter().filter(|one| sent.contains(&one.sent) && is_wanted(one));
        let (answered, lost): (Vec<&SimRecord>, Vec<&SimRecord>) =
            all.partition(|one| one.fate == SimRequestEnd::Answered);
        let mut waits: Vec<f64> =
            answered.iter().map(|one| one.ended.minus(one.sent).as_secs_f64()).collect();
        waits.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| waits.get((waits.len() as f64 * part) as usize).copied();
        let refused = lost.iter().filter(|one| one.fate == SimRequestEnd::Refused).count();
        Part {
            answered: waits.len(),
            lost: lost.len(),
            refused,
            p50: at(0.5).unwrap_or(0.0),
            p95: at(0.95).unwrap_or(0.0),
            worst: waits.last().copied().unwrap_or(0.0),
        }
    }
}

struct SiegeRun {
    regulars: Part,
    first: Part,
    later: Part,
    feeds: Part,
    swarm: Part,
}

impl SiegeRun {
    fn of(name: &str, outcome: &SimOutcome, others: usize) -> SiegeRun {
        let of = |clients: std::ops::Range<usize>, is_wanted: &dyn Fn(&SimRecord) -> bool| {
            let records: Vec<SimRecord> = outcome.clients[clients].concat();
            Part::of(&records, is_wanted)
        };
        let people = REGULARS..REGULARS + 1;
        let run = SiegeRun {
            regulars: of(0..REGULARS, &|_| true),
            first: of(people.clone(), &|one| one.page == 1),
            later: of(people, &|one| one.page > 1),
            feeds: of(REGULARS + 1..REGULARS + 2, &|_| true),
            swarm: of(REGULARS + 2..REGULARS + 2 + others, &|_| true),
        };
        let seconds = (LENGTH - 10 - SWARM_FROM) as f64;
        let ms = |one: &Part| [one.p50, one.p95, one.worst].map(|time| (time * 1e3).round());
        println!(
            "{name:38} regulars {:?} ms, {} lost; first {:.2} / {:.2} s, {:.0} % in; \
             later {:.2} / {:.2} s, {:.0} %; feeds {:.1} s, {:.0} %; swarm {:.1}/s, {} refused",
            ms(&run.regulars),
            run.regulars.lost,
            run.first.p50,
            run.first.p95,
            1e2 * run.first.part_in(),
            run.later.p50,
            run.later.p95,
            1e2 * run.later.part_in(),
            run.feeds.p95,
            1e2 * run.feeds.part_in(),
            run.swarm.answered as f64 / seconds,
            run.swarm.refused,
        );
        run
    }
}

const AUTO: KnownClients = KnownClients::Auto { clients_max: 100_000 };

fn calm_p95() -> f64 {
    Siege::new("nobody else", vec![]).run(AUTO).regulars.p95
}

/// What holds for the regulars in every scene in which they were there before: at most twice as
/// long as without a swarm, and none is lost.
fn regulars_hold(run: &SiegeRun, name: &str, calm: f64) {
    assert!(run.regulars.p95 <= 2.0 * calm, "{name}: {} s of {calm}", run.regulars.p95);
    assert_eq!(run.regulars.lost, 0, "{name}");
}

/// Nearly all new people get in, within so many seconds.
fn newcomers_hold(run: &SiegeRun, name: &str, p95: f64) {
    assert!(run.first.part_in() >= 0.99, "{name}: {} in", run.first.part_in());
    assert!(run.first.p95 <= p95, "{name}: {} s", run.first.p95);
}

/// A swarm that asks for the same pages as people. With a thousand connections of which a twentieth
/// come back, first pages alone need nearly all that the regulars leave.
#[test]
fn the_same_pages() {
    let calm = calm_p95();
    for (count, keeps, p95) in [
        (64, 0.0, 5.0),
        (64, 0.05, 5.0),
        (64, 0.1, 5.0),
        (256, 0.0, 5.0),
        (256, 0.05, 5.0),
        (1_000, 0.0, 5.0),
        (1_000, 0.05, 7.0),
    ] {
        let name = format!("closed {count} x1 keep {keeps}");
        let run = Siege::new(&name, vec![keeping(swarm(connections(count), 1), keeps)]).run(AUTO);
        regulars_hold(&run, &name, calm);
        newcomers_hold(&run, &name, p95);
        assert_eq!(run.feeds.lost, 0, "{name}");
        assert!(run.swarm.answered as f64 >= 26.0 * 110.0, "{name}: the backend stands idle");
    }
}

#[test]
fn pages_five_times_dearer() {
    let calm = calm_p95();
    for (count, keeps) in [(64, 0.05), (256, 0.0), (256, 0.1), (1_000, 0.05)] {
        let name = format!("closed {count} x5 keep {keeps}");
        let run = Siege::new(&name, vec![keeping(swarm(connections(count), 5), keeps)]).run(AUTO);
        regulars_hold(&run, &name, calm);
        newcomers_hold(&run, &name, 1.0);
    }
}

/// At 1000 visitors a second, those 50 that come back are more than the machine can serve.
#[test]
fn an_open_loop() {
    let calm = calm_p95();
    for (rate, keeps, is_served) in
        [(60, 0.05, true), (60, 0.1, true), (1_000, 0.0, true), (1_000, 0.05, false)]
    {
        let name = format!("open {rate}/s x1 keep {keeps}");
        let run = Siege::new(&name, vec![keeping(swarm(open(rate), 1), keeps)]).run(AUTO);
        regulars_hold(&run, &name, calm);
        if is_served {
            newcomers_hold(&run, &name, 5.0);
        }
    }
}

/// All members of the swarm come with copies of one ticket, and later of one pass. Each gives up
/// after half a minute.
#[test]
fn a_ticket_that_the_whole_swarm_shares() {
    let calm = calm_p95();
    for count in [64, 256] {
        let name = format!("closed {count}, one ticket");
        let browser = Some(SimBrowser { share_ticket: true, ..browser(1.0) });
        let patience = Some(Nanos::from_secs(30));
        let swarm = SimClient { backoff: SECOND, ..swarm(connections(count), 1) };
        let copies = SimClient { browser, patience, ..swarm };
        let run = Siege::new(&name, vec![copies]).run(AUTO);
        regulars_hold(&run, &name, calm);
        newcomers_hold(&run, &name, 6.0);
    }
}

/// Half of the swarm waits as people do. Those that were here before notice nothing; new people
/// wait with the swarm.
#[test]
fn half_of_the_swarm_comes_back() {
    let calm = calm_p95();
    for count in [64, 256] {
        let name = format!("closed {count} x1 keep 0.5");
        let run = Siege::new(&name, vec![keeping(swarm(connections(count), 1), 0.5)]).run(AUTO);
        regulars_hold(&run, &name, calm);
    }
}

/// Half of the swarm waits as people do, but its user agent is one that nobody else has. One
/// regular has it too.
#[test]
fn half_of_a_swarm_with_something_in_common_comes_back() {
    let calm = calm_p95();
    for (arrivals, name) in [
        (connections(64), "64"),
        (connections(256), "256"),
        (open(60), "60/s"),
        (open(1_000), "1000/s"),
    ] {
        let name = format!("{name} x1 keep 0.5, one agent");
        let one = SimClient { agent: "swarm".into(), ..keeping(swarm(arrivals, 1), 0.5) };
        let run = Siege::new(&name, vec![one]).run(AUTO);
        regulars_hold(&run, &name, calm);
        newcomers_hold(&run, &name, 5.0);
    }
}

#[test]
#[ignore = "prints all scenes"]
fn all_scenes() {
    calm_p95();
    let only = std::env::var("SCENE").unwrap_or_default();
    for times in [1, 5] {
        for keeps in [0.0, 0.05, 0.1, 0.5] {
            for (name, arrivals) in [
                ("closed 64", connections(64)),
                ("closed 256", connections(256)),
                ("closed 1000", connections(1_000)),
                ("open 60/s", open(60)),
                ("open 1000/s", open(1_000)),
            ] {
                let name = format!("{name} x{times} keep {keeps}");
                if !name.contains(&only) {
                    continue;
                }
                let others = vec![keeping(swarm(arrivals, times), keeps)];
                Siege::new(&name, others).run(AUTO);
            }
        }
    }
}

/// The swarm is there from the first second on, and people come five seconds later.
#[test]
fn a_start_under_attack() {
    let calm = calm_p95();
    for (keeps, worse) in [(0.0, 1.0), (0.05, 4.0)] {
        let one = SimClient { from: Nanos::ZERO, ..keeping(swarm(connections(256), 1), keeps) };
        let name = format!("start under attack, keep {keeps}");
        let run = Siege { from: 5, ..Siege::new(&name, vec![one]) }.run(AUTO);
        regulars_hold(&run, &name, worse * calm);
        newcomers_hold(&run, &name, 5.0);
    }
}

#[test]
fn five_seconds_of_history() {
    let others = vec![keeping(swarm(connections(256), 1), 0.0)];
    let run = Siege { from: 5, ..Siege::new("5 s of history", others) }.run(AUTO);
    regulars_hold(&run, "5 s of history", calm_p95());
    newcomers_hold(&run, "5 s of history", 5.0);
}

/// More real newcomers than the machine can serve, and no swarm.
#[test]
fn a_crowd_of_real_newcomers() {
    for rate in [10, 15] {
        let crowd = SimClient { from: SECOND.plus(SECOND), ..people(Nanos(SECOND.0 / rate)) };
        let plain = Siege::new(&format!("crowd of {rate}/s, off"), vec![crowd.clone()])
            .run(KnownClients::Off);
        let name = format!("crowd of {rate}/s");
        let run = Siege::new(&name, vec![crowd]).run(AUTO);
        newcomers_hold(&run, &name, plain.first.p95 + 2.0);
        assert!(run.regulars.p95 <= 0.2 && run.regulars.lost == 0, "{name}: {:?}", run.regulars);
    }
}

/// People who come from a mention in the news, with a user agent that no returning client has. The
/// first of them are served before there are too many, so they do not burn: they wait like a crowd
/// that is like those that were here.
#[test]
fn a_crowd_that_is_unlike_those_that_were_here() {
    for rate in [10, 15] {
        let crowd = SimClient { from: MINUTE, ..people(Nanos(SECOND.0 / rate)) };
        let other = SimClient { agent: "another".into(), ..crowd.clone() };
        let run = |name, crowd| Siege::new(&format!("{name} {rate}/s"), vec![crowd]).run(AUTO);
        let (alike, other) = (run("late crowd", crowd), run("late crowd, unlike", other));
        let (p95, most) = (other.swarm.p95, alike.swarm.p95 + 2.0);
        assert!(p95 <= most, "{rate}/s: {p95} s of {most}");
        assert!(other.swarm.part_in() >= alike.swarm.part_in() - 0.05, "{rate}/s");
    }
}

/// Some connections of the swarm have the addresses of two regulars.
#[test]
fn a_network_address_shared_with_a_swarm() {
    let calm = calm_p95();
    for count in [4, 32] {
        let one = |n: u8| SimClient {
            ever_new: false,
            address: regular(n).address,
            ..swarm(connections(count), 1)
        };
        let others = vec![swarm(connections(256), 1), one(0), one(1)];
        let name = format!("NAT, {} connections", 2 * count);
        let run = Siege::new(&name, others).run(AUTO);
        // The two that share their address are a third of all.
        assert!(run.regulars.p95 <= 2.5 * calm, "{name}: {} s", run.regulars.p95);
        assert_eq!(run.regulars.lost, 0, "{name}");
        newcomers_hold(&run, &name, 5.0);
    }
}

/// As long as there is room, all goes as if clients were not distinguished: beside a swarm that
/// asks for little, and in a crowd of new people.
#[test]
fn without_pressure_nothing_changes() {
    let run = |known, others: &SimClient| {
        let all = (0..REGULARS as u8).map(regular);
        let all = all.chain([people(MINUTE), feeds(), others.clone()]);
        let queue = QueueSettings { reserve: 2, known, cpus_milli: 1_000, ..queue() };
        Sim::new(SimScene {
            backend: SimBackend::new(1.0, 8, SimScheduling::Shared),
            clock: CpuClock::Shared { cpus: 1.0 },
            limits: limits_of_one_cpu(),
            queue: Some(queue),
            length: MINUTE,
            ..scene(all.collect())
        })
        .run()
    };
    for others in [keeping(swarm(open(24), 1), 0.0), people(Nanos(SECOND.0 / 5))] {
        assert!(run(AUTO, &others).clients == run(KnownClients::Off, &others).clients);
    }
}
