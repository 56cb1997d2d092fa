//! A crawler and a human with a page that burns CPU: requests that are held, delayed or refused,
//! and the reports about that in answers, log and metrics.

use crate::client::Client;
use crate::gate::Gate;
use crate::site::Site;
use evenkeel_testing::wait::wait_for;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

const CRAWLER: &str = "127.1.0.1";
const HUMAN: &str = "127.2.0.1";

/// Half a CPU for each address, with a burst for three requests of the crawler.
fn half_a_cpu(action: &str) -> String {
    format!(
        "  cpus: 1\n  cost: shared\n  action: {action}\n  max_delay: 20s\n  limits:\n    \
         - {{name: ip, by: ip/32, share: 50%, burst: 200ms}}\n"
    )
}

/// The same limits with a rate so low that a debt lasts for minutes.
fn hardly_any_cpu(action: &str) -> String {
    half_a_cpu(action).replace("share: 50%", "share: 1%")
}

/// Requests `count` pages of 80 ms CPU, one after the other, and returns the statuses.
fn crawl(gate: &Gate, count: usize) -> Vec<u16> {
    let mut crawler = gate.client(CRAWLER);
    (0..count).map(|_| crawler.get("/page?ms=80").status).collect()
}

/// Crawls until at least two requests got this verdict. More than one round may be needed, because
/// a crawler that is kept waiting regains credit.
fn crawl_until_twice(gate: &Gate, verdict: &str) {
    wait_for("two decisions", || {
        assert_eq!(crawl(gate, 8), [200; 8]);
        let decided = gate.metric("evenkeel_decisions_total", &[("verdict", verdict)]);
        (decided >= 2.0).then_some(())
    });
}

/// Sends requests as one human after the other until a page has cost less than the credit: it costs
/// more if the backend stood still in the meantime.
fn human_is_let_in(gate: &Gate) {
    let cost = || gate.metric("evenkeel_cost_seconds_total", &[]);
    let mut humans = (1..255).map(|n| format!("127.2.0.{n}"));
    let human = wait_for("a page that costs little", || {
        let (human, before) = (humans.next().expect("another"), cost());
        let answer = gate.client(&human).get("/page?ms=5");
        assert_eq!((answer.status, answer.text().as_str()), (200, "burnt 5 ms\n"));
        (cost() - before < 0.19).then_some(human)
    });
    let about = gate.decisions_about(&human, 0);
    assert!(about.is_empty(), "the human was limited: {about:?}");
}

/// Checks the content of each log line, and that the metrics have counted the logged decisions.
fn lines_agree(gate: &Gate, verdict: &str, count: usize) {
    let labels = [("verdict", verdict), ("limit", "ip")];
    // A line is written a moment after its decision is counted.
    let lines = wait_for("a line for each decision", || {
        let lines = gate.decisions_about(CRAWLER, count);
        let counted = gate.metric("evenkeel_decisions_total", &labels);
        (counted == lines.len() as f64).then_some(lines)
    });
    for line in &lines {
        let named = ["verdict", "limit", "key"].map(|field| line.text(field));
        assert_eq!(named, [verdict, "ip", CRAWLER], "{line:?}");
        assert!(line.number("wait") > 0.0, "{line:?}");
        assert!(line.has("level"), "{line:?}");
    }
}

#[test]
fn hold_keeps_the_answers_of_who_is_in_debt() {
    let site = Site::start(2);
    let gate = Gate::start(&site, &half_a_cpu("hold"));
    crawl_until_twice(&gate, "hold");
    human_is_let_in(&gate);
    lines_agree(&gate, "hold", 2);
    for line in gate.decisions_about(CRAWLER, 2) {
        assert!(line.number("cost") >= 0.07, "{line:?}");
        assert_eq!(line.text("measured"), "shared");
        // `level` is the value before the request; a debt at half a CPU takes twice its size to
        // refill.
        let debt = line.number("cost") - line.number("level");
        assert!((line.number("wait") - 2.0 * debt).abs() < 0.01, "{line:?}");
    }
}

#[test]
fn held_answers_of_any_size_begin_only_after_the_wait() {
    let site = Site::start(2);
    let gate = Gate::start(&site, &half_a_cpu("hold"));
    let held = || gate.metric("evenkeel_decisions_total", &[("verdict", "hold")]);
    let (answer, last) = wait_for("an answer that is held", || {
        crawl(&gate, 6);
        let before = held();
        let answer = gate.client(CRAWLER).get("/page?ms=80&bytes=300000");
        assert_eq!(answer.body.len(), 300_000);
        let all = held();
        // The last line is about this request, unless the crawler had credit again.
        (all > before).then(|| (answer, gate.decisions_about(CRAWLER, all as usize).pop()))
    });
    let last = last.expect("a decision");
    assert!(answer.took.as_secs_f64() >= last.number("wait") - 0.01, "{:?} {last:?}", answer.took);
}

#[test]
fn delay_keeps_requests_from_the_backend() {
    let site = Site::start(2);
    let gate = Gate::start(&site, &half_a_cpu("delay"));
    crawl_until_twice(&gate, "delay");
    human_is_let_in(&gate);
    lines_agree(&gate, "delay", 2);
    for line in gate.decisions_about(CRAWLER, 2) {
        assert!(line.number("level") < 0.0, "{line:?}");
        assert!(!line.has("cost"), "it has not run: {line:?}");
    }
}

#[test]
fn reject_refuses_who_is_in_debt_and_says_when_to_come_back() {
    let site = Site::start(2);
    let gate = Gate::start(&site, &hardly_any_cpu("reject"));
    // One request that costs several times the credit.
    assert_eq!(gate.client(CRAWLER).get("/page?ms=1500").status, 200);
    assert_eq!(crawl(&gate, 3), [503; 3]);
    human_is_let_in(&gate);
    lines_agree(&gate, "reject", 3);
    let refused = refusal(&mut gate.client(CRAWLER), "");
    let after: u64 =
        refused.header("retry-after").expect("a Retry-After").parse().expect("seconds");
    let wait = gate.decisions_about(CRAWLER, 4).pop().expect("a refusal").number("wait");
    assert_eq!(after, wait.ceil().max(1.0) as u64, "{wait}");
    for (accept, begins) in [("text/html", "<"), ("application/json", "{"), ("text/plain", "")] {
        let refused = refusal(&mut gate.client(CRAWLER), &format!("Accept: {accept}\r\n"));
        let kind = refused.header("content-type").expect("a Content-Type");
        assert!(kind.starts_with(accept), "{kind} for {accept}");
        let text = refused.text();
        assert!(text.starts_with(begins) && text.contains("ip"), "{accept}: {text}");
    }
}

fn refusal(client: &mut Client, headers: &str) -> crate::client::Answer {
    let answer = client.get_with("/page?ms=1", headers);
    assert_eq!(answer.status, 503);
    answer
}

#[test]
fn a_limit_in_requests_refuses_with_429_and_charges_nobody_else() {
    let site = Site::start(2);
    let limits = "  limits:\n    - {name: logins, by: ip/32, \
                  when: {method: POST, path: /login}, rate: 5/m, burst: 2}\n";
    let gate = Gate::start(&site, limits);
    let login = "POST /x/../login HTTP/1.1\r\nHost: site\r\nContent-Length: 0\r\n\r\n";
    let mut client = gate.client(CRAWLER);
    let statuses: Vec<u16> = (0..4).map(|_| client.ask(login).status).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(client.get("/login").status, 200, "only POST is limited");
    assert_eq!(gate.client(HUMAN).ask(login).status, 200);
    let labels = [("verdict", "reject"), ("limit", "logins")];
    assert_eq!(gate.metric("evenkeel_decisions_total", &labels), 2.0);
}

#[test]
fn clients_behind_a_trusted_proxy_are_told_apart() {
    let site = Site::start(2);
    let trusted = format!("  trusted_proxies: [127.0.0.1]\n{}", hardly_any_cpu("reject"));
    let gate = Gate::start(&site, &trusted);
    let from = |client: &str| format!("X-Forwarded-For: 203.0.113.9, {client}, 127.0.0.1\r\n");
    let mut proxy = gate.client("127.0.0.1");
    assert_eq!(proxy.get_with("/page?ms=1500", &from("192.0.2.1")).status, 200);
    assert_eq!(proxy.get_with("/page?ms=1", &from("192.0.2.1")).status, 503);
    assert_eq!(proxy.get_with("/page?ms=1", &from("192.0.2.2")).status, 200);
    let line = gate.decisions_about("192.0.2.1", 1).remove(0);
    assert_eq!(line.text("key"), "192.0.2.1");
    // A client that is not trusted cannot name another address.
    let mut liar = gate.client(CRAWLER);
    assert_eq!(liar.get_with("/page?ms=1500", &from("192.0.2.3")).status, 200);
    assert_eq!(liar.get_with("/page?ms=1", &from("192.0.2.4")).status, 503);
}

#[test]
fn the_backend_may_state_the_cost_itself() {
    let site = Site::start(2);
    let stated = half_a_cpu("hold").replace("cost: shared", "cost: \"header:X-Cost\"");
    // The rate is so low that the crawler is in debt however long the page takes.
    let stated = stated.replace("share: 50%", "share: 10%");
    let gate = Gate::start(&site, &stated);
    let mut crawler = gate.client(CRAWLER);
    let first = crawler.get("/page?stated=400ms");
    assert_eq!(first.header("x-cost"), None, "the header is for us");
    let line = gate.decisions_about(CRAWLER, 1).remove(0);
    assert_eq!(line.text("measured"), "header");
    assert!((line.number("cost") - 0.4).abs() < 1e-9, "{line:?}");
    assert!((gate.metric("evenkeel_cost_seconds_total", &[]) - 0.4).abs() < 1e-6);
    crawler.get("/page?stated=-3s");
    gate.wait_for_metric("evenkeel_cost_header_faults_total", &[], 1.0);
}

/// A crawler with two dozen connections that are never idle, and a human who sends ten requests.
#[test]
fn a_queue_lets_the_human_pass_and_serves_the_crawler_as_well() {
    const CONNECTIONS: usize = 24;
    let site = Site::start(4);
    let gate = Gate::start(&site, &format!("{}  queue: {{concurrency: 2}}\n", half_a_cpu("queue")));
    let (served, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut passed: Vec<usize> = thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut crawler = gate.client(CRAWLER);
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(crawler.get("/heavy?ms=40").status, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        gate.wait_for_metric("evenkeel_waiting_requests", &[], 10.0);
        let mut human = gate.client(HUMAN);
        let asked = (0..10).map(|_| {
            let before = served.load(Ordering::Relaxed);
            let status = human.get("/light?ms=2").status;
            (status, served.load(Ordering::Relaxed) - before)
        });
        let asked: Vec<(u16, usize)> = asked.collect();
        over.store(true, Ordering::Relaxed);
        assert!(asked.iter().all(|(status, _)| *status == 200), "{asked:?}");
        asked.into_iter().map(|(_, passed)| passed).collect()
    });
    passed.sort_unstable();
    // In a plain FIFO, about twenty of the crawler's pages would be served before the human's.
    assert!(passed[passed.len() / 2] < CONNECTIONS / 2, "{passed:?}");
    assert!(served.load(Ordering::Relaxed) >= CONNECTIONS / 2, "it got nothing");
    let waited = gate.metric("evenkeel_decisions_total", &[("verdict", "queue")]);
    assert!(waited >= CONNECTIONS as f64 / 2.0, "{waited}");
    let lines = gate.decisions_about(CRAWLER, 1);
    for line in &lines {
        assert_eq!(line.text("verdict"), "queue", "{line:?}");
        assert!(line.number("wait") >= 0.0, "{line:?}");
    }
    assert_eq!(gate.metric("evenkeel_decisions_total", &[("verdict", "reject")]), 0.0);
}

#[test]
fn who_finds_no_place_to_wait_in_is_told_when_to_come_back() {
    let site = Site::start(2);
    let bounds = "  queue: {concurrency: 1, reserve: 0, len_max: 1}\n";
    let gate = Gate::start(&site, &format!("{}{bounds}", half_a_cpu("queue")));
    let (mut first, mut second) = (gate.client(HUMAN), gate.client(CRAWLER));
    let started = Instant::now();
    first.send("GET /page?sleep=5000 HTTP/1.1\r\nHost: site\r\n\r\n");
    gate.wait_for_metric("evenkeel_slots_used", &[], 1.0);
    second.send("GET /page?ms=1 HTTP/1.1\r\nHost: site\r\n\r\n");
    gate.wait_for_metric("evenkeel_waiting_requests", &[], 1.0);
    let refused = gate.client(CRAWLER).get("/page?ms=1");
    assert_eq!(refused.status, 503, "{}", refused.text());
    let after: u64 = refused.header("retry-after").expect("when").parse().expect("seconds");
    assert!((1..=3600).contains(&after), "{after}");
    assert_eq!((first.read(started).status, second.read(started).status), (200, 200));
    assert_eq!(gate.metric("evenkeel_decisions_total", &[("verdict", "reject")]), 1.0);
}
