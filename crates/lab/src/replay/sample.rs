//! Generates an access log for trials and tests: people who read, crawlers that never pause, and
//! swarms, on a site with four processors.
//!
//! The same seed gives the same log. Lines are in nginx's combined format with `$request_time`, in
//! the order in which requests end; the duration of each follows from the requests that run beside
//! it. [`PLANTED`] lists all clients that are not people.

use super::play::processors::Processors;
use evenkeel_core::sim::random::{RandomDuration, SimRandom};
use evenkeel_core::units::{Nanos, SECOND, Time};
use jiff::Timestamp;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, Write};
use std::net::Ipv4Addr;

/// The options of the generator.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct SampleLogOptions {
    /// Approximate number of lines
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
    pub lines: u64,
    /// Number of days that the log covers
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=366))]
    pub days: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The number of processors of the site.
pub const SAMPLE_CPUS: f64 = 4.0;
/// The beginning of the log: the first of October 2026.
pub const SAMPLE_LOG_START: Time = Time(1_790_812_800 * SECOND);
const DAY_SECONDS: u64 = 86_400;

/// A generated client, or group of clients, that is not a person.
#[derive(Clone, Copy, Debug)]
pub struct PlantedClient {
    /// Its name in a report: the address, the network or the agent.
    pub name: &'static str,
    /// Its `User-Agent`.
    pub agent: &'static str,
    /// The number of its addresses.
    pub addresses: u32,
    /// The number of concurrent requests of each address.
    connections: u32,
    /// The time from an answer to the next request, in milliseconds.
    think_ms: u64,
    /// The CPU time of each page, in milliseconds.
    page_ms: u64,
    /// Its part of all lines, in thousandths.
    permille: u64,
    /// The time at which it begins, in thousandths of the whole time.
    from: u64,
}

/// The `User-Agent` of a common browser.
const BROWSER: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like \
                       Gecko) Chrome/141.0.0.0 Safari/537.36";
/// The `User-Agent` of a browser that is no longer in use.
const OUTDATED: &str = "Mozilla/5.0 (Windows NT 6.1; WOW64) AppleWebKit/537.36 (KHTML, like Gecko) \
                        Chrome/49.0.2623.112 Safari/537.36";

/// All clients that are not people: a crawler that imitates a browser, one that does not, a swarm
/// in one network and a swarm from all over the world.
pub const PLANTED: [PlantedClient; 4] = [
    PlantedClient {
        name: "203.0.113.7",
        agent: BROWSER,
        addresses: 1,
        connections: 32,
        think_ms: 1,
        page_ms: 120,
        permille: 40,
        from: 350,
    },
    PlantedClient {
        name: "198.51.100.20",
        agent: "Mozilla/5.0 (compatible; PlantedBot/1.0; +https://bot.example/)",
        addresses: 1,
        connections: 1,
        think_ms: 2_000,
        page_ms: 40,
        permille: 60,
        from: 0,
    },
    PlantedClient {
        name: "192.0.2.0/24",
        agent: BROWSER,
        addresses: 50,
        connections: 2,
        think_ms: 5,
        page_ms: 60,
        permille: 60,
        from: 600,
    },
    PlantedClient {
        name: OUTDATED,
        agent: OUTDATED,
        addresses: 400,
        connections: 1,
        think_ms: 20_000,
        page_ms: 60,
        permille: 50,
        from: 800,
    },
];

/// The `User-Agent` headers of people.
const AGENTS: [&str; 6] = [
    BROWSER,
    "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) \
     Version/18.6 Safari/605.1.15",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like \
     Gecko) Version/18.6 Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 \
     Mobile Safari/537.36",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:143.0) Gecko/20100101 Firefox/143.0",
];
/// The average number of lines of a visit, from which the number of visits is derived.
const VISIT_LINES: u64 = 27;
/// The paths of files that belong to a page.
const FILES: [&str; 7] =
    ["site.css", "site.js", "logo.svg", "head.jpg", "menu.png", "a.woff2", "b.webp"];

struct SampleRequest {
    address: Ipv4Addr,
    agent: &'static str,
    path: String,
    referrer: String,
    began: Time,
    /// The index of the robot that sent it, which requests its next page after the answer.
    robot: Option<usize>,
}

/// A person's visit.
#[derive(Clone)]
struct SampleVisit {
    address: Ipv4Addr,
    agent: &'static str,
    pages: u32,
    at: String,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SampleEvent {
    /// A person begins a visit.
    Visit,
    /// A person opens a page.
    Page(u64),
    /// The browser fetches a file.
    File(u64, u8),
    /// A visit is over.
    Leave(u64),
    /// A connection of a robot requests a page: the index of the robot, and the number of the
    /// address.
    Robot(usize, u32),
}

struct SampleLogWriter<W> {
    options: SampleLogOptions,
    chance: SimRandom,
    now: Time,
    agenda: BinaryHeap<Reverse<(Time, u64, SampleEvent)>>,
    planned: u64,
    processors: Processors,
    running: HashMap<u64, SampleRequest>,
    visits: HashMap<u64, SampleVisit>,
    left: [u64; PLANTED.len()],
    /// The last second that was formatted, and its text.
    stamp: (u64, String),
    out: W,
    lines: u64,
}

/// Writes the log. Returns the number of its lines.
pub fn make(options: SampleLogOptions, out: impl Write) -> io::Result<u64> {
    let mut maker = SampleLogWriter {
        options,
        chance: SimRandom::new(options.seed, 0),
        now: SAMPLE_LOG_START,
        agenda: BinaryHeap::new(),
        planned: 0,
        processors: Processors::new(SAMPLE_CPUS),
        running: HashMap::new(),
        visits: HashMap::new(),
        left: PLANTED.map(|planted| options.lines * planted.permille / 1_000),
        stamp: (0, String::new()),
        out,
        lines: 0,
    };
    maker.open();
    maker.run()?;
    maker.out.flush()?;
    Ok(maker.lines)
}

impl<W: Write> SampleLogWriter<W> {
    fn length(&self) -> Nanos {
        Nanos::from_secs(self.options.days * DAY_SECONDS)
    }

    fn plan(&mut self, at: Time, event: SampleEvent) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned, event)));
    }

    fn open(&mut self) {
        self.plan(SAMPLE_LOG_START, SampleEvent::Visit);
        for (robot, planted) in PLANTED.iter().enumerate() {
            let from = Nanos(self.length().0 / 1_000 * planted.from);
            for address in 0..planted.addresses {
                for _ in 0..planted.connections {
                    let late =
                        RandomDuration::Between(Nanos::ZERO, Nanos::from_millis(planted.think_ms));
                    let at = SAMPLE_LOG_START.plus(from).plus(self.chance.length(late));
                    self.plan(at, SampleEvent::Robot(robot, address));
                }
            }
        }
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            let planned = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let next = [planned, self.processors.poll_timeout()].into_iter().flatten().min();
            let Some(next) = next else { return Ok(()) };
            self.now = next;
            while let Some(over) = self.processors.poll_over(next) {
                self.answered(over.id)?;
            }
            if planned == Some(next)
                && let Some(Reverse((_, _, event))) = self.agenda.pop()
            {
                self.happen(event);
            }
        }
    }

    fn happen(&mut self, event: SampleEvent) {
        match event {
            SampleEvent::Visit => self.come(),
            SampleEvent::Page(visit) => self.page(visit),
            SampleEvent::File(visit, file) => self.file(visit, file),
            SampleEvent::Leave(visit) => drop(self.visits.remove(&visit)),
            SampleEvent::Robot(robot, address) => self.crawl(robot, address),
        }
    }

    /// Begins a person's visit, and schedules the next one; there are fewer visits at night.
    fn come(&mut self) {
        let robots: u64 = PLANTED.iter().map(|planted| planted.permille).sum();
        let lines = self.options.lines * (1_000 - robots) / 1_000;
        let mean = self.length().0 / (lines / VISIT_LINES).max(1);
        let hour = self.now.0 / SECOND / 3_600 % 24;
        let night = if (1..7).contains(&hour) { 4 } else { 1 };
        let gap = self.chance.length(RandomDuration::Exponential(Nanos(mean * 4 / 5 * night)));
        let next = self.now.plus(gap);
        if next.since(SAMPLE_LOG_START) < self.length() {
            self.plan(next, SampleEvent::Visit);
        }
        let person = self.chance.bits();
        let [first, b, c, d, agent, ..] = person.to_le_bytes();
        // An address outside the networks of the planted clients.
        let address = Ipv4Addr::new(20 + first % 160, b, c, d.max(1));
        let agent = AGENTS[usize::from(agent) % AGENTS.len()];
        let pages =
            1 + (self.chance.length(RandomDuration::Exponential(Nanos(4_000))).0 / 1_000) as u32;
        let visit = SampleVisit { address, agent, pages: pages.min(40), at: String::new() };
        self.visits.insert(self.planned, visit);
        self.plan(self.now, SampleEvent::Page(self.planned));
    }

    fn page(&mut self, id: u64) {
        let number = self.chance.bits() % 500;
        let Some(visit) = self.visits.get_mut(&id) else { return };
        visit.pages -= 1;
        let (path, last) = (format!("/article/{number}"), visit.pages == 0);
        let referrer = match visit.at.as_str() {
            "" => "-".to_owned(),
            at => format!("https://example.org{at}"),
        };
        visit.at.clone_from(&path);
        let visit = visit.clone();
        let demand = RandomDuration::Between(Nanos::from_millis(15), Nanos::from_millis(75));
        self.ask(&visit, path, referrer, demand);
        let files = 3 + (self.chance.bits() % 5) as u8;
        for file in 0..files {
            let after = RandomDuration::Between(Nanos::from_millis(80), Nanos::from_millis(900));
            let at = self.now.plus(self.chance.length(after));
            self.plan(at, SampleEvent::File(id, file));
        }
        let read = self.chance.length(RandomDuration::Exponential(Nanos::from_secs(25)));
        let next = self.now.plus(Nanos::from_secs(3)).plus(read);
        // After the last page its files are still to be fetched.
        let event = if last { SampleEvent::Leave(id) } else { SampleEvent::Page(id) };
        self.plan(next, event);
    }

    fn file(&mut self, id: u64, file: u8) {
        let Some(visit) = self.visits.get(&id).cloned() else { return };
        let path = format!("/files/{}", FILES[usize::from(file) % FILES.len()]);
        let referrer = format!("https://example.org{}", visit.at);
        self.ask(&visit, path, referrer, RandomDuration::Fixed(Nanos(300_000)));
    }

    fn ask(&mut self, visit: &SampleVisit, path: String, referrer: String, demand: RandomDuration) {
        let (address, agent) = (visit.address, visit.agent);
        let request =
            SampleRequest { address, agent, path, referrer, began: self.now, robot: None };
        self.begin(request, demand);
    }

    fn begin(&mut self, request: SampleRequest, demand: RandomDuration) {
        self.planned += 1;
        let needed = self.chance.length(demand);
        self.running.insert(self.planned, request);
        self.processors.begin(self.planned, needed, self.now);
    }

    fn crawl(&mut self, robot: usize, address: u32) {
        let planted = &PLANTED[robot];
        if self.left[robot] == 0 || self.now.since(SAMPLE_LOG_START) >= self.length() {
            return;
        }
        self.left[robot] -= 1;
        let page = self.chance.bits() % 100_000;
        let request = SampleRequest {
            address: planted.address(address),
            agent: planted.agent,
            path: format!("/search?q={page}"),
            referrer: "-".to_owned(),
            began: self.now,
            robot: Some(robot),
        };
        let least = Nanos::from_millis(planted.page_ms / 2);
        self.begin(request, RandomDuration::Between(least, Nanos(least.0 * 3)));
    }

    fn answered(&mut self, id: u64) -> io::Result<()> {
        let Some(request) = self.running.remove(&id) else { return Ok(()) };
        self.line(&request)?;
        if let Some(robot) = request.robot {
            let think = RandomDuration::Exponential(Nanos::from_millis(PLANTED[robot].think_ms));
            let at = self.now.plus(self.chance.length(think));
            let address = PLANTED[robot].number(request.address);
            self.plan(at, SampleEvent::Robot(robot, address));
        }
        Ok(())
    }

    fn line(&mut self, request: &SampleRequest) -> io::Result<()> {
        let second = self.now.0 / SECOND;
        if self.stamp.0 != second {
            let at = Timestamp::from_second(second as i64).unwrap_or_default();
            self.stamp = (second, at.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string());
        }
        self.lines += 1;
        let took = self.now.since(request.began).0 / 1_000_000;
        let SampleRequest { address, agent, path, referrer, .. } = request;
        let bytes = 500 + path.len() * 37;
        writeln!(
            self.out,
            "{address} - - [{}] \"GET {path} HTTP/1.1\" 200 {bytes} \"{referrer}\" \
             \"{agent}\" {}.{:03}",
            self.stamp.1,
            took / 1_000,
            took % 1_000
        )
    }
}

impl PlantedClient {
    /// The address of member number `number`.
    pub fn address(&self, number: u32) -> Ipv4Addr {
        match (self.name.parse(), self.name.strip_suffix("0/24")) {
            (Ok(address), _) => address,
            (_, Some(net)) => {
                let last = u8::try_from(number + 1).unwrap_or(u8::MAX);
                format!("{net}{last}").parse().unwrap_or(Ipv4Addr::LOCALHOST)
            }
            // All over the world, but never in the range of people's addresses.
            _ => Ipv4Addr::from_bits(0xc800_0000 | (number * 65_537)),
        }
    }

    /// The number of the member with this address.
    fn number(&self, address: Ipv4Addr) -> u32 {
        (0..self.addresses).find(|number| self.address(*number) == address).unwrap_or(0)
    }
}
