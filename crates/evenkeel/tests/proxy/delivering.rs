//! Requests with a body that the backend has received in part: a client pays for the backend's work
//! from the head on, and the number of such requests without a slot is at most the number of slots.

use crate::stage::{LONG, Stage, Wire, cpu_limit};
use evenkeel_config::settings::ConcurrencySetting;
use evenkeel_core::limit::LimitAction;
use evenkeel_core::units::Cost;
use evenkeel_testing::wait::until;
use std::time::{Duration, Instant};

/// The time that the backend works on a request.
const WORK: Duration = Duration::from_millis(300);

/// The total charge of all requests.
fn charged(stage: &Stage) -> Duration {
    let Cost(nanos) = stage.engine.load().1;
    Duration::from_nanos(nanos)
}

/// Sends the head of a POST that states a body, without any of the body.
fn half(client: &mut Wire, path: &str) {
    client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 70000\r\n\r\n"));
}

/// A proxy with `slots` slots.
fn queueing(slots: usize) -> Stage {
    Stage::open(|settings| {
        settings.action = LimitAction::Queue;
        settings.queue.concurrency = ConcurrencySetting::Fixed(slots);
        settings.queue.reserve = 0;
        settings.limits = vec![cpu_limit(4.0, LONG)];
    })
}

/// Measures the work of a backend, from now on for at least [`WORK`].
struct Working(Instant);

impl Working {
    /// Waits until the work is done and calls `after`. Returns the time worked, at least.
    fn done(self, after: impl FnOnce()) -> Duration {
        until("the work is done", || self.0.elapsed() >= WORK);
        let worked = self.0.elapsed();
        after();
        worked
    }
}

#[test]
fn work_at_the_head_is_charged_to_a_request_that_never_ends() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    half(&mut client, "/");
    let mut backend = stage.backend();
    backend.head();
    let worked = Working(Instant::now()).done(|| {
        backend.answer("done");
    });
    assert_eq!(client.message().text(), "done");
    assert!(charged(&stage) >= worked.mul_f64(0.9), "{:?} of {worked:?}", charged(&stage));
}

#[test]
fn a_byte_now_and_then_hides_no_work() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    half(&mut client, "/");
    let mut backend = stage.backend();
    backend.head();
    let working = Working(Instant::now());
    for _ in 0..10 {
        client.send("x");
        backend.expect("x");
    }
    let worked = working.done(|| {
        backend.answer("done");
    });
    client.message();
    assert!(charged(&stage) >= worked.mul_f64(0.9), "{:?} of {worked:?}", charged(&stage));
}

#[test]
fn a_slow_client_does_not_pay_for_the_time_in_which_it_uploads() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    half(&mut client, "/");
    let mut backend = stage.backend();
    backend.head();
    let begun = Instant::now();
    let piece = "x".repeat(7_000);
    for _ in 0..10 {
        let before = Instant::now();
        until("it takes its time", || before.elapsed() >= WORK / 10);
        client.send(&piece);
        backend.expect(&piece);
    }
    let uploaded = begun.elapsed();
    let ended = Instant::now();
    backend.answer("done");
    client.message();
    let most = ended.elapsed() + uploaded / 2;
    assert!(charged(&stage) < most, "{:?} of {uploaded:?}", charged(&stage));
}

#[test]
fn an_upload_that_is_broken_off_costs_what_its_route_does() {
    let stage = queueing(4);
    let mut client = stage.client();
    client.send("POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab");
    let mut backend = stage.backend();
    backend.message();
    let worked = Working(Instant::now()).done(|| {
        backend.answer("done");
    });
    client.message();
    until("it is charged", || charged(&stage) >= worked.mul_f64(0.9));
    half(&mut client, "/a");
    backend.head();
    drop(client);
    until("it is charged as well", || charged(&stage) >= worked.mul_f64(1.8));
}

#[test]
fn the_time_until_an_upload_is_broken_off_is_charged_as_that_of_any_abort() {
    for (linger, most) in [(Duration::from_secs(5), LONG), (WORK / 10, WORK / 10)] {
        let stage = Stage::open(|settings| settings.timeouts.abort_linger = linger);
        let mut client = stage.client();
        half(&mut client, "/");
        let mut backend = stage.backend();
        backend.head();
        let worked = Working(Instant::now()).done(|| drop(client));
        until("it is charged", || charged(&stage) >= worked.mul_f64(0.9).min(linger));
        assert!(charged(&stage) <= most, "{:?} of {worked:?}", charged(&stage));
    }
}

#[test]
fn work_on_a_part_of_a_request_is_charged_if_the_backend_gives_up() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    half(&mut client, "/");
    let mut backend = stage.backend();
    backend.head();
    let worked = Working(Instant::now()).done(|| drop(backend));
    assert_eq!(client.message().status(), 502);
    assert!(charged(&stage) >= worked.mul_f64(0.9), "{:?} of {worked:?}", charged(&stage));
}

#[test]
fn no_more_uploads_than_slots_go_without_one() {
    let stage = queueing(2);
    let mut clients: Vec<Wire> = (0..8).map(|_| stage.client()).collect();
    let mut backends = Vec::new();
    for client in &mut clients {
        half(client, "/");
    }
    until("the others wait", || {
        backends.extend(stage.backend_if_any());
        stage.engine.admission_stats().is_some_and(|crowd| crowd.waiting == 4)
    });
    until("four are with the backend", || {
        backends.extend(stage.backend_if_any());
        backends.len() == 4
    });
    stage.backend_is_left_alone();
}

/// However slow these uploads are: otherwise a few phones could block a site.
#[test]
fn uploads_that_come_in_keep_no_slot_while_the_backend_waits_for_them() {
    let stage = queueing(1);
    let mut uploads = Vec::new();
    for path in ["/1", "/2", "/3"] {
        let mut client = stage.client();
        let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 70000\r\n\r\n");
        client.send(head + &"x".repeat(2_000));
        let mut backend = stage.backend_for(path, None);
        backend.take(2_000);
        until("it has no slot", || {
            stage.engine.admission_stats().is_some_and(|crowd| crowd.running == 0)
        });
        uploads.push((client, backend));
    }
    let mut visitor = stage.client();
    visitor.get("/visitor");
    let mut backend = stage.backend_for("/visitor", None);
    backend.answer("ok");
    assert_eq!(visitor.message().text(), "ok");
    for (client, backend) in &mut uploads {
        client.send("x".repeat(68_000));
        backend.take(68_000);
        backend.answer("done");
        assert_eq!(client.message().text(), "done");
    }
}

/// Other clients do not wait for uploads that have stalled.
#[test]
fn an_upload_that_stalls_keeps_no_other_client_waiting() {
    let stage = Stage::open(|settings| {
        settings.action = LimitAction::Queue;
        settings.queue.concurrency = ConcurrencySetting::Fixed(1);
        settings.queue.reserve = 0;
        settings.limits = vec![cpu_limit(4.0, LONG)];
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    let mut clients: Vec<Wire> = (0..3).map(|_| stage.client()).collect();
    let mut backends = Vec::new();
    for client in &mut clients[..2] {
        half(client, "/");
        let mut backend = stage.backend();
        backend.head();
        backends.push(backend);
    }
    // One more request of the same client waits for the slot that the second one keeps.
    half(&mut clients[2], "/");
    until("it waits", || stage.engine.admission_stats().is_some_and(|crowd| crowd.waiting == 1));
    stage.backend_is_left_alone();
    let mut visitor = stage.client();
    visitor.send("GET /visitor HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.9\r\n\r\n");
    let mut backend = None;
    until("the visitor is served", || {
        backends.extend(backend.take());
        backend = stage.backend_if_any();
        backend.as_mut().is_some_and(|backend| backend.head().contains("/visitor"))
    });
    backend.expect("it came").answer("ok");
    assert_eq!(visitor.message().text(), "ok");
}

/// An upload that holds a slot and sends almost nothing for five seconds makes room for its own
/// client too.
#[test]
fn uploads_that_stall_make_room_for_requests_that_wait() {
    let stage = queueing(1);
    let mut clients: Vec<Wire> = (0..2).map(|_| stage.client()).collect();
    let mut backends = Vec::new();
    for client in &mut clients {
        half(client, "/");
        let mut backend = stage.backend();
        backend.head();
        backends.push(backend);
    }
    let mut third = stage.client();
    third.get("/third");
    until("it waits", || stage.engine.admission_stats().is_some_and(|crowd| crowd.waiting == 1));
    let mut backend = stage.backend_for("/third", None);
    backend.answer("ok");
    assert_eq!(third.message().text(), "ok");
    until("one of them has made room", || clients.iter_mut().any(|client| !client.is_silent()));
    let ended = clients.iter_mut().find_map(|client| (!client.is_silent()).then_some(client));
    assert_eq!(ended.expect("one of them").message().status(), 408);
}

/// A backend that does not buffer has one worker, which the upload occupies: the visitor holds a
/// slot and waits inside the backend. The upload makes room whether its client sends a byte now and
/// then, each of which waits for a slot, or none.
#[test]
fn uploads_that_trickle_make_room_for_requests_that_wait_inside_the_backend() {
    for trickles in [true, false] {
        let stage = queueing(1);
        let (mut upload, mut visitor) = (stage.client(), stage.client());
        half(&mut upload, "/upload");
        let mut uploading = stage.backend();
        uploading.head();
        visitor.get("/visitor");
        let mut backend = stage.backend_for("/visitor", None);
        let begun = Instant::now();
        until("it makes room", || {
            if trickles && begun.elapsed().subsec_millis() % 500 < 20 {
                upload.try_send(b"x");
            }
            !upload.is_silent()
        });
        assert!(begun.elapsed() > Duration::from_secs(4), "{:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert_eq!(upload.message().status(), 408);
        drop(uploading);
        backend.answer("ok");
        assert_eq!(visitor.message().text(), "ok");
    }
}

/// Otherwise the upload waits for the slot of the visitor, and the visitor for the worker that the
/// upload occupies, until both are refused.
#[test]
fn an_upload_goes_on_if_the_requests_that_took_its_slot_hang() {
    let stage = queueing(1);
    let (mut upload, mut visitor) = (stage.client(), stage.client());
    upload.send("POST /up HTTP/1.1\r\nhost: a\r\ncontent-length: 200000\r\n\r\n");
    upload.send("x".repeat(2_000));
    let mut uploading = stage.backend_for("/up", None);
    uploading.take(2_000);
    visitor.get("/visitor");
    let mut backend = stage.backend_for("/visitor", None);
    let begun = Instant::now();
    for _ in 0..22 {
        upload.send("x".repeat(9_000));
        uploading.take(9_000);
    }
    assert!(begun.elapsed() > Duration::from_millis(500), "it waits first: {:?}", begun.elapsed());
    uploading.answer("done");
    assert_eq!(upload.message().text(), "done");
    backend.answer("ok");
    assert_eq!(visitor.message().text(), "ok");
    until("no slot is left in use", || {
        stage.engine.admission_stats().is_some_and(|crowd| crowd.running == 0)
    });
}
