//! The running process: opens the doors of a configuration, handles signals and detects changes of
//! the file.
//!
//! This is the only module that spawns top-level tasks. Every external input is one event, and each
//! event is handled without waiting, so a reload is either complete or refused. Doors serve on
//! their own threads; this thread has the signals and the admin door.

mod cgroup;
mod doors;
mod engine_pages;
mod fetch;
pub(crate) mod files;
mod memory;
mod networks;
mod processors;
mod replace;
mod robots;
pub(crate) mod trial;

use crate::admin::{self, SetupFacts};
use anyhow::Context;
use arc_swap::ArcSwap;
use doors::{EngineSet, OpenDoors};
use evenkeel_config::fault::{ConfigFault, ConfigFaults, TextPlace};
use evenkeel_config::host::{HostFacts, ProgramFile};
use evenkeel_config::machine::Machine;
use evenkeel_config::settings::otlp::TracesSettings;
use evenkeel_config::settings::{MetricsSettings, Settings};
use evenkeel_config::source::{ConfigChange, ConfigSource};
use evenkeel_config::{Config, NO_DOOR, cpus};
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::SECOND;
use evenkeel_engine::replicated::Replicated;
use evenkeel_export::otlp::spans::{self, SpanExporter};
use evenkeel_export::push;
use evenkeel_peers::driver;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::handover::ListenSockets;
use evenkeel_serve::handover::successor::{self, ProcessOrigin, Successor};
use evenkeel_serve::watchdog::Watchdog;
use evenkeel_store::snapshot;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::config_loads::ConfigLoads;
use evenkeel_telemetry::log;
use evenkeel_telemetry::otlp::trace::Tracer;
use std::io;
use std::iter;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Runs until a signal ends the process. Changes of `source` are applied.
///
/// # Errors
/// If a door cannot be opened, or if the system provides no thread, signals or random numbers.
pub fn serve(config: &Config, source: Option<ConfigSource>) -> anyhow::Result<()> {
    // This must happen first, while there is no other thread.
    let (sockets, herald) = ListenSockets::from_environment();
    let sockets = sockets.only(config.settings.openings());
    let origin = ProcessOrigin::of_process();
    let log = log::install(config.settings.log)?;
    files::raise_open_files(&config.settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut events = EventSources::new()?;
        let program = RunningProcess::start(config, source, log, sockets)?;
        log_notes(&config.settings);
        replace::report_ready(&program.sockets, herald.as_ref());
        program.run(&mut events, origin).await;
        Ok(())
    })
}

/// An event that the main loop handles.
enum ProcessEvent {
    /// SIGTERM or SIGINT: stop.
    Stop,
    /// SIGHUP: reload the file.
    Reload,
    /// SIGUSR2: start a successor.
    Replace,
    /// The successor has opened its doors, or has failed.
    Replaced(Result<(), successor::SuccessorError>),
    Second,
}

struct EventSources {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user2: Signal,
    seconds: Interval,
}

impl EventSources {
    fn new() -> anyhow::Result<EventSources> {
        let listen = |kind| signal(kind).context("signal handlers cannot be installed");
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(EventSources {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
            user2: listen(SignalKind::user_defined2())?,
            seconds,
        })
    }

    async fn next(&mut self) -> ProcessEvent {
        tokio::select! {
            _ = self.terminate.recv() => ProcessEvent::Stop,
            _ = self.interrupt.recv() => ProcessEvent::Stop,
            _ = self.hangup.recv() => ProcessEvent::Reload,
            _ = self.user2.recv() => ProcessEvent::Replace,
            _ = self.seconds.tick() => ProcessEvent::Second,
        }
    }
}

struct RunningProcess {
    config: Config,
    /// The native form of the configuration, for the admin door.
    native: Arc<ArcSwap<String>>,
    source: Option<ConfigSource>,
    log: log::LogThread,
    clock: Clock,
    /// Number of lost log lines at the last report.
    lost: usize,
    /// Deviation of the wall clock at the last report, in nanoseconds.
    step: i64,
    watch: Arc<Watch>,
    doors: OpenDoors,
    admin: Option<admin::RunningAdmin>,
    /// The engines that metrics are read from.
    shown: Vec<admin::DoorEngine>,
    push: Option<push::PushThread>,
    /// Sends spans; dropping it sends the last ones.
    traces: Option<spans::SpanExporterThread>,
    /// Writes snapshots; dropping it writes the last one.
    state: Option<snapshot::SnapshotThread>,
    kept: (KeySeed, snapshot::SnapshotTables),
    /// Sockets that a successor can take over.
    sockets: ListenSockets,
    /// The process that is about to replace this one.
    successor: Option<Successor>,
    /// Counts together with other instances until it is dropped.
    peers: Option<driver::PeersThread>,
    watchdog: Watchdog,
}

/// Lets the engines note their charges if peers count together. Returns what peers exchange.
fn start_sharing(settings: &Settings, engines: &[Arc<dyn Replicated>]) -> driver::PeerExchange {
    if settings.store.is_some() {
        return driver::PeerExchange::ExceptCharges;
    }
    if settings.peers.is_some() {
        engines.iter().for_each(|engine| engine.start_sharing());
    }
    // No request has been served yet.
    let is_restored = engines.iter().any(|engine| !engine.short(1).is_empty());
    driver::PeerExchange::All { is_restored }
}

impl RunningProcess {
    fn start(
        config: &Config,
        source: Option<ConfigSource>,
        log: log::LogThread,
        sockets: ListenSockets,
    ) -> anyhow::Result<RunningProcess> {
        let settings = &config.settings;
        anyhow::ensure!(!settings.doors().is_empty(), NO_DOOR);
        let clock = Clock::start();
        let mut watch = Watch::new(clock.now());
        let exporter = settings.traces.as_ref().map(|traces| trace(&mut watch, traces));
        let watch = Arc::new(watch);
        let engines = EngineSet::new(settings, clock, &watch)?;
        let native = Arc::new(ArcSwap::from_pointee(config.native.clone()));
        let sources = || {
            let native = Arc::clone(&native);
            let show = Box::new(move || native.load().as_ref().clone());
            let setup = setup_facts(source.as_ref(), settings);
            let (watch, engines) = (Arc::clone(&watch), engines.shown());
            admin::AdminSources { watch, clock, engines, show, setup }
        };
        let admin = settings.admin.as_ref().map(|admin| admin::start(admin, sources(), &sockets));
        let admin = admin.transpose()?;
        let addresses = admin.as_ref().map_or(&[][..], |admin| &admin.addresses);
        let (seed, kept, shown) = (engines.seed, engines.accounts(), engines.shown());
        let together = engines.together();
        // Before the doors open, so that the peers learn of the first charge too.
        let exchange = start_sharing(settings, &together);
        let doors = OpenDoors::open(settings, engines, &watch, addresses, &sockets)?;
        let peers = settings.peers.as_ref().map(|peers| {
            let listener = replace::mesh_listener(peers, &sockets)?;
            driver::start(peers, exchange, together, listener, clock, &watch)
        });
        let peers = peers.transpose()?;
        // Only now, because a process that cannot open its doors must not touch the snapshot of
        // another one.
        let state = snapshot::start(&settings.state, seed, kept.clone(), &watch, clock);
        watch.set_held_above(settings.metrics.held_above);
        let push = push::start(&settings.metrics, &watch, clock, look(&watch, &shown));
        let traces = exporter
            .map(SpanExporter::start)
            .transpose()
            .context("cannot start a thread for traces")?;
        admin.iter().for_each(admin::RunningAdmin::ready);
        warn(config);
        Ok(RunningProcess {
            config: config.clone(),
            native,
            source,
            log,
            lost: 0,
            clock,
            step: 0,
            watch,
            doors,
            admin,
            state: state.context("cannot start a thread for snapshots")?,
            kept: (seed, kept),
            sockets,
            successor: None,
            shown,
            peers,
            push: push.context("cannot start a thread for metrics")?,
            traces,
            watchdog: Watchdog::from_environment(),
        })
    }

    /// Handles events until one of them stops the process, or a successor has taken over.
    async fn run(mut self, events: &mut EventSources, origin: io::Result<ProcessOrigin>) {
        loop {
            match self.next(events).await {
                ProcessEvent::Stop => break,
                ProcessEvent::Reload => self.reload(),
                ProcessEvent::Replace => self.replace(&origin),
                ProcessEvent::Replaced(Ok(())) => {
                    self.replaced();
                    break;
                }
                ProcessEvent::Replaced(Err(why)) => self.not_replaced(&why),
                ProcessEvent::Second => self.second(),
            }
        }
        self.end(events).await;
    }

    async fn next(&mut self, events: &mut EventSources) -> ProcessEvent {
        let Some(successor) = &mut self.successor else { return events.next().await };
        tokio::select! {
            event = events.next() => event,
            ready = successor.ready() => ProcessEvent::Replaced(ready),
        }
    }

    /// Drains the doors, unless a second signal asks to stop at once.
    async fn end(&mut self, events: &mut EventSources) {
        replace::report_stopping(self.successor.is_some());
        if self.successor.is_some() && self.config.settings.doors() != ["proxy"] {
            tokio::time::sleep(replace::LAST_QUESTION_TIME).await;
        }
        // From now on clients are refused, or accepted by the successor.
        self.sockets.release();
        let drain = self.config.settings.drain();
        tracing::info!(connections = self.doors.connections(), ?drain, "stopping: draining");
        self.admin.iter().for_each(admin::RunningAdmin::draining);
        self.doors.drain(&self.config.settings);
        let again = self.stopped_again(events);
        tokio::select! {
            () = self.doors.ended() => match self.doors.cut() {
                0 => tracing::info!("stopped"),
                cut => tracing::warn!("stopped; {cut} connections were cut off"),
            },
            () = again => {
                self.doors.stop_now();
                self.doors.ended().await;
                let cut = self.doors.cut();
                tracing::warn!(
                    "stopped immediately after a second signal; {cut} connections were cut off"
                );
            }
        }
        drop(self.peers.take());
        drop(self.state.take());
        drop(self.traces.take());
    }

    /// Waits until a signal asks again to stop.
    async fn stopped_again(&self, events: &mut EventSources) {
        loop {
            match events.next().await {
                ProcessEvent::Stop => return,
                ProcessEvent::Second => self.watchdog.tell(&self.watch, self.clock),
                _ => {}
            }
        }
    }

    /// Reads the file again on request.
    fn reload(&mut self) {
        let Some(source) = &mut self.source else {
            if !self.doors.reload_files() {
                tracing::warn!(
                    "there is no configuration file to reload: the settings from the command line \
                     stay in force"
                );
            }
            return;
        };
        match source.load(Machine::here()) {
            Ok(config) => self.apply(&config),
            Err(faults) => self.refuse(&faults),
        }
    }

    /// Work that is done once a second.
    fn second(&mut self) {
        self.watchdog.tell(&self.watch, self.clock);
        memory::give_back();
        self.watch.tick(self.clock.now());
        self.tell_step();
        self.tell_lost();
        self.doors.look(self.clock.now());
        match self.source.as_mut().map(|source| source.look(Machine::here())) {
            None | Some(ConfigChange::None) => {}
            Some(ConfigChange::Good(config)) => self.apply(&config),
            Some(ConfigChange::Faulty(faults)) => self.refuse(&faults),
        }
    }

    fn apply(&mut self, config: &Config) {
        let (new, old) = (config.settings.doors(), self.config.settings.doors());
        if new != old {
            let (new, old) = (new.join(", "), old.join(", "));
            tracing::error!(
                new,
                old,
                "configuration refused: adding or removing a listener requires a restart; the \
                 current one stays in force"
            );
            let fault = "adding or removing a listener requires a restart";
            let meanwhile = ConfigLoads::PREVIOUS_IN_FORCE;
            self.watch.reloads.refuse(fault, 1, meanwhile, self.clock.now());
            return;
        }
        let mut found = evenkeel_identity::refusal_pages::start_problems(&config.settings);
        let robots =
            |settings: &Settings| settings.proxy.as_ref().map(|proxy| proxy.robots.clone());
        if robots(&config.settings) != robots(&self.config.settings) {
            let now = self.clock.now();
            found = found.and(evenkeel_identity::robots::start_problems(&config.settings, now));
        }
        if !found.faults.is_empty() || !found.files.is_empty() {
            return self.refuse(&self.at_the_top(found.fault_texts()));
        }
        match config.reloaded(&self.config) {
            Ok((config, kept)) => match self.doors.reload_networks(&config.settings) {
                Ok(()) => self.take_over(config, &kept),
                Err(error) => self.refuse(&self.at_the_top(iter::once(error.to_string()))),
            },
            Err(faults) => self.refuse(&faults),
        }
    }

    fn take_over(&mut self, config: Config, kept: &[String]) {
        if !kept.is_empty() {
            let keys = kept.join(", ");
            tracing::warn!(keys, "changes of these keys take effect only after a restart");
        }
        self.log.reload(config.settings.log);
        self.push_to(&config.settings.metrics);
        self.doors.reload(&config.settings);
        self.watch.record_reload(kept, self.clock.now());
        self.native.store(Arc::new(config.native.clone()));
        let limits = config.settings.limits();
        tracing::info!(limits, "configuration reloaded");
        warn(&config);
        self.config = config;
    }

    /// Restarts the push of metrics if its settings have changed. Otherwise it continues
    /// undisturbed.
    fn push_to(&mut self, metrics: &MetricsSettings) {
        self.watch.set_held_above(metrics.held_above);
        if *metrics == self.config.settings.metrics {
            return;
        }
        let look = look(&self.watch, &self.shown);
        self.push = push::start(metrics, &self.watch, self.clock, look).unwrap_or_else(|error| {
            tracing::error!(%error, "cannot start a thread for metrics: no metrics are sent");
            None
        });
    }

    /// Faults of the configuration without a place in it.
    fn at_the_top(&self, faults: impl Iterator<Item = String>) -> ConfigFaults {
        let path = self.source.as_ref().map(|source| source.path().display().to_string());
        let faults = faults.map(|what| ConfigFault::new(TextPlace::default(), what));
        ConfigFaults::new(&path.unwrap_or_default(), faults.collect())
    }

    fn refuse(&self, faults: &ConfigFaults) {
        let count = faults.faults.len();
        let text = faults.to_string();
        let first = text.lines().next().unwrap_or_default();
        let meanwhile = ConfigLoads::PREVIOUS_IN_FORCE;
        self.watch.reloads.refuse(first, count, meanwhile, self.clock.now());
        tracing::error!(faults = count, "configuration refused; the current one stays in force");
        text.lines().for_each(|fault| tracing::error!("{fault}"));
    }

    /// Reports lost log lines as soon as the log can be written again.
    fn tell_lost(&mut self) {
        let lost = self.log.lost();
        if lost > self.lost {
            let lines = lost - self.lost;
            tracing::warn!(lines, "log lines were lost: the reader of standard error is too slow");
            self.lost = lost;
        }
    }

    /// Reports changes of the wall clock. They do not affect buckets, but times in logs.
    fn tell_step(&mut self) {
        let step = self.clock.step();
        if (step - self.step).unsigned_abs() > SECOND {
            let seconds = (step - self.step) as f64 / SECOND as f64;
            tracing::warn!(seconds, "the system clock was changed; counts are not affected");
            self.step = step;
        }
    }
}

/// Facts that do not change while the process runs.
fn setup_facts(source: Option<&ConfigSource>, settings: &Settings) -> SetupFacts {
    // Commands may be started in another folder.
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    SetupFacts {
        config_file: source.map(|source| absolute(source.path())),
        listen_overflows: HostFacts::read().listen_overflows,
        program: ProgramFile::of_process(),
        state_file: settings.state.file.clone(),
    }
}

/// Logs the warnings of a configuration, and facts that rules name in vain.
fn warn(config: &Config) {
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    for (way, what) in evenkeel_config::unknown_facts(&config.settings) {
        tracing::warn!("{}: {what}", way.join("."));
    }
}

/// Logs the notes that a check of the configuration prints as well.
fn log_notes(settings: &Settings) {
    cpus::cgroup::cost_notes(settings).iter().for_each(|note| tracing::info!("{note}"));
}

/// Enables tracing. The returned exporter sends the spans.
fn trace(watch: &mut Watch, traces: &TracesSettings) -> SpanExporter {
    let (tracer, spans) = Tracer::new(traces.sampling, traces.queue_max, watch.registry());
    watch.tracer = Some(tracer);
    SpanExporter::new(traces.clone(), spans, watch.registry())
}

/// A function that reads the metrics that are not counted but looked up.
fn look(watch: &Arc<Watch>, engines: &[admin::DoorEngine]) -> push::ObserveMetrics {
    let (watch, engines) = (Arc::clone(watch), engines.to_vec());
    Box::new(move || admin::observed(&engines, watch.held_above()))
}
