//! Starts and stops the service: its threads, its listeners and its health status.
//!
//! Listeners are bound before any thread starts, so that a port in use is reported at once. A
//! reload changes only the rules and the settings for answers; every other setting needs a restart.
//! What a gRPC thread does: the crate `grpc`. What the other ports do: `http`.

use super::decide::{RatelimitDecider, ServiceCounters};
use super::grpc::GrpcServices;
use super::grpc::health::ServingState;
use super::http::{HttpPort, PortPurpose, RatelimitHealth};
use super::loader::{RuleLoader, xds};
use super::metrics::rename::MetricRenamer;
use super::metrics::statsd;
use super::quota::QuotaService;
use super::server_tls::{LiveTls, RatelimitTls};
use evenkeel_config::settings::{PrometheusSettings, RatelimitSettings, Settings};
use evenkeel_config::source::mapper;
use evenkeel_core::key::KeySeed;
use evenkeel_core::table::BucketTable;
use evenkeel_engine::windows::Counters;
use evenkeel_grpc::held_bytes::ByteBudget;
use evenkeel_grpc::worker::{self, GrpcShared, TlsSource};
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_serve::handover::{HandoverSignal, ListenSockets};
use evenkeel_serve::service::Service;
use evenkeel_serve::start::ServerStartError;
use evenkeel_serve::threads::{ServerThreads, core_count};
use evenkeel_serve::watchdog;
use evenkeel_store::redis::{RedisStore, StoreLane};
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::ConnectionCounts;
use evenkeel_telemetry::counts::heartbeats::Heartbeats;
use evenkeel_telemetry::metrics::{BAD_REQUESTS, KEYS_DROPPED, KEYS_MAX, KEYS_USED, TABLE_BYTES};
use evenkeel_telemetry::otlp::trace::Tracer;
use evenkeel_telemetry::registry::{Counter, Gauge, Histogram, Registry};
use evenkeel_tls::client;
use evenkeel_tls::reload::LiveValue;
use parking_lot::Mutex;
use rustix::fs::{FileType, stat, unlink};
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval};

const DOOR: &str = "ratelimit";
/// The maximum number of concurrent calls on a connection.
const STREAMS_MAX: u32 = 1_024;

/// A running service. Dropping it stops the service and waits for its threads.
pub struct RunningRatelimit {
    decider: Arc<RatelimitDecider>,
    quotas: Arc<QuotaService>,
    shared: Arc<GrpcShared<GrpcServices>>,
    health: Arc<RatelimitHealth>,
    /// The addresses of the TCP listeners with the ports that the system assigned, those of gRPC
    /// first.
    pub addresses: Vec<SocketAddr>,
    /// Notified when the rules are to be read again.
    reload: Arc<Notify>,
    /// The gRPC threads.
    threads: ServerThreads,
    /// The thread that serves the other ports until the door is dropped.
    _side: OwnedThread<oneshot::Sender<Infallible>>,
}

/// All bound listeners, before they are handed to the threads.
struct RatelimitListeners {
    grpc: Vec<Vec<TcpListener>>,
    unix: Option<UnixListener>,
    ports: Vec<(PortPurpose, TcpListener)>,
    addresses: Vec<SocketAddr>,
}

/// Binds every listener and starts the threads. Takes over those of `sockets` that listen on the
/// configured addresses; the others are bound and recorded there. Keys are hashed with `seed`. Hits
/// are counted in `counters` and, if there is one, in `store`.
///
/// # Errors
/// [`ServerStartError`]; no thread runs then.
pub fn start(
    settings: &RatelimitSettings,
    (counters, store): (Arc<Counters>, Option<Arc<RedisStore>>),
    seed: KeySeed,
    clock: Clock,
    watch: &Watch,
    sockets: &ListenSockets,
) -> Result<RunningRatelimit, ServerStartError> {
    let refused = ServerStartError::settings(DOOR);
    let listeners = RatelimitListeners::bind(settings, core_count(), sockets)?;
    let registry = watch.registry();
    if let Some(tls) = settings.xds.as_ref().and_then(|xds| xds.tls.as_ref()) {
        client::config(tls, &[]).map_err(&refused)?;
    }
    let tls = settings.tls.clone();
    let live = tls.map(|tls| RatelimitTls::load(tls, clock.now(), registry)).transpose();
    let live = live.map_err(&refused)?;
    let decider = decider(settings, (counters, store.clone()), seed, clock, watch);
    let (reporter, state) = watch::channel(ServingState::NotServing);
    let needs_rules = settings.healthy_with_rules;
    let needs_store = store.clone().filter(|_| settings.healthy_with_store);
    let health =
        Arc::new(RatelimitHealth { needs_rules, needs_store, ..RatelimitHealth::default() });
    let quotas = QuotaService::new(settings.rlqs, Arc::clone(&decider), seed, registry);
    let calls = (Arc::clone(&decider), Arc::clone(&quotas));
    let calls = GrpcServices::new(calls.0, calls.1, state, (watch.tracer.clone(), store.clone()));
    let calls = calls.map_err(ServerStartError::settings(DOOR))?;
    let tls = live.as_ref().map(LiveValue::running);
    let shared = Arc::new(grpc_shared(settings, (calls, tls), sockets.passed(), registry));
    let mut loader = RuleLoader::new(settings, Arc::clone(&decider));
    loader.load();
    let mut unix = listeners.unix;
    let each = listeners.grpc.into_iter().map(|listeners| {
        let (unix, shared) = (unix.take(), Arc::clone(&shared));
        |orders| worker::serve(shared, orders, listeners, unix)
    });
    let threads = ServerThreads::each(DOOR, (&watch.beats, clock), each)?;
    let reload = Arc::new(Notify::new());
    let side = SideThread {
        decider: Arc::clone(&decider),
        quotas: Arc::clone(&quotas),
        health: Arc::clone(&health),
        reporter,
        reload: Arc::clone(&reload),
        http_tls: settings.http_tls,
        handshake: settings.handshake_timeout,
        bad: shared.bad.clone(),
        live,
        tracer: watch.tracer.clone(),
        table: TableGauges::new(registry),
        statsd: settings.statsd.clone(),
        store,
        xds: settings.xds.clone().map(|xds| xds::XdsClient::new(xds, loader.intake(), registry)),
        loader,
        passed: shared.passed.clone(),
    };
    let side = side.start(listeners.ports, watch.beats.clone())?;
    let addresses = listeners.addresses;
    Ok(RunningRatelimit {
        decider,
        quotas,
        shared,
        health,
        addresses,
        reload,
        threads,
        _side: side,
    })
}

fn grpc_shared(
    settings: &RatelimitSettings,
    (service, tls): (GrpcServices, Option<LiveTls>),
    passed: HandoverSignal,
    registry: &Registry,
) -> GrpcShared<GrpcServices> {
    let current = |tls: LiveTls| Arc::new(move || Arc::clone(&tls.load().grpc)) as TlsSource;
    GrpcShared {
        service,
        door: DOOR,
        connections: ConnectionCounts::new(registry, DOOR),
        bad: registry.counter(&BAD_REQUESTS, &[DOOR]),
        tls: tls.map(current),
        handshake: settings.handshake_timeout,
        connections_max: settings.connections_max,
        streams_max: STREAMS_MAX,
        unread: ByteBudget::default(),
        passed,
        age: settings.connection_age,
        grace: settings.connection_age_grace,
    }
}

fn decider(
    settings: &RatelimitSettings,
    (counters, store): (Arc<Counters>, Option<Arc<RedisStore>>),
    seed: KeySeed,
    clock: Clock,
    watch: &Watch,
) -> Arc<RatelimitDecider> {
    let mut decider = RatelimitDecider::new(settings.answers.clone(), counters, seed, clock);
    decider.events = ServiceCounters::of(watch);
    let told = settings.statsd.is_some() || settings.prometheus.is_some();
    decider.events.response_time = told.then(Histogram::default);
    Arc::new(decider.with_store(store))
}

impl Service for RunningRatelimit {
    fn threads(&self) -> &ServerThreads {
        &self.threads
    }

    /// Puts the new settings for answers in force and reads the rules again.
    fn reload(&self, settings: &Settings) {
        if let Some(ratelimit) = &settings.ratelimit {
            self.decider.settings.store(Arc::new(ratelimit.answers.clone()));
        }
        self.reload.notify_one();
    }

    /// Reads the rules again; the settings for answers stay.
    fn reload_files(&self) -> bool {
        self.reload.notify_one();
        true
    }

    fn connections(&self) -> usize {
        usize::try_from(self.shared.connections.open.get()).unwrap_or(0)
    }

    /// Reports the service as unhealthy, accepts no more gRPC connections, and lets calls finish.
    fn drain(&self, settings: &Settings) {
        self.health.draining.store(true, Relaxed);
        self.reload.notify_one();
        let drain = settings.ratelimit.as_ref().map(|ratelimit| ratelimit.drain);
        self.threads.drain(drain.unwrap_or_default());
        self.quotas.end_streams();
    }
}

/// Everything that the one thread beside the gRPC threads works with.
struct SideThread {
    decider: Arc<RatelimitDecider>,
    quotas: Arc<QuotaService>,
    health: Arc<RatelimitHealth>,
    reporter: watch::Sender<ServingState>,
    loader: RuleLoader,
    reload: Arc<Notify>,
    /// Whether the JSON port requires TLS.
    http_tls: bool,
    handshake: Duration,
    /// Connections on which TLS failed to start within the time limit.
    bad: Counter,
    /// The certificate, which is reloaded when its files change.
    live: Option<LiveValue<RatelimitTls>>,
    tracer: Option<Tracer>,
    table: TableGauges,
    statsd: Option<evenkeel_config::settings::RatelimitStatsd>,
    store: Option<Arc<RedisStore>>,
    xds: Option<xds::XdsClient>,
    passed: HandoverSignal,
}

/// Metrics about the table that holds the counters.
struct TableGauges {
    max: Gauge,
    used: Gauge,
    bytes: Gauge,
    dropped: Counter,
}

impl TableGauges {
    fn new(registry: &Registry) -> TableGauges {
        let labels = ["ratelimit", "windows"];
        TableGauges {
            max: registry.gauge(&KEYS_MAX, &labels),
            used: registry.gauge(&KEYS_USED, &labels),
            bytes: registry.gauge(&TABLE_BYTES, &labels),
            dropped: registry.counter(&KEYS_DROPPED, &labels),
        }
    }

    fn show(&self, table: &BucketTable) {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.max.set(signed(table.keys_max() as u64));
        self.used.set(signed(table.used()));
        self.bytes.set(signed(table.bytes() as u64));
        self.dropped.increment(table.dropped().saturating_sub(self.dropped.get()));
    }
}

impl SideThread {
    /// Starts the thread. It serves `ports` until its owner is dropped.
    fn start(
        self,
        ports: Vec<(PortPurpose, TcpListener)>,
        beats: Heartbeats,
    ) -> Result<OwnedThread<oneshot::Sender<Infallible>>, ServerStartError> {
        let (stop, stopped) = oneshot::channel();
        let thread = OwnedThread::serve("ratelimit-side", stop, (), async move || {
            spawn_local(watchdog::beat(DOOR, beats, self.decider.clock));
            self.run(ports, stopped).await;
        });
        thread.map_err(|error| ServerStartError::Thread { door: DOOR, error })
    }

    /// Serves `ports` until `stopped` fires or its sender is dropped.
    async fn run(
        mut self,
        ports: Vec<(PortPurpose, TcpListener)>,
        mut stopped: oneshot::Receiver<Infallible>,
    ) {
        let lane = self.store.as_ref().map(StoreLane::open);
        for (site, listener) in ports {
            let lane = lane.clone();
            let (decider, health) = (Arc::clone(&self.decider), Arc::clone(&self.health));
            let protected = self.http_tls && matches!(site, PortPurpose::Json);
            let tls = self.live.as_ref().filter(|_| protected).map(LiveValue::running);
            let (handshake, bad, tracer) = (self.handshake, self.bad.clone(), self.tracer.clone());
            let passed = self.passed.clone();
            let port =
                HttpPort { site, decider, health, tls, handshake, bad, tracer, lane, passed };
            let port = Rc::new(port);
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => _ = tokio::task::spawn_local(port.accept(listener)),
                Err(error) => tracing::error!(%error, "a listener was lost"),
            }
        }
        if let Some(statsd) = self.statsd.take() {
            tokio::spawn(
                statsd::RatelimitStatsdSender::new(statsd, Arc::clone(&self.decider)).run(),
            );
        }
        if let Some(xds) = self.xds.take() {
            tokio::spawn(xds.run());
        }
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let reload = Arc::clone(&self.reload);
        loop {
            self.publish_health();
            tokio::select! {
                _ = &mut stopped => return,
                () = reload.notified() => self.reloaded(),
                _ = seconds.tick() => {
                    self.decider.follow_clock();
                    self.quotas.tick();
                    self.table.show(self.decider.counters.windows.table());
                    self.loader.reload_if_changed();
                    self.live.iter_mut().for_each(|live| live.look(self.decider.clock.now()));
                }
            }
        }
    }

    fn reloaded(&mut self) {
        if !self.health.draining.load(Relaxed) {
            self.loader.reload();
        }
    }

    fn publish_health(&self) {
        let good = self.health.is_good(&self.decider);
        let state = match self.health.draining.load(Relaxed) {
            true => ServingState::Ending,
            false if good => ServingState::Serving,
            false => ServingState::NotServing,
        };
        self.reporter.send_if_modified(|told| std::mem::replace(told, state) != state);
    }
}

impl RatelimitListeners {
    fn bind(
        settings: &RatelimitSettings,
        threads: usize,
        sockets: &ListenSockets,
    ) -> Result<RatelimitListeners, ServerStartError> {
        let mut listeners = RatelimitListeners {
            grpc: (0..threads).map(|_| Vec::new()).collect(),
            unix: None,
            ports: Vec::new(),
            addresses: Vec::new(),
        };
        for address in &settings.grpc {
            let failed = ServerStartError::listen(DOOR, &address);
            let (bound, each) = sockets.listen_each(*address, threads).map_err(&failed)?;
            listeners.addresses.push(bound);
            for (thread, each) in listeners.grpc.iter_mut().zip(each) {
                thread.extend(each);
            }
        }
        if let Some(path) = &settings.grpc_unix {
            let failed = ServerStartError::listen(DOOR, path.display());
            let handed = sockets.take_file(&[path]).map_err(&failed)?;
            let listener = handed.map_or_else(|| bind_unix(path), Ok).map_err(&failed)?;
            sockets.record_open(&listener).map_err(&failed)?;
            listeners.unix = Some(listener);
        }
        let figures = settings.prometheus.as_ref().map(figures).transpose()?;
        let json = settings.http.iter().map(|address| (*address, PortPurpose::Json));
        let debug = settings.debug.iter().map(|address| (*address, PortPurpose::Debug));
        for (address, site) in json.chain(debug).chain(figures) {
            let failed = ServerStartError::listen(DOOR, &address);
            let listener = sockets.listen(address).map_err(&failed)?;
            listeners.addresses.push(listener.local_addr().map_err(&failed)?);
            listeners.ports.push((site, listener));
        }
        Ok(listeners)
    }
}

fn figures(settings: &PrometheusSettings) -> Result<(SocketAddr, PortPurpose), ServerStartError> {
    let renamed = settings.mapper.as_deref().map(mapper::read).transpose()?;
    let renamed = renamed.map(|rules| Arc::new(Mutex::new(MetricRenamer::new(rules))));
    Ok((settings.listen, PortPurpose::Prometheus(settings.path.clone(), renamed)))
}

/// Binds a Unix socket. A socket file that accepts no connection was left by a process that died,
/// and is replaced.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            if !FileType::from_raw_mode(stat(path)?.st_mode).is_socket() {
                return Err(io::Error::other("a file that is not a socket exists there"));
            }
            unlink(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}
