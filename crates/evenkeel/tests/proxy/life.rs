//! Starting, reloading, draining, and the bound on connections.

use crate::stage::{LONG, Stage};
use evenkeel_serve::service::Service as _;
use evenkeel_serve::start::ServerStartError;
use evenkeel_testing::wait::until;
use std::time::Duration;

/// Waits for the end of the door.
fn ended(stage: &Stage) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let end = async { tokio::time::timeout(LONG, stage.door.threads().ended()).await };
    runtime.block_on(end).expect("the door ends");
}

#[test]
fn a_taken_port_is_named_with_what_to_do() {
    let stage = Stage::open(|_| {});
    let mut settings = stage.settings.clone();
    settings.listen = stage.door.addresses().to_vec();
    let Err(error) = evenkeel_proxy::start(&settings, &stage.engine, &stage.watch) else {
        panic!("two proxies share a port");
    };
    assert!(matches!(error, ServerStartError::Listen { .. }));
    let text = error.to_string();
    assert!(text.contains(&settings.listen[0].to_string()), "{text}");
    assert!(text.contains("another program uses it"), "{text}");
    settings.listen.clear();
    assert!(matches!(
        evenkeel_proxy::start(&settings, &stage.engine, &stage.watch),
        Err(ServerStartError::Settings { door: "proxy", .. })
    ));
}

#[test]
fn a_drain_lets_the_running_request_end() {
    let stage = Stage::open(|_| {});
    let mut idle = stage.client();
    idle.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("ok");
    idle.message();
    let mut busy = stage.client();
    busy.get("/");
    let mut backend = stage.backend_for("/", backend);
    stage.door.threads().drain(LONG);
    idle.ends();
    backend.answer("late");
    let answer = busy.message();
    assert_eq!((answer.text(), answer.header("connection")), ("late", Some("close")));
    busy.ends();
    ended(&stage);
    let refused = std::net::TcpStream::connect(stage.door.addresses()[0]);
    assert!(refused.is_err(), "it still listens");
}

#[test]
fn a_drain_ends_at_its_timeout_and_a_stop_at_once() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    stage.door.threads().drain(Duration::from_millis(50));
    client.ends();
    backend.ends();
    ended(&stage);

    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    stage.door.threads().drain(LONG);
    stage.door.threads().stop_now();
    client.ends();
    ended(&stage);
    assert_eq!(stage.engine.load().0, 0, "all accounts are closed");
}

#[test]
fn those_that_a_drain_cuts_are_counted() {
    let stage = Stage::open(|_| {});
    let (mut first, mut second) = (stage.client(), stage.client());
    first.get("/");
    second.get("/");
    let _backends = (stage.backend(), stage.backend());
    stage.door.threads().drain(Duration::from_millis(50));
    ended(&stage);
    assert_eq!(stage.door.threads().cut(), 2);
    first.ends();
    second.ends();
}

#[test]
fn a_reload_takes_effect_for_the_next_request() {
    let stage = Stage::open(|_| {});
    let other = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/1");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("one");
    client.message();
    let mut changed = stage.settings.clone();
    changed.backends = other.settings.backends.clone();
    changed.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    stage.door.reload(&changed);
    // The pooled connection is closed when the new backend takes effect.
    backend.ends();
    client.send("GET /2 HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 9.9.9.9\r\n\r\n");
    let mut backend = other.backend();
    assert_eq!(backend.message().header("x-forwarded-for"), Some("9.9.9.9, 127.0.0.1"));
    backend.answer("two");
    assert_eq!(client.message().text(), "two");
}

#[test]
fn connections_beyond_the_bound_wait_and_idle_ones_make_room() {
    let stage = Stage::open(|settings| settings.bounds.connections = 1);
    let mut first = stage.client();
    first.get("/1");
    let mut backend = stage.backend();
    backend.message();
    let mut second = stage.client();
    second.get("/2");
    assert!(second.is_silent());
    backend.answer("one");
    assert_eq!(first.message().text(), "one");
    // The first connection is idle now: it is closed, and the second one is accepted.
    let mut backend = stage.backend_for("/2", backend);
    backend.answer("two");
    assert_eq!(second.message().text(), "two");
    first.ends();
    until("it is counted", || stage.watch.proxy.connections.shed.get() == 1);
}

#[test]
fn who_sends_no_head_makes_room_long_before_the_timeout() {
    for sent in ["", "GET / HT"] {
        let stage = Stage::open(|settings| {
            settings.bounds.connections = 1;
            settings.timeouts.header = LONG * 2;
        });
        let mut silent = stage.client();
        silent.send(sent);
        until("it has the room", || stage.door.connections() == 1);
        let mut second = stage.client();
        second.get("/");
        let mut backend = stage.backend();
        backend.message();
        backend.answer("ok");
        assert_eq!(second.message().text(), "ok");
        silent.ends();
    }
}

#[test]
fn a_connection_ends_after_as_many_requests_as_it_may_have() {
    let stage = Stage::open(|settings| settings.bounds.requests_per_connection = 2);
    let mut client = stage.client();
    client.get("/1");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("one");
    assert_eq!(client.message().header("connection"), None);
    client.get("/2");
    backend.message();
    backend.answer("two");
    assert_eq!(client.message().header("connection"), Some("close"));
    client.ends();
}
