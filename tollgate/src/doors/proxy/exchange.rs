//! One request from its head to its answer: who asks, may it run, the backend's word, the hold.
//!
//! It decides nothing: the engine does. What may pass of a head: `headers.rs`; what becomes of the
//! bodies: `body.rs`; of a request whose client has gone: `abort.rs`.

use super::abort;
use super::account::Account;
use super::answer;
use super::body::{Body, Download, Upload};
use super::headers::{self, Found};
use super::link::Link;
use super::pool::Sender;
use super::repeat::Repeat;
use super::worker::{Site, Worker};
use crate::engine::Asked;
use crate::watch::counts::{BackendFault, Maker};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use std::convert::Infallible;
use std::error::Error;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tollgate_core::classify::Attributes;
use tollgate_core::units::Time;

/// Connections tried for one request before the backend counts as unreachable.
const ATTEMPTS_MAX: u32 = 5;

/// An answer of the backend that is waited for.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Unsent>>>>;

/// A failure that may give the request back.
type Unsent = TrySendError<Request<Upload>>;

/// What the limits can see of a request.
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
        headers::vhost(&self.head.headers)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.head.headers.get(name).map(http::HeaderValue::as_bytes)
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
    link.uploading.set(!body.is_end_stream());
    worker.watch.proxy.requests.increment(1);
    let (response, maker) = match answered(&worker, &link, &site, head, body).await {
        Ok(response) => (response, Maker::Backend),
        Err(response) => {
            // An answer of our own is handed over whole.
            link.done(worker.now());
            tell(&link, response.status());
            (*response, Maker::Tollgate)
        }
    };
    worker.watch.proxy.responded(response.status().as_u16(), maker);
    let bound = site.bounds.requests_per_connection;
    let closes = (bound > 0 && link.requests.get() >= bound) || worker.is_draining();
    Ok(if closes { answer::last(response) } else { response })
}

/// The backend's answer, or one of our own.
async fn answered(
    worker: &Rc<Worker>,
    link: &Rc<Link>,
    site: &Rc<Site>,
    mut head: Parts,
    body: Incoming,
) -> Result<Response<Body>, Box<Response<Body>>> {
    let checked = check(&mut head, &body, site);
    let found = checked.map_err(|status| fatal(worker, &head.headers, status))?;
    let trusted = site.trust.trusts(link.peer);
    let forwards = !trusted && headers::forwards(&head.headers, found);
    worker.watch.seen(link.peer, forwards, worker.time());
    let (account, delay) = admitted(worker, link, site, &head)?;
    if let Some(at) = delay {
        // A client that goes away meanwhile has this future dropped, and with it the place it took.
        Box::pin(tokio::time::sleep_until(worker.clock.instant(at))).await;
    }
    let turned = account.turn().await;
    turned.map_err(|refusal| Box::new(answer::refused(&head.headers, &refusal)))?;
    let peer = headers::Peer {
        address: &link.peer_value,
        trusted,
        own_header: site.trust.header(),
        backend: &site.backend_host,
    };
    let accept = head.headers.get(http::header::ACCEPT).cloned();
    headers::forward(&mut head, found, &peer)
        .map_err(|status| fatal(worker, &head.headers, status))?;
    head.extensions.clear();
    let upload = Upload::new(body, link, worker, &account, site.bounds.body_bytes);
    let request = Request::from_parts(head, upload);
    match ask_backend(worker, link, site, &account, request).await {
        Ok((response, sender)) => Ok(held(worker, link, site, response, sender, account).await),
        Err(failure) => {
            account.settle();
            let status = failure.status(link);
            let mut headers = HeaderMap::new();
            headers.extend(accept.map(|accept| (http::header::ACCEPT, accept)));
            if status.is_client_error() {
                return Err(fatal(worker, &headers, status));
            }
            worker.failed(link, &site.authority, &failure);
            Err(Box::new(answer::fault(&headers, status)))
        }
    }
}

/// Tells what a client did wrong; who is over a limit is told of as a decision.
fn tell(link: &Link, status: StatusCode) {
    if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        let (client, status) = (link.client.get(), status.as_u16());
        tracing::debug!(target: "tollgate::proxy", %client, status, "bad request");
    }
}

/// A fault of the client's, after which the connection is closed.
fn fatal(worker: &Worker, headers: &HeaderMap, status: StatusCode) -> Box<Response<Body>> {
    worker.watch.proxy.bad_requests.increment(1);
    Box::new(answer::last(answer::fault(headers, status)))
}

fn check(head: &mut Parts, body: &Incoming, site: &Site) -> Result<Found, StatusCode> {
    let found = headers::normalise(head)?;
    let bound = site.bounds.body_bytes;
    if bound > 0 && body.size_hint().lower() > bound {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    Ok(found)
}

/// Asks the engine. Returns the account, and until when the request has to wait.
fn admitted(
    worker: &Worker,
    link: &Link,
    site: &Site,
    head: &Parts,
) -> Result<(Account, Option<Time>), Box<Response<Body>>> {
    let client = site.trust.client(link.peer, &head.headers);
    link.client.set(client);
    match worker.lane.ask(&Seen { client, head }) {
        Asked::Refused(refusal) => Err(Box::new(answer::refused(&head.headers, &refusal))),
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
    /// What the system or the parser says.
    pub(super) error: Option<Box<dyn Error>>,
}

impl Failure {
    /// The backend did nothing at all.
    pub(super) fn new(fault: BackendFault) -> Failure {
        Failure { fault, error: None }
    }

    pub(super) fn of(fault: BackendFault, error: impl Error + 'static) -> Failure {
        Failure { fault, error: Some(Box::new(error)) }
    }

    /// What the client is told; its own fault where its body was at fault.
    fn status(&self, link: &Link) -> StatusCode {
        match self.fault {
            BackendFault::ConnectTimeout | BackendFault::AnswerTimeout | BackendFault::Idle => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ if link.upload_too_long.get() => StatusCode::PAYLOAD_TOO_LARGE,
            _ if link.upload_refused.get() => StatusCode::SERVICE_UNAVAILABLE,
            _ if link.upload_late.get() => StatusCode::REQUEST_TIMEOUT,
            _ if link.upload_broken.get() => StatusCode::BAD_REQUEST,
            _ => StatusCode::BAD_GATEWAY,
        }
    }
}

/// Sends a request to the backend and awaits the head of the answer. It is sent once more only if
/// hyper says that it was not sent at all, or if a connection from the pool closed before any byte
/// of an answer and doing it twice does no harm.
async fn ask_backend(
    worker: &Rc<Worker>,
    link: &Rc<Link>,
    site: &Site,
    account: &Account,
    mut request: Request<Upload>,
) -> Result<(Response<Incoming>, Sender), Failure> {
    for _ in 0..ATTEMPTS_MAX {
        let (mut sender, reused) = match worker.pool.take() {
            Some(sender) => (sender, true),
            None => (Box::pin(worker.connect(site)).await?, false),
        };
        let copy = if reused { Repeat::of(&request) } else { None };
        let bodyless = request.body().is_end_stream();
        let answer: Pending = Box::pin(sender.try_send_request(request));
        if bodyless {
            link.head.begin(worker.now());
            account.work();
        } else {
            link.sends(&sender.far);
        }
        let parts = Some((answer, sender));
        let waiting = Waiting { parts, worker, link, account };
        let mut error = match waiting.await {
            Ok((answer, _)) if !headers::passable(&answer) => {
                return Err(Failure::new(BackendFault::Protocol));
            }
            Ok(answered) => return Ok(answered),
            Err(Ended::Late) if link.uploading.get() => {
                return Err(Failure::new(BackendFault::Idle));
            }
            Err(Ended::Late) => return Err(Failure::new(BackendFault::AnswerTimeout)),
            Err(Ended::Failed(error)) => *error,
        };
        account.rest();
        let parse = error.error().is_parse();
        let fault = if parse { BackendFault::Protocol } else { BackendFault::Closed };
        let copy = copy.filter(|_| !parse);
        let again = error.take_message().or(copy.map(Repeat::request));
        request = again.ok_or_else(|| Failure::of(fault, error.into_error()))?;
    }
    Err(Failure::new(BackendFault::Closed))
}

/// Waits for the head of the answer; if the client goes away meanwhile, hands over to `abort`.
struct Waiting<'a> {
    parts: Option<(Pending, Sender)>,
    worker: &'a Rc<Worker>,
    link: &'a Link,
    account: &'a Account,
}

enum Ended {
    Late,
    Failed(Box<Unsent>),
}

impl Future for Waiting<'_> {
    type Output = Result<(Response<Incoming>, Sender), Ended>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((answer, _)) = &mut self.parts else { return Poll::Ready(Err(Ended::Late)) };
        let outcome = match answer.as_mut().poll(cx) {
            Poll::Pending if !self.link.backend_late.get() => return Poll::Pending,
            Poll::Pending => Err(Ended::Late),
            Poll::Ready(Ok(response)) => Ok(response),
            Poll::Ready(Err(error)) => Err(Ended::Failed(Box::new(error))),
        };
        self.link.heard();
        let parts = self.parts.take();
        Poll::Ready(match (outcome, parts) {
            (Ok(response), Some((_, sender))) => Ok((response, sender)),
            (Ok(_), None) => Err(Ended::Late),
            (Err(ended), _) => Err(ended),
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some((answer, sender)) = self.parts.take() {
            self.link.heard();
            abort::run_on(self.worker, self.account, abort::Rest::Head(answer, sender));
        }
    }
}

/// Charges for the answer and holds it as long as the engine says, before its head goes out.
async fn held(
    worker: &Rc<Worker>,
    link: &Rc<Link>,
    site: &Site,
    response: Response<Incoming>,
    sender: Sender,
    account: Account,
) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    let until = account.head(&mut head.headers, site.keep_cost_header);
    if headers::is_event_stream(&head.headers) {
        account.leave();
    }
    let download = Download::new(body, sender, link, worker, account);
    headers::answer(&mut head.headers);
    head.version = Version::HTTP_11;
    head.extensions.clear();
    if let Some(until) = until {
        Box::pin(tokio::time::sleep_until(worker.clock.instant(until))).await;
    }
    Response::from_parts(head, download.release())
}
