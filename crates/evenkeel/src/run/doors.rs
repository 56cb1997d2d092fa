//! All doors that a configuration opens: start, reload, drain and end.
//!
//! A door without a section in the configuration costs nothing. Each door is a [`Service`] in its
//! own crate and has a line in [`DOORS`]; the order of events is in `run`. The admin door is not
//! part of this: it stays open while the others drain.

use super::files::within_open_files;
use super::networks::NetworkWatch;
use super::robots::EngineRobots;
use super::{cgroup, engine_pages, processors};
use crate::admin;
use anyhow::Context;
use evenkeel_ask::{check, ext_proc, line, zeromq};
use evenkeel_config::settings::{GatekeeperSettings, MasterSettings, ProxySettings, Settings};
use evenkeel_core::key::KeySeed;
use evenkeel_core::queue::WorkUnit;
use evenkeel_core::units::Time;
use evenkeel_engine::Engine;
use evenkeel_engine::domains::MasterDomains;
use evenkeel_engine::domains::gatekeeper::GatekeeperEngine;
use evenkeel_engine::replicated::Replicated;
use evenkeel_engine::tags::TagEngine;
use evenkeel_engine::turns::TurnEngine;
use evenkeel_engine::view::EngineView;
use evenkeel_engine::windows::Counters;
use evenkeel_identity::waiting_room::InstanceSecret;
use evenkeel_peers::driver;
use evenkeel_proxy as proxy;
use evenkeel_ratelimit as ratelimit;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::handover::ListenSockets;
use evenkeel_serve::service::Service;
use evenkeel_serve::threads::core_count;
use evenkeel_store::redis::RedisStore;
use evenkeel_store::snapshot;
use evenkeel_telemetry::Watch;
use rustix::rand::{GetRandomFlags, getrandom};
use std::net::SocketAddr;
use std::sync::Arc;
use tracing::field::{DisplayValue, display};

pub struct EngineSet {
    /// The seed with which all engines hash keys.
    pub seed: KeySeed,
    /// What makes the key of the waiting room if no file does.
    visitors: InstanceSecret,
    clock: Clock,
    proxy: Option<Arc<Engine>>,
    line: Option<Arc<TagEngine>>,
    turns: Option<Arc<TurnEngine>>,
    ratelimit: Option<Arc<Counters>>,
    master: Option<Arc<MasterDomains>>,
    gatekeepers: Vec<Arc<GatekeeperEngine>>,
    networks: NetworkWatch,
}

impl EngineSet {
    /// Creates an engine for each section that makes decisions, and restores debts from the
    /// snapshot. Opens no socket.
    pub fn new(settings: &Settings, clock: Clock, watch: &Arc<Watch>) -> anyhow::Result<EngineSet> {
        let found = snapshot::find(&settings.state);
        let shared = settings.peers.as_ref().map(driver::seed).transpose()?;
        let found = found.filter(|found| finds_again(found, shared));
        let kept = found.as_ref().map(snapshot::CheckedSnapshot::seed);
        let seed = shared.or(kept).map_or_else(seed, Ok)?;
        let gatekeepers = settings.gatekeepers.iter();
        let gatekeepers =
            gatekeepers.map(|keeper| GatekeeperEngine::new(keeper, seed, clock, watch));
        let gatekeepers: Vec<_> = gatekeepers.collect();
        let proxy = settings.proxy.as_ref().map(|proxy| {
            // One lane for each thread of the proxy, one for the check door, and those of Envoys.
            let envoys = (settings.ext_proc.as_ref(), settings.ext_authz.as_ref());
            let lanes = ext_proc_lane() + ext_proc::lanes(envoys.0, envoys.1);
            Engine::with_gatekeepers(
                gatekeepers.clone(),
                proxy,
                lanes,
                seed,
                clock,
                Arc::clone(watch),
            )
        });
        let line = settings
            .line
            .as_ref()
            .map(|line| TagEngine::new(line, core_count(), seed, clock, Arc::clone(watch)));
        let turns = settings.line.as_ref().and_then(|line| line.turns.as_ref());
        let cores = core_count();
        let turns = turns.map(|turns| TurnEngine::new(turns, cores, seed, clock, cores));
        let ratelimit = settings.ratelimit.as_ref();
        let ratelimit = ratelimit.map(|settings| Arc::new(Counters::new(settings.keys_max, clock)));
        let master = settings.master.as_ref();
        let master = master.map(|master| Arc::new(MasterDomains::new(master, seed, clock)));
        let visitors = waiting_room_secret(settings, seed)?;
        let networks = NetworkWatch::start(settings, proxy.as_ref(), clock, watch)?;
        let engines = EngineSet {
            seed,
            visitors,
            clock,
            proxy,
            line,
            turns,
            ratelimit,
            master,
            gatekeepers,
            networks,
        };
        if let Some(found) = found {
            found.restore(&engines.accounts(), watch, clock.now());
        }
        Ok(engines)
    }

    /// Everything that a snapshot contains.
    pub fn accounts(&self) -> snapshot::SnapshotTables {
        let windows = self.ratelimit.as_ref();
        let windows = windows.map(|counters| ("ratelimit", Arc::clone(&counters.windows)));
        snapshot::SnapshotTables { engines: self.all(), windows }
    }

    /// Every engine with the name of its door.
    fn all(&self) -> Vec<snapshot::DoorEngine> {
        let shared = |engine: &Arc<Engine>| Arc::clone(engine) as Arc<dyn EngineView>;
        let proxy = self.proxy.iter().map(|engine| ("proxy", shared(engine)));
        let shared = |tags: &Arc<TagEngine>| Arc::clone(tags) as Arc<dyn EngineView>;
        let line = self.line.iter().map(|tags| ("line", shared(tags)));
        let shared = |turns: &Arc<TurnEngine>| Arc::clone(turns) as Arc<dyn EngineView>;
        let turns = self.turns.iter().map(|turns| ("turns", shared(turns)));
        let domains = self.master.iter().flat_map(|domains| &domains.in_order);
        let domains = domains.map(|domain| ("master", Arc::clone(domain) as Arc<dyn EngineView>));
        let keeper = self.gatekeepers.iter();
        let keeper = keeper.map(|keeper| ("gatekeeper", Arc::clone(keeper) as Arc<dyn EngineView>));
        proxy.chain(line).chain(turns).chain(domains).chain(keeper).collect()
    }

    /// The store with one count for all instances, if one is configured.
    fn store(&self, settings: &Settings, watch: &Watch) -> Option<Arc<RedisStore>> {
        let none = || Arc::new(Counters::new(1, self.clock));
        let counters = self.ratelimit.clone().unwrap_or_else(none);
        let store = settings.store.as_ref()?;
        Some(RedisStore::new(store, counters, self.clock, watch))
    }

    /// The engines that exchange their charges with other instances.
    pub fn together(&self) -> Vec<Arc<dyn Replicated>> {
        let proxy = self.proxy.iter().map(|engine| Arc::clone(engine) as Arc<dyn Replicated>);
        let line = self.line.iter().map(|tags| Arc::clone(tags) as Arc<dyn Replicated>);
        let turns = self.turns.iter().map(|turns| Arc::clone(turns) as Arc<dyn Replicated>);
        let ratelimit = self.ratelimit.iter();
        let ratelimit = ratelimit.map(|counters| Arc::clone(counters) as Arc<dyn Replicated>);
        proxy.chain(line).chain(turns).chain(ratelimit).collect()
    }

    /// Applies changed settings. Which engines there are stays the same.
    fn reload(&self, settings: &Settings) {
        if let (Some(tags), Some(line)) = (&self.line, &settings.line) {
            tags.reload(line);
            match (&self.turns, &line.turns) {
                (Some(turns), Some(settings)) => turns.reload(settings),
                (None, None) => {}
                _ => tracing::warn!("adding or removing `line.turns` requires a restart"),
            }
        }
        if let (Some(domains), Some(master)) = (&self.master, &settings.master)
            && domains.reload(master)
        {
            tracing::warn!(
                "adding or removing a domain requires a restart; changed rules of existing \
                 domains are in force"
            );
        }
        if let (Some(engine), Some(proxy)) = (&self.proxy, &settings.proxy) {
            engine.reload(proxy);
            look_up(engine);
        }
    }

    pub fn shown(&self) -> Vec<admin::DoorEngine> {
        let shared = |counters: &Arc<Counters>| Arc::clone(counters) as Arc<dyn EngineView>;
        let ratelimit = self.ratelimit.iter().map(|counters| ("ratelimit", shared(counters)));
        let all = self.all().into_iter().chain(ratelimit);
        all.map(|(door, engine)| admin::DoorEngine { door, engine }).collect()
    }
}

/// What makes the key of the waiting room if no file does: the seed, which the snapshot keeps and
/// peers share. Without a secret, the seed of peers follows from what an outsider may know. Then
/// the key is random, and cookies are good until the next restart and at this instance.
fn waiting_room_secret(settings: &Settings, seed: KeySeed) -> anyhow::Result<InstanceSecret> {
    let is_public = settings.peers.as_ref().is_some_and(|peers| peers.secret_file.is_none());
    Ok(if is_public { self::seed()?.0 } else { seed.0 })
}

/// Whether the keys of a snapshot can be found again by instances that hash with the seed `shared`.
fn finds_again(found: &snapshot::CheckedSnapshot, shared: Option<KeySeed>) -> bool {
    let alike = shared.is_none_or(|seed| seed == found.seed());
    if !alike {
        tracing::warn!(
            "the snapshot is from another cluster or secret, so its keys cannot be matched: only \
             debts reported by peers are known"
        );
    }
    alike
}

/// Lane of the check door in the engine. The lanes before it belong to the proxy's threads.
fn check_lane() -> usize {
    proxy::threads()
}

/// The first lane of the external processing door in the engine.
fn ext_proc_lane() -> usize {
    check_lane() + 1
}

/// What a door is opened with.
struct DoorParts<'a> {
    settings: &'a Settings,
    engines: &'a EngineSet,
    store: Option<Arc<RedisStore>>,
    watch: &'a Arc<Watch>,
    /// The addresses of the admin door, for the log.
    admin: &'a [SocketAddr],
    sockets: &'a ListenSockets,
}

/// Opens a kind of door, if the settings have a section for it.
type OpenDoor = fn(&DoorParts<'_>) -> anyhow::Result<Vec<Box<dyn Service>>>;

/// How each kind of door is opened, in this order. A door ends after those that follow it, so a
/// gatekeeper ends when the doors that report to it have ended.
const DOORS: [OpenDoor; 7] = [line, ratelimit, master, gatekeepers, check, ext_proc, proxy];

pub struct OpenDoors {
    engines: EngineSet,
    robots: Option<EngineRobots>,
    services: Vec<Box<dyn Service>>,
}

impl OpenDoors {
    /// Opens all doors in `settings`. If one fails, the others are closed again.
    pub fn open(
        settings: &Settings,
        engines: EngineSet,
        watch: &Arc<Watch>,
        admin: &[SocketAddr],
        sockets: &ListenSockets,
    ) -> anyhow::Result<OpenDoors> {
        let store = engines.store(settings, watch);
        let settings = &within_open_files(settings);
        let parts = DoorParts { settings, engines: &engines, store, watch, admin, sockets };
        engines.proxy.iter().for_each(look_up);
        let robots = engines.proxy.as_ref().zip(settings.proxy.as_ref());
        let robots = robots.map(|(engine, proxy)| EngineRobots::open(proxy, engine, watch));
        let robots = robots.transpose().context("proxy.robots")?;
        let mut services = Vec::new();
        for open in DOORS {
            services.extend(open(&parts)?);
        }
        Ok(OpenDoors { engines, robots, services })
    }

    /// Reads the new files about networks that changed settings name, before the settings apply.
    ///
    /// # Errors
    /// The first file that cannot be read or is faulty. Nothing is changed then.
    pub fn reload_networks(&self, settings: &Settings) -> anyhow::Result<()> {
        match self.engines.proxy.as_ref().zip(settings.proxy.as_ref()) {
            Some((engine, proxy)) => self.engines.networks.reload(engine, proxy),
            None => Ok(()),
        }
    }

    /// Applies changed settings. The set of open doors stays the same.
    pub fn reload(&self, settings: &Settings) {
        let apply = || self.engines.reload(settings);
        match self.robots.as_ref().zip(settings.proxy.as_ref()) {
            Some((robots, proxy)) => robots.reload(proxy, apply),
            None => apply(),
        }
        let settings = &within_open_files(settings);
        self.services.iter().for_each(|service| service.reload(settings));
    }

    /// Checks for changes outside of the configuration, once a second.
    pub fn look(&self, now: Time) {
        self.robots.iter().for_each(|robots| robots.look(now));
        self.services.iter().for_each(|service| service.look(now));
    }

    /// Reads files of the doors again. Returns whether any door has such files.
    pub fn reload_files(&self) -> bool {
        self.services.iter().filter(|service| service.reload_files()).count() > 0
    }

    /// Number of open connections; for the check door, of questions that wait for an answer.
    pub fn connections(&self) -> usize {
        self.services.iter().map(|service| service.connections()).sum()
    }

    /// Number of connections that were still open when their thread ended.
    pub fn cut(&self) -> usize {
        self.services.iter().map(|service| service.cut()).sum()
    }

    /// Stops accepting, and gives running requests the time that each door's settings define.
    pub fn drain(&self, settings: &Settings) {
        self.services.iter().for_each(|service| service.drain(settings));
    }

    /// Closes everything at once.
    pub fn stop_now(&self) {
        self.services.iter().for_each(|service| service.stop_now());
    }

    /// Waits until all doors have ended.
    pub async fn ended(&self) {
        for service in self.services.iter().rev() {
            service.ended().await;
        }
    }
}

/// Starts the lookup of host names, if they are needed and it is not running yet.
fn look_up(engine: &Arc<Engine>) {
    if let Some(lookups) = engine.lookups() {
        tokio::spawn(lookups);
    }
}

fn one(door: impl Service + 'static) -> Vec<Box<dyn Service>> {
    vec![Box::new(door)]
}

fn line(parts: &DoorParts<'_>) -> anyhow::Result<Vec<Box<dyn Service>>> {
    let DoorParts { engines, store, admin, .. } = parts;
    let Some((settings, tags)) = parts.settings.line.as_ref().zip(engines.line.as_ref()) else {
        return Ok(Vec::new());
    };
    let (clock, store) = (engines.clock, store.as_ref());
    let engines = (tags, engines.turns.as_ref());
    let door = line::start(settings, engines, store, clock, parts.watch, parts.sockets)?;
    let listen: Vec<String> = door.lines.iter().map(ToString::to_string).collect();
    tracing::info!(
        listen = listen.join(","),
        resp = ?door.resp,
        ?admin,
        limits = names(&settings.limits, |limit| &limit.name),
        rules = settings.rules.len(),
        "line open",
    );
    Ok(one(door))
}

fn ratelimit(parts: &DoorParts<'_>) -> anyhow::Result<Vec<Box<dyn Service>>> {
    let DoorParts { engines, store, watch, sockets, .. } = parts;
    let counters = engines.ratelimit.as_ref();
    let Some((settings, counters)) = parts.settings.ratelimit.as_ref().zip(counters) else {
        return Ok(Vec::new());
    };
    let counters = (Arc::clone(counters), store.clone());
    let door = ratelimit::start(settings, counters, engines.seed, engines.clock, watch, sockets)?;
    let rules = settings.rules.path.as_ref().map(|path| path.display().to_string());
    let listen = &door.addresses;
    tracing::info!(?listen, rules = rules.unwrap_or_default(), "ratelimit open");
    Ok(one(door))
}

fn master(parts: &DoorParts<'_>) -> anyhow::Result<Vec<Box<dyn Service>>> {
    let DoorParts { engines, store, watch, admin, sockets, .. } = parts;
    let Some((settings, domains)) = parts.settings.master.as_ref().zip(engines.master.as_ref())
    else {
        return Ok(Vec::new());
    };
    let door = zeromq::start(settings, (domains, store.clone()), engines.clock, watch, sockets)?;
    let [accounting, control] = door.addresses;
    let domains = names(&settings.domains, |domain| &domain.name);
    tracing::info!(%accounting, %control, ?admin, domains, "master open");
    if settings.is_open() {
        tracing::warn!("{}", MasterSettings::OPEN_WARNING);
    }
    Ok(one(door))
}

fn gatekeepers(parts: &DoorParts<'_>) -> anyhow::Result<Vec<Box<dyn Service>>> {
    let DoorParts { engines, watch, .. } = parts;
    let gatekeepers = parts.settings.gatekeepers.iter().zip(&engines.gatekeepers);
    let start = |(settings, keeper): (&GatekeeperSettings, _)| {
        tracing::info!(
            master = %settings.master,
            control = %settings.control,
            domain = settings.domain,
            "gatekeeper: all requests are allowed until the master sends orders",
        );
        let door = zeromq::gatekeeper::start(settings, keeper, engines.clock, &watch.beats)?;
        Ok(Box::new(door) as Box<dyn Service>)
    };
    gatekeepers.map(start).collect()
}

fn check(parts: &DoorParts<'_>) -> anyhow::Result<Vec<Box<dyn Service>>> {
    let DoorParts { engines, store, watch, admin, sockets, .. } = parts;
    let Some((proxy, engine)) = parts.settings.proxy.as_ref().zip(engines.proxy.as_ref()) else {
        return Ok(Vec::new());
    };
    let Some(settings) = &parts.settings.check else { return Ok(Vec::new()) };
    let asked = (engine, check_lane(), store.clone());
    let door = check::start(settings, proxy, asked, watch, sockets)?;
    tracing::info!(
        listen = ?door.addresses,
        syslog = ?door.syslog,
        ?admin,
        cpus = shared_cpus(proxy),
        tokens_per_second = shared_tokens(proxy),
        cost = %proxy.cost,
        action = %proxy.action,
        shadow = proxy.shadow,
        limits = limit_names(proxy),
        "check open",
    );
    Ok(one(door))
}

fn ext_proc(parts: &DoorParts<'_>) -> anyhow::Result<Vec<Box<dyn Service>>> {
    let DoorParts { engines, store, watch, admin, sockets, .. } = parts;
    let Some((proxy, engine)) = parts.settings.proxy.as_ref().zip(engines.proxy.as_ref()) else {
        return Ok(Vec::new());
    };
    let sections = (parts.settings.ext_proc.as_ref(), parts.settings.ext_authz.as_ref());
    if sections.0.is_none() && sections.1.is_none() {
        return Ok(Vec::new());
    }
    let asked = (engine, ext_proc_lane(), store.clone());
    let door = ext_proc::start(sections, proxy, asked, watch, sockets)?;
    tracing::info!(
        listen = ?door.addresses,
        ?admin,
        cpus = shared_cpus(proxy),
        tokens_per_second = shared_tokens(proxy),
        cost = %proxy.cost,
        action = %proxy.action,
        shadow = proxy.shadow,
        limits = limit_names(proxy),
        "envoy open",
    );
    if proxy.listen.is_empty() {
        follow_backends(engine);
    }
    Ok(one(door))
}

fn proxy(parts: &DoorParts<'_>) -> anyhow::Result<Vec<Box<dyn Service>>> {
    let DoorParts { engines, store, watch, admin, sockets, .. } = parts;
    let settings = parts.settings.proxy.as_ref().filter(|proxy| !proxy.listen.is_empty());
    let Some((settings, engine)) = settings.zip(engines.proxy.as_ref()) else {
        return Ok(Vec::new());
    };
    let door =
        proxy::start_on(settings, (engine, store.as_ref(), engines.visitors), watch, sockets)?;
    let backends: Vec<String> = settings.backends.iter().map(ToString::to_string).collect();
    tracing::info!(
        listen = ?door.addresses(),
        ?admin,
        backend = backends.join(","),
        cpus = shared_cpus(settings),
        tokens_per_second = shared_tokens(settings),
        cost = %settings.cost,
        action = %settings.action,
        shadow = settings.shadow,
        limits = limit_names(settings),
        "proxy open",
    );
    follow_backends(engine);
    Ok(one(door))
}

/// Follows what the backends report, and the use of their processors.
fn follow_backends(engine: &Arc<Engine>) {
    tokio::spawn(cgroup::follow(Arc::downgrade(engine)));
    tokio::spawn(processors::follow(Arc::downgrade(engine)));
    tokio::spawn(engine_pages::follow(Arc::downgrade(engine)));
}

/// The CPUs that clients share, for the log; `None` if they share tokens.
fn shared_cpus(settings: &ProxySettings) -> Option<f64> {
    (settings.cost.unit() == WorkUnit::CpuTime).then_some(settings.cpus)
}

/// The weighted tokens per second that clients share, for the log; `None` if they share CPUs.
fn shared_tokens(settings: &ProxySettings) -> Option<DisplayValue<String>> {
    let given = settings.tokens.per_second;
    let text = given.map_or_else(|| "measured".to_owned(), |tokens| tokens.to_string());
    (settings.cost.unit() == WorkUnit::Tokens).then(|| display(text))
}

/// The names of all limits, also of those that deny, for the log.
fn limit_names(settings: &ProxySettings) -> String {
    let limits = settings.limits.iter().map(|limit| &*limit.name);
    let denials = settings.denials.iter().map(|rule| &*rule.name);
    limits.chain(denials).collect::<Vec<&str>>().join(",")
}

/// The names of limits or domains, for the log.
fn names<T>(all: &[T], name: impl Fn(&T) -> &str) -> String {
    all.iter().map(name).collect::<Vec<&str>>().join(",")
}

/// A random seed for this process. Because it is secret, outsiders cannot predict which keys share
/// a set.
fn seed() -> anyhow::Result<KeySeed> {
    let mut seed = [0; 16];
    let count = getrandom(&mut seed, GetRandomFlags::empty()).context("no random numbers")?;
    anyhow::ensure!(count == seed.len(), "the system provided too few random numbers");
    Ok(KeySeed(seed))
}
