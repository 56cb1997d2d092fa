//! The door for Envoy: the queue and the limits of `proxy`, by external processing, and the limits
//! alone, by external authorization.
//!
//! Envoy opens a gRPC stream for each request and says there what it receives and what the backend
//! answers. It holds the request until it gets an answer, so a request waits in this door for its
//! turn. It keeps its slot until the response has ended, or the stream, for whatever reason.
//!
//! `exchange` is one stream, with `context`; `authz` answers single questions; `view` reads
//! messages and `head` their headers, `body` holds the body of a request until the decision on it,
//! `endpoints` chooses its backend, `answer` makes the messages that go back, `wire` and
//! `authz_wire` have their types. How gRPC is
//! served: the crate `grpc`.

mod answer;
mod authz;
mod authz_wire;
mod body;
mod context;
mod endpoints;
mod exchange;
mod head;
mod view;
pub mod wire;

use arc_swap::ArcSwap;
use authz_wire::CheckRequest;
use context::{ExchangeSettings, ExchangeThread};
use endpoints::{EndpointMemory, Endpoints};
use evenkeel_config::settings::{ExtAuthzSettings, ExtProcSettings, ProxySettings, Settings};
use evenkeel_engine::{Engine, EngineLane};
use evenkeel_grpc::body::{self as grpc_body, GrpcBody};
use evenkeel_grpc::call::CallBody;
use evenkeel_grpc::held_bytes::{ByteBudget, read_message};
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
use hyper::Response;
use hyper::http::request;
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
/// The maximum number of streams on a connection. Each request that waits or runs has one, and
/// Envoy opens more connections for more of them. A peer that changes its settings again and again
/// makes all streams of its connection be visited each time, so there are not too many.
const STREAMS_MAX: u32 = 1_024;
/// The time limit for the HTTP/2 preface.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The age at which a connection is asked to end. Envoy then opens another one, perhaps to another
/// instance.
const CONNECTION_AGE: Duration = Duration::from_secs(24 * 3_600);
/// The time that a connection then has for its streams.
const CONNECTION_GRACE: Duration = Duration::from_secs(3_600);
/// The interval at which requests that have waited for too long are refused.
const TICK: Duration = Duration::from_millis(50);

/// The open doors.
pub struct RunningExtProc {
    /// The addresses that they answer on.
    pub addresses: Vec<SocketAddr>,
    threads: ServerThreads,
    doors: Vec<Arc<GrpcShared<ExtProcService>>>,
}

/// Returns the number of connections that the doors accept together.
pub fn connections_max(
    ext_proc: Option<&ExtProcSettings>,
    ext_authz: Option<&ExtAuthzSettings>,
) -> usize {
    let (process, check) = (ext_proc.map(|door| door.connections_max), ext_authz);
    process.into_iter().chain(check.map(|door| door.connections_max)).sum()
}

/// Returns the number of engine lanes that the doors of these sections use.
#[must_use]
pub fn lanes(ext_proc: Option<&ExtProcSettings>, ext_authz: Option<&ExtAuthzSettings>) -> usize {
    core_count() * (usize::from(ext_proc.is_some()) + usize::from(ext_authz.is_some()))
}

/// One door, before it is open.
struct ClosedDoor<'a> {
    what: EnvoyDoor,
    listen: &'a [SocketAddr],
    connections_max: usize,
}

/// Opens a door for each of the sections. `first_lane` is the index of the first of their engine
/// lanes. If there is a store, limits are counted in it. Takes over those of `sockets` that match
/// the settings; the others are bound and recorded there.
///
/// # Errors
/// [`ServerStartError`]; then no listener is open.
pub fn start(
    (ext_proc, ext_authz): (Option<&ExtProcSettings>, Option<&ExtAuthzSettings>),
    proxy: &ProxySettings,
    (engine, first_lane, store): (&Arc<Engine>, usize, Option<Arc<RedisStore>>),
    watch: &Arc<Watch>,
    sockets: &ListenSockets,
) -> Result<RunningExtProc, ServerStartError> {
    let memory = EndpointMemory { affinity: Default::default(), watch: Arc::clone(watch) };
    let endpoints = ext_proc.is_some_and(|door| door.endpoint).then(|| Arc::new(memory));
    let parts = ServiceParts {
        site: Arc::new(ArcSwap::from_pointee(exchange_settings(proxy, engine, endpoints.as_ref()))),
        engine: Arc::clone(engine),
        endpoints,
        next_lane: Arc::new(AtomicUsize::new(first_lane)),
        store,
        pieces: ByteBudget::default(),
        bodies: ByteBudget::default(),
        without_bodies: Arc::new(Once::new()),
    };
    let process = ext_proc.map(|door| ClosedDoor {
        what: EnvoyDoor::Process,
        listen: &door.listen,
        connections_max: door.connections_max,
    });
    let check = ext_authz.map(|door| ClosedDoor {
        what: EnvoyDoor::Check,
        listen: &door.listen,
        connections_max: door.connections_max,
    });
    let threads = core_count();
    let (mut addresses, mut doors) = (Vec::new(), Vec::new());
    let mut served: Vec<Vec<ServedDoor>> = (0..threads).map(|_| Vec::new()).collect();
    for door in process.into_iter().chain(check) {
        let mut listeners: Vec<Vec<TcpListener>> = (0..threads).map(|_| Vec::new()).collect();
        for address in door.listen {
            let bound = sockets.listen_each(*address, threads);
            let (bound, each) =
                bound.map_err(ServerStartError::listen(door.what.name(), address))?;
            addresses.push(bound);
            listeners.iter_mut().zip(each).for_each(|(thread, each)| thread.extend(each));
        }
        let shared = Arc::new(parts.shared(&door, watch, sockets));
        for (thread, listeners) in served.iter_mut().zip(listeners) {
            thread.push((Arc::clone(&shared), listeners));
        }
        doors.push(shared);
    }
    let each = served.into_iter().enumerate().map(|(index, served)| {
        let lane = engine.lane(first_lane + index);
        async move |orders: ServerOrders| {
            tokio::task::spawn_local(expire(lane));
            let each = served.into_iter();
            let each = each
                .map(|(shared, listeners)| worker::serve(shared, orders.clone(), listeners, None));
            futures_util::future::join_all(each).await.into_iter().sum()
        }
    });
    let threads = ServerThreads::each(DOOR, (&watch.beats, engine.clock()), each)?;
    Ok(RunningExtProc { addresses, threads, doors })
}

/// A door on one thread, with its listeners there.
type ServedDoor = (Arc<GrpcShared<ExtProcService>>, Vec<TcpListener>);

impl Service for RunningExtProc {
    fn threads(&self) -> &ServerThreads {
        &self.threads
    }

    /// Applies changed settings for client addresses and answers.
    fn reload(&self, settings: &Settings) {
        // All doors share them.
        if let Some((proxy, door)) = settings.proxy.as_ref().zip(self.doors.first()) {
            let ServiceParts { engine, endpoints, site, .. } = &door.service.parts;
            site.store(Arc::new(exchange_settings(proxy, engine, endpoints.as_ref())));
        }
    }

    fn connections(&self) -> usize {
        let open = self.doors.iter().map(|door| door.connections.open.get());
        open.map(|open| usize::try_from(open).unwrap_or(0)).sum()
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

/// The purpose of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EnvoyDoor {
    /// External processing.
    Process,
    /// External authorization.
    Check,
}

impl EnvoyDoor {
    fn name(self) -> &'static str {
        match self {
            EnvoyDoor::Process => DOOR,
            EnvoyDoor::Check => "ext_authz",
        }
    }
}

/// The state that the doors share.
#[derive(Clone)]
struct ServiceParts {
    engine: Arc<Engine>,
    next_lane: Arc<AtomicUsize>,
    store: Option<Arc<RedisStore>>,
    pieces: ByteBudget,
    bodies: ByteBudget,
    without_bodies: Arc<Once>,
    site: Arc<ArcSwap<ExchangeSettings>>,
    /// Present if backends are named to Envoy.
    endpoints: Option<Arc<EndpointMemory>>,
}

impl ServiceParts {
    /// The state that the threads of a door share.
    fn shared(
        &self,
        door: &ClosedDoor<'_>,
        watch: &Watch,
        sockets: &ListenSockets,
    ) -> GrpcShared<ExtProcService> {
        let (registry, name) = (watch.registry(), door.what.name());
        let bad = registry.counter(&BAD_REQUESTS, &[name]);
        let service = ExtProcService {
            door: door.what,
            parts: self.clone(),
            requests: registry.counter(&REQUESTS, &[name]),
            bad: bad.clone(),
        };
        GrpcShared {
            service,
            door: name,
            connections: ConnectionCounts::new(registry, name),
            bad,
            tls: None,
            handshake: HANDSHAKE_TIMEOUT,
            connections_max: door.connections_max,
            streams_max: STREAMS_MAX,
            unread: ByteBudget::default(),
            age: CONNECTION_AGE,
            grace: CONNECTION_GRACE,
            passed: sockets.passed(),
        }
    }
}

/// The service that Envoys call at one of the doors.
struct ExtProcService {
    door: EnvoyDoor,
    parts: ServiceParts,
    requests: Counter,
    /// Streams that ended because a message was not valid.
    bad: Counter,
}

impl GrpcService for ExtProcService {
    type ThreadState = Rc<ExchangeThread>;

    fn thread_state(&self) -> Rc<ExchangeThread> {
        let ServiceParts { engine, next_lane, store, pieces, bodies, without_bodies, .. } =
            &self.parts;
        Rc::new(ExchangeThread {
            lane: engine.lane(next_lane.fetch_add(1, Relaxed)),
            clock: engine.clock(),
            store: store.as_ref().map(StoreLane::open),
            pieces: pieces.clone(),
            bodies: bodies.clone(),
            without_bodies: Arc::clone(without_bodies),
        })
    }

    async fn answer(
        &self,
        head: &request::Parts,
        body: CallBody,
        thread: &Rc<ExchangeThread>,
        peer: Option<IpAddr>,
    ) -> Response<GrpcBody> {
        let peer = peer.map_or(Ipv4Addr::LOCALHOST.into(), |peer| peer.to_canonical());
        match head.uri.path() {
            PROCESS if self.door == EnvoyDoor::Process => {
                self.requests.increment(1);
                grpc_body::response(self.process(body, thread, peer))
            }
            CHECK if self.door == EnvoyDoor::Check => {
                self.requests.increment(1);
                // In a box, because each call copies what it may have to keep.
                let answer = Box::pin(self.check(body, thread, peer)).await;
                answer.map_or_else(|status| grpc_body::failed(&status), grpc_body::response)
            }
            _ => grpc_body::failed(&grpc_body::no_method()),
        }
    }
}

impl ExtProcService {
    fn process(&self, body: CallBody, thread: &Rc<ExchangeThread>, peer: IpAddr) -> GrpcBody {
        let (thread, settings) = (Rc::clone(thread), self.parts.site.load_full());
        Exchange::new(body, peer, thread, settings, self.bad.clone()).into_body()
    }

    async fn check(
        &self,
        mut body: CallBody,
        thread: &ExchangeThread,
        peer: IpAddr,
    ) -> Result<GrpcBody, Status> {
        let request = read_message(&mut body, &self.parts.pieces).await.and_then(|message| {
            CheckRequest::decode(message).map_err(|fault| {
                Status::invalid_argument(format!("not a question of Envoy: {fault}"))
            })
        });
        let request = request.inspect_err(|_| self.bad.increment(1))?;
        let settings = self.parts.site.load_full();
        Ok(GrpcBody::message(&authz::check(request, peer, thread, &settings).await))
    }
}
