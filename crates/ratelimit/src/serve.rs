//! Starts and stops the service: its threads, its listeners and its health status.
//!
//! Listeners are bound before any thread starts, so that a port in use is reported at once. A
//! reload changes only the rules and the settings for answers; every other setting needs a restart.
//! What a gRPC thread does: `grpc::worker`. What the other ports do: `http`.

use super::RatelimitTls;
use super::decide::{RatelimitDecider, ServiceCounters};
use super::grpc::GrpcServices;
use super::grpc::health::ServingState;
use super::grpc::worker::{GrpcPhase, GrpcShared, GrpcWorker};
use super::http::{HttpPort, PortPurpose, RatelimitHealth};
use super::loader::{RuleLoader, xds};
use super::metrics::rename::MetricRenamer;
use super::metrics::statsd;
use super::quota::QuotaService;
use evenkeel_config::fault::ConfigFaults;
use evenkeel_config::settings::{PrometheusSettings, RatelimitSettings};
use evenkeel_config::source::mapper;
use evenkeel_core::key::KeySeed;
use evenkeel_core::table::BucketTable;
use evenkeel_engine::windows::Counters;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::handover::{HandoverSignal, ListenSockets};
use evenkeel_serve::watchdog;
use evenkeel_store::redis::RedisStore;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::heartbeats::Heartbeats;
use evenkeel_telemetry::metrics::{
    ACCEPTED, BAD_REQUESTS, CONNECTIONS, KEYS_DROPPED, KEYS_MAX, KEYS_USED, SHED, TABLE_BYTES,
};
use evenkeel_telemetry::otlp::trace::Tracer;
use evenkeel_telemetry::registry::{Counter, Gauge, Histogram, Registry};
use evenkeel_tls::client;
use evenkeel_tls::pem::TlsFileError;
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
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use tokio::runtime::LocalOptions;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// The number of tasks that a thread polls before it asks the system for I/O events. For the
/// reason, see the constant of this name in `proxy`.
const POLLS_PER_LOOK: u32 = 256;

/// The reason why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum RatelimitStartError {
    /// A listener could not be bound.
    #[error("ratelimit: cannot listen on {address}: {why}")]
    Listen {
        /// The address, or the path of a Unix socket.
        address: String,
        /// The error of the system.
        why: io::Error,
    },
    /// The descriptors for gRPC reflection cannot be read.
    #[error("ratelimit: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// A certificate, a key or another TLS file cannot be used.
    #[error("ratelimit: {0}")]
    Tls(#[from] TlsFileError),
    /// The mapping file for metric names cannot be used.
    #[error(transparent)]
    Mapper(#[from] ConfigFaults),
    /// The system refused a thread or an event queue.
    #[error("ratelimit: cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A running service. Dropping it stops the service and waits for its threads.
pub struct RunningRatelimit {
    decider: Arc<RatelimitDecider>,
    quotas: Arc<QuotaService>,
    shared: Arc<GrpcShared>,
    health: Arc<RatelimitHealth>,
    addresses: Vec<SocketAddr>,
    phase: watch::Sender<GrpcPhase>,
    /// Notified when the rules are to be read again.
    reload: Arc<Notify>,
    /// Closed when the last gRPC thread has ended.
    alive: tokio::sync::Mutex<mpsc::Receiver<Infallible>>,
    stop: watch::Sender<bool>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    cut: Arc<AtomicUsize>,
    beats: Heartbeats,
}

/// All bound listeners, before they are handed to the threads.
struct RatelimitListeners {
    grpc: Vec<Vec<TcpListener>>,
    unix: Option<UnixListener>,
    ports: Vec<(PortPurpose, TcpListener)>,
    addresses: Vec<SocketAddr>,
}

/// Binds every listener and starts the threads. Keys are hashed with `seed`. Hits are counted in
/// `counters` and, if there is one, in `store`.
///
/// # Errors
/// [`RatelimitStartError`]; no thread runs then.
pub fn start(
    settings: &RatelimitSettings,
    (counters, store): (Arc<Counters>, Option<Arc<RedisStore>>),
    seed: KeySeed,
    clock: Clock,
    watch: &Watch,
) -> Result<RunningRatelimit, RatelimitStartError> {
    start_on(settings, (counters, store), seed, clock, watch, &ListenSockets::default())
}

/// Starts the service on those of `sockets` that listen on the configured addresses. It binds the
/// others and adds them to `sockets`.
///
/// # Errors
/// [`RatelimitStartError`]; no thread runs then.
pub fn start_on(
    settings: &RatelimitSettings,
    (counters, store): (Arc<Counters>, Option<Arc<RedisStore>>),
    seed: KeySeed,
    clock: Clock,
    watch: &Watch,
    sockets: &ListenSockets,
) -> Result<RunningRatelimit, RatelimitStartError> {
    let count = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let listeners = RatelimitListeners::bind(settings, count, sockets)?;
    let registry = watch.registry();
    if let Some(tls) = settings.xds.as_ref().and_then(|xds| xds.tls.as_ref()) {
        client::config(tls, &[])?;
    }
    let tls = settings.tls.clone();
    let live = tls.map(|tls| RatelimitTls::load(tls, clock.now(), registry)).transpose()?;
    let mut decider = RatelimitDecider::new(settings.answers.clone(), counters, seed, clock);
    decider.events = ServiceCounters::of(registry);
    let told = settings.statsd.is_some() || settings.prometheus.is_some();
    decider.events.response_time = told.then(Histogram::default);
    let decider = Arc::new(decider.with_store(store.clone()));
    let (reporter, state) = watch::channel(ServingState::NotServing);
    let needs_rules = settings.healthy_with_rules;
    let needs_store = store.clone().filter(|_| settings.healthy_with_store);
    let health =
        Arc::new(RatelimitHealth { needs_rules, needs_store, ..RatelimitHealth::default() });
    let quotas = QuotaService::new(settings.rlqs, Arc::clone(&decider), seed, registry);
    let house = Arc::new(GrpcShared {
        calls: GrpcServices::new(
            Arc::clone(&decider),
            Arc::clone(&quotas),
            state,
            watch.tracer.clone(),
        )?,
        store,
        open: registry.gauge(&CONNECTIONS, &["ratelimit"]),
        accepted: registry.counter(&ACCEPTED, &["ratelimit"]),
        shed: registry.counter(&SHED, &["ratelimit"]),
        bad: registry.counter(&BAD_REQUESTS, &["ratelimit"]),
        tls: live.as_ref().map(LiveValue::running),
        handshake: settings.handshake_timeout,
        connections_max: settings.connections_max,
        passed: sockets.passed(),
        age: settings.connection_age,
        grace: settings.connection_age_grace,
    });
    let (phase, _) = watch::channel(GrpcPhase::Serve);
    let (stop, _) = watch::channel(false);
    let (alive, ended) = mpsc::channel(1);
    let mut loader = RuleLoader::new(settings, Arc::clone(&decider));
    loader.load();
    let running = RunningRatelimit {
        decider,
        quotas,
        shared: house,
        health,
        addresses: listeners.addresses.clone(),
        phase,
        reload: Arc::new(Notify::new()),
        alive: tokio::sync::Mutex::new(ended),
        stop,
        threads: Mutex::default(),
        cut: Arc::default(),
        beats: watch.beats.clone(),
    };
    running
        .launch(listeners, (loader, live), reporter, (settings, watch), &alive)
        .map_err(RatelimitStartError::Thread)?;
    Ok(running)
}

impl RunningRatelimit {
    fn launch(
        &self,
        listeners: RatelimitListeners,
        (loader, live): (RuleLoader, Option<LiveValue<RatelimitTls>>),
        reporter: watch::Sender<ServingState>,
        (settings, watch): (&RatelimitSettings, &Watch),
        alive: &mpsc::Sender<Infallible>,
    ) -> io::Result<()> {
        let mut unix = listeners.unix;
        for (index, listeners) in listeners.grpc.into_iter().enumerate() {
            let (unix, alive) = (unix.take(), alive.clone());
            let seat = GrpcWorkerInit {
                house: Arc::clone(&self.shared),
                phase: self.phase.subscribe(),
                stop: self.stop.subscribe(),
                cut: Arc::clone(&self.cut),
            };
            self.spawn(format!("ratelimit-{index}"), async move || {
                seat.serve(listeners, unix).await;
                drop(alive);
            })?;
        }
        let (xds, registry) = (settings.xds.clone(), watch.registry());
        let xds = xds.map(|xds| xds::XdsClient::new(xds, loader.intake(), registry));
        let side = SideThread {
            decider: Arc::clone(&self.decider),
            quotas: Arc::clone(&self.quotas),
            health: Arc::clone(&self.health),
            reporter,
            loader,
            reload: Arc::clone(&self.reload),
            stop: self.stop.subscribe(),
            http_tls: settings.http_tls,
            handshake: settings.handshake_timeout,
            live,
            tracer: watch.tracer.clone(),
            table: TableGauges::new(registry),
            statsd: settings.statsd.clone(),
            store: self.shared.store.clone(),
            xds,
            passed: self.shared.passed.clone(),
        };
        self.spawn("ratelimit-side".into(), async move || side.run(listeners.ports).await)
    }

    /// Starts a thread with a runtime of its own. All tasks of `work` stay on this thread.
    fn spawn<W>(&self, name: String, work: impl FnOnce() -> W + Send + 'static) -> io::Result<()>
    where
        W: Future<Output = ()>,
    {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().event_interval(POLLS_PER_LOOK);
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let (beats, clock) = (self.beats.clone(), self.decider.clock);
        let body = move || match builder.build_local(LocalOptions::default()) {
            Ok(runtime) => {
                let _ = ready.send(Ok(()));
                runtime.block_on(async {
                    tokio::task::spawn_local(watchdog::beat("ratelimit", beats, clock));
                    work().await;
                });
                runtime.shutdown_background();
            }
            Err(error) => _ = ready.send(Err(error)),
        };
        let handle = thread::Builder::new().name(name).spawn(body)?;
        is_ready
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread ended immediately")))?;
        self.threads.lock().push(handle);
        Ok(())
    }

    /// The addresses of the TCP listeners with the ports that the system assigned, those of gRPC
    /// first.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The number of open gRPC connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        usize::try_from(self.shared.open.get()).unwrap_or(0)
    }

    /// The number of connections that were still open when their thread ended.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.cut.load(Relaxed)
    }

    /// Puts the new settings for answers in force and reads the rules again.
    pub fn reload(&self, settings: &RatelimitSettings) {
        self.decider.settings.store(Arc::new(settings.answers.clone()));
        self.reload.notify_one();
    }

    /// Reads the rules again; the settings for answers stay.
    pub fn reload_rules(&self) {
        self.reload.notify_one();
    }

    /// Reports the service as unhealthy, accepts no more gRPC connections, and lets calls finish
    /// within `timeout`.
    pub fn drain(&self, timeout: Duration) {
        self.health.draining.store(true, Relaxed);
        self.reload.notify_one();
        self.phase.send_replace(GrpcPhase::Drain(timeout));
        self.quotas.end_streams();
    }

    /// Closes all connections and listeners without waiting for calls.
    pub fn stop_now(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until all gRPC threads have ended, after [`RunningRatelimit::drain`] or
    /// [`RunningRatelimit::stop_now`].
    pub async fn wait_ended(&self) {
        // No message is ever sent; the call returns when the last sender is dropped.
        let _ = self.alive.lock().await.recv().await;
    }
}

impl Drop for RunningRatelimit {
    fn drop(&mut self) {
        self.stop_now();
        for thread in self.threads.lock().drain(..) {
            // The panic of a thread has already been printed on standard error.
            let _ = thread.join();
        }
    }
}

/// Everything that a gRPC thread gets at its start.
struct GrpcWorkerInit {
    house: Arc<GrpcShared>,
    phase: watch::Receiver<GrpcPhase>,
    stop: watch::Receiver<bool>,
    cut: Arc<AtomicUsize>,
}

impl GrpcWorkerInit {
    async fn serve(mut self, listeners: Vec<TcpListener>, unix: Option<UnixListener>) {
        let (worker, mut accepting) = (GrpcWorker::new(self.house, self.phase), JoinSet::new());
        for listener in listeners {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => _ = accepting.spawn_local(Rc::clone(&worker).accept(listener)),
                Err(error) => tracing::error!(%error, "a listener was lost"),
            }
        }
        match unix.map(tokio::net::UnixListener::from_std) {
            None => {}
            Some(Ok(listener)) => {
                accepting.spawn_local(Rc::clone(&worker).accept_unix(listener));
            }
            Some(Err(error)) => tracing::error!(%error, "a listener was lost"),
        }
        let drained = async {
            while accepting.join_next().await.is_some() {}
            worker.wait_drained().await;
        };
        tokio::select! {
            () = drained => {}
            // An error means that the sender, and with it the service, was dropped.
            _ = self.stop.wait_for(|stop| *stop) => {}
        }
        self.cut.fetch_add(worker.open(), Relaxed);
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
    stop: watch::Receiver<bool>,
    /// Whether the JSON port requires TLS.
    http_tls: bool,
    handshake: Duration,
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
    async fn run(mut self, ports: Vec<(PortPurpose, TcpListener)>) {
        let lane = self.store.as_ref().map(RedisStore::lane);
        for (site, listener) in ports {
            let lane = lane.clone();
            let (decider, health) = (Arc::clone(&self.decider), Arc::clone(&self.health));
            let protected = self.http_tls && matches!(site, PortPurpose::Json);
            let tls = self.live.as_ref().filter(|_| protected).map(LiveValue::running);
            let (handshake, tracer) = (self.handshake, self.tracer.clone());
            let passed = self.passed.clone();
            let port = HttpPort { site, decider, health, tls, handshake, tracer, lane, passed };
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
        let (mut stop, reload) = (self.stop.clone(), Arc::clone(&self.reload));
        loop {
            self.publish_health();
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = reload.notified() => self.reloaded(),
                _ = seconds.tick() => {
                    self.decider.follow_clock();
                    self.quotas.tick();
                    self.table.show(self.decider.counters.windows().table());
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
    ) -> Result<RatelimitListeners, RatelimitStartError> {
        let mut listeners = RatelimitListeners {
            grpc: (0..threads).map(|_| Vec::new()).collect(),
            unix: None,
            ports: Vec::new(),
            addresses: Vec::new(),
        };
        for address in &settings.grpc {
            let failed = |why| RatelimitStartError::Listen { address: address.to_string(), why };
            let each = sockets.listen_each(*address, threads).map_err(failed)?;
            let first = each.iter().flatten().next().map(TcpListener::local_addr);
            let first = first.transpose().map_err(failed)?;
            listeners.addresses.push(first.unwrap_or(*address));
            for (thread, each) in listeners.grpc.iter_mut().zip(each) {
                thread.extend(each);
            }
        }
        if let Some(path) = &settings.grpc_unix {
            let failed =
                |why| RatelimitStartError::Listen { address: path.display().to_string(), why };
            let handed = sockets.take_file(&[path]).map_err(failed)?;
            let listener = handed.map_or_else(|| bind_unix(path), Ok).map_err(failed)?;
            sockets.record_open(&listener).map_err(failed)?;
            listeners.unix = Some(listener);
        }
        let figures = settings.prometheus.as_ref().map(figures).transpose()?;
        let json = settings.http.iter().map(|address| (*address, PortPurpose::Json));
        let debug = settings.debug.iter().map(|address| (*address, PortPurpose::Debug));
        for (address, site) in json.chain(debug).chain(figures) {
            let failed = |why| RatelimitStartError::Listen { address: address.to_string(), why };
            let listener = sockets.listen(address).map_err(failed)?;
            listeners.addresses.push(listener.local_addr().map_err(failed)?);
            listeners.ports.push((site, listener));
        }
        Ok(listeners)
    }
}

fn figures(
    settings: &PrometheusSettings,
) -> Result<(SocketAddr, PortPurpose), RatelimitStartError> {
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
