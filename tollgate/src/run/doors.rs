//! The doors that a configuration opens, as one thing that starts, reloads, drains and ends.
//!
//! A door whose section is not there costs nothing. What each does: `crate::doors`. When any of
//! this happens: `run`. The admin door is not among them: it stays open while the others drain.

use super::files::within_open_files;
use crate::clock::Clock;
use crate::config::settings::{Proxy, Settings};
use crate::doors::{admin, proxy};
use crate::engine::Engine;
use crate::state;
use crate::watch::Watch;
use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::key::Seed;

/// The engine of each door that has one.
pub struct Engines {
    /// What all of them hash keys with.
    pub seed: Seed,
    proxy: Option<Arc<Engine>>,
}

impl Engines {
    /// One for each section that decides, with what clients owe since the last run; nothing is open
    /// yet.
    pub fn new(settings: &Settings, clock: Clock, watch: &Arc<Watch>) -> anyhow::Result<Engines> {
        let found = state::find(&settings.state);
        let seed = found.as_ref().map_or_else(seed, |found| Ok(found.seed()))?;
        let proxy = settings.proxy.as_ref().map(|proxy| {
            Engine::new(proxy, crate::doors::proxy::threads(), seed, clock, Arc::clone(watch))
        });
        let engines = Engines { seed, proxy };
        if let Some(found) = found {
            found.restore(&engines.all(), watch, clock.now());
        }
        Ok(engines)
    }

    /// Each with its door.
    pub fn all(&self) -> Vec<state::DoorEngine> {
        let proxy = self.proxy.iter().map(|engine| ("proxy", engine));
        proxy.map(|(door, engine)| (door, Arc::clone(engine))).collect()
    }

    /// For the admin door to show.
    pub fn shown(&self) -> Vec<admin::DoorEngine> {
        self.all().into_iter().map(|(door, engine)| admin::DoorEngine { door, engine }).collect()
    }
}

/// All doors that are open.
pub struct Doors {
    proxy: Option<(Arc<Engine>, proxy::Running)>,
}

impl Doors {
    /// Opens every door that `settings` name; none stays open if one cannot be.
    pub fn open(
        settings: &Settings,
        engines: Engines,
        watch: &Arc<Watch>,
        admin: &[SocketAddr],
    ) -> anyhow::Result<Doors> {
        let proxy = settings.proxy.as_ref().zip(engines.proxy).map(|(settings, engine)| {
            let running = proxy::start(&within_open_files(settings), &engine, watch)?;
            tell_proxy(settings, running.addresses(), admin);
            anyhow::Ok((engine, running))
        });
        Ok(Doors { proxy: proxy.transpose()? })
    }

    /// Takes over changed settings; the doors are the same.
    pub fn reload(&self, settings: &Settings) {
        if let (Some((engine, running)), Some(proxy)) = (&self.proxy, &settings.proxy) {
            engine.reload(proxy);
            running.reload(&within_open_files(proxy));
        }
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.proxy.as_ref().map_or(0, |(_, running)| running.connections())
    }

    /// Connections that were open still when their thread ended.
    pub fn cut(&self) -> usize {
        self.proxy.as_ref().map_or(0, |(_, running)| running.cut())
    }

    /// Accepts no more, and lets what runs end for at most `timeout`.
    pub fn drain(&self, timeout: Duration) {
        if let Some((_, running)) = &self.proxy {
            running.drain(timeout);
        }
    }

    /// Closes everything, whatever runs.
    pub fn stop_now(&self) {
        if let Some((_, running)) = &self.proxy {
            running.stop_now();
        }
    }

    /// Until all have ended.
    pub async fn ended(&self) {
        if let Some((_, running)) = &self.proxy {
            running.ended().await;
        }
    }
}

fn tell_proxy(proxy: &Proxy, addresses: &[SocketAddr], admin: &[SocketAddr]) {
    let limits: Vec<&str> = proxy.limits.iter().map(|limit| &*limit.name).collect();
    tracing::info!(
        listen = ?addresses,
        ?admin,
        backend = %proxy.backend,
        cpus = proxy.cpus,
        cost = %proxy.cost,
        action = %proxy.action,
        shadow = proxy.shadow,
        limits = limits.join(","),
        "proxy open",
    );
}

/// A secret of this process: nobody outside can tell which keys share a set.
fn seed() -> anyhow::Result<Seed> {
    let mut seed = [0; 16];
    let count = getrandom(&mut seed, GetRandomFlags::empty()).context("no random numbers")?;
    anyhow::ensure!(count == seed.len(), "the system gave too few random numbers");
    Ok(Seed(seed))
}
