//! Answers the queries of fronts: may this request run, and what did it cost.
//!
//! `GET /check` lets a request pass with 204 and an id, at once or after the wait that the limits
//! require. It refuses with 403 (or the status in `?deny=`), because nginx's `auth_request` accepts
//! no other code. If a front is configured wrongly, its requests are counted as its own and not
//! answered with an error: a configuration error must not cost a client its page. `POST /report`
//! and lines of access logs settle passes. A request under `/authz` is one that Envoy has copied
//! for its external authorization: 200 lets it run, any other answer goes to the client.

use super::ledger::PassLedger;
use super::report::{self, PassId, PassReport, ReportError};
use crate::original::{OriginalRequest, PseudoHeaders};
use crate::permit::permit;
use arc_swap::ArcSwap;
use bytes::Bytes;
use evenkeel_config::settings::{CheckSettings, ProxySettings};
use evenkeel_core::classify::{RequestAttributes, normal_path};
use evenkeel_core::key::KeySeed;
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::{AskOutcome, Charge, EngineLane, RequestRefusal, StartWait};
use evenkeel_identity::address::ProxyTrust;
use evenkeel_identity::answer::{self, AnswerFormat};
use evenkeel_identity::robots::Robots;
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::StoreLane;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::check::{CheckCounts, ReportResult};
use evenkeel_telemetry::registry::Counter;
use evenkeel_telemetry::untrusted_proxy::{ForwardingHeaders, PeerRequest};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Semaphore;

const ID: HeaderName = HeaderName::from_static("x-evenkeel-id");
const STATUS: HeaderName = HeaderName::from_static("x-evenkeel-status");
const LIMIT: HeaderName = HeaderName::from_static("x-evenkeel-limit");
/// What Envoy puts before the path of a request.
const AUTHZ: &str = "/authz";
const NOT_HERE: &str =
    "unknown path; use GET /check, POST /report?id=ID&cost=12ms, or /authz/ with Envoy\n";
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The interval at which queries that wait for a busy backend check whether it is still busy.
const BUSY_CHECK_INTERVAL: Nanos = Nanos::from_millis(50);

type CheckAnswer = Response<Full<Bytes>>;

/// The state that all connections of the door share.
pub struct CheckShared {
    pub counts: CheckCounts,
    lane: EngineLane,
    clock: Clock,
    watch: Arc<Watch>,
    trust: ArcSwap<ProxyTrust>,
    ledger: Mutex<PassLedger>,
    /// Places for queries that are answered late.
    waiting: Semaphore,
    waiting_max: usize,
    within: Nanos,
    /// Whether the front passes on all headers of its clients.
    has_all_headers: bool,
    routes: KeySeed,
    /// A warning has been logged that reports contain only the time of whole requests.
    charges_whole: AtomicBool,
}

impl CheckShared {
    pub fn new(
        settings: &CheckSettings,
        proxy: &ProxySettings,
        lane: EngineLane,
        clock: Clock,
        watch: &Arc<Watch>,
    ) -> CheckShared {
        let within = u64::try_from(settings.report_within.as_nanos()).unwrap_or(u64::MAX);
        CheckShared {
            counts: CheckCounts::new(watch.registry()),
            lane,
            clock,
            watch: Arc::clone(watch),
            trust: ArcSwap::from_pointee(trust(proxy)),
            ledger: Mutex::new(PassLedger::new(settings.open_max)),
            waiting: Semaphore::new(settings.waiting_max),
            waiting_max: settings.waiting_max,
            within: Nanos(within),
            has_all_headers: settings.has_all_headers,
            // A fixed seed: a client that finds two routes with the same hash gains only a wrong
            // estimate.
            routes: KeySeed([0; 16]),
            charges_whole: AtomicBool::new(false),
        }
    }

    /// Applies changed settings for trusted proxies and client addresses.
    pub fn reload(&self, proxy: &ProxySettings) {
        self.trust.store(Arc::new(trust(proxy)));
    }

    /// Returns the number of queries that wait for their answer now.
    pub fn waiting(&self) -> usize {
        self.waiting_max - self.waiting.available_permits()
    }

    /// Answers a front at `peer` that sent this head. If there is a `store`, limits are counted in
    /// it.
    pub async fn answer(
        &self,
        store: Option<&StoreLane>,
        head: &Parts,
        peer: IpAddr,
    ) -> Result<CheckAnswer, Infallible> {
        self.counts.requests.increment(1);
        let query = head.uri.query().unwrap_or_default();
        let reads = head.method == Method::GET || head.method == Method::HEAD;
        let target = head.uri.path_and_query().map(PathAndQuery::as_str);
        let copied = target.and_then(|target| target.strip_prefix(AUTHZ));
        if let Some(target) = copied.filter(|target| target.starts_with('/')) {
            return Ok(self.authorize(store, head, peer, target).await);
        }
        Ok(match head.uri.path() {
            "/check" if reads => {
                self.check(store, head, peer, DenialFormat::read(query, &head.headers)).await
            }
            "/report" if head.method == Method::POST => self.report(query),
            "/check" => not_allowed("GET, HEAD"),
            "/report" => not_allowed("POST"),
            _ => text(StatusCode::NOT_FOUND, NOT_HERE),
        })
    }

    async fn check(
        &self,
        store: Option<&StoreLane>,
        head: &Parts,
        peer: IpAddr,
        denial: DenialFormat,
    ) -> CheckAnswer {
        let client = self.trust.load().client_of_front(peer, &head.headers);
        let mut original = OriginalRequest::read(client, &head.headers, self.has_all_headers);
        let robots = self.robots(head, peer);
        original.signer =
            robots.as_ref().and_then(|robots| robots.signed(&original.signed(), self.clock.now()));
        let path = normal_path(original.path());
        let route = RouteHash::of(&self.routes, original.method(), &path);
        let asked = match store {
            Some(store) => store.ask(&self.lane, &original).await,
            None => self.lane.ask(&original),
        };
        match asked {
            AskOutcome::Refused(refusal) => denial.answer(&refusal),
            AskOutcome::Pass(charge) => self.pass(charge, route, denial).await,
        }
    }

    /// Decides on the request that an Envoy at `peer` has copied: it has the client's method and
    /// host, and `target` is its path. Headers in which other fronts describe a request are the
    /// client's.
    async fn authorize(
        &self,
        store: Option<&StoreLane>,
        head: &Parts,
        peer: IpAddr,
        target: &str,
    ) -> CheckAnswer {
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let pseudo = PseudoHeaders {
            method: head.method.as_str().to_owned(),
            scheme: header(X_FORWARDED_PROTO).unwrap_or_default().to_owned(),
            authority: header(HOST).unwrap_or_default().to_owned(),
            path: target.to_owned(),
        };
        let client = self.trust.load().client_of_envoy(peer, None, &head.headers);
        let whole = self.has_all_headers;
        let mut original =
            OriginalRequest::of_pseudo_headers(client, &pseudo, &head.headers, whole);
        let robots = self.robots(head, peer);
        original.signer =
            robots.as_ref().and_then(|robots| robots.signed(&original.signed(), self.clock.now()));
        let form = AnswerFormat::of(&head.headers);
        match permit(&self.lane, store, &original).await {
            Ok(()) => empty(StatusCode::OK),
            Err(refusal) => DenialFormat { code: DenialStatus::Own, form }.answer(&refusal),
        }
    }

    /// Notes which host asks. Returns the robots with signatures that it may pass on.
    fn robots(&self, head: &Parts, peer: IpAddr) -> Option<Arc<Robots>> {
        let stranger = !peer.is_loopback() && !self.trust.load().trusts(peer);
        let headers = ForwardingHeaders::of(|name| head.headers.contains_key(name));
        let says = match stranger {
            true => PeerRequest::Other(headers),
            false => PeerRequest::Trusted { has_address: !headers.is_empty() },
        };
        self.watch.record_peer(peer, says, self.clock.now());
        // A host that may only ask about itself could use up the nonces of others.
        (!stranger).then(|| self.lane.robots()).flatten()
    }

    /// Lets a request run, after its wait. If the front gives up in the meantime, this future is
    /// dropped, and with it the account, at no cost.
    async fn pass(
        &self,
        mut charge: Charge,
        route: RouteHash,
        denial: DenialFormat,
    ) -> CheckAnswer {
        if let Some(wait) = charge.wait_first() {
            let since = self.clock.now();
            let Ok(_place) = self.waiting.try_acquire() else {
                self.counts.crowded_waiting.increment(1);
                return denial.answer(&charge.crowded_out(wait));
            };
            let _held = self.counts.waiting.hold();
            let mut asking = AbandonGuard { gone: &self.counts.gone, answered: false };
            self.wait(wait).await;
            asking.answered = true;
            charge.mark_waited(self.clock.now().since(since));
        }
        let mut response = empty(StatusCode::NO_CONTENT);
        let Some(secret) = secret() else { return response };
        let id = self.issue(charge, route, secret, self.clock.now());
        if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
            response.headers_mut().insert(ID, value);
        }
        response
    }

    async fn wait(&self, wait: StartWait) {
        if !wait.while_busy {
            return tokio::time::sleep_until(self.clock.instant(wait.until)).await;
        }
        loop {
            let now = self.clock.now();
            if now >= wait.until || self.lane.has_room() {
                return;
            }
            let next = now.plus(BUSY_CHECK_INTERVAL).min(wait.until);
            tokio::time::sleep_until(self.clock.instant(next)).await;
        }
    }

    fn issue(&self, charge: Charge, route: RouteHash, secret: u64, now: Time) -> PassId {
        let mut ledger = self.ledger.lock();
        let (id, crowded) = ledger.issue(charge, route, secret, now);
        self.counts.open.set(i64::try_from(ledger.open()).unwrap_or(i64::MAX));
        drop(ledger);
        self.counts.crowded_open.increment(crowded);
        id
    }

    fn report(&self, query: &str) -> CheckAnswer {
        match self.settle(report::query(query)) {
            ReportResult::Settled => empty(StatusCode::NO_CONTENT),
            ReportResult::Unknown => text(
                StatusCode::NOT_FOUND,
                "unknown pass: already settled, too old, or from another instance\n",
            ),
            ReportResult::Faulty | ReportResult::Unasked => text(
                StatusCode::BAD_REQUEST,
                "a report needs `id`, and `cost` (12ms of CPU) or `time` (0.012 seconds)\n",
            ),
        }
    }

    /// Handles one line of an access log.
    pub fn line(&self, line: &[u8]) {
        let report = report::line(line);
        let result = self.settle(report);
        let whole = report.is_ok_and(|report| report.whole) && result == ReportResult::Settled;
        if whole && !self.charges_whole.swap(true, Relaxed) {
            tracing::warn!(
                "the access log contains only the total time of requests, so a client that reads \
                 a response slowly is charged for that time; log the time of the backend"
            );
        }
    }

    fn settle(&self, report: Result<PassReport, ReportError>) -> ReportResult {
        let result = match report {
            Ok(PassReport { id, told, .. }) => {
                let mut ledger = self.ledger.lock();
                let known = ledger.settle(id, told, self.clock.now());
                self.counts.open.set(i64::try_from(ledger.open()).unwrap_or(i64::MAX));
                if known { ReportResult::Settled } else { ReportResult::Unknown }
            }
            Err(ReportError::NoCost) => ReportResult::Faulty,
            Err(ReportError::NoId) => ReportResult::Unasked,
        };
        self.counts.reports[result as usize].increment(1);
        result
    }

    /// Settles passes without a report in time.
    pub fn sweep(&self) {
        let mut ledger = self.ledger.lock();
        let late = ledger.sweep(self.within, self.clock.now());
        self.counts.open.set(i64::try_from(ledger.open()).unwrap_or(i64::MAX));
        drop(ledger);
        self.counts.unreported.increment(late);
    }
}

/// A query that its front may abandon before the answer.
struct AbandonGuard<'a> {
    gone: &'a Counter,
    answered: bool,
}

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.gone.increment(1);
        }
    }
}

fn trust(proxy: &ProxySettings) -> ProxyTrust {
    ProxyTrust::new(&proxy.trusted_networks(), &proxy.client_address)
}

/// Returns a random number, or `None` if the system has none.
fn secret() -> Option<u64> {
    let mut bytes = [0; 8];
    let count = getrandom(&mut bytes, GetRandomFlags::empty()).ok()?;
    (count == bytes.len()).then(|| u64::from_ne_bytes(bytes))
}

/// How a refusal is answered.
#[derive(Clone, Copy)]
struct DenialFormat {
    code: DenialStatus,
    /// The format that the client accepts: a front that forwards the answer sends the client's
    /// headers.
    form: AnswerFormat,
}

#[derive(Clone, Copy)]
enum DenialStatus {
    /// 403, with the real status in a header: `auth_request` understands nothing else.
    Forbidden,
    /// The same status for all refusals.
    Always(StatusCode),
    /// The real status, for fronts that forward the answer unchanged.
    Own,
}

impl DenialFormat {
    /// Reads `deny=429` or `deny=status`.
    fn read(query: &str, headers: &HeaderMap) -> DenialFormat {
        DenialFormat { code: DenialStatus::read(query), form: AnswerFormat::of(headers) }
    }

    fn answer(self, refusal: &RequestRefusal) -> CheckAnswer {
        let (status, seconds) = (answer::refused(refusal.kind), refusal.retry_after_secs);
        let code = match self.code {
            DenialStatus::Forbidden => StatusCode::FORBIDDEN,
            DenialStatus::Always(code) => code,
            DenialStatus::Own => status,
        };
        let mut response = text(code, self.form.refusal(status, &refusal.limit, seconds));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, self.form.content_type());
        headers.insert(STATUS, HeaderValue::from(status.as_u16()));
        if seconds > 0 {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Ok(limit) = HeaderValue::from_str(&refusal.limit) {
            headers.insert(LIMIT, limit);
        }
        response
    }
}

impl DenialStatus {
    fn read(query: &str) -> DenialStatus {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let Some((_, value)) = pairs.find(|(key, _)| *key == "deny") else {
            return DenialStatus::Forbidden;
        };
        let code = value.parse().ok().and_then(|code: u16| StatusCode::from_u16(code).ok());
        match code.filter(|code| code.is_client_error() || code.is_server_error()) {
            Some(code) => DenialStatus::Always(code),
            None if value == "status" => DenialStatus::Own,
            None => DenialStatus::Forbidden,
        }
    }
}

fn not_allowed(methods: &'static str) -> CheckAnswer {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, NOT_HERE);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

fn empty(status: StatusCode) -> CheckAnswer {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> CheckAnswer {
    let mut response = empty(status);
    *response.body_mut() = Full::new(text.into());
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
