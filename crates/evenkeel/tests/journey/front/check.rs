//! nginx, HAProxy, Caddy or Apache as the front, which asks Evenkeel: refusals, the answer that
//! reaches the client, and a dead Evenkeel, which must not stop any request.

use crate::front::Front;
use evenkeel_testing::wait::wait_for;
use std::time::Instant;

const CRAWLER: &str = "127.1.0.1";
const HUMAN: &str = "127.2.0.1";
/// Headers by which a client may lie about itself and its request.
const FORGED: &str = "X-Real-IP: 192.0.2.7\r\nX-Forwarded-For: 192.0.2.7\r\n\
                      Forwarded: for=192.0.2.7\r\nX-Original-URI: /else\r\n\
                      X-Forwarded-Uri: /else\r\nX-Original-Method: HEAD\r\n\
                      X-Forwarded-Method: HEAD\r\nX-Evenkeel-Id: 1-1\r\n\
                      X-Original-Host: else\r\nX-Original-Proto: ftp\r\n";
/// The beginning of Evenkeel's answer to a client that accepts JSON, which a front passes on.
const OURS: &str = "{\"status\":503,\"limit\":\"ip\",\"retry_after\":";

/// A tenth of a CPU for each address, with a burst for one page of the crawler, so that a debt
/// lasts longer than the following requests take.
fn a_tenth(action: &str) -> String {
    format!(
        "  cpus: 1\n  action: {action}\n  max_delay: 20s\n  limits:\n    \
         - {{name: ip, by: ip/32, share: 10%, burst: 200ms}}\n"
    )
}

#[test]
fn the_crawler_is_blocked_and_told_when_to_come_back() {
    let front = Front::nginx(&a_tenth("reject"));
    let mut crawler = front.client(CRAWLER);
    assert_eq!(crawler.get("/page?ms=1500").status, 200);
    front.wait_for_reports(1.0);
    let refused = crawler.get("/page?ms=1");
    assert_eq!(refused.status, 503);
    let after: f64 = refused.header("retry-after").expect("it arrives").parse().expect("seconds");
    let line = front.decisions_about(CRAWLER, 1).remove(0);
    let named = ["verdict", "limit", "key"].map(|field| line.text(field));
    assert_eq!(named, ["reject", "ip", CRAWLER]);
    assert_eq!(after, line.number("wait").ceil());
    let told = format!("over the limit \"ip\"; try again in {after} s\n");
    assert_eq!(refused.text(), told, "nginx hands on which limit, and until when");
    no_way_round(&front);
    assert_eq!(front.client(HUMAN).get("/page?ms=5").text(), "burnt 5 ms\n");
    assert_eq!(
        crawler.get("/plain.txt").text(),
        "plain\n",
        "what costs nothing is not asked about"
    );
    // The charge is the upstream time of PHP in nginx's access log.
    let charged = front.metric("evenkeel_cost_seconds_total", &[]);
    assert!(charged >= 1.4, "{charged}");
    wait_for("the last report", || (front.metric("evenkeel_check_open", &[]) == 0.0).then_some(()));
    assert_eq!(front.metric("evenkeel_check_reports_total", &[("result", "unknown")]), 0.0);
}

#[test]
fn p11_a_dead_evenkeel_harms_nobody() {
    let mut front = Front::nginx(&a_tenth("reject"));
    let mut crawler = front.client(CRAWLER);
    assert_eq!(crawler.get("/page?ms=1500").status, 200);
    front.wait_for_reports(1.0);
    assert_eq!(crawler.get("/page?ms=1").status, 503);
    front.kill();
    for client in [CRAWLER, HUMAN] {
        let mut client = front.client(client);
        let answers = [(); 5].map(|()| client.get("/page?ms=1"));
        assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
        assert!(answers.iter().all(|answer| answer.header("retry-after").is_none()));
    }
    front.revive();
    // nginx tries it again within five seconds.
    wait_for("a question", || {
        assert_eq!(front.client(HUMAN).get("/page?ms=1").status, 200);
        (front.metric("evenkeel_requests_total", &[("door", "check")]) >= 1.0).then_some(())
    });
    front.wait_for_reports(1.0);
}

/// Tests the same with a front without PHP of its own. A refused client that accepts JSON gets a
/// text of this kind with these words.
fn blocked_and_then_dead(mut front: Front, kind_of_text: &str, words: &str) {
    let mut crawler = front.client(CRAWLER);
    assert_eq!(crawler.get("/page?ms=1500").text(), "burnt 1500 ms\n");
    front.wait_for_reports(1.0);
    let refused = crawler.get_with("/page?ms=1", "Accept: application/json\r\n");
    assert_eq!(refused.status, 503);
    let after = refused.header("retry-after").expect("it arrives");
    assert!(after.parse::<u64>().expect("seconds") >= 1);
    assert!(refused.header("content-type").is_some_and(|kind| kind.starts_with(kind_of_text)));
    assert!(refused.text().contains(words), "{}", refused.text());
    assert_eq!(front.client(HUMAN).get("/page?ms=5").text(), "burnt 5 ms\n");
    let charged = front.metric("evenkeel_cost_seconds_total", &[]);
    assert!(charged >= 1.4, "{charged}");
    assert_eq!(crawler.get_with("/page?ms=1", FORGED).status, 503, "it is nobody else");
    no_way_round(&front);
    front.kill();
    all_pass(&front);
    front.revive();
    front.stop();
    all_pass(&front);
}

/// A crawler in debt cannot pass with input that the front accepts and Evenkeel does not, or that
/// is too long for a question.
fn no_way_round(front: &Front) {
    let mut headers: Vec<String> =
        ["X-A: \u{1}\r\n", "User-Agent: \u{1}\r\n", "Cookie: \u{7f}\r\n"].map(Into::into).into();
    headers.push((0..150).map(|n| format!("X-{n}: a\r\n")).collect());
    let long = [7_000, 12_000, 14_000, 14_800, 15_000, 15_200];
    headers.extend(long.map(|length| format!("Cookie: {}\r\n", "a".repeat(length))));
    for headers in headers {
        let answer = front.client(CRAWLER).get_with("/page?ms=1", &headers);
        let sent: String = headers.chars().take(20).collect();
        assert!(answer.status >= 400, "{sent} {}: {}", headers.len(), answer.status);
    }
}

fn all_pass(front: &Front) {
    for client in [CRAWLER, HUMAN, CRAWLER, HUMAN] {
        assert_eq!(front.client(client).get("/page?ms=1").status, 200);
    }
}

/// Twelve megabytes to a client that takes three seconds cost almost nothing, and a page costs the
/// time that it runs.
fn reading_slowly_costs_nothing(front: &Front, large: &str) {
    let charged = || front.metric("evenkeel_cost_seconds_total", &[]);
    let mut slow = front.client(CRAWLER);
    let started = Instant::now();
    slow.send(&format!("GET {large} HTTP/1.1\r\nHost: site\r\n\r\n"));
    wait_for("three seconds", || (started.elapsed().as_secs() >= 3).then_some(()));
    let answer = slow.read(started);
    assert_eq!((answer.status, answer.body.len()), (200, 12_000_000), "{large}");
    front.wait_for_reports(1.0);
    let read = charged();
    assert!(read < answer.took.as_secs_f64() / 2.0, "{large}: {read} of {:?}", answer.took);
    assert_eq!(front.client(HUMAN).get("/page?ms=700").status, 200);
    front.wait_for_reports(2.0);
    assert!(charged() - read >= 0.6, "{large}: {read}, then {}", charged());
    assert!(!front.log().contains("the access log contains only the total time of requests"));
}

#[test]
fn a_slow_reader_of_a_large_file_is_not_charged_for_reading() {
    reading_slowly_costs_nothing(&Front::nginx(&a_tenth("reject")), "/files/picture");
}

#[test]
fn a_slow_reader_of_a_large_page_is_not_charged_for_reading() {
    for front in [Front::nginx, Front::haproxy, Front::caddy, Front::apache] {
        reading_slowly_costs_nothing(&front(&a_tenth("reject")), "/page?bytes=12000000");
    }
}

#[test]
fn haproxy_asks_and_reports() {
    blocked_and_then_dead(Front::haproxy(&a_tenth("reject")), "application/json", OURS);
}

#[test]
fn caddy_asks_and_reports() {
    blocked_and_then_dead(Front::caddy(&a_tenth("reject")), "application/json", OURS);
}

#[test]
fn apache_asks_and_reports() {
    blocked_and_then_dead(Front::apache(&a_tenth("reject")), "text/html", "Service Unavail");
}

#[test]
fn p13_a_request_that_nginx_redirects_within_itself_counts_once() {
    let front = Front::nginx(&a_tenth("reject"));
    // Through `try_files` to /index.php, and the same page by its name.
    for (count, target) in ["/some/page?ms=1", "/index.php?ms=1"].into_iter().enumerate() {
        assert_eq!(front.client(HUMAN).get(target).status, 200);
        front.wait_for_reports(count as f64 + 1.0);
    }
    assert_eq!(front.metric("evenkeel_requests_total", &[("door", "check")]), 2.0);
}

/// `/` is redirected to a file, and a missing page to the same file.
#[test]
fn p13_a_request_that_apache_redirects_within_itself_counts_once() {
    let front = Front::apache(&a_tenth("reject"));
    for (count, (target, status)) in [("/", 200), ("/nowhere", 404)].into_iter().enumerate() {
        let answer = front.client(HUMAN).get(target);
        assert_eq!((answer.status, answer.text().as_str()), (status, "the start\n"));
        front.wait_for_reports(count as f64 + 1.0);
    }
    assert_eq!(front.metric("evenkeel_requests_total", &[("door", "check")]), 2.0);
}

/// What the front has seen counts, whatever the client claims about its request.
#[test]
fn a_limit_in_requests_refuses_with_429() {
    for front in [Front::nginx, Front::haproxy, Front::caddy, Front::apache] {
        let front = front(
            "  limits:\n    - {name: logins, by: ip/32, when: {method: POST, path: /login}, \
             rate: 5/m, burst: 2}\n",
        );
        let login = format!(
            "POST /login?a=b HTTP/1.1\r\nHost: site\r\nContent-Length: 3\r\n{FORGED}\r\na=b"
        );
        let mut client = front.client(CRAWLER);
        let statuses = [(); 3].map(|()| client.ask(&login).status);
        assert_eq!(statuses, [200, 200, 429]);
        assert!(client.ask(&login).header("retry-after").is_some());
        assert_eq!(client.get("/login").status, 200, "only POST is limited");
    }
}

#[test]
fn who_is_held_waits_before_the_request_runs() {
    let front = Front::nginx(&a_tenth("hold").replace("max_delay: 20s", "max_delay: 60s"));
    let mut crawler = front.client(CRAWLER);
    for reports in [1.0, 2.0, 3.0] {
        assert_eq!(crawler.get("/page?sleep=200").status, 200);
        front.wait_for_reports(reports);
    }
    let last = crawler.get("/page?ms=1");
    assert_eq!(last.status, 200);
    let delayed = front.metric("evenkeel_decisions_total", &[("verdict", "delay")]);
    assert!(delayed >= 1.0);
    let line = front.decisions_about(CRAWLER, delayed as usize).pop().expect("a decision");
    assert_eq!(line.text("verdict"), "delay");
    assert!(line.number("level") < 0.0, "{line:?}");
    assert!(last.took.as_secs_f64() >= line.number("wait") - 0.01, "{:?} {line:?}", last.took);
    assert_eq!(front.client(HUMAN).get("/page?ms=1").status, 200);
}

/// A debt of at least half a minute; Evenkeel dies near its beginning.
#[test]
fn who_waits_is_served_when_evenkeel_dies() {
    let proxy = a_tenth("hold").replace("share: 10%", "share: 5%");
    let mut front = Front::nginx(&proxy.replace("max_delay: 20s", "max_delay: 1h"));
    let mut crawler = front.client(CRAWLER);
    assert_eq!(crawler.get("/page?ms=1500").status, 200);
    front.wait_for_reports(1.0);
    let started = Instant::now();
    crawler.send("GET /page?ms=1 HTTP/1.1\r\nHost: site\r\n\r\n");
    wait_for("a question that waits", || {
        (front.metric("evenkeel_check_waiting", &[]) == 1.0).then_some(())
    });
    front.kill();
    assert_eq!(crawler.read(started).status, 200);
}

const STONEHENGE: &str = "  limits:\n    - {name: host, by: host, window: 15s, max: 1050ms, \
                          round: 10ms, action: reject}\n";

#[test]
fn stonehenge_on_the_wire() {
    stonehenge(&Front::nginx(STONEHENGE));
}

#[test]
fn stonehenge_in_the_access_and_the_log_phase_of_apache() {
    stonehenge(&Front::apache(STONEHENGE));
}

/// The main cases of the Stonehenge throttle, as its users see them.
fn stonehenge(front: &Front) {
    let (mut crawler, begun) = (front.client(CRAWLER), Instant::now());
    let agent = "User-Agent: Crawler/1.0 (+http://crawler.example)\r\n";
    assert_eq!(crawler.get_with("/page?ms=1200", agent).status, 200);
    front.wait_for_reports(1.0);
    let notice = wait_for("P2: a notice", || front.notices().pop());
    assert_eq!(notice.text("key"), CRAWLER);
    assert_eq!(notice.text("agent"), "Crawler/1.0 (+http://crawler.example)");
    assert!(notice.number("sum") >= 1.05 && notice.number("window") == 15.0, "{notice:?}");
    let hundredths = notice.number("sum") * 100.0;
    assert!((hundredths - hundredths.round()).abs() < 1e-6, "P7: {notice:?}");
    assert_eq!(notice.text("load").split(' ').count(), 3, "{notice:?}");
    for _ in 0..3 {
        let refused = crawler.get_with("/page?ms=1", agent);
        let after = refused.header("retry-after").and_then(|after| after.parse::<u64>().ok());
        // The window, less the time that has passed.
        let left = 15_u64.saturating_sub(begun.elapsed().as_secs())..=15;
        assert!(refused.status == 503 && after.is_some_and(|s| left.contains(&s)), "P3: {after:?}");
    }
    assert_eq!(front.client(HUMAN).get("/page?ms=1").status, 200, "P12");
    assert_eq!(front.notices().len(), 1, "P3: no second notice");
}
