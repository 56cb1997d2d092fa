//! All doors that a configuration opens: start, reload, drain and end.
//!
//! A door without a section in the configuration costs nothing. The doors themselves are in
//! `crate::doors`, the order of events is in `run`. The admin door is not part of this: it stays
//! open while the others drain.

use super::cgroup;
use super::files::{line_within_open_files, within_open_files};
use crate::admin;
use anyhow::Context;
use evenkeel_ask::{check, line, zeromq};
use evenkeel_config::settings::{
    self, LineSettings, MasterSettings, ProxySettings, RatelimitSettings, Settings,
};
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::Time;
use evenkeel_engine::Engine;
use evenkeel_engine::domains::MasterDomains;
use evenkeel_engine::domains::gatekeeper::GatekeeperEngine;
use evenkeel_engine::replicated::Replicated;
use evenkeel_engine::tags::TagEngine;
use evenkeel_engine::view::EngineView;
use evenkeel_engine::windows::Counters;
use evenkeel_peers::driver;
use evenkeel_proxy as proxy;
use evenkeel_ratelimit as ratelimit;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::handover::ListenSockets;
use evenkeel_store::redis::RedisStore;
use evenkeel_store::snapshot;
use evenkeel_telemetry::Watch;
use rustix::rand::{GetRandomFlags, getrandom};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The engine of each door that has one.
pub struct EngineSet {
    /// The seed with which all engines hash keys.
    pub seed: KeySeed,
    clock: Clock,
    proxy: Option<Arc<Engine>>,
    line: Option<Arc<TagEngine>>,
    ratelimit: Option<Arc<Counters>>,
    master: Option<Arc<MasterDomains>>,
    gatekeepers: Vec<Arc<GatekeeperEngine>>,
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
            // One lane for each thread of the proxy, and one for the check door.
            let lanes = check_lane() + 1;
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
            .map(|line| TagEngine::new(line, line::threads(), seed, clock, Arc::clone(watch)));
        let ratelimit = settings.ratelimit.as_ref();
        let ratelimit = ratelimit.map(|settings| Arc::new(Counters::new(settings.keys_max, clock)));
        let master = settings.master.as_ref();
        let master = master.map(|master| Arc::new(MasterDomains::new(master, seed, clock)));
        let engines = EngineSet { seed, clock, proxy, line, ratelimit, master, gatekeepers };
        if let Some(found) = found {
            found.restore(&engines.accounts(), watch, clock.now());
        }
        Ok(engines)
    }

    /// Everything that a snapshot contains.
    pub fn accounts(&self) -> snapshot::SnapshotTables {
        let windows = self.ratelimit.as_ref();
        let windows = windows.map(|counters| ("ratelimit", Arc::clone(counters.windows())));
        snapshot::SnapshotTables { engines: self.all(), windows }
    }

    /// Every engine with the name of its door.
    fn all(&self) -> Vec<snapshot::DoorEngine> {
        let shared = |engine: &Arc<Engine>| Arc::clone(engine) as Arc<dyn EngineView>;
        let proxy = self.proxy.iter().map(|engine| ("proxy", shared(engine)));
        let shared = |tags: &Arc<TagEngine>| Arc::clone(tags) as Arc<dyn EngineView>;
        let line = self.line.iter().map(|tags| ("line", shared(tags)));
        let domains = self.master.iter().flat_map(|domains| domains.all());
        let domains = domains.map(|domain| ("master", Arc::clone(domain) as Arc<dyn EngineView>));
        let keeper = self.gatekeepers.iter();
        let keeper = keeper.map(|keeper| ("gatekeeper", Arc::clone(keeper) as Arc<dyn EngineView>));
        proxy.chain(line).chain(domains).chain(keeper).collect()
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
        let ratelimit = self.ratelimit.iter();
        let ratelimit = ratelimit.map(|counters| Arc::clone(counters) as Arc<dyn Replicated>);
        proxy.chain(line).chain(ratelimit).collect()
    }

    /// The engines that the admin door shows.
    pub fn shown(&self) -> Vec<admin::DoorEngine> {
        let shared = |counters: &Arc<Counters>| Arc::clone(counters) as Arc<dyn EngineView>;
        let ratelimit = self.ratelimit.iter().map(|counters| ("ratelimit", shared(counters)));
        let all = self.all().into_iter().chain(ratelimit);
        all.map(|(door, engine)| admin::DoorEngine { door, engine }).collect()
    }
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

/// All open doors.
pub struct OpenDoors {
    /// The engine that `proxy` and `check` share.
    engine: Option<Arc<Engine>>,
    proxy: Option<proxy::RunningProxy>,
    check: Option<check::RunningCheck>,
    line: Option<(Arc<TagEngine>, line::RunningLine)>,
    ratelimit: Option<ratelimit::RunningRatelimit>,
    master: Option<(Arc<MasterDomains>, zeromq::RunningMaster)>,
    /// Each one is connected to a master until it is dropped.
    gatekeepers: Vec<zeromq::gatekeeper::RunningGatekeeper>,
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
        let line = settings.line.as_ref().zip(engines.line).map(|(settings, tags)| {
            let (within, clock) = (line_within_open_files(settings), engines.clock);
            let running = line::start_on(&within, &tags, store.as_ref(), clock, watch, sockets)?;
            tell_line(&running, settings, admin);
            anyhow::Ok((tags, running))
        });
        let line = line.transpose()?;
        let ratelimit = settings.ratelimit.as_ref().zip(engines.ratelimit);
        let ratelimit = ratelimit.map(|(settings, counters)| {
            let clock = engines.clock;
            let counters = (counters, store.clone());
            let running =
                ratelimit::start_on(settings, counters, engines.seed, clock, watch, sockets)?;
            tell_ratelimit(settings, running.addresses());
            anyhow::Ok(running)
        });
        let ratelimit = ratelimit.transpose()?;
        let master = settings.master.as_ref().zip(engines.master).map(|(settings, domains)| {
            let asked = (&domains, store.clone());
            let running = zeromq::start_on(settings, asked, engines.clock, watch, sockets)?;
            tell_master(settings, &running, admin);
            anyhow::Ok((domains, running))
        });
        let master = master.transpose()?;
        let gatekeepers = settings.gatekeepers.iter().zip(engines.gatekeepers);
        let gatekeepers = gatekeepers.map(|(settings, keeper)| {
            tell_gatekeeper(settings);
            let beats = watch.beats.clone();
            zeromq::gatekeeper::start(settings, &keeper, engines.clock, beats)
        });
        let gatekeepers = gatekeepers.collect::<Result<_, _>>()?;
        let engine = engines.proxy;
        let (proxy, check) = (None, None);
        let mut doors = OpenDoors { engine, proxy, check, line, ratelimit, master, gatekeepers };
        let (Some(proxy), Some(engine)) = (&settings.proxy, &doors.engine) else {
            return Ok(doors);
        };
        look_up(engine);
        if let Some(settings) = &settings.check {
            let asked = (engine, check_lane(), store.clone());
            let check = check::start_on(settings, proxy, asked, watch, sockets)?;
            tell_check(proxy, &check, admin);
            doors.check = Some(check);
        }
        if !proxy.listen.is_empty() {
            let asked = (engine, store.as_ref());
            let running = proxy::start_on(&within_open_files(proxy), asked, watch, sockets)?;
            tell_proxy(proxy, running.addresses(), admin);
            tokio::spawn(cgroup::follow(Arc::downgrade(engine)));
            doors.proxy = Some(running);
        }
        Ok(doors)
    }

    /// Applies changed settings. The set of open doors stays the same.
    pub fn reload(&self, settings: &Settings) {
        if let (Some(running), Some(settings)) = (&self.ratelimit, &settings.ratelimit) {
            running.reload(settings);
        }
        if let (Some((tags, running)), Some(line)) = (&self.line, &settings.line) {
            tags.reload(line);
            running.reload(&line_within_open_files(line));
        }
        if let (Some((domains, _)), Some(master)) = (&self.master, &settings.master)
            && domains.reload(master)
        {
            tracing::warn!(
                "adding or removing a domain requires a restart; changed rules of existing \
                 domains are in force"
            );
        }
        let (Some(engine), Some(proxy)) = (&self.engine, &settings.proxy) else { return };
        engine.reload(proxy);
        look_up(engine);
        self.check.iter().for_each(|check| check.reload(proxy));
        self.proxy.iter().for_each(|running| running.reload(&within_open_files(proxy)));
    }

    /// Checks for changes outside of the configuration, once a second.
    pub fn look(&self, now: Time) {
        self.proxy.iter().for_each(|proxy| proxy.look(now));
    }

    /// Reads files of the doors again. Returns whether any door has such files.
    pub fn reload_files(&self) -> bool {
        self.ratelimit.iter().for_each(ratelimit::RunningRatelimit::reload_rules);
        self.ratelimit.is_some()
    }

    /// Number of open connections; for the check door, of questions that wait for an answer.
    pub fn connections(&self) -> usize {
        let proxy = self.proxy.as_ref().map_or(0, proxy::RunningProxy::connections);
        let line = self.line.as_ref().map_or(0, |(_, running)| running.connections());
        let ratelimit = self.ratelimit.as_ref().map_or(0, ratelimit::RunningRatelimit::connections);
        proxy + line + ratelimit + self.check.as_ref().map_or(0, check::RunningCheck::waiting)
    }

    /// Number of connections that were still open when their thread ended.
    pub fn cut(&self) -> usize {
        let proxy = self.proxy.as_ref().map_or(0, proxy::RunningProxy::cut);
        let line = self.line.as_ref().map_or(0, |(_, running)| running.cut());
        let ratelimit = self.ratelimit.as_ref().map_or(0, ratelimit::RunningRatelimit::cut);
        proxy + line + ratelimit + self.check.as_ref().map_or(0, check::RunningCheck::cut)
    }

    /// Stops accepting, and gives running requests the time that each door's settings define.
    pub fn drain(&self, settings: &Settings) {
        let timeout = settings.proxy.as_ref().map_or(Duration::ZERO, |proxy| proxy.timeouts.drain);
        self.proxy.iter().for_each(|proxy| proxy.drain(timeout));
        self.check.iter().for_each(|check| check.drain(timeout));
        if let (Some((_, running)), Some(line)) = (&self.line, &settings.line) {
            running.drain(line.drain);
        }
        if let (Some(running), Some(settings)) = (&self.ratelimit, &settings.ratelimit) {
            running.drain(settings.drain);
        }
        if let (Some((_, running)), Some(master)) = (&self.master, &settings.master) {
            running.drain(master.drain);
        }
    }

    /// Closes everything at once.
    pub fn stop_now(&self) {
        self.proxy.iter().for_each(proxy::RunningProxy::stop_now);
        self.check.iter().for_each(check::RunningCheck::stop_now);
        self.line.iter().for_each(|(_, running)| running.stop_now());
        self.ratelimit.iter().for_each(ratelimit::RunningRatelimit::stop_now);
        self.master.iter().for_each(|(_, running)| running.stop_now());
    }

    /// Waits until all doors have ended.
    pub async fn ended(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.ended().await;
        }
        if let Some(check) = &self.check {
            check.ended().await;
        }
        if let Some((_, running)) = &self.line {
            running.ended().await;
        }
        if let Some(running) = &self.ratelimit {
            running.wait_ended().await;
        }
        if let Some((_, running)) = &self.master {
            running.ended().await;
        }
        // Only now has every request been reported to the masters.
        self.gatekeepers.iter().for_each(zeromq::gatekeeper::RunningGatekeeper::stop);
    }
}

/// Starts the lookup of host names, if they are needed and it is not running yet.
fn look_up(engine: &Arc<Engine>) {
    if let Some(lookups) = engine.lookups() {
        tokio::spawn(lookups);
    }
}

fn tell_check(proxy: &ProxySettings, check: &check::RunningCheck, admin: &[SocketAddr]) {
    let limits: Vec<&str> = proxy.limits.iter().map(|limit| &*limit.name).collect();
    tracing::info!(
        listen = ?check.addresses(),
        syslog = ?check.syslog(),
        ?admin,
        cpus = proxy.cpus,
        cost = %proxy.cost,
        action = %proxy.action,
        shadow = proxy.shadow,
        limits = limits.join(","),
        "check open",
    );
}

fn tell_proxy(proxy: &ProxySettings, addresses: &[SocketAddr], admin: &[SocketAddr]) {
    let limits: Vec<&str> = proxy.limits.iter().map(|limit| &*limit.name).collect();
    let backends: Vec<String> = proxy.backends.iter().map(ToString::to_string).collect();
    tracing::info!(
        listen = ?addresses,
        ?admin,
        backend = backends.join(","),
        cpus = proxy.cpus,
        cost = %proxy.cost,
        action = %proxy.action,
        shadow = proxy.shadow,
        limits = limits.join(","),
        "proxy open",
    );
}

fn tell_line(running: &line::RunningLine, settings: &LineSettings, admin: &[SocketAddr]) {
    let listen: Vec<String> = running.lines().iter().map(ToString::to_string).collect();
    let limits: Vec<&str> = settings.limits.iter().map(|limit| &*limit.name).collect();
    tracing::info!(
        listen = listen.join(","),
        resp = ?running.resp(),
        ?admin,
        limits = limits.join(","),
        rules = settings.rules.len(),
        "line open",
    );
}

fn tell_ratelimit(settings: &RatelimitSettings, addresses: &[SocketAddr]) {
    let rules = settings.rules.path.as_ref().map(|path| path.display().to_string());
    tracing::info!(listen = ?addresses, rules = rules.unwrap_or_default(), "ratelimit open");
}

fn tell_master(settings: &MasterSettings, running: &zeromq::RunningMaster, admin: &[SocketAddr]) {
    let [accounting, control] = running.addresses();
    let domains: Vec<&str> = settings.domains.iter().map(|domain| &*domain.name).collect();
    tracing::info!(%accounting, %control, ?admin, domains = domains.join(","), "master open");
    if settings.is_open() {
        tracing::warn!("{}", MasterSettings::OPEN_WARNING);
    }
}

fn tell_gatekeeper(settings: &settings::GatekeeperSettings) {
    tracing::info!(
        master = %settings.master,
        control = %settings.control,
        domain = settings.domain,
        "gatekeeper: all requests are allowed until the master sends orders",
    );
}

/// A random seed for this process. Because it is secret, outsiders cannot predict which keys share
/// a set.
fn seed() -> anyhow::Result<KeySeed> {
    let mut seed = [0; 16];
    let count = getrandom(&mut seed, GetRandomFlags::empty()).context("no random numbers")?;
    anyhow::ensure!(count == seed.len(), "the system provided too few random numbers");
    Ok(KeySeed(seed))
}
