//! One request from its head to its answer: find the client, ask the engine, ask the backend
//! (`exchange/ask.rs`), hold the answer (`exchange/hold.rs`).
//!
//! This file decides nothing about limits; the engine does. Which header fields may pass:
//! `headers.rs`. The bodies: `body.rs` and `download.rs`. A request that its client has abandoned:
//! `abort.rs`.

mod ask;
mod hold;

use super::account::RequestAccount;
use super::answer::{self, FaultForm};
use super::backends::ConnectionNeeds;
use super::body::RequestBody;
use super::connect;
use super::context::ThreadContext;
use super::context::heads::HeadRoom;
use super::context::settings::ThreadSettings;
use super::download::AnswerBody;
use super::failure::{UploadError, UpstreamFailure};
use super::headers::{self, FieldKinds};
use super::link::ClientLink;
use super::redirect;
use super::signed;
use super::visitor::{self, Visitor};
use super::wire::request::UpstreamRequest;
use super::worker::{ProxyConfigSnapshot, ProxyWorker};
use ask::AskContext;
use evenkeel_core::classify::{ModelCall, RequestAttributes};
use evenkeel_core::fact::ClientFact;
use evenkeel_core::units::Time;
use evenkeel_engine::{AskOutcome, Quota, RequestRefusal};
use evenkeel_identity::address::ProxyTrust;
use evenkeel_identity::prints::fetch::{FetchRequest, FetchVerdict};
use evenkeel_models::{self as model, ModelExchange};
use evenkeel_telemetry::counts::ResponseOrigin;
use evenkeel_usage::Dialect;
use hold::{ArrivedAnswer, PendingConnect};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use std::borrow::Cow;
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;

/// The attributes of a request that limits can match.
struct HttpRequestAttributes<'a> {
    client: IpAddr,
    head: &'a Parts,
    /// The robot that has signed the request.
    signer: Option<&'a str>,
    link: &'a ClientLink,
    trust: &'a ProxyTrust,
    /// The exchange with a language model, if it asks one.
    model: Option<&'a ModelExchange>,
    /// The beginning of the body, if it is read before the decision.
    body: &'a [u8],
}

impl HttpRequestAttributes<'_> {
    /// Compares the headers with the browser that the client claims to be.
    fn fetch(&self) -> FetchVerdict {
        let forwarded = || {
            let trusted = self.trust.trusts_headers(self.link.peer.address());
            trusted && self.header("x-forwarded-proto") == Some(b"https")
        };
        let request = FetchRequest {
            method: self.method(),
            secure: self.link.peer.is_secure() || forwarded(),
            repeats_agent: self.headers("user-agent").nth(1).is_some(),
            header: |name| self.header(name),
        };
        request.verdict()
    }
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

    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.head.headers.get_all(name).iter().map(HeaderValue::as_bytes)
    }

    fn query(&self) -> &str {
        self.head.uri.query().unwrap_or_default()
    }

    fn json(&self, pointer: &str) -> Option<Cow<'_, str>> {
        evenkeel_usage::value_at(self.body, pointer).map(Cow::Owned)
    }

    fn model_call(&self) -> Option<ModelCall<'_>> {
        self.model.map(ModelExchange::call)
    }

    fn fact(&self, fact: ClientFact) -> Option<Cow<'_, str>> {
        match fact {
            ClientFact::Bot => self.signer.map(Cow::Borrowed),
            ClientFact::Ja4 | ClientFact::H2 | ClientFact::Rtt => {
                self.link.print(fact).map(Cow::Borrowed)
            }
            ClientFact::Fetch => Some(Cow::Borrowed(self.fetch().as_str())),
            _ => None,
        }
    }
}

pub(super) async fn serve(
    worker: Rc<ProxyWorker>,
    link: Rc<ClientLink>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    link.begin_request();
    let site = worker.site();
    let thread = &worker.thread;
    // The head stays here, because it is too large to be moved from call to call.
    let (mut head, body) = request.into_parts();
    link.upload.begin(!body.is_end_stream());
    thread.watch.proxy.requests.increment(1);
    let (response, maker) = match answered(&worker, &link, &site, &mut head, body).await {
        Ok(response) => (response, ResponseOrigin::Backend),
        Err(response) => {
            // The answer is made by Evenkeel, so it is handed over as a whole.
            link.end_request(thread.now());
            log_bad_request(&link, response.status());
            (*response, ResponseOrigin::Evenkeel)
        }
    };
    thread.watch.proxy.record_response(response.status().as_u16(), maker);
    let bound = site.settings.bounds.requests_per_connection;
    let closes = thread.is_draining() || link.is_spent(bound);
    link.answered.set(true);
    let closes = closes && response.status() != StatusCode::SWITCHING_PROTOCOLS;
    Ok(if closes && !link.end_connection() { answer::last(response) } else { response })
}

/// Returns the backend's answer, or as an error one that Evenkeel made.
async fn answered(
    worker: &Rc<ProxyWorker>,
    link: &Rc<ClientLink>,
    site: &Rc<ProxyConfigSnapshot>,
    head: &mut Parts,
    body: Incoming,
) -> Result<Response<AnswerBody>, Box<Response<AnswerBody>>> {
    let thread = &worker.thread;
    let Some(_room) = HeadRoom::take(thread, link, &head.headers) else {
        return Err(Box::new(answer::busy(&FaultForm::of(&site.settings, head))));
    };
    let checked = check(thread, link, &site.settings, head, &body);
    let form = FaultForm::of(&site.settings, head);
    let (found, connect) = checked.map_err(|status| fatal(thread, &form, status))?;
    let peer = link.peer.address();
    let trusted = site.settings.trust.trusts_headers(peer);
    let says = headers::peer_request(&head.headers, found, (&site.settings.trust, peer));
    thread.watch.record_peer(peer, says, thread.time());
    if let Some(text) = thread.room.shared.challenges.text(head.uri.path()) {
        return Err(Box::new(answer::challenge(text)));
    }
    if let Some(to) = redirect::target(&site.settings, link, trusted, head) {
        return Err(Box::new(answer::moved(to)));
    }
    let account = RequestAccount::new();
    let mut upload =
        RequestBody::new(body, link, thread, &account, site.settings.bounds.body_bytes);
    may_run(worker, link, site, head, (&mut upload, &account)).await?;
    link.upload.note_backend_asked();
    let visitor = turn(thread, link, &site.settings, head, (&account, &upload)).await?;
    if visitor.is_some() {
        visitor::remove_cookie(&mut head.headers);
    }
    let may_repeat = upload.is_nothing() && head.method.is_idempotent();
    let forwarded = forwarded(link, site, (head, found, trusted), upload);
    let request = forwarded.map_err(|status| fatal(thread, &form, status))?;
    let needs = ConnectionNeeds { switches: link.upgrade.may_switch(), may_repeat };
    let asking = AskContext { thread, link, site, account: &account, needs };
    let failure = match asking.ask(request).await {
        Ok((answer, lease)) => {
            let arrived = ArrivedAnswer { answer, lease, account, connect, visitor };
            match hold::held(thread, link, &site.settings, arrived).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            }
        }
        Err(failure) => {
            account.abandon(site.settings.timeouts.abort_linger);
            account.settle();
            failure
        }
    };
    Err(failure_answer(thread, link, &form, &failure))
}

/// Prepares the request that the backend gets. `found` are the kinds of fields in its head;
/// `trusted`: the peer's forwarding fields are believed.
///
/// # Errors
/// The status for a head that cannot be forwarded.
fn forwarded<'a>(
    link: &'a ClientLink,
    site: &'a ProxyConfigSnapshot,
    (head, found, trusted): (&'a mut Parts, FieldKinds, bool),
    upload: RequestBody,
) -> Result<UpstreamRequest<'a>, StatusCode> {
    let peer = headers::PeerFacts {
        address: link.peer_value(),
        secure: link.peer.is_secure(),
        trusted,
        own_header: site.settings.trust.header(),
        backend: &site.backends.host,
    };
    let upgrade = headers::upgrade(head, found, &site.settings.upgrades);
    let upgrade = upgrade.filter(|_| upload.is_nothing());
    link.upgrade.begin(upgrade.is_some());
    headers::forward(head, found, &peer)?;
    if let Some(protocol) = upgrade {
        headers::ask_upgrade(&mut head.headers, protocol);
    }
    Ok(UpstreamRequest { head, peer, body: upload })
}

/// Asks whether the request may run, and waits until then. Buffers its body, before the decision if
/// that depends on it.
async fn may_run(
    worker: &Rc<ProxyWorker>,
    link: &Rc<ClientLink>,
    site: &Rc<ProxyConfigSnapshot>,
    head: &mut Parts,
    (upload, account): (&mut RequestBody, &RequestAccount),
) -> Result<(), Box<Response<AnswerBody>>> {
    let thread = &worker.thread;
    let context = (&**thread, &**link, &**site);
    let settings = &site.settings;
    let decides_by_body = settings.decides_by_body();
    if decides_by_body {
        // The decision needs the size of the prompt, or a key in the body.
        Box::pin(gather(context, head, upload)).await?;
    }
    let model = model(settings, head, upload);
    let asked = (&*head, model.as_deref(), upload.begin());
    let delay = admitted(worker, link, settings, asked, account).await?;
    if let Some(at) = delay {
        // If the client disconnects in the meantime, this future is dropped and with it the place
        // that the request took.
        Box::pin(tokio::time::sleep_until(thread.clock.instant(at))).await;
    }
    if !decides_by_body {
        gather(context, head, upload).await?;
    }
    if let Some(mut model) = model {
        if let Some(body) = model.prepare(&mut head.headers, upload.whole()) {
            upload.replace(body);
        }
        account.set_model(model);
    }
    Ok(())
}

/// The exchange with a language model, if the request asks one and costs are counted in tokens. The
/// body must be buffered.
fn model(
    settings: &ThreadSettings,
    head: &Parts,
    upload: &RequestBody,
) -> Option<Box<ModelExchange>> {
    let weights = settings.tokens.clone().filter(|_| !upload.is_nothing())?;
    let dialect = ModelExchange::dialect(head.method.as_str(), head.uri.path())?;
    let (begin, length) = (upload.begin(), upload.size_hint().exact());
    Some(Box::new(ModelExchange::new(weights, dialect, &head.headers, begin, length)))
}

/// Waits until the body is buffered, unless it is too long for that.
async fn gather(
    (thread, link, site): (&ThreadContext, &ClientLink, &ProxyConfigSnapshot),
    head: &Parts,
    upload: &mut RequestBody,
) -> Result<(), Box<Response<AnswerBody>>> {
    let by_turns = !upload.is_nothing() && site.backends.speak_http2();
    let decides = site.settings.decides_by_body();
    let bound = site.settings.bounds.body_buffer;
    let gathered = upload.gather(&head.headers, bound, (by_turns, decides)).await;
    gathered.map_err(|_| {
        let fault = link.upload.fault().unwrap_or(UploadError::Broken);
        fatal(thread, &FaultForm::of(&site.settings, head), fault.status())
    })
}

/// Waits for a slot. Returns the visitor, if there is a waiting room; as an error the waiting page
/// or a refusal.
async fn turn(
    thread: &ThreadContext,
    link: &ClientLink,
    settings: &ThreadSettings,
    head: &Parts,
    (account, upload): (&RequestAccount, &RequestBody),
) -> Result<Option<Box<Visitor>>, Box<Response<AnswerBody>>> {
    let visitor = Visitor::of(thread, link, settings, head);
    if let Some(visitor) = visitor {
        let accepts_page = visitor.accepts_page && upload.is_nothing();
        account.with(|charge| charge.set_visit(visitor.proof.visit(), accepts_page));
    }
    let turned = account.turn().await;
    let refused = |refusal| Box::new(not_admitted(settings, head, visitor, &refusal));
    // Each open request keeps it until its answer begins.
    turned.map(|()| visitor.map(Box::new)).map_err(refused)
}

/// Makes the answer to a request that gets no turn: the waiting page, or a refusal.
fn not_admitted(
    settings: &ThreadSettings,
    head: &Parts,
    visitor: Option<Visitor>,
    refusal: &RequestRefusal,
) -> Response<AnswerBody> {
    let room = settings.waiting_room.as_ref().map(|room| room.load());
    let page = match (room, visitor, refusal.waiting_room) {
        (Some(room), Some(visitor), Some(entry)) => visitor.page(&room, entry),
        _ => None,
    };
    page.unwrap_or_else(|| refused(settings, head, refusal))
}

/// Makes a refusal, in the form of the API that the request uses.
fn refused(
    settings: &ThreadSettings,
    head: &Parts,
    refusal: &RequestRefusal,
) -> Response<AnswerBody> {
    match settings.tokens.as_ref().and_then(|_| Dialect::of_path(head.uri.path())) {
        Some(dialect) => {
            model::answer::refused(dialect, refusal).map(|body| AnswerBody::Whole(Some(body)))
        }
        None => answer::refused(&settings.pages, &head.headers, refusal),
    }
}

/// Adds the client's quotas to an answer.
fn tell_quotas(
    settings: &ThreadSettings,
    of_model: bool,
    headers: &mut HeaderMap,
    quotas: &[Quota],
) {
    if settings.headers {
        headers::quotas(headers, quotas);
    }
    if of_model {
        model::answer::set_quotas(headers, quotas);
    }
}

/// Makes the answer to a request that has no answer from the backend, and records the failure.
fn failure_answer(
    thread: &ThreadContext,
    link: &ClientLink,
    form: &FaultForm<'_>,
    failure: &UpstreamFailure,
) -> Box<Response<AnswerBody>> {
    let status = failure.status(link.upload.fault());
    if status.is_client_error() {
        return fatal(thread, form, status);
    }
    thread.record_failure(link, failure.backend(), failure);
    Box::new(answer::fault(form, status))
}

/// Logs what a client did wrong. A request over a limit is logged elsewhere, as a decision.
fn log_bad_request(link: &ClientLink, status: StatusCode) {
    if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        let (client, status) = (link.peer.client(), status.as_u16());
        tracing::debug!(target: "evenkeel::proxy", %client, status, "bad request");
    }
}

/// Makes the answer to a client error, after which the connection is closed.
fn fatal(
    thread: &ThreadContext,
    form: &FaultForm<'_>,
    status: StatusCode,
) -> Box<Response<AnswerBody>> {
    thread.watch.proxy.bad_requests.increment(1);
    Box::new(answer::last(answer::fault(form, status)))
}

fn check(
    thread: &ThreadContext,
    link: &ClientLink,
    settings: &ThreadSettings,
    head: &mut Parts,
    body: &Incoming,
) -> Result<(FieldKinds, PendingConnect), StatusCode> {
    let mut pending = None;
    if let Some(handshake) = connect::translate(head, &settings.upgrades)? {
        let room = thread.take_tunnel_room(link).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
        pending = Some(Box::new((handshake, room)));
    }
    let found = headers::normalise(head, link.peer.is_secure())?;
    let bound = settings.bounds.body_bytes;
    if bound > 0 && body.size_hint().lower() > bound {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    Ok((found, pending))
}

/// Asks the engine, and opens the account. Returns the time until which the request has to wait.
async fn admitted(
    worker: &ProxyWorker,
    link: &ClientLink,
    settings: &ThreadSettings,
    (head, model, body): (&Parts, Option<&ModelExchange>, &[u8]),
    account: &RequestAccount,
) -> Result<Option<Time>, Box<Response<AnswerBody>>> {
    if let Some(prints) = link.undecided_prints() {
        Box::pin(prints.decide()).await;
    }
    let client = settings.trust.client(link.peer.address(), &head.headers);
    link.peer.set_client(client);
    let robots = worker.lane.robots();
    let signer = robots.as_ref().and_then(|robots| {
        let trusted = settings.trust.trusts_headers(link.peer.address());
        let signed = signed::signed(head, link.peer.is_secure(), trusted);
        robots.signed(&signed, worker.thread.time())
    });
    let trust = &settings.trust;
    let seen = HttpRequestAttributes { client, head, signer, link, trust, model, body };
    let asked = match &worker.store {
        Some(store) => Box::pin(store.ask(&worker.lane, &seen)).await,
        None => worker.lane.ask(&seen),
    };
    match asked {
        AskOutcome::Refused(refusal) => {
            let mut answer = refused(settings, head, &refusal);
            let quota = worker.lane.quota_of(&refusal);
            tell_quotas(settings, model.is_some(), answer.headers_mut(), quota.as_slice());
            Err(Box::new(answer))
        }
        AskOutcome::Pass(charge) => {
            let until = charge.delay_until();
            account.open(charge);
            *link.account.borrow_mut() = account.shadow();
            Ok(until)
        }
    }
}
