//! The door for Envoy: the queue and the limits of `proxy`, by external processing, and the limits
//! alone, by external authorization.
//!
//! Envoy opens a gRPC stream for each request and says there what it receives and what the backend
//! answers. It holds the request until it gets an answer, so a request waits in this door for its
//! turn. It keeps its slot until the response has ended, or the stream, for whatever reason.
//!
//! `exchange` is one stream, with `context`; `authz` answers single questions; `head` reads heads,
//! `body` holds the body of a request until the decision on it, `endpoints` chooses its backend,
//! `answer` makes the messages that go back, `wire` and `authz_wire` have their types. How gRPC is
//! served: the crate `grpc`.

mod answer;
mod authz;
mod authz_wire;
mod body;
mod context;
mod endpoints;
mod exchange;
mod head;
mod wire;

use arc_swap::ArcSwap;
use authz_wire::CheckRequest;
use context::{ExchangeSettings, ExchangeThread};
use endpoints::{EndpointMemory, Endpoints};
use evenkeel_config::settings::{ExtAuthzSettings, ExtProcSettings, ProxySettings, Settings};
use evenkeel_engine::{Engine, EngineLane};
use evenkeel_grpc::body::{self as grpc_body, GrpcBody};
use evenkeel_grpc::frames::decode_frame;
use evenkeel_grpc::held_bytes::read_body;
use evenkeel_grpc::worker::{self, GrpcService, GrpcShared};
use evenkeel_serve::handover::ListenSockets;
use evenkeel_serve::service::Service;
use evenkeel_serve::start::ServerStartError;
use evenkeel_serve::threads::{ServerOrders, ServerThreads, core_count};
use evenkeel_store::redis::{RedisStore, StoreLane};
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::ConnectionCounts;
use evenkeel_telemetry::metrics::{BAD_REQUESTS, REQUESTS};
use evenkeel_telemetry::registry::Counter;
use exchange::Exchange;
use hyper::body::Incoming;
use hyper::{Request, Response};
use prost::Message;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::Duration;
use tonic::Status;

const DOOR: &str = "ext_proc";
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
/// The maximum number of streams on a connection. Each request that waits or runs has one.
const STREAMS_MAX: u32 = 16_384;
/// The time limit for the HTTP/2 preface.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The age at which a connection is asked to end. Envoy then opens another one, perhaps to another
/// instance.
const CONNECTION_AGE: Duration = Duration::from_secs(24 * 3_600);
/// The time that a connection then has for its streams.
const CONNECTION_GRACE: Duration = Duration::from_secs(3_600);
/// The interval at which requests that have waited for too long are refused.
const TICK: Duration = Duration::from_millis(50);

/// The open door.
pub struct RunningExtProc {
    /// The addresses that the door answers on.
    pub addresses: Vec<SocketAddr>,
    threads: ServerThreads,
    shared: Arc<GrpcShared<ExtProcService>>,
}

/// Returns the number of connections that the door accepts.
pub fn connections_max(
    ext_proc: Option<&ExtProcSettings>,
    ext_authz: Option<&ExtAuthzSettings>,
) -> usize {
    let (process, check) = (ext_proc.map(|door| door.connections_max), ext_authz);
    process.into_iter().chain(check.map(|door| door.connections_max)).sum()
}

/// Returns the number of engine lanes that the door uses.
#[must_use]
pub fn lanes() -> usize {
    core_count()
}

/// Opens the door for one of the sections or both. `first_lane` is the index of the first of its
/// engine lanes. If there is a store, limits are counted in it. Takes over those of `sockets` that
/// match the settings; the others are bound and recorded there.
///
/// # Errors
/// [`ServerStartError`]; nothing is open then.
pub fn start(
    (ext_proc, ext_authz): (Option<&ExtProcSettings>, Option<&ExtAuthzSettings>),
    proxy: &ProxySettings,
    (engine, first_lane, store): (&Arc<Engine>, usize, Option<Arc<RedisStore>>),
    watch: &Arc<Watch>,
    sockets: &ListenSockets,
) -> Result<RunningExtProc, ServerStartError> {
    let threads = core_count();
    let mut addresses = Vec::new();
    let mut listeners: Vec<Vec<TcpListener>> = (0..threads).map(|_| Vec::new()).collect();
    let all = ext_proc.iter().flat_map(|door| &door.listen);
    for address in all.chain(ext_authz.iter().flat_map(|door| &door.listen)) {
        let bound = sockets.listen_each(*address, threads);
        let (bound, each) = bound.map_err(ServerStartError::listen(DOOR, address))?;
        addresses.push(bound);
        listeners.iter_mut().zip(each).for_each(|(thread, each)| thread.extend(each));
    }
    let registry = watch.registry();
    let memory = EndpointMemory { affinity: Default::default(), watch: Arc::clone(watch) };
    let endpoints = ext_proc.is_some_and(|door| door.endpoint).then(|| Arc::new(memory));
    let service = ExtProcService {
        site: ArcSwap::from_pointee(exchange_settings(proxy, engine, endpoints.as_ref())),
        engine: Arc::clone(engine),
        processes: ext_proc.is_some(),
        authorizes: ext_authz.is_some(),
        endpoints,
        next_lane: AtomicUsize::new(first_lane),
        store,
        pieces: Arc::default(),
        bodies: Arc::default(),
        without_bodies: Arc::new(Once::new()),
        requests: registry.counter(&REQUESTS, &[DOOR]),
        checks: registry.counter(&REQUESTS, &["ext_authz"]),
        bad: registry.counter(&BAD_REQUESTS, &[DOOR]),
    };
    let shared = Arc::new(GrpcShared {
        service,
        door: DOOR,
        connections: ConnectionCounts::new(registry, DOOR),
        bad: registry.counter(&BAD_REQUESTS, &[DOOR]),
        tls: None,
        handshake: HANDSHAKE_TIMEOUT,
        connections_max: connections_max(ext_proc, ext_authz),
        streams_max: STREAMS_MAX,
        age: CONNECTION_AGE,
        grace: CONNECTION_GRACE,
        passed: sockets.passed(),
    });
    let each = listeners.into_iter().enumerate().map(|(index, listeners)| {
        let shared = Arc::clone(&shared);
        let lane = engine.lane(first_lane + index);
        async move |orders: ServerOrders| {
            tokio::task::spawn_local(expire(lane));
            worker::serve(shared, orders, listeners, None).await
        }
    });
    let threads = ServerThreads::each(DOOR, (&watch.beats, engine.clock()), each)?;
    Ok(RunningExtProc { addresses, threads, shared })
}

impl Service for RunningExtProc {
    fn threads(&self) -> &ServerThreads {
        &self.threads
    }

    /// Applies changed settings for client addresses and answers.
    fn reload(&self, settings: &Settings) {
        if let Some(proxy) = &settings.proxy {
            let ExtProcService { engine, endpoints, site, .. } = &self.shared.service;
            site.store(Arc::new(exchange_settings(proxy, engine, endpoints.as_ref())));
        }
    }

    fn connections(&self) -> usize {
        usize::try_from(self.shared.connections.open.get()).unwrap_or(0)
    }

    fn drain(&self, settings: &Settings) {
        let drain = settings.proxy.as_ref().map(|proxy| proxy.timeouts.drain);
        self.threads.drain(drain.unwrap_or_default());
    }
}

/// The settings of streams. `endpoints`: present if backends are named to Envoy.
fn exchange_settings(
    proxy: &ProxySettings,
    engine: &Engine,
    endpoints: Option<&Arc<EndpointMemory>>,
) -> ExchangeSettings {
    let endpoints = endpoints.map(|memory| Endpoints::new(proxy, engine.backends(), memory));
    ExchangeSettings::of(proxy, endpoints.map(Arc::new))
}

/// Refuses requests that have waited for too long, until the thread ends.
async fn expire(lane: EngineLane) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        lane.expire();
    }
}

/// The service that Envoys call.
struct ExtProcService {
    engine: Arc<Engine>,
    /// The sections that there are: external processing, and authorization.
    processes: bool,
    authorizes: bool,
    next_lane: AtomicUsize,
    store: Option<Arc<RedisStore>>,
    pieces: Arc<AtomicUsize>,
    bodies: Arc<AtomicUsize>,
    without_bodies: Arc<Once>,
    site: ArcSwap<ExchangeSettings>,
    /// Present if backends are named to Envoy.
    endpoints: Option<Arc<EndpointMemory>>,
    requests: Counter,
    checks: Counter,
    /// Streams that ended because a message was not valid.
    bad: Counter,
}

impl GrpcService for ExtProcService {
    type ThreadState = Rc<ExchangeThread>;

    fn thread_state(&self) -> Rc<ExchangeThread> {
        Rc::new(ExchangeThread {
            lane: self.engine.lane(self.next_lane.fetch_add(1, Relaxed)),
            clock: self.engine.clock(),
            store: self.store.as_ref().map(StoreLane::open),
            pieces: Arc::clone(&self.pieces),
            bodies: Arc::clone(&self.bodies),
            without_bodies: Arc::clone(&self.without_bodies),
        })
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        thread: &Rc<ExchangeThread>,
        peer: Option<IpAddr>,
    ) -> Response<GrpcBody> {
        let peer = peer.map_or(Ipv4Addr::LOCALHOST.into(), |peer| peer.to_canonical());
        match request.uri().path() {
            PROCESS if self.processes => {
                grpc_body::response(self.process(request.into_body(), thread, peer))
            }
            CHECK if self.authorizes => {
                self.checks.increment(1);
                let answer = self.check(request.into_body(), thread, peer).await;
                answer.map_or_else(|status| grpc_body::failed(&status), grpc_body::response)
            }
            _ => grpc_body::failed(&grpc_body::no_method()),
        }
    }
}

impl ExtProcService {
    fn process(&self, body: Incoming, thread: &Rc<ExchangeThread>, peer: IpAddr) -> GrpcBody {
        self.requests.increment(1);
        let (thread, settings) = (Rc::clone(thread), self.site.load_full());
        Exchange::new(body, peer, thread, settings, self.bad.clone()).into_body()
    }

    async fn check(
        &self,
        body: Incoming,
        thread: &ExchangeThread,
        peer: IpAddr,
    ) -> Result<GrpcBody, Status> {
        let request = read_body(body, &self.pieces).await.and_then(|body| {
            let message = decode_frame(body)?;
            CheckRequest::decode(message).map_err(|fault| {
                Status::invalid_argument(format!("not a question of Envoy: {fault}"))
            })
        });
        let request = request.inspect_err(|_| self.bad.increment(1))?;
        let settings = self.site.load_full();
        Ok(GrpcBody::message(&authz::check(request, peer, thread, &settings).await))
    }
}
