//! A gatekeeper for tower services of HTTP: holds and refuses requests as a master says, and tells
//! it of them. What the proxy does with the section `gatekeeper`, within the service itself.
//!
//! A request is looked up in memory; nothing waits for the master, and while it is away everybody
//! passes of whom nothing is known. What a request is called at the master is up to whoever makes
//! the layer: there are no trusted proxies and no addresses here. What the frames look like, and
//! what becomes of a request: docs/guide/gatekeeper.md.

use super::layer::{self, EvenkeelLayer, seed};
use crate::clock::Clock;
use crate::config::settings;
use crate::config::settings::gatekeeper::{Remote, RemoteFault};
use crate::doors::zeromq::gatekeeper::{Running, StartError, start};
use crate::engine::domains::gatekeeper::Gatekeeper as Engine;
use crate::watch::Watch;
use crate::watch::counts::beats::Beats;
use evenkeel_core::limit::When;
use evenkeel_core::units::Nanos;
use http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep_until;

/// How requests are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Who would wait longer is refused. Too low: bursts of real users are refused. Too high:
    /// their clients give up first. Default: 5 s.
    pub max_delay: Duration,
    /// Requests held at once; beyond it who would have to wait is refused. Default: 1024.
    pub held_max: usize,
    /// Identifiers that have to wait, as many as are remembered: 24 bytes each. Default: 65 536.
    pub keys_max: usize,
    /// The master is told of one in so many refused requests; 0: of none. Default: 1.
    pub rejected_one_in: u64,
}

impl Default for Holding {
    fn default() -> Holding {
        let max_delay = Duration::from_secs(5);
        Holding { max_delay, held_max: 1024, keys_max: 65_536, rejected_one_in: 1 }
    }
}

/// Why there is no gatekeeper.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The address of the master is none.
    #[error("{0}")]
    Address(#[from] RemoteFault),
    /// No domain is called so.
    #[error("the name of a domain has 1 to 255 bytes, none is NUL")]
    Domain,
    /// The system gives no thread.
    #[error("{0}")]
    Thread(#[from] StartError),
    /// The system gives no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[source] std::io::Error),
}

/// The gate of one domain. Its clones share one table and one connection, which is closed when the
/// last of them is dropped.
#[derive(Clone)]
pub struct Gatekeeper(Arc<Gate>);

struct Gate {
    keeper: Arc<Engine>,
    clock: Clock,
    _thread: Running,
}

impl Gatekeeper {
    /// Keeps the gate of `domain` as the master at `master` says (`tcp://127.0.0.1:10004`; it tells
    /// at the next port). The master need not be there. Starts a thread.
    ///
    /// # Errors
    /// [`Fault`]; nothing is connected then.
    pub fn new(master: &str, domain: &str, holding: Holding) -> Result<Gatekeeper, Fault> {
        let master: Remote = master.parse()?;
        let control = master.next();
        Gatekeeper::between(master, control, domain, holding)
    }

    /// The same, for a master that tells at another port than the next.
    ///
    /// # Errors
    /// As [`Gatekeeper::new`].
    pub fn at(
        master: &str,
        control: &str,
        domain: &str,
        holding: Holding,
    ) -> Result<Gatekeeper, Fault> {
        Gatekeeper::between(master.parse()?, control.parse()?, domain, holding)
    }

    fn between(
        master: Remote,
        control: Remote,
        domain: &str,
        holding: Holding,
    ) -> Result<Gatekeeper, Fault> {
        if !settings::gatekeeper::is_domain(domain) {
            return Err(Fault::Domain);
        }
        let settings = settings::Gatekeeper {
            master,
            control,
            when: When::default(),
            domain: domain.to_owned(),
            identifier: Vec::new(),
            max_delay: Nanos(u64::try_from(holding.max_delay.as_nanos()).unwrap_or(u64::MAX)),
            held_max: holding.held_max,
            keys_max: holding.keys_max.clamp(1, evenkeel_core::limit::KEYS_MAX),
            log_info: Vec::new(),
            rejected_one_in: holding.rejected_one_in,
        };
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let keeper = Engine::new(&settings, seed().map_err(Fault::Random)?, clock, &watch);
        let thread = start(&settings, &keeper, clock, Beats::default())?;
        Ok(Gatekeeper(Arc::new(Gate { keeper, clock, _thread: thread })))
    }

    /// Waits until a request of `identifier` may run, and has the master told; to be called within
    /// a tokio runtime that has time. Who stops waiting frees its place.
    ///
    /// # Errors
    /// It may not run: for so long its client has to wait.
    pub async fn hold(&self, identifier: Vec<u8>) -> Result<(), Duration> {
        self.hold_noting(identifier, Vec::new()).await
    }

    /// The same with a text that the master logs, of which it is sent at most 1024 bytes.
    ///
    /// # Errors
    /// As [`Gatekeeper::hold`].
    pub async fn hold_noting(
        &self,
        identifier: Vec<u8>,
        log_info: Vec<u8>,
    ) -> Result<(), Duration> {
        let Gate { keeper, clock, .. } = &*self.0;
        let judged = keeper.judge(identifier, false, clock.now()).noting(log_info);
        if let Some(wait) = judged.refused() {
            judged.refuse(None);
            return Err(Duration::from_nanos(wait.0));
        }
        let passage = judged.pass(None);
        if let Some(until) = passage.until() {
            sleep_until(clock.instant(until)).await;
        }
        Ok(())
    }
}

/// The layer. `T` makes a request's identifier, or a pair of that and of a text for the master's
/// log; `None`: it passes, and the master is not told.
pub type GatekeeperLayer<T> = EvenkeelLayer<Gatekeeper, T>;

impl layer::Gate<Vec<u8>> for Gatekeeper {
    const REFUSED: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

    async fn admit(&self, identifier: Vec<u8>) -> Result<(), Nanos> {
        self.admit((identifier, Vec::new())).await
    }
}

impl layer::Gate<(Vec<u8>, Vec<u8>)> for Gatekeeper {
    const REFUSED: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

    async fn admit(&self, (identifier, log_info): (Vec<u8>, Vec<u8>)) -> Result<(), Nanos> {
        let held = self.hold_noting(identifier, log_info).await;
        held.map_err(|wait| Nanos(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }
}
