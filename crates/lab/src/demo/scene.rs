//! One part of the demo: a site, the proxy in front of it and both visitors, for some seconds.
//!
//! The proxy is the real door on the real engine. Without the throttle it has no limits and is a
//! plain proxy; with the throttle it has the default shares. The results of the visitors are read
//! once a second: waits from their tallies, CPU time from the site's ledger and, at the end, debts
//! from the engine.

use crate::demo::report::{self, DemoPart, DemoSecond, VisitorAccount};
use crate::demo::site::DemoSite;
use crate::demo::tally::{TallyMark, VisitorResults, VisitorTally};
use crate::demo::visitors::{self, DemoVisitor, VisitInstructions};
use crate::demo::{DemoError, DemoOptions};
use evenkeel_config::settings::ProxySettings;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::LimitAction;
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_engine::Engine;
use evenkeel_engine::view::EngineView;
use evenkeel_proxy::RunningProxy;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use parking_lot::Mutex;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval_at};

/// The default limits except for the burst, which is 30 s outside the demo.
const LIMITS: &str = "{name: ip, by: ip/32, share: 10%, burst: 1s}, \
    {name: net24, by: ip/24, share: 25%, burst: 1s}, \
    {name: net16, by: ip/16, share: 50%, burst: 1s}";

/// The seed of the key hashes. It need not be secret, because only the two visitors have access.
const SEED: KeySeed = KeySeed(*b"evenkeel's demo.");

/// Everything that runs during one part. Dropping it ends all of it.
pub struct DemoScene {
    action: Option<LimitAction>,
    connections: usize,
    cpus: f64,
    clock: Clock,
    tallies: Arc<[Mutex<VisitorTally>; DemoVisitor::ALL.len()]>,
    engine: Arc<Engine>,
    door: RunningProxy,
    site: DemoSite,
}

/// The progress of both visitors and of the site at one moment.
#[derive(Clone, Copy)]
struct SceneMoment {
    at: Time,
    marks: [TallyMark; DemoVisitor::ALL.len()],
    used: [Nanos; DemoVisitor::ALL.len()],
}

impl DemoScene {
    /// Opens site and proxy on free ports; without an `action` there is no throttle.
    pub fn open(
        options: &DemoOptions,
        action: Option<LimitAction>,
    ) -> Result<DemoScene, DemoError> {
        let workers = usize::from(options.workers);
        let site = DemoSite::open(workers).map_err(|why| start("its site", why))?;
        let settings = settings(site.address(), action)?;
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let engine =
            Engine::new(&settings, evenkeel_proxy::threads(), SEED, clock, Arc::clone(&watch));
        let door = evenkeel_proxy::start(&settings, &engine, &watch)
            .map_err(|why| start("its proxy", io::Error::other(why)))?;
        Ok(DemoScene {
            action,
            connections: usize::from(options.connections),
            cpus: settings.cpus,
            clock,
            tallies: Arc::default(),
            engine,
            door,
            site,
        })
    }

    /// Sends out the visitors, prints each second on `out`, and returns the sums.
    pub async fn play(self, seconds: u64, out: &mut impl Write) -> Result<DemoPart, DemoError> {
        let action = self.action.map(LimitAction::name);
        report::heading(out, action, seconds)?;
        let proxy = self.proxy()?;
        let errand =
            VisitInstructions { proxy, clock: self.clock, tallies: Arc::clone(&self.tallies) };
        let first = self.moment();
        let _out = visitors::send_out(&errand, self.connections);
        let shown = self.watch(seconds, first, out).await?;
        let [crawler, human] = self.since(first);
        Ok(DemoPart {
            action,
            seconds: shown,
            crawler,
            human,
            human_waiting_ms: self.waiting(DemoVisitor::Human),
            crawler_account: self.account(DemoVisitor::Crawler),
            human_account: self.account(DemoVisitor::Human),
        })
    }

    /// Counts and prints each second.
    async fn watch(
        &self,
        seconds: u64,
        first: SceneMoment,
        out: &mut impl Write,
    ) -> Result<Vec<DemoSecond>, DemoError> {
        let length = Duration::from_secs(1);
        let mut ticks = interval_at(self.clock.instant(first.at) + length, length);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shown = Vec::new();
        let mut last = first;
        for second in 1..=seconds {
            ticks.tick().await;
            let [crawler, human] = self.since(last);
            last = self.moment();
            shown.push(DemoSecond { second, crawler, human });
            report::second(out, &shown[shown.len() - 1])?;
        }
        Ok(shown)
    }

    fn proxy(&self) -> Result<SocketAddr, DemoError> {
        let address = self.door.addresses().first().copied();
        address.ok_or_else(|| start("its proxy", io::ErrorKind::AddrNotAvailable.into()))
    }

    fn moment(&self) -> SceneMoment {
        SceneMoment {
            at: self.clock.now(),
            marks: DemoVisitor::ALL.map(|visitor| self.tallies[visitor as usize].lock().mark()),
            used: DemoVisitor::ALL.map(|visitor| self.site.used(visitor)),
        }
    }

    /// The results of both visitors since `then`, with their shares of the CPU time that the site
    /// could give.
    fn since(&self, then: SceneMoment) -> [VisitorResults; DemoVisitor::ALL.len()] {
        let capacity = self.clock.now().since(then.at).as_secs_f64() * self.cpus;
        DemoVisitor::ALL.map(|visitor| {
            let place = visitor as usize;
            let used = self.site.used(visitor).minus(then.used[place]);
            let share = used.as_secs_f64() / capacity.max(f64::MIN_POSITIVE);
            self.tallies[place].lock().since(then.marks[place], share)
        })
    }

    /// How long `visitor` has been waiting for an answer, in milliseconds.
    fn waiting(&self, visitor: DemoVisitor) -> f64 {
        let oldest = self.tallies[visitor as usize].lock().oldest(self.clock.now());
        oldest.unwrap_or_default().as_secs_f64() * 1e3
    }

    /// The account of `visitor` at the first limit, read from the engine.
    fn account(&self, visitor: DemoVisitor) -> Option<VisitorAccount> {
        self.action?;
        let rows = self.engine.top(0);
        let row = rows.into_iter().find(|row| row.row.name.starts_with(visitor.address()))?;
        Some(VisitorAccount {
            level_cpu_s: row.level.unwrap_or_default() as f64 / SECOND as f64,
            wait_s: row.wait.as_secs_f64(),
        })
    }
}

/// A configuration of the proxy in front of `site`, parsed like a file. All keys that are not given
/// have their defaults.
fn settings(site: SocketAddr, action: Option<LimitAction>) -> Result<ProxySettings, DemoError> {
    let limits = if action.is_some() { LIMITS } else { "" };
    let action = action.unwrap_or(LimitAction::Hold).name();
    let text = format!(
        "proxy: {{listen: 127.0.0.1:0, backend: \"http://{site}\", cpus: 1, \
         action: {action}, trusted_proxies: [127.0.0.1], limits: [{limits}]}}"
    );
    let config = evenkeel_config::parse("demo", text.as_bytes(), 1.0)
        .map_err(|faults| start("its settings", io::Error::other(faults.to_string())))?;
    config.settings.proxy.ok_or_else(|| start("its settings", io::ErrorKind::NotFound.into()))
}

fn start(what: &'static str, why: io::Error) -> DemoError {
    DemoError::Start { what, why }
}
