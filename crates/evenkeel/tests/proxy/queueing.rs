//! The admission queue on the wire: the order of requests, and how slots are held and given back.

use crate::stage::{Stage, Wire, cpu_limit};
use evenkeel_config::settings::{ConcurrencySetting, CostSource, ProxySettings};
use evenkeel_core::condition::Clause;
use evenkeel_core::limit::{Limit, LimitAction};
use evenkeel_core::units::{Cost, Nanos, Weight};
use evenkeel_engine::view::EngineView;
use evenkeel_engine::{AdmissionStats, OpenRequest, RequestStage};
use evenkeel_telemetry::prometheus;
use evenkeel_testing::wait::{try_wait_within, until};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A proxy with one slot. It trusts the addresses of clients that a front proxy names.
fn one_at_a_time(change: impl FnOnce(&mut ProxySettings)) -> Stage {
    Stage::open(|settings| {
        settings.action = LimitAction::Queue;
        settings.queue.concurrency = ConcurrencySetting::Fixed(1);
        settings.queue.reserve = 0;
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
        settings.cost = CostSource::Header("x-cost".into());
        settings.limits = vec![cpu_limit(0.001, Duration::from_secs(1))];
        change(settings);
    })
}

fn crowd(stage: &Stage) -> AdmissionStats {
    stage.engine.admission_stats().expect("a queue")
}

fn is_crowd(stage: &Stage, waiting: usize, running: usize) {
    until("so many wait and run", || {
        let crowd = crowd(stage);
        (crowd.waiting, crowd.running) == (waiting, running)
    });
}

fn ask(wire: &mut Wire, client: &str, path: &str) {
    wire.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\n\r\n"));
}

fn answer(wire: &mut Wire, cost: &str) {
    wire.send(format!("HTTP/1.1 200 OK\r\nx-cost: {cost}\r\ncontent-length: 2\r\n\r\nok"));
}

#[test]
fn who_finds_no_room_waits_and_holds_no_connection_to_the_backend() {
    let stage = one_at_a_time(|_| {});
    let (mut first, mut second) = (stage.client(), stage.client());
    ask(&mut first, "192.0.2.1", "/1");
    let mut backend = stage.backend();
    backend.head();
    ask(&mut second, "192.0.2.2", "/2");
    is_crowd(&stage, 1, 1);
    assert!(backend.is_silent());
    stage.backend_is_left_alone();
    answer(&mut backend, "1ms");
    assert_eq!(first.message().text(), "ok");
    let mut backend = stage.backend_for("/2", backend);
    answer(&mut backend, "1ms");
    assert_eq!(second.message().text(), "ok");
    is_crowd(&stage, 0, 0);
}

#[test]
fn who_goes_away_while_it_waits_frees_its_place_and_never_reaches_the_backend() {
    let stage = one_at_a_time(|_| {});
    let mut clients = [stage.client(), stage.client(), stage.client()];
    ask(&mut clients[0], "192.0.2.1", "/1");
    let mut backend = stage.backend();
    backend.head();
    ask(&mut clients[1], "192.0.2.2", "/2");
    is_crowd(&stage, 1, 1);
    ask(&mut clients[2], "192.0.2.3", "/3");
    is_crowd(&stage, 2, 1);
    let [mut first, second, mut third] = clients;
    drop(second);
    is_crowd(&stage, 1, 1);
    answer(&mut backend, "1ms");
    first.message();
    let mut backend = stage.backend_for("/3", backend);
    answer(&mut backend, "1ms");
    third.message();
}

#[test]
fn in_credit_goes_before_in_debt_whoever_came_first() {
    let stage = one_at_a_time(|_| {});
    let mut crawler = stage.client();
    ask(&mut crawler, "192.0.2.1", "/heavy");
    let mut backend = stage.backend();
    backend.head();
    answer(&mut backend, "5s");
    crawler.message();
    let mut other = stage.client();
    ask(&mut other, "192.0.2.9", "/other");
    let mut backend = stage.backend_for("/other", backend);
    ask(&mut crawler, "192.0.2.1", "/heavy");
    is_crowd(&stage, 1, 1);
    let mut human = stage.client();
    ask(&mut human, "192.0.2.2", "/light");
    is_crowd(&stage, 2, 1);
    answer(&mut backend, "1ms");
    other.message();
    let mut backend = stage.backend_for("/light", backend);
    answer(&mut backend, "1ms");
    human.message();
    let mut backend = stage.backend_for("/heavy", backend);
    answer(&mut backend, "1ms");
    crawler.message();
}

#[test]
fn a_client_that_asks_many_times_at_once_is_charged_for_all_of_them_at_once() {
    let stage = one_at_a_time(|settings| settings.queue.concurrency = ConcurrencySetting::Fixed(8));
    let mut first = stage.client();
    ask(&mut first, "192.0.2.1", "/page/1");
    let mut backend = stage.backend();
    backend.head();
    answer(&mut backend, "600ms");
    first.message();
    let mut second = stage.client();
    ask(&mut second, "192.0.2.1", "/page/2");
    let _second = stage.backend_for("/page/2", backend);
    // The expected cost of the page is charged while it runs: 1 s less 0.6 less 0.6.
    let owes = || stage.engine.top(0).first().is_some_and(|row| row.level < Some(-190_000_000));
    until("the second is charged", owes);
}

#[test]
fn who_asks_for_little_goes_beside_what_is_there() {
    let stage = one_at_a_time(|settings| settings.queue.reserve = 1);
    let mut clients = [(); 4].map(|()| stage.client());
    ask(&mut clients[0], "192.0.2.1", "/light");
    let mut backend = stage.backend();
    backend.head();
    answer(&mut backend, "2ms");
    clients[0].message();
    ask(&mut clients[1], "192.0.2.2", "/heavy");
    let mut heavy = stage.backend_for("/heavy", backend);
    answer(&mut heavy, "900ms");
    clients[1].message();
    ask(&mut clients[1], "192.0.2.2", "/heavy");
    let mut heavy = stage.backend_for("/heavy", heavy);
    ask(&mut clients[2], "192.0.2.3", "/heavy");
    is_crowd(&stage, 1, 1);
    ask(&mut clients[3], "192.0.2.4", "/light");
    let mut light = stage.backend();
    assert!(light.head().starts_with("GET /light "));
    is_crowd(&stage, 1, 2);
    answer(&mut light, "2ms");
    clients[3].message();
    drop(light);
    answer(&mut heavy, "1ms");
    clients[1].message();
    answer(&mut stage.backend_for("/heavy", heavy), "1ms");
    clients[2].message();
}

/// Two clients with the same load; one of them sends the cookie of a class with four times the
/// weight.
#[test]
fn a_class_with_more_weight_has_more_turns() {
    let stage = one_at_a_time(|settings| {
        let cookie = Clause::has_cookie("session").into();
        let class = Limit { name: "staff".into(), when: cookie, ..settings.limits[0].clone() };
        settings.limits.push(Limit { weight: Weight::new(4_000), ..class });
    });
    let mut first = stage.client();
    ask(&mut first, "192.0.2.9", "/page/0");
    let mut backend = stage.backend();
    backend.head();
    answer(&mut backend, "10ms");
    first.message();
    ask(&mut first, "192.0.2.9", "/page/0");
    let mut backend = stage.backend_for("/page/0", backend);
    let mut clients: Vec<Wire> = (0..8).map(|_| stage.client()).collect();
    for (place, client) in clients.iter_mut().enumerate() {
        let (address, cookie) = match place {
            0..4 => ("192.0.2.1", "theme=dark"),
            _ => ("192.0.2.2", "theme=dark; session=s"),
        };
        client.send(format!(
            "GET /page/{place} HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {address}\r\n\
             cookie: {cookie}\r\n\r\n"
        ));
        is_crowd(&stage, place + 1, 1);
    }
    answer(&mut backend, "10ms");
    first.message();
    // The class pays a quarter of the entry fee, too.
    for place in [4, 5, 6, 0, 7, 1, 2, 3] {
        backend = stage.backend_for(&format!("/page/{place}"), backend);
        answer(&mut backend, "10ms");
        clients[place].message();
    }
}

#[test]
fn a_queue_that_is_full_refuses_with_a_time_to_come_back() {
    let stage = one_at_a_time(|settings| settings.queue.len_max = 1);
    let (mut first, mut second, mut third) = (stage.client(), stage.client(), stage.client());
    ask(&mut first, "192.0.2.1", "/1");
    let mut backend = stage.backend();
    backend.head();
    ask(&mut second, "192.0.2.2", "/2");
    is_crowd(&stage, 1, 1);
    ask(&mut third, "192.0.2.2", "/3");
    let refused = third.message();
    assert_eq!(refused.status(), 503);
    let seconds: u64 = refused.header("retry-after").expect("when").parse().expect("seconds");
    assert!((1..=3600).contains(&seconds), "{seconds}");
    assert!(refused.text().contains("cpu"), "{}", refused.text());
    answer(&mut backend, "1ms");
    first.message();
    answer(&mut stage.backend_for("/2", backend), "1ms");
    second.message();
}

#[test]
fn who_waits_for_too_long_is_refused() {
    let stage = one_at_a_time(|settings| settings.queue.wait_max = Nanos::from_millis(300));
    let (mut first, mut second) = (stage.client(), stage.client());
    ask(&mut first, "192.0.2.1", "/1");
    let mut backend = stage.backend();
    backend.head();
    let start = Instant::now();
    ask(&mut second, "192.0.2.2", "/2");
    let refused = second.message();
    assert_eq!(refused.status(), 503);
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    is_crowd(&stage, 0, 1);
}

#[test]
fn an_abort_keeps_its_slot_until_the_backend_is_done() {
    let stage = one_at_a_time(|_| {});
    let (mut first, mut second) = (stage.client(), stage.client());
    ask(&mut first, "192.0.2.1", "/1");
    let mut backend = stage.backend();
    backend.head();
    drop(first);
    until("the client is gone", || stage.watch.proxy.aborted.get() == 1);
    ask(&mut second, "192.0.2.2", "/2");
    is_crowd(&stage, 1, 1);
    answer(&mut backend, "1ms");
    answer(&mut stage.backend_for("/2", backend), "1ms");
    second.message();
}

#[test]
fn what_the_backend_has_and_what_waits_is_listed_while_it_does() {
    let stage = one_at_a_time(|_| {});
    let listed = || {
        let open = stage.engine.open_requests(20);
        let row = |one: &OpenRequest| (one.client.to_string(), one.route.clone(), one.stage);
        (open.running.iter().map(row).collect::<Vec<_>>(), open.waiting.as_ref().map(row))
    };
    let row = |client: &str, route: &str, stage| (client.to_owned(), route.to_owned(), stage);
    let (mut first, mut second) = (stage.client(), stage.client());
    ask(&mut first, "192.0.2.1", "/first?secret=x");
    let mut backend = stage.backend();
    backend.head();
    ask(&mut second, "192.0.2.2", "/second");
    is_crowd(&stage, 1, 1);
    let working = row("192.0.2.1", "GET /first", RequestStage::Working);
    let waiting = row("192.0.2.2", "GET /second", RequestStage::Waiting);
    assert_eq!(listed(), (vec![working], Some(waiting)));
    answer(&mut backend, "1ms");
    first.message();
    let mut backend = stage.backend_for("/second", backend);
    let working = row("192.0.2.2", "GET /second", RequestStage::Working);
    until("the second one runs", || listed() == (vec![working.clone()], None));
    answer(&mut backend, "1ms");
    second.message();
    until("nothing runs", || listed() == (Vec::new(), None));

    let mut slow = stage.client();
    slow.send("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
    let mut uploading = stage.backend_for("/slow", backend);
    uploading.expect("one");
    let stalled = row("127.0.0.1", "POST /slow", RequestStage::Stalled);
    until("it waits for its client", || listed() == (vec![stalled.clone()], None));
    drop(slow);
    until("nothing is left", || listed() == (Vec::new(), None));
}

#[test]
fn a_client_that_sends_slowly_lets_others_have_its_slot() {
    let stage = one_at_a_time(|_| {});
    let (mut slow, mut quick) = (stage.client(), stage.client());
    slow.send("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
    let mut uploading = stage.backend();
    assert!(uploading.head().starts_with("POST /slow "));
    uploading.expect("one");
    is_crowd(&stage, 0, 0);
    ask(&mut quick, "192.0.2.2", "/quick");
    let mut backend = stage.backend();
    backend.head();
    is_crowd(&stage, 0, 1);
    slow.send("two");
    is_crowd(&stage, 1, 1);
    assert!(uploading.is_silent(), "the backend must not begin to work for it");
    answer(&mut backend, "1ms");
    quick.message();
    uploading.expect("two");
    is_crowd(&stage, 0, 1);
    answer(&mut uploading, "1ms");
    assert_eq!(slow.message().status(), 200);
}

#[test]
fn an_upload_that_finds_no_room_any_more_is_refused() {
    let stage = one_at_a_time(|settings| settings.queue.wait_max = Nanos::from_millis(300));
    let (mut slow, mut quick) = (stage.client(), stage.client());
    slow.send("POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
    let mut uploading = stage.backend();
    uploading.head();
    uploading.expect("one");
    is_crowd(&stage, 0, 0);
    ask(&mut quick, "192.0.2.2", "/quick");
    let mut backend = stage.backend();
    backend.head();
    slow.send("two");
    assert_eq!(slow.message().status(), 503);
    uploading.ends();
    answer(&mut backend, "1ms");
    quick.message();
}

#[test]
fn a_client_that_reads_slowly_lets_others_have_its_slot() {
    let stage = one_at_a_time(|_| {});
    let (mut slow, mut quick) = (stage.client(), stage.client());
    slow.get("/large");
    let mut large = stage.backend();
    large.head();
    let size = 64 << 20;
    let writer = std::thread::spawn(move || {
        large.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n"));
        large.pour(size)
    });
    slow.head();
    is_crowd(&stage, 0, 0);
    ask(&mut quick, "192.0.2.2", "/quick");
    let mut backend = stage.backend();
    backend.head();
    answer(&mut backend, "1ms");
    quick.message();
    slow.take(size);
    writer.join().expect("all was written");
}

#[test]
fn a_stream_of_events_leaves_at_its_head() {
    leaves_at_its_head("text/event-stream; charset=utf-8");
}

#[test]
fn a_call_of_grpc_leaves_at_its_head() {
    leaves_at_its_head("application/grpc+proto");
}

fn leaves_at_its_head(kind: &str) {
    let stage = one_at_a_time(|_| {});
    let (mut first, mut second) = (stage.client(), stage.client());
    first.get("/events");
    let mut events = stage.backend();
    events.head();
    events.send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n\
         6\r\ndata:1\r\n"
    ));
    first.head();
    is_crowd(&stage, 0, 0);
    assert_eq!(stage.engine.load().0, 0);
    ask(&mut second, "192.0.2.2", "/2");
    let mut backend = stage.backend();
    backend.head();
    answer(&mut backend, "1ms");
    second.message();
    events.send("6\r\ndata:2\r\n0\r\n\r\n");
    assert_eq!(stage.engine.load().0, 0);
    first.expect("6\r\ndata:1\r\n6\r\ndata:2\r\n");
}

/// A stream of events that has begun, with its client, before one slot.
fn charged_stream(kind: &str, linger: Duration) -> (Stage, Wire, Wire) {
    let stage = one_at_a_time(|settings| {
        settings.charge_streams = true;
        settings.cost = CostSource::Wall;
        settings.timeouts.abort_linger = linger;
    });
    let mut client = stage.client();
    client.get("/events");
    let mut events = stage.backend();
    events.head();
    events.send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n\
         6\r\ndata:1\r\n"
    ));
    client.head();
    client.expect("6\r\ndata:1\r\n");
    (stage, client, events)
}

#[test]
fn a_stream_that_is_charged_keeps_its_slot_to_its_end() {
    for kind in ["text/event-stream", "application/grpc"] {
        let (stage, mut first, mut events) = charged_stream(kind, Duration::from_secs(1));
        let mut second = stage.client();
        ask(&mut second, "192.0.2.2", "/2");
        is_crowd(&stage, 1, 1);
        assert_eq!(stage.engine.load().0, 1);
        events.send("6\r\ndata:2\r\n");
        first.expect("6\r\ndata:2\r\n");
        is_crowd(&stage, 1, 1);
        events.send("0\r\n\r\n");
        first.expect("0\r\n\r\n");
        let mut backend = stage.backend_for("/2", events);
        answer(&mut backend, "1ms");
        second.message();
        until("it is charged", || stage.engine.top(0).iter().all(|one| one.row.total > Cost::ZERO));
    }
}

#[test]
fn a_stream_that_is_charged_ends_with_its_client() {
    let hour = Duration::from_secs(3_600);
    let (stage, first, mut events) = charged_stream("text/event-stream", hour);
    let mut second = stage.client();
    ask(&mut second, "192.0.2.2", "/2");
    is_crowd(&stage, 1, 1);
    drop(first);
    events.ends();
    let mut backend = stage.backend_for("/2", None);
    answer(&mut backend, "1ms");
    second.message();
    is_crowd(&stage, 0, 0);
}

/// Before its head, a request runs on, because it may have another answer.
#[test]
fn a_stream_whose_client_is_gone_before_its_head_ends_with_the_head() {
    let stage = one_at_a_time(|settings| {
        settings.charge_streams = true;
        settings.timeouts.abort_linger = Duration::from_secs(3_600);
    });
    let mut client = stage.client();
    client.get("/events");
    let mut events = stage.backend();
    events.head();
    drop(client);
    until("the client is gone", || stage.watch.proxy.aborted.get() == 1);
    is_crowd(&stage, 0, 1);
    events.send(EVENTS);
    events.ends();
    is_crowd(&stage, 0, 0);
}

#[test]
fn who_is_exempt_waits_for_nobody_but_is_reckoned_with() {
    let stage = one_at_a_time(|settings| {
        settings.exempt = vec!["198.51.100.0/24".parse().expect("a network")];
    });
    let (mut first, mut exempt, mut second) = (stage.client(), stage.client(), stage.client());
    ask(&mut first, "192.0.2.1", "/1");
    let mut one = stage.backend();
    one.head();
    ask(&mut exempt, "198.51.100.7", "/monitor");
    let mut two = stage.backend();
    assert!(two.head().starts_with("GET /monitor "));
    is_crowd(&stage, 0, 2);
    ask(&mut second, "192.0.2.2", "/2");
    is_crowd(&stage, 1, 2);
    answer(&mut two, "1ms");
    exempt.message();
    drop(two);
    answer(&mut one, "1ms");
    first.message();
    let mut backend = stage.backend_for("/2", one);
    answer(&mut backend, "1ms");
    second.message();
}

#[test]
fn in_shadow_nobody_waits() {
    let stage = one_at_a_time(|settings| settings.shadow = true);
    let (mut first, mut second) = (stage.client(), stage.client());
    ask(&mut first, "192.0.2.1", "/1");
    let mut backend = stage.backend();
    backend.head();
    ask(&mut second, "192.0.2.2", "/2");
    stage.backend().head();
    // They still run when the shadow ends.
    is_crowd(&stage, 0, 2);
    answer(&mut backend, "5s");
    first.message();
    let mut third = stage.client();
    ask(&mut third, "192.0.2.1", "/3");
    stage.backend_for("/3", backend);
    let text = prometheus::text(stage.watch.registry(), &[]);
    let behind = r#"evenkeel_decisions_total{verdict="queue",limit="cpu",shadow="true"} 1"#;
    assert!(text.contains(behind), "{text}");
}

/// The rest of an upload waits for a slot although its backend has already answered.
#[test]
fn a_slot_for_the_rest_of_a_request_that_is_answered_is_given_back() {
    for answered in ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", EVENTS] {
        let stage = one_at_a_time(|_| {});
        let (mut upload, mut page) = (stage.client(), stage.client());
        upload.send("POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
        let mut first = stage.backend();
        first.head();
        first.expect("one");
        is_crowd(&stage, 0, 0);
        ask(&mut page, "192.0.2.2", "/b");
        let mut second = stage.backend();
        second.head();
        upload.send("two");
        is_crowd(&stage, 1, 1);
        first.send(answered);
        upload.head();
        upload.take(2);
        answer(&mut second, "1ms");
        page.message();
        is_crowd(&stage, 0, 0);
        ask(&mut page, "192.0.2.2", "/c");
        stage.backend_for("/c", second);
    }
}

/// A backend that takes 20 ms for each request, and counts the requests that it has at once.
#[derive(Default)]
struct CountingBackend {
    open: AtomicUsize,
    most: AtomicUsize,
}

impl CountingBackend {
    fn work(&self, mut wire: Wire) {
        while wire.try_head().is_some() {
            self.most.fetch_max(self.open.fetch_add(1, SeqCst) + 1, SeqCst);
            try_wait_within(Duration::from_millis(20), || None::<()>);
            self.open.fetch_sub(1, SeqCst);
            wire.answer("ok");
        }
    }
}

/// Twelve clients send twenty requests each while the processors are idle. Returns the largest
/// number of requests that the backend had at once.
fn most_at_once(stage: &Stage, backend: &Arc<CountingBackend>) -> usize {
    backend.most.store(0, SeqCst);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..12)
            .map(|client| {
                let mut wire = stage.client();
                scope.spawn(move || {
                    for _ in 0..20 {
                        ask(&mut wire, &format!("192.0.2.{client}"), "/page");
                        assert_eq!(wire.message().status(), 200);
                    }
                })
            })
            .collect();
        until("all are answered", || {
            stage.engine.processors_used(0.05);
            while let Some(wire) = stage.backend_if_any() {
                let backend = Arc::clone(backend);
                std::thread::spawn(move || backend.work(wire));
            }
            clients.iter().all(|client| client.is_finished())
        });
    });
    backend.most.load(SeqCst)
}

#[test]
fn the_limit_that_is_found_never_exceeds_the_workers() {
    let stage = one_at_a_time(|settings| {
        settings.queue.concurrency = ConcurrencySetting::Auto;
        settings.queue.workers = Some(5);
        settings.queue.reserve = 4;
        settings.cpus = 2.0;
    });
    let backend = Arc::new(CountingBackend::default());
    let reload = |workers: Option<usize>| {
        let mut changed = stage.settings.clone();
        changed.queue.workers = workers;
        stage.engine.reload(&changed);
    };
    // The last one: fewer than processors.
    for workers in [5, 3, 1] {
        reload(Some(workers));
        until("all workers are used", || {
            let most = most_at_once(&stage, &backend);
            assert!(most <= workers && crowd(&stage).concurrency <= workers, "{most}, {workers}");
            most == workers
        });
        assert_eq!(crowd(&stage).taken_in, Some(workers));
    }
    reload(None);
    until("there are more", || most_at_once(&stage, &backend) > 5);
    assert_eq!(crowd(&stage).taken_in, None);
}

#[test]
fn with_shadow_the_requests_that_wait_go_on_at_once() {
    let stage = one_at_a_time(|_| {});
    let mut clients = [stage.client(), stage.client(), stage.client()];
    ask(&mut clients[0], "192.0.2.1", "/1");
    let mut backends = vec![stage.backend()];
    backends[0].head();
    ask(&mut clients[1], "192.0.2.2", "/2");
    ask(&mut clients[2], "192.0.2.3", "/3");
    is_crowd(&stage, 2, 1);
    let mut changed = stage.settings.clone();
    changed.shadow = true;
    stage.engine.reload(&changed);
    backends.extend([stage.backend(), stage.backend()]);
    backends[1..].iter_mut().for_each(|backend| _ = backend.head());
    backends.iter_mut().for_each(|backend| answer(backend, "1ms"));
    for client in &mut clients {
        assert_eq!(client.message().status(), 200);
    }
    is_crowd(&stage, 0, 0);
    assert_eq!(crowd(&stage).concurrency, 1);
}

const EVENTS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nok";
