//! The files about networks that the engine of the proxy uses, and the thread that follows them.
//!
//! There is a thread as soon as the configuration names such a file. A new file that is faulty
//! prevents a start or a reload; one that becomes faulty later is logged, and its previous content
//! stays in use.

use anyhow::Context;
use evenkeel_config::settings::{NetworkFileSettings, ProxySettings, Settings};
use evenkeel_engine::Engine;
use evenkeel_identity::networks::live::{LiveNetworks, NetworksThread};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use parking_lot::Mutex;
use std::sync::Arc;

pub struct NetworkWatch {
    clock: Clock,
    watch: Arc<Watch>,
    /// The settings in use, and the thread that follows their files.
    running: Mutex<(NetworkFileSettings, Option<NetworksThread>)>,
}

impl NetworkWatch {
    /// Reads all files that the settings name.
    pub fn start(
        settings: &Settings,
        engine: Option<&Arc<Engine>>,
        clock: Clock,
        watch: &Arc<Watch>,
    ) -> anyhow::Result<NetworkWatch> {
        let files = settings.proxy.as_ref().map(ProxySettings::network_files).unwrap_or_default();
        let thread = match engine.filter(|_| !files.is_empty()) {
            Some(engine) => {
                let live = LiveNetworks::load(&files, engine.networks(), watch)?;
                Some(NetworksThread::start(live, clock)?)
            }
            None => None,
        };
        let running = Mutex::new((files, thread));
        Ok(NetworkWatch { clock, watch: Arc::clone(watch), running })
    }

    /// Applies changed settings, before the engine gets the rules that need the new files.
    ///
    /// # Errors
    /// The first new file that cannot be read or is faulty. Nothing is changed then.
    pub fn reload(&self, engine: &Engine, proxy: &ProxySettings) -> anyhow::Result<()> {
        let files = proxy.network_files();
        let mut running = self.running.lock();
        if running.0 == files {
            return Ok(());
        }
        if let Some(thread) = &running.1 {
            thread.change(files.clone())?;
        } else {
            let live = LiveNetworks::load(&files, engine.networks(), &self.watch)?;
            let thread = NetworksThread::start(live, self.clock);
            running.1 = Some(thread.context("cannot start a thread for files about networks")?);
        }
        running.0 = files;
        Ok(())
    }
}
