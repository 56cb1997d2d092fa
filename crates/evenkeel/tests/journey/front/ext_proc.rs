//! A real Envoy in front of a real site; its requests wait for their turns at Evenkeel, as
//! configured in `examples/envoy`.
//!
//! Whatever happens to a request, its slot must be free afterwards.

use crate::client::Client;
use crate::gate::{decisions, evenkeel, metric};
use crate::site::Site;
use evenkeel_testing::envoy::envoy;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use rustix::process::Signal;
use std::fs;
use std::thread;
use std::time::Instant;

const ENVOY: &str = include_str!("../../../../../examples/envoy/ext-proc.yaml");
const AUTHZ: &str = include_str!("../../../../../examples/envoy/ext-authz.yaml");
const AUTHZ_HTTP: &str = include_str!("../../../../../examples/envoy/ext-authz-http.yaml");
const ISTIO: &str = include_str!("../../../../../examples/envoy/ext-proc.istio.yaml");
const CRAWLER: &str = "127.1.0.1";
const HUMAN: &str = "127.2.0.1";
/// One request at a time.
const ONE: &str = "  queue: {concurrency: 1, reserve: 0}\n";

/// An Envoy with Evenkeel beside it and a site behind it.
struct Edge {
    _site: Site,
    envoy: Option<Program>,
    evenkeel: Option<Program>,
    folder: String,
    port: u16,
    door: u16,
    admin: u16,
}

impl Edge {
    /// Evenkeel has these lines in its section `proxy`. `change` changes the Envoy of `examples`.
    fn start(workers: usize, proxy: &str, change: impl Fn(String) -> String) -> Edge {
        Edge::start_with(ENVOY, "ext_proc", workers, proxy, change)
    }

    /// The same with another Envoy, and the door that it asks.
    fn start_with(
        envoy: &str,
        section: &str,
        workers: usize,
        proxy: &str,
        change: impl Fn(String) -> String,
    ) -> Edge {
        let site = Site::start(workers);
        let [port, door, admin] = [(); 3].map(|()| free_port());
        let folder = site.folder.path().display().to_string();
        let text = envoy
            .replace("port_value: 10000", &format!("port_value: {port}"))
            .replace("port_value: 8000", &format!("port_value: {}", site.port))
            .replace("port_value: 9002", &format!("port_value: {door}"))
            .replace("port_value: 9003", &format!("port_value: {door}"))
            .replace("port_value: 9971", &format!("port_value: {door}"));
        fs::write(format!("{folder}/envoy.yaml"), change(text)).expect("written");
        let text = format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\nlog: {{level: info, format: json}}\n\
             {section}: {{listen: 127.0.0.1:{door}}}\nproxy:\n  listen: off\n  cpus: 1\n{proxy}"
        );
        fs::write(format!("{folder}/evenkeel.yaml"), text).expect("written");
        let mut edge = Edge { _site: site, envoy: None, evenkeel: None, folder, port, door, admin };
        edge.start_evenkeel();
        edge.start_envoy();
        edge
    }

    fn start_evenkeel(&mut self) {
        let mut command = evenkeel();
        command.args(["serve", "--config"]).arg(format!("{}/evenkeel.yaml", self.folder));
        self.evenkeel = Some(Program::listening(command, self.door));
    }

    fn start_envoy(&mut self) {
        let command = envoy(format!("{}/envoy.yaml", self.folder).as_ref());
        self.envoy = Some(Program::listening(command, self.port));
    }

    fn client(&self, address: &str) -> Client {
        Client::new(address, self.port)
    }

    /// The numbers of requests that have a slot, and that wait for one.
    fn slots(&self) -> (f64, f64) {
        let gauge = |name| metric(self.admin, name, &[("door", "proxy")]);
        (gauge("evenkeel_slots_used"), gauge("evenkeel_waiting_requests"))
    }

    fn wait_for_slots(&self, used: f64, waiting: f64) {
        wait_for("slots", || (self.slots() == (used, waiting)).then_some(()));
    }

    /// The bytes from Envoy that Evenkeel has not read.
    fn unread_bytes(&self) -> u64 {
        let port = format!(":{:04X} ", self.door);
        let sockets = fs::read_to_string("/proc/net/tcp").expect("the sockets");
        let of_door = sockets.lines().filter_map(|line| line.split_once(&port));
        of_door
            .filter_map(|(_, rest)| {
                let queues = rest.split(' ').find(|word| word.len() == 17)?;
                u64::from_str_radix(queues.split_once(':')?.1, 16).ok()
            })
            .sum()
    }

    fn log(&self) -> String {
        self.evenkeel.as_ref().map(Program::log).unwrap_or_default()
    }
}

fn as_it_is(text: String) -> String {
    text
}

#[test]
fn requests_of_a_crawler_wait_for_their_turns_and_all_are_served() {
    let edge = Edge::start(2, "  queue: {concurrency: 2}\n", as_it_is);
    let crawler = |_| {
        let mut client = edge.client(CRAWLER);
        thread::spawn(move || (0..6).map(|_| client.get("/?ms=60").status).collect::<Vec<_>>())
    };
    let crawler: Vec<_> = (0..8).map(crawler).collect();
    let mut human = edge.client(HUMAN);
    let human: Vec<_> = (0..6).map(|_| human.get("/?ms=5").text()).collect();
    assert_eq!(human, ["burnt 5 ms\n"; 6]);
    for statuses in crawler {
        assert_eq!(statuses.join().expect("it ran"), [200; 6]);
    }
    let queued = decisions(&edge.log());
    let of_crawler = |line: &&_| crate::gate::Line::text(line, "client") == CRAWLER;
    assert!(queued.iter().filter(of_crawler).count() >= 8, "its requests have waited");
    assert!(queued.iter().all(|line| line.text("verdict") == "queue"));
    edge.wait_for_slots(0.0, 0.0);
    // The charge is the time from the turn to the head of the response; two at once share it.
    let charged = metric(edge.admin, "evenkeel_cost_seconds_total", &[]);
    assert!(charged >= 24.0 * 0.055, "{charged}");
}

#[test]
fn a_refusal_reaches_the_client_with_its_reason_and_time() {
    let limit = "  limits:\n    - {name: two, by: ip/32, rate: 2/h, burst: 2}\n";
    let edge = Edge::start(1, limit, as_it_is);
    let mut client = edge.client(HUMAN);
    assert_eq!([(); 2].map(|()| client.get("/?ms=1").status), [200; 2]);
    let lies = "Accept: application/json\r\nX-Forwarded-For: 192.0.2.7\r\nX-Real-IP: 192.0.2.7\r\n";
    let refused = client.get_with("/?ms=1", lies);
    let after = refused.header("retry-after").expect("it arrives").to_owned();
    let told = format!("{{\"status\":429,\"limit\":\"two\",\"retry_after\":{after}}}\n");
    assert_eq!((refused.status, refused.text()), (429, told));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert_eq!(edge.client(CRAWLER).get("/?ms=1").status, 200, "others are counted apart");
}

#[test]
fn who_leaves_while_waiting_or_running_leaves_no_slot_behind() {
    let edge = Edge::start(2, ONE, as_it_is);
    let mut running = edge.client(CRAWLER);
    running.send("GET /?sleep=60000 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 0.0);
    let mut waiting = edge.client(HUMAN);
    waiting.send("GET /?ms=1 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 1.0);
    drop(waiting);
    edge.wait_for_slots(1.0, 0.0);
    drop(running);
    edge.wait_for_slots(0.0, 0.0);
    assert_eq!(edge.client(HUMAN).get("/?ms=1").status, 200);
}

#[test]
fn a_slot_is_kept_until_the_response_has_ended_however_it_ends() {
    let edge = Edge::start(2, ONE, as_it_is);
    let mut reader = edge.client(CRAWLER);
    reader.send("GET /?bytes=30000000 HTTP/1.1\r\nHost: site\r\n\r\n");
    // More than all buffers on the way hold: it has its slot for as long as it does not read.
    edge.wait_for_slots(1.0, 0.0);
    let mut other = edge.client(HUMAN);
    other.send("GET /?ms=1 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 1.0);
    drop(reader);
    assert_eq!(other.read(Instant::now()).status, 200);
    edge.wait_for_slots(0.0, 0.0);
    let whole = edge.client(CRAWLER).get("/?bytes=300000");
    assert_eq!((whole.status, whole.body.len()), (200, 300_000));
    edge.wait_for_slots(0.0, 0.0);
}

#[test]
fn a_killed_envoy_leaves_no_slot_and_a_killed_evenkeel_stops_nobody() {
    let mut edge = Edge::start(2, ONE, as_it_is);
    let mut clients = [CRAWLER, HUMAN].map(|address| edge.client(address));
    clients[0].send("GET /?sleep=60000 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 0.0);
    clients[1].send("GET /?ms=1 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 1.0);
    edge.envoy.take().expect("it runs").kill();
    edge.wait_for_slots(0.0, 0.0);
    edge.start_envoy();
    assert_eq!(edge.client(HUMAN).get("/?ms=1").status, 200);

    let mut running = edge.client(CRAWLER);
    running.send("GET /?sleep=300 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 0.0);
    edge.evenkeel.take().expect("it runs").kill();
    assert_eq!(running.read(Instant::now()).status, 200, "the request that runs goes on");
    assert!((0..5).all(|_| edge.client(HUMAN).get("/?ms=1").status == 200));
    edge.start_evenkeel();
    wait_for("Envoy's connection", || {
        edge.client(HUMAN).get("/?ms=1");
        let asked = metric(edge.admin, "evenkeel_requests_total", &[("door", "ext_proc")]);
        (asked > 0.0).then_some(())
    });
}

#[test]
fn the_backend_may_state_the_cost_and_the_client_does_not_see_it() {
    let edge = Edge::start(1, "  cost: header:x-cost\n", as_it_is);
    let answer = edge.client(HUMAN).get("/?stated=2.5");
    assert_eq!((answer.status, answer.header("x-cost")), (200, None));
    wait_for("the charge", || {
        let charged = metric(edge.admin, "evenkeel_cost_seconds_total", &[]);
        (charged >= 2.5).then_some(())
    });
}

/// Many clients disconnect while Evenkeel stands still, so that Envoy resets their streams before
/// they are accepted. The streams of the others on that connection stay.
#[test]
fn clients_that_disconnect_do_not_take_the_places_of_others() {
    let edge = Edge::start(2, ONE, |text| {
        text.replace("failure_mode_allow: true", "failure_mode_allow: false")
    });
    let mut running = edge.client(CRAWLER);
    running.send("GET /?sleep=1000 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 0.0);
    let mut waiting = edge.client(HUMAN);
    waiting.send("GET /?ms=1 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 1.0);
    let evenkeel = edge.evenkeel.as_ref().expect("it runs");
    evenkeel.signal(Signal::STOP);
    for _ in 0..60 {
        let mut gone = edge.client(CRAWLER);
        gone.send("GET /?ms=1 HTTP/1.1\r\nHost: site\r\n\r\n");
    }
    let mut unread = vec![0];
    wait_for("what Envoy has sent, which no longer grows", || {
        unread.push(edge.unread_bytes());
        let [.., one, two, three] = unread[..] else { return None };
        (one > 0 && one == two && two == three).then_some(())
    });
    evenkeel.signal(Signal::CONT);
    assert_eq!(waiting.read(Instant::now()).status, 200);
    assert_eq!(running.read(Instant::now()).status, 200);
    edge.wait_for_slots(0.0, 0.0);
}

/// Uploads of which Evenkeel gets each byte, while they wait for their turns.
#[test]
fn uploads_that_wait_do_not_hold_up_what_runs() {
    let edge = Edge::start(2, ONE, |text| {
        let bodies = format!(
            "request_body_mode: FULL_DUPLEX_STREAMED\n{}request_trailer_mode: SEND\n{0}\
             response_trailer_mode: SEND",
            " ".repeat(16)
        );
        text.replace("response_trailer_mode: SEND", &bodies)
            .replace("failure_mode_allow: true", "failure_mode_allow: false")
    });
    let mut running = edge.client(CRAWLER);
    running.send("GET /?sleep=1000 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 0.0);
    let upload = "x".repeat(900_000);
    let uploads = (0..4).map(|_| {
        let (mut client, upload) = (edge.client(HUMAN), upload.clone());
        thread::spawn(move || {
            let head = "POST /?ms=1 HTTP/1.1\r\nHost: site\r\nContent-Length: 900000\r\n\r\n";
            client.ask(&format!("{head}{upload}")).status
        })
    });
    let uploads: Vec<_> = uploads.collect();
    edge.wait_for_slots(1.0, 4.0);
    assert_eq!(edge.client(CRAWLER).get("/?ms=1").status, 200);
    assert_eq!(running.read(Instant::now()).status, 200);
    for upload in uploads {
        assert_eq!(upload.join().expect("it ran"), 200);
    }
}

/// An Envoy whose `message_timeout` is the default of 200 ms, with a `max_message_timeout`: it is
/// asked for more time.
#[test]
fn envoy_is_asked_for_time_before_a_request_waits() {
    let edge = Edge::start(2, ONE, |text| {
        text.replace("message_timeout: 35s", "max_message_timeout: 35s")
            .replace("failure_mode_allow: true", "failure_mode_allow: false")
    });
    let mut running = edge.client(CRAWLER);
    running.send("GET /?sleep=1500 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 0.0);
    let waited = edge.client(HUMAN).get("/?ms=1");
    assert_eq!(waited.status, 200, "{}", waited.text());
    assert_eq!(running.read(Instant::now()).status, 200);
}

/// The filter that the file for Istio inserts, in an Envoy.
#[test]
fn requests_wait_with_the_filter_of_istio() {
    let value = ISTIO.split_once("      value:\n").expect("a patch").1;
    let lines = value.lines().enumerate().map(|(number, line)| {
        let dash = if number == 0 { "- " } else { "  " };
        format!("          {dash}{}\n", &line[8..])
    });
    let filter: String = lines.collect();
    let name = filter.split("cluster_name: ").nth(1).and_then(|rest| rest.split('}').next());
    let filter = filter.replace(name.expect("a cluster"), "evenkeel");
    let edge = Edge::start(2, ONE, |text| {
        let (before, rest) =
            text.split_once("          - name: envoy.filters.http.ext_proc").expect("a filter");
        let (_, after) = rest.split_once("          - name: ").expect("the router");
        format!("{before}{filter}          - name: {after}")
    });
    let mut running = edge.client(CRAWLER);
    running.send("GET /?sleep=500 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 0.0);
    let mut waiting = edge.client(HUMAN);
    waiting.send("GET /?ms=1 HTTP/1.1\r\nHost: site\r\n\r\n");
    edge.wait_for_slots(1.0, 1.0);
    assert_eq!(running.read(Instant::now()).status, 200);
    assert_eq!(waiting.read(Instant::now()).status, 200);
    edge.wait_for_slots(0.0, 0.0);
}

/// The backend has a part of the upload and waits for the rest, so others may use the slot.
#[test]
fn an_upload_that_stalls_lets_others_use_its_slot() {
    for mode in ["STREAMED", "FULL_DUPLEX_STREAMED"] {
        let edge = Edge::start(2, ONE, |text| {
            let bodies = format!(
                "request_body_mode: {mode}\n{}request_trailer_mode: SEND\n{0}\
                 response_trailer_mode: SEND",
                " ".repeat(16)
            );
            text.replace("response_trailer_mode: SEND", &bodies)
        });
        let mut upload = edge.client(CRAWLER);
        upload.send("POST /?ms=1 HTTP/1.1\r\nHost: site\r\nContent-Length: 6\r\n\r\nabc");
        wait_for("its head", || {
            let asked = metric(edge.admin, "evenkeel_requests_total", &[("door", "ext_proc")]);
            (asked > 0.0).then_some(())
        });
        edge.wait_for_slots(0.0, 0.0);
        let mut running = edge.client(HUMAN);
        running.send("GET /?sleep=60000 HTTP/1.1\r\nHost: site\r\n\r\n");
        edge.wait_for_slots(1.0, 0.0);
        // What follows of the upload waits for its turn.
        upload.send("def");
        edge.wait_for_slots(1.0, 1.0);
        drop(running);
        assert_eq!(upload.read(Instant::now()).status, 200, "{mode}");
        edge.wait_for_slots(0.0, 0.0);
    }
}

/// Bodies pass unchanged in every mode in which Envoy sends them.
#[test]
fn bodies_pass_in_all_modes() {
    for mode in ["STREAMED", "BUFFERED", "FULL_DUPLEX_STREAMED"] {
        let edge = Edge::start(2, ONE, |text| {
            let bodies = format!(
                "request_body_mode: {mode}\n                response_body_mode: {mode}\n\
                 {}request_trailer_mode: SEND\n                response_trailer_mode: SEND",
                " ".repeat(16)
            );
            text.replace("response_trailer_mode: SEND", &bodies)
        });
        let mut client = edge.client(HUMAN);
        for _ in 0..3 {
            let upload = "x".repeat(200_000);
            let answer = client.ask(&format!(
                "POST /?bytes=300000 HTTP/1.1\r\nHost: site\r\nContent-Length: {}\r\n\r\n{upload}",
                upload.len()
            ));
            assert_eq!((answer.status, answer.body.len()), (200, 300_000), "{mode}");
        }
        edge.wait_for_slots(0.0, 0.0);
    }
}

#[test]
fn external_authorization_refuses_by_limits_and_rules_and_lets_others_pass() {
    authorizes(AUTHZ, "ext_authz");
}

#[test]
fn external_authorization_over_http_does_the_same() {
    authorizes(AUTHZ_HTTP, "check");
}

/// Tests an Envoy that asks this section's door.
fn authorizes(envoy: &str, section: &str) {
    let limits = "  limits:\n    - {name: two, by: ip/32, rate: 2/h, burst: 2}\n    \
                  - {name: scripts, when: {path: \"/*.php\"}, action: deny}\n    \
                  - {name: hosts, when: {vhost: other, method: POST}, action: deny}\n";
    let mut edge = Edge::start_with(envoy, section, 1, limits, as_it_is);
    let mut client = edge.client(HUMAN);
    // Until Envoy has connected, requests pass without a question.
    wait_for("Envoy's connection", || {
        edge.client("127.3.0.1").get("/?ms=1");
        let asked = metric(edge.admin, "evenkeel_requests_total", &[("door", section)]);
        (asked > 0.0).then_some(())
    });
    assert_eq!(client.get("/a.php?b=c").status, 403);
    let upload = "POST /?ms=1 HTTP/1.1\r\nHost: other\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(client.ask(upload).status, 403);
    let ours = "X-Real-IP: 192.0.2.7\r\nX-Forwarded-For: 192.0.2.7\r\nX-Original-URI: /b.php\r\n";
    assert_eq!([(); 2].map(|()| client.get_with("/?ms=1", ours).status), [200; 2]);
    let refused = client.get_with("/?ms=1", &format!("Accept: application/json\r\n{ours}"));
    let after = refused.header("retry-after").expect("it arrives").to_owned();
    let told = format!("{{\"status\":429,\"limit\":\"two\",\"retry_after\":{after}}}\n");
    assert_eq!((refused.status, refused.text()), (429, told));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert_eq!(edge.client(CRAWLER).get("/?ms=1").status, 200, "others are counted apart");
    edge.evenkeel.take().expect("it runs").kill();
    assert_eq!(client.get("/?ms=1").status, 200, "a killed Evenkeel stops nobody");
}
