//! One request from its head to its answer: find the client, ask the engine, ask the backend, hold
//! the answer.
//!
//! This file decides nothing about limits; the engine does. Which header fields may pass:
//! `headers.rs`. The bodies: `body.rs` and `download.rs`. A request that its client has abandoned:
//! `abort.rs`.

use super::abort;
use super::account::RequestAccount;
use super::answer;
use super::backends::{self, TriedBackends, UpstreamBackend};
use super::body::RequestBody;
use super::connect;
use super::download::{AnswerBody, AnswerDownload};
use super::headers::{self, FieldKinds};
use super::link::{ClientLink, UploadError};
use super::wire::{self, UpstreamWire};
use super::worker::{HeadRoom, ProxyConfigSnapshot, ProxyWorker, TunnelRoom};
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::units::Time;
use evenkeel_engine::AskOutcome;
use evenkeel_telemetry::counts::{BackendFault, ResponseOrigin};
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
type UpstreamAnswer = (Response<()>, FieldKinds);

/// The attributes of a request that limits can match.
struct HttpRequestAttributes<'a> {
    client: IpAddr,
    head: &'a Parts,
}

impl RequestAttributes for HttpRequestAttributes<'_> {
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
    worker: Rc<ProxyWorker>,
    link: Rc<ClientLink>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    link.begin();
    let site = worker.site();
    let (head, body) = request.into_parts();
    link.upload.begin(!body.is_end_stream());
    worker.watch.proxy.requests.increment(1);
    let (response, maker) = match answered(&worker, &link, &site, head, body).await {
        Ok(response) => (response, ResponseOrigin::Backend),
        Err(response) => {
            // The answer is made by Evenkeel, so it is handed over as a whole.
            link.done(worker.now());
            log_bad_request(&link, response.status());
            (*response, ResponseOrigin::Evenkeel)
        }
    };
    worker.watch.proxy.record_response(response.status().as_u16(), maker);
    let closes = worker.is_draining() || link.is_spent(site.bounds.requests_per_connection);
    link.answered();
    let closes = closes && response.status() != StatusCode::SWITCHING_PROTOCOLS;
    Ok(if closes && !link.end_connection() { answer::last(response) } else { response })
}

/// Returns the backend's answer, or as an error one that Evenkeel made.
async fn answered(
    worker: &Rc<ProxyWorker>,
    link: &Rc<ClientLink>,
    site: &Rc<ProxyConfigSnapshot>,
    mut head: Parts,
    body: Incoming,
) -> Result<Response<AnswerBody>, Box<Response<AnswerBody>>> {
    let Some(_room) = HeadRoom::take(worker, link, &head.headers) else {
        return Err(Box::new(answer::busy(&head.headers)));
    };
    let checked = check(worker, link, site, &mut head, &body);
    let found = checked.map_err(|status| fatal(worker, &head.headers, status))?;
    let trusted = site.trust.trusts_headers(link.peer());
    let forwards = !trusted && headers::forwards(&head.headers, found);
    worker.watch.record_peer(link.peer(), forwards, worker.time());
    let (account, delay) = admitted(worker, link, site, &head).await?;
    if let Some(at) = delay {
        // If the client disconnects in the meantime, this future is dropped and with it the place
        // that the request took.
        Box::pin(tokio::time::sleep_until(worker.clock.instant(at))).await;
    }
    let mut upload = RequestBody::new(body, link, worker, &account, site.bounds.body_bytes);
    let by_turns = !upload.is_nothing() && site.backends.speak_http2();
    let gathered = upload.gather(&head.headers, site.bounds.body_buffer, by_turns).await;
    if gathered.is_err() {
        let fault = link.upload.fault().unwrap_or(UploadError::Broken);
        return Err(fatal(worker, &head.headers, fault.status()));
    }
    link.upload.note_backend_asked();
    let turned = account.turn().await;
    turned.map_err(|refusal| Box::new(answer::refused(&head.headers, &refusal)))?;
    let peer = headers::PeerFacts {
        address: link.peer_value(),
        secure: link.is_secure(),
        trusted,
        own_header: site.trust.header(),
        backend: &site.backends.host,
    };
    let accept = head.headers.get(http::header::ACCEPT).cloned();
    let upgrade = headers::upgrade(&head, found, &site.upgrades).filter(|_| upload.is_nothing());
    link.set_switch_requested(upgrade.is_some());
    headers::forward(&mut head, found, &peer)
        .map_err(|status| fatal(worker, &head.headers, status))?;
    if let Some(protocol) = upgrade {
        headers::ask_upgrade(&mut head.headers, protocol);
    }
    let request = wire::UpstreamRequest { head, peer, body: upload };
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
    Err(failure_answer(worker, link, accept, &failure))
}

/// Makes the answer to a request that has no answer from the backend, and records the failure.
fn failure_answer(
    worker: &ProxyWorker,
    link: &ClientLink,
    accept: Option<HeaderValue>,
    failure: &UpstreamFailure,
) -> Box<Response<AnswerBody>> {
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
fn log_bad_request(link: &ClientLink, status: StatusCode) {
    if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        let (client, status) = (link.client.get(), status.as_u16());
        tracing::debug!(target: "evenkeel::proxy", %client, status, "bad request");
    }
}

/// Makes the answer to a client error, after which the connection is closed.
fn fatal(
    worker: &ProxyWorker,
    headers: &HeaderMap,
    status: StatusCode,
) -> Box<Response<AnswerBody>> {
    worker.watch.proxy.bad_requests.increment(1);
    Box::new(answer::last(answer::fault(headers, status)))
}

fn check(
    worker: &Rc<ProxyWorker>,
    link: &ClientLink,
    site: &ProxyConfigSnapshot,
    head: &mut Parts,
    body: &Incoming,
) -> Result<FieldKinds, StatusCode> {
    if let Some(handshake) = connect::translate(head, &site.upgrades)? {
        let room = TunnelRoom::take(worker, link).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
        link.begin_connect(handshake, room);
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
    worker: &ProxyWorker,
    link: &ClientLink,
    site: &ProxyConfigSnapshot,
    head: &Parts,
) -> Result<(RequestAccount, Option<Time>), Box<Response<AnswerBody>>> {
    let client = site.trust.client(link.peer(), &head.headers);
    link.client.set(client);
    let seen = HttpRequestAttributes { client, head };
    let asked = match &worker.store {
        Some(store) => Box::pin(store.ask(&worker.lane, &seen)).await,
        None => worker.lane.ask(&seen),
    };
    match asked {
        AskOutcome::Refused(refusal) => {
            let mut answer = answer::refused(&head.headers, &refusal);
            if let (true, Some(quota)) = (site.headers, worker.lane.quota_of(&refusal)) {
                headers::quotas(answer.headers_mut(), &[quota]);
            }
            Err(Box::new(answer))
        }
        AskOutcome::Pass(charge) => {
            let until = charge.delay_until();
            let account = RequestAccount::open(charge);
            link.set_account(account.shadow());
            Ok((account, until))
        }
    }
}

/// Why there is no answer from the backend.
pub(super) struct UpstreamFailure {
    pub(super) fault: BackendFault,
    /// The error from the system or the parser, if any.
    pub(super) error: Option<Box<dyn Error>>,
    /// The backend that failed, if one was chosen.
    by: Option<Rc<UpstreamBackend>>,
}

impl UpstreamFailure {
    /// A failure without an underlying error or a backend.
    pub(super) fn new(fault: BackendFault) -> UpstreamFailure {
        UpstreamFailure { fault, error: None, by: None }
    }

    pub(super) fn of(fault: BackendFault, error: impl Error + 'static) -> UpstreamFailure {
        UpstreamFailure { fault, error: Some(Box::new(error)), by: None }
    }

    /// Names the backend that failed.
    pub(super) fn by(self, backend: &Rc<UpstreamBackend>) -> UpstreamFailure {
        UpstreamFailure { by: Some(Rc::clone(backend)), ..self }
    }

    /// Returns the status for the client. It is a client error if the client's body was at fault.
    fn status(&self, link: &ClientLink) -> StatusCode {
        match self.fault {
            BackendFault::ConnectTimeout | BackendFault::AnswerTimeout | BackendFault::Idle => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => link.upload.fault().map_or(StatusCode::BAD_GATEWAY, UploadError::status),
        }
    }
}

impl From<wire::WireError> for UpstreamFailure {
    fn from(fault: wire::WireError) -> UpstreamFailure {
        let kind = if fault.is_syntax() { BackendFault::Protocol } else { BackendFault::Closed };
        UpstreamFailure::of(kind, fault)
    }
}

/// The backend has switched protocols without having read the request.
#[derive(Debug, thiserror::Error)]
#[error("sec-websocket-accept of the answer does not follow from sec-websocket-key")]
struct WebsocketKeyError;

/// Sends a request to a backend and awaits the head of the answer.
///
/// The request is sent again only if no part of an answer has arrived and repeating it does no
/// harm. It goes to the same backend if that backend has not processed it, or if the connection was
/// reused and may have been closed in the meantime. Otherwise, or if that backend is now
/// unreachable, it goes to another one.
async fn ask_backend(
    worker: &Rc<ProxyWorker>,
    link: &Rc<ClientLink>,
    site: &ProxyConfigSnapshot,
    account: &RequestAccount,
    request: wire::UpstreamRequest<'_>,
) -> Result<(UpstreamAnswer, UpstreamWire), UpstreamFailure> {
    let mut tried = TriedBackends::default();
    let (mut wire, mut reused) = first_connection(worker, link, site, &mut tried).await?;
    wire.begin(request, worker);
    for attempt in 1..=ATTEMPTS_MAX {
        let backend = Rc::clone(&wire.far().backend);
        match answer_on(wire, worker, link, account).await {
            Ok(answer) => {
                backend.note_success();
                return Ok(answer);
            }
            Err(NoAnswer::Failed(mut failed, _))
                if attempt < ATTEMPTS_MAX
                    && (reused || failed.is_unprocessed())
                    && failed.may_repeat() =>
            {
                let again = connection_again(worker, link, site, &mut tried, &backend);
                (wire, reused) = Box::pin(again).await?;
                repeat(&mut wire, &mut failed, worker)?;
            }
            Err(NoAnswer::Failed(mut failed, fault))
                if attempt < ATTEMPTS_MAX
                    && failed.may_repeat()
                    && site.backends.has_more(tried) =>
            {
                backend.note_failure(false, worker.now());
                worker.failed(link, &backend.name, &UpstreamFailure::from(fault));
                (wire, reused) = first_connection(worker, link, site, &mut tried).await?;
                repeat(&mut wire, &mut failed, worker)?;
            }
            Err(ended) => {
                if !link.upload.has_failed() {
                    backend.note_failure(false, worker.now());
                }
                return Err(ended.failure(link).by(&backend));
            }
        }
    }
    Err(UpstreamFailure::new(BackendFault::Closed))
}

/// Sends the request of the failed `before` again on `wire`.
fn repeat(
    wire: &mut UpstreamWire,
    before: &mut UpstreamWire,
    worker: &Rc<ProxyWorker>,
) -> Result<(), UpstreamFailure> {
    let begun = wire.repeat(before, worker);
    begun
        .then_some(())
        .ok_or_else(|| UpstreamFailure::new(BackendFault::Closed).by(&wire.far().backend))
}

/// Returns a connection to the backend chosen next, or to the next one that is reachable. Without a
/// connection nothing is sent, so trying the next one does no harm. Also returns whether the
/// connection has been used before.
async fn first_connection(
    worker: &Rc<ProxyWorker>,
    link: &ClientLink,
    site: &ProxyConfigSnapshot,
    tried: &mut TriedBackends,
) -> Result<(UpstreamWire, bool), UpstreamFailure> {
    let mut failed = None;
    while let Some(backend) = site.backends.choose(tried, worker.now(), link.may_switch()) {
        match backends::connection(worker, site, backend, link.may_switch()).await {
            Ok(found) => return Ok(found),
            Err(failure) => {
                failed = Some(unreachable(worker, link, site, *tried, backend, failure))
            }
        }
    }
    Err(failed.unwrap_or(UpstreamFailure::new(BackendFault::Connect)))
}

/// Returns a connection to the backend that was asked before, or to another one if it is
/// unreachable.
async fn connection_again(
    worker: &Rc<ProxyWorker>,
    link: &ClientLink,
    site: &ProxyConfigSnapshot,
    tried: &mut TriedBackends,
    backend: &Rc<UpstreamBackend>,
) -> Result<(UpstreamWire, bool), UpstreamFailure> {
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
    worker: &ProxyWorker,
    link: &ClientLink,
    site: &ProxyConfigSnapshot,
    tried: TriedBackends,
    backend: &Rc<UpstreamBackend>,
    failure: UpstreamFailure,
) -> UpstreamFailure {
    backend.note_failure(true, worker.now());
    if site.backends.has_more(tried) {
        worker.failed(link, &backend.name, &failure);
    }
    failure.by(backend)
}

/// Awaits the head of the answer to the request on `wire`.
async fn answer_on(
    wire: UpstreamWire,
    worker: &Rc<ProxyWorker>,
    link: &Rc<ClientLink>,
    account: &RequestAccount,
) -> Result<(UpstreamAnswer, UpstreamWire), NoAnswer> {
    // When a request is sent again, the client may already have sent all of it.
    if !link.upload.runs() {
        link.head.begin(worker.now());
        account.work();
    } else {
        link.begin_sending(wire.far());
        account.delivery_begins();
    }
    let answered = AnswerWait { wire: Some(wire), worker, link, account }.await;
    if answered.is_err() {
        account.rest();
    }
    answered
}

/// Waits for the head of the answer. If the client disconnects in the meantime, the exchange is
/// handed over to `abort`.
struct AnswerWait<'a> {
    wire: Option<UpstreamWire>,
    worker: &'a Rc<ProxyWorker>,
    link: &'a ClientLink,
    account: &'a RequestAccount,
}

/// Why there is no answer.
enum NoAnswer {
    Late,
    /// An answer that cannot be passed on.
    Unfit,
    Failed(UpstreamWire, wire::WireError),
}

impl NoAnswer {
    fn failure(self, link: &ClientLink) -> UpstreamFailure {
        match self {
            NoAnswer::Late if link.upload.runs() => UpstreamFailure::new(BackendFault::Idle),
            NoAnswer::Late => UpstreamFailure::new(BackendFault::AnswerTimeout),
            NoAnswer::Unfit => UpstreamFailure::new(BackendFault::Protocol),
            NoAnswer::Failed(_, fault) => UpstreamFailure::from(fault),
        }
    }
}

impl Future for AnswerWait<'_> {
    type Output = Result<(UpstreamAnswer, UpstreamWire), NoAnswer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let worker = self.worker;
        let Some(wire) = &mut self.wire else { return Poll::Ready(Err(NoAnswer::Late)) };
        let polled = wire.poll_answer(worker, cx);
        if polled.is_pending() && !self.link.backend_late.get() {
            return Poll::Pending;
        }
        self.link.end_answer_wait();
        Poll::Ready(match (polled, self.wire.take()) {
            // The request did not ask for another protocol.
            (Poll::Ready(Ok((head, _))), Some(_))
                if head.status().is_informational() && !self.link.may_switch() =>
            {
                Err(NoAnswer::Unfit)
            }
            (Poll::Ready(Ok(answer)), Some(wire)) => Ok((answer, wire)),
            (Poll::Ready(Err(fault)), Some(wire)) => Err(NoAnswer::Failed(wire, fault)),
            (_, wire) => {
                wire.iter().for_each(UpstreamWire::retire_if_silent);
                Err(NoAnswer::Late)
            }
        })
    }
}

impl Drop for AnswerWait<'_> {
    fn drop(&mut self) {
        if let Some(wire) = self.wire.take() {
            self.link.end_answer_wait();
            abort::run_on(self.worker, self.account, abort::AbandonedExchange::Head(wire));
        }
    }
}

/// Charges for the answer and holds it until the time that the engine set, before its head goes
/// out.
async fn held(
    worker: &Rc<ProxyWorker>,
    link: &Rc<ClientLink>,
    site: &ProxyConfigSnapshot,
    answer: UpstreamAnswer,
    wire: UpstreamWire,
    account: RequestAccount,
) -> Result<Response<AnswerBody>, UpstreamFailure> {
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
        worker.set_aside(link);
    }
    let mut download = AnswerDownload::new(wire, link, worker, account);
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
    worker: &Rc<ProxyWorker>,
    link: &Rc<ClientLink>,
    (mut head, found): (http::response::Parts, FieldKinds),
    wire: UpstreamWire,
    (account, until): (RequestAccount, Option<Time>),
) -> Result<Response<AnswerBody>, UpstreamFailure> {
    account.leave();
    headers::answer_upgrade(&mut head.headers, found);
    if let Some(handshake) = link.handshake()
        && !handshake.answer(&mut head.status, &mut head.headers)
    {
        return Err(
            UpstreamFailure::of(BackendFault::Protocol, WebsocketKeyError).by(&wire.far().backend)
        );
    }
    if let Some(until) = until {
        Box::pin(tokio::time::sleep_until(worker.clock.instant(until))).await;
    }
    account.settle();
    link.switched(wire);
    Ok(Response::from_parts(head, AnswerBody::Whole(None)))
}
