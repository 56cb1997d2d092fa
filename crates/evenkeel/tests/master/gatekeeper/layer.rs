//! The layer for tower services, with the real master.

use super::RULES;
use crate::stage::MasterServer;
use evenkeel_embed::gatekeeper::{
    DelayBounds, GatekeeperError, GatekeeperLayer, ServiceGatekeeper,
};
use evenkeel_testing::wait::wait_for_async;
use http::{Request, Response};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new("hello".to_owned())))
    }
}

fn user(request: &Request<()>) -> Option<Vec<u8>> {
    request.headers().get("x-user").map(|user| user.as_bytes().to_vec())
}

#[test]
fn a_service_holds_as_the_master_says() {
    let program = MasterServer::start(RULES);
    let master = format!("tcp://{}", program.accounting);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        // The control port is not the next one if the system has assigned both.
        let gate = ServiceGatekeeper::at(
            &master,
            &format!("tcp://{}", program.control),
            "d",
            DelayBounds::default(),
        );
        let gate = gate.expect("a gate");
        let mut service = GatekeeperLayer::new(gate, user).layer(Hello);
        let mut ask = async |name: Option<&str>| {
            let mut request = Request::builder();
            if let Some(name) = name {
                request = request.header("x-user", name);
            }
            service.call(request.body(()).expect("a request")).await.expect("an answer")
        };
        let refused = wait_for_async("a refusal", async || {
            let answer = ask(Some("c")).await;
            (answer.status() != 200).then_some(answer)
        });
        let refused = refused.await;
        assert_eq!(refused.status(), 503);
        let after: u64 =
            refused.headers()["retry-after"].to_str().expect("text").parse().expect("s");
        // An order is rounded up to a millisecond, and the time left to a second.
        assert!((3_000..=3_601).contains(&after), "{after}");
        assert_eq!(refused.body(), "");
        assert_eq!(ask(Some("another")).await.body(), "hello");
        assert_eq!(ask(None).await.body(), "hello", "who has no name is not asked about");
    });
    assert!(program.messages("accepted") >= 3);
}

#[test]
fn a_layer_may_send_a_text_for_the_masters_log() {
    let mut program = MasterServer::start(RULES);
    let [master, control] =
        [program.accounting, program.control].map(|address| format!("tcp://{address}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let gate =
            ServiceGatekeeper::at(&master, &control, "k", DelayBounds::default()).expect("a gate");
        let noted = |request: &Request<()>| {
            Some((b"c".to_vec(), format!("{} {}", request.method(), request.uri()).into_bytes()))
        };
        let mut service = GatekeeperLayer::new(gate, noted).layer(Hello);
        let reported = wait_for_async("a report", async || {
            let request = Request::get("/page").body(()).expect("a request");
            assert_eq!(service.call(request).await.expect("an answer").status(), 200);
            (program.messages("accepted") > 0).then_some(())
        });
        reported.await;
    });
    assert!(program.told("a gatekeeper reported a request").contains("log_info=\"GET /page\""));
}

#[test]
fn what_is_no_master_is_refused_and_one_that_is_away_is_not() {
    let new =
        |master: &str, domain: &str| ServiceGatekeeper::new(master, domain, DelayBounds::default());
    assert!(matches!(new("udp://h", "d").err(), Some(GatekeeperError::Address(_))));
    assert!(matches!(new("h", "a\0b").err(), Some(GatekeeperError::Domain)));
    let gate = new("tcp://127.0.0.1:1", "d").expect("nobody has to be there");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let held = runtime.expect("a runtime").block_on(async { gate.hold(b"c".to_vec()).await });
    assert_eq!(held, Ok(()));
}
