//! One request from its head to its answer: find the client, ask the engine, ask the backend, hold
//! the answer.
//!
//! This file decides nothing about limits; the engine does. Which header fields may pass:
//! `headers.rs`. The bodies: `body.rs` and `download.rs`. A request that its client has abandoned:
//! `abort.rs`.

use super::abort;
use super::account::Account;
use super::answer;
use super::backends::{self, Backend, Tried};
use super::body::Upload;
use super::connect;
use super::download::{Body, Download};
use super::headers::{self, Found};
use super::link::{Link, UploadFault};
use super::wire::{self, Wire};
use super::worker::{HeadRoom, Room, Site, Worker};
use evenkeel_core::classify::Attributes;
use evenkeel_core::units::Time;
use evenkeel_engine::Asked;
use evenkeel_telemetry::counts::{BackendFault, Maker};
use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::error::Error;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The maximum number of connections tried for one request before it fails.
const ATTEMPTS_MAX: u32 = 5;

/// The head of an answer, and which of its fields may have to be removed.
type Answer = (Response<()>, Found);

/// The attributes of a request that limits can match.
struct Seen<'a> {
    client: IpAddr,
    head: &'a Parts,
}

impl Attributes for Seen<'_> {
    fn address(&self) -> IpAddr {
        self.client
    }

    fn method(&self) -> &str {
        self.head.method.as_str()
    }

    fn path(&self) -> &str {
        self.head.uri.path()
    }

    fn vhost(&self) -> &str {
        headers::host(&self.head.headers)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.head.headers.get(name).map(HeaderValue::as_bytes)
    }

    fn cookies(&self) -> impl Iterator<Item = &[u8]> {
        self.head.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes)
    }
}

/// Serves one request.
pub(super) async fn serve(
    worker: Rc<Worker>,
    link: Rc<Link>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    link.begin();
    let site = worker.site();
    let (head, body) = request.into_parts();
    link.upload.begin(!body.is_end_stream());
    worker.watch.proxy.requests.increment(1);
    let (response, maker) = match answered(&worker, &link, &site, head, body).await {
        Ok(response) => (response, Maker::Backend),
        Err(response) => {
            // The answer is made by Evenkeel, so it is handed over as a whole.
            link.done(worker.now());
            tell(&link, response.status());
            (*response, Maker::Evenkeel)
        }
    };
    worker.watch.proxy.responded(response.status().as_u16(), maker);
    let closes = worker.is_draining() || link.is_spent(site.bounds.requests_per_connection);
    link.answered();
    let closes = closes && response.status() != StatusCode::SWITCHING_PROTOCOLS;
    Ok(if closes && !link.end_connection() { answer::last(response) } else { response })
}

/// Returns the backend's answer, or as an error one that Evenkeel made.
async fn answered(
    worker: &Rc<Worker>,
    link: &Rc<Link>,
    site: &Rc<Site>,
    mut head: Parts,
    body: Incoming,
) -> Result<Response<Body>, Box<Response<Body>>> {
    let Some(_room) = HeadRoom::take(worker, link, &head.headers) else {
        return Err(Box::new(answer::busy(&head.headers)));
    };
    let checked = check(worker, link, site, &mut head, &body);
    let found = checked.map_err(|status| fatal(worker, &head.headers, status))?;
    let trusted = site.trust.believes(link.peer());
    let forwards = !trusted && headers::forwards(&head.headers, found);
    worker.watch.seen(link.peer(), forwards, worker.time());
    let (account, delay) = admitted(worker, link, site, &head).await?;
    if let Some(at) = delay {
        // If the client disconnects in the meantime, this future is dropped and with it the place
        // that the request took.
        Box::pin(tokio::time::sleep_until(worker.clock.instant(at))).await;
    }
    let mut upload = Upload::new(body, link, worker, &account, site.bounds.body_bytes);
    let by_turns = !upload.is_nothing() && site.backends.speak_http2();
    let gathered = upload.gather(&head.headers, site.bounds.body_buffer, by_turns).await;
    if gathered.is_err() {
        let fault = link.upload.fault().unwrap_or(UploadFault::Broken);
        return Err(fatal(worker, &head.headers, fault.status()));
    }
    link.upload.is_passed_on();
    let turned = account.turn().await;
    turned.map_err(|refusal| Box::new(answer::refused(&head.headers, &refusal)))?;
    let peer = headers::Peer {
        address: link.peer_value(),
        secure: link.is_secure(),
        trusted,
        own_header: site.trust.header(),
        backend: &site.backends.host,
    };
    let accept = head.headers.get(http::header::ACCEPT).cloned();
    let upgrade = headers::upgrade(&head, found, &site.upgrades).filter(|_| upload.is_nothing());
    link.switches(upgrade.is_some());
    headers::forward(&mut head, found, &peer)
        .map_err(|status| fatal(worker, &head.headers, status))?;
    if let Some(protocol) = upgrade {
        headers::ask_upgrade(&mut head.headers, protocol);
    }
    let request = wire::Request { head, peer, body: upload };
    let failure = match ask_backend(worker, link, site, &account, request).await {
        Ok((answer, wire)) => match held(worker, link, site, answer, wire, account).await {
            Ok(response) => return Ok(response),
            Err(failure) => failure,
        },
        Err(failure) => {
            account.abandon(site.timeouts.abort_linger);
            account.settle();
            failure
        }
    };
    Err(told(worker, link, accept, &failure))
}

/// Makes the answer to a request that has no answer from the backend, and records the failure.
fn told(
    worker: &Worker,
    link: &Link,
    accept: Option<HeaderValue>,
    failure: &Failure,
) -> Box<Response<Body>> {
    let status = failure.status(link);
    let mut headers = HeaderMap::new();
    headers.extend(accept.map(|accept| (http::header::ACCEPT, accept)));
    if status.is_client_error() {
        return fatal(worker, &headers, status);
    }
    let by = failure.by.as_ref().map_or("", |backend| &backend.name);
    worker.failed(link, by, failure);
    Box::new(answer::fault(&headers, status))
}

/// Logs what a client did wrong. A request over a limit is logged elsewhere, as a decision.
fn tell(link: &Link, status: StatusCode) {
    if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        let (client, status) = (link.client.get(), status.as_u16());
        tracing::debug!(target: "evenkeel::proxy", %client, status, "bad request");
    }
}

/// Makes the answer to a client error, after which the connection is closed.
fn fatal(worker: &Worker, headers: &HeaderMap, status: StatusCode) -> Box<Response<Body>> {
    worker.watch.proxy.bad_requests.increment(1);
    Box::new(answer::last(answer::fault(headers, status)))
}

fn check(
    worker: &Rc<Worker>,
    link: &Link,
    site: &Site,
    head: &mut Parts,
    body: &Incoming,
) -> Result<Found, StatusCode> {
    if let Some(handshake) = connect::translate(head, &site.upgrades)? {
        let room = Room::take(worker, link).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
        link.connects(handshake, room);
    }
    let found = headers::normalise(head, link.is_secure())?;
    let bound = site.bounds.body_bytes;
    if bound > 0 && body.size_hint().lower() > bound {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    Ok(found)
}

/// Asks the engine. Returns the account, and the time until which the request has to wait.
async fn admitted(
    worker: &Worker,
    link: &Link,
    site: &Site,
    head: &Parts,
) -> Result<(Account, Option<Time>), Box<Response<Body>>> {
    let client = site.trust.client(link.peer(), &head.headers);
    link.client.set(client);
    let seen = Seen { client, head };
    let asked = match &worker.store {
        Some(store) => Box::pin(store.ask(&worker.lane, &seen)).await,
        None => worker.lane.ask(&seen),
    };
    match asked {
        Asked::Refused(refusal) => {
            let mut answer = answer::refused(&head.headers, &refusal);
            if let (true, Some(quota)) = (site.headers, worker.lane.quota_of(&refusal)) {
                headers::quotas(answer.headers_mut(), &[quota]);
            }
            Err(Box::new(answer))
        }
        Asked::Pass(charge) => {
            let until = charge.delay_until();
            let account = Account::open(charge);
            link.runs_on(account.shadow());
            Ok((account, until))
        }
    }
}

/// Why there is no answer from the backend.
pub(super) struct Failure {
    pub(super) fault: BackendFault,
    /// The error from the system or the parser, if any.
    pub(super) error: Option<Box<dyn Error>>,
    /// The backend that failed, if one was chosen.
    by: Option<Rc<Backend>>,
}

impl Failure {
    /// A failure without an underlying error or a backend.
    pub(super) fn new(fault: BackendFault) -> Failure {
        Failure { fault, error: None, by: None }
    }

    pub(super) fn of(fault: BackendFault, error: impl Error + 'static) -> Failure {
        Failure { fault, error: Some(Box::new(error)), by: None }
    }

    /// Names the backend that failed.
    pub(super) fn by(self, backend: &Rc<Backend>) -> Failure {
        Failure { by: Some(Rc::clone(backend)), ..self }
    }

    /// Returns the status for the client. It is a client error if the client's body was at fault.
    fn status(&self, link: &Link) -> StatusCode {
        match self.fault {
            BackendFault::ConnectTimeout | BackendFault::AnswerTimeout | BackendFault::Idle => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => link.upload.fault().map_or(StatusCode::BAD_GATEWAY, UploadFault::status),
        }
    }
}

impl From<wire::Fault> for Failure {
    fn from(fault: wire::Fault) -> Failure {
        let kind = if fault.is_syntax() { BackendFault::Protocol } else { BackendFault::Closed };
        Failure::of(kind, fault)
    }
}

/// The backend has switched protocols without having read the request.
#[derive(Debug, thiserror::Error)]
#[error("sec-websocket-accept of the answer does not follow from sec-websocket-key")]
struct KeyUnread;

/// Sends a request to a backend and awaits the head of the answer.
///
/// The request is sent again only if no part of an answer has arrived and repeating it does no
/// harm. It goes to the same backend if that backend has not processed it, or if the connection was
/// reused and may have been closed in the meantime. Otherwise, or if that backend is now
/// unreachable, it goes to another one.
async fn ask_backend(
    worker: &Rc<Worker>,
    link: &Rc<Link>,
    site: &Site,
    account: &Account,
    request: wire::Request<'_>,
) -> Result<(Answer, Wire), Failure> {
    let mut tried = Tried::default();
    let (mut wire, mut reused) = first_connection(worker, link, site, &mut tried).await?;
    wire.begin(request, worker);
    for attempt in 1..=ATTEMPTS_MAX {
        let backend = Rc::clone(&wire.far().backend);
        match answer_on(wire, worker, link, account).await {
            Ok(answer) => {
                backend.is_well();
                return Ok(answer);
            }
            Err(Ended::Failed(mut failed, _))
                if attempt < ATTEMPTS_MAX
                    && (reused || failed.is_unprocessed())
                    && failed.may_repeat() =>
            {
                let again = connection_again(worker, link, site, &mut tried, &backend);
                (wire, reused) = Box::pin(again).await?;
                repeat(&mut wire, &mut failed, worker)?;
            }
            Err(Ended::Failed(mut failed, fault))
                if attempt < ATTEMPTS_MAX
                    && failed.may_repeat()
                    && site.backends.has_more(tried) =>
            {
                backend.has_failed(false, worker.now());
                worker.failed(link, &backend.name, &Failure::from(fault));
                (wire, reused) = first_connection(worker, link, site, &mut tried).await?;
                repeat(&mut wire, &mut failed, worker)?;
            }
            Err(ended) => {
                if !link.upload.has_failed() {
                    backend.has_failed(false, worker.now());
                }
                return Err(ended.failure(link).by(&backend));
            }
        }
    }
    Err(Failure::new(BackendFault::Closed))
}

/// Sends the request of the failed `before` again on `wire`.
fn repeat(wire: &mut Wire, before: &mut Wire, worker: &Rc<Worker>) -> Result<(), Failure> {
    let begun = wire.repeat(before, worker);
    begun.then_some(()).ok_or_else(|| Failure::new(BackendFault::Closed).by(&wire.far().backend))
}

/// Returns a connection to the backend chosen next, or to the next one that is reachable. Without a
/// connection nothing is sent, so trying the next one does no harm. Also returns whether the
/// connection has been used before.
async fn first_connection(
    worker: &Rc<Worker>,
    link: &Link,
    site: &Site,
    tried: &mut Tried,
) -> Result<(Wire, bool), Failure> {
    let mut failed = None;
    while let Some(backend) = site.backends.choose(tried, worker.now(), link.may_switch()) {
        match backends::connection(worker, site, backend, link.may_switch()).await {
            Ok(found) => return Ok(found),
            Err(failure) => {
                failed = Some(unreachable(worker, link, site, *tried, backend, failure))
            }
        }
    }
    Err(failed.unwrap_or(Failure::new(BackendFault::Connect)))
}

/// Returns a connection to the backend that was asked before, or to another one if it is
/// unreachable.
async fn connection_again(
    worker: &Rc<Worker>,
    link: &Link,
    site: &Site,
    tried: &mut Tried,
    backend: &Rc<Backend>,
) -> Result<(Wire, bool), Failure> {
    let found = backends::connection(worker, site, backend, link.may_switch()).await;
    let Err(failure) = found else { return found };
    let failure = unreachable(worker, link, site, *tried, backend, failure);
    if !site.backends.has_more(*tried) {
        return Err(failure);
    }
    first_connection(worker, link, site, tried).await
}

/// Counts a failed connection attempt against a backend. Logs it if another backend is tried;
/// otherwise it is logged with the answer.
fn unreachable(
    worker: &Worker,
    link: &Link,
    site: &Site,
    tried: Tried,
    backend: &Rc<Backend>,
    failure: Failure,
) -> Failure {
    backend.has_failed(true, worker.now());
    if site.backends.has_more(tried) {
        worker.failed(link, &backend.name, &failure);
    }
    failure.by(backend)
}

/// Awaits the head of the answer to the request on `wire`.
async fn answer_on(
    wire: Wire,
    worker: &Rc<Worker>,
    link: &Rc<Link>,
    account: &Account,
) -> Result<(Answer, Wire), Ended> {
    // When a request is sent again, the client may already have sent all of it.
    if !link.upload.runs() {
        link.head.begin(worker.now());
        account.work();
    } else {
        link.sends(wire.far());
        account.delivery_begins();
    }
    let answered = Waiting { wire: Some(wire), worker, link, account }.await;
    if answered.is_err() {
        account.rest();
    }
    answered
}

/// Waits for the head of the answer. If the client disconnects in the meantime, the exchange is
/// handed over to `abort`.
struct Waiting<'a> {
    wire: Option<Wire>,
    worker: &'a Rc<Worker>,
    link: &'a Link,
    account: &'a Account,
}

/// Why there is no answer.
enum Ended {
    Late,
    /// An answer that cannot be passed on.
    Unfit,
    Failed(Wire, wire::Fault),
}

impl Ended {
    fn failure(self, link: &Link) -> Failure {
        match self {
            Ended::Late if link.upload.runs() => Failure::new(BackendFault::Idle),
            Ended::Late => Failure::new(BackendFault::AnswerTimeout),
            Ended::Unfit => Failure::new(BackendFault::Protocol),
            Ended::Failed(_, fault) => Failure::from(fault),
        }
    }
}

impl Future for Waiting<'_> {
    type Output = Result<(Answer, Wire), Ended>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let worker = self.worker;
        let Some(wire) = &mut self.wire else { return Poll::Ready(Err(Ended::Late)) };
        let polled = wire.poll_answer(worker, cx);
        if polled.is_pending() && !self.link.backend_late.get() {
            return Poll::Pending;
        }
        self.link.heard();
        Poll::Ready(match (polled, self.wire.take()) {
            // The request did not ask for another protocol.
            (Poll::Ready(Ok((head, _))), Some(_))
                if head.status().is_informational() && !self.link.may_switch() =>
            {
                Err(Ended::Unfit)
            }
            (Poll::Ready(Ok(answer)), Some(wire)) => Ok((answer, wire)),
            (Poll::Ready(Err(fault)), Some(wire)) => Err(Ended::Failed(wire, fault)),
            (_, wire) => {
                wire.iter().for_each(Wire::is_late);
                Err(Ended::Late)
            }
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(wire) = self.wire.take() {
            self.link.heard();
            abort::run_on(self.worker, self.account, abort::Rest::Head(wire));
        }
    }
}

/// Charges for the answer and holds it until the time that the engine set, before its head goes
/// out.
async fn held(
    worker: &Rc<Worker>,
    link: &Rc<Link>,
    site: &Site,
    answer: Answer,
    wire: Wire,
    account: Account,
) -> Result<Response<Body>, Failure> {
    let (answer, found) = answer;
    let (mut head, ()) = answer.into_parts();
    let until = account.head(&mut head.headers, site.keep_cost_header);
    if site.headers {
        headers::quotas(&mut head.headers, &account.quotas());
    }
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Box::pin(switched(worker, link, (head, found), wire, (account, until))).await;
    }
    if link.handshake().is_some() && head.status.is_success() {
        // The backend has not switched; to a CONNECT, a success status would say that it has (RFC
        // 9113, 8.5).
        head.status = StatusCode::NOT_IMPLEMENTED;
    }
    if headers::is_stream(&head.headers) {
        account.leave();
        worker.step_aside(link);
    }
    let mut download = Download::new(wire, link, worker, account);
    headers::answer(head.status, &mut head.headers, found);
    if let Some(until) = until {
        let over = tokio::time::sleep_until(worker.clock.instant(until));
        Box::pin(download.hold(over)).await?;
    }
    Ok(Response::from_parts(head, download.release().await?))
}

/// Handles an answer that switches protocols. The bytes that follow are not HTTP and not charged.
/// They are carried unchanged once the client has the head.
async fn switched(
    worker: &Rc<Worker>,
    link: &Rc<Link>,
    (mut head, found): (http::response::Parts, Found),
    wire: Wire,
    (account, until): (Account, Option<Time>),
) -> Result<Response<Body>, Failure> {
    account.leave();
    headers::answer_upgrade(&mut head.headers, found);
    if let Some(handshake) = link.handshake()
        && !handshake.answer(&mut head.status, &mut head.headers)
    {
        return Err(Failure::of(BackendFault::Protocol, KeyUnread).by(&wire.far().backend));
    }
    if let Some(until) = until {
        Box::pin(tokio::time::sleep_until(worker.clock.instant(until))).await;
    }
    account.settle();
    link.switched(wire);
    Ok(Response::from_parts(head, Body::Whole(None)))
}
