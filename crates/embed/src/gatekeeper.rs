//! A gatekeeper for HTTP services with tower: it delays and refuses requests as a master orders,
//! and reports them to the master. It does within a service what the section `gatekeeper` does in
//! the proxy.
//!
//! A request is looked up in memory and never waits for the master. While the master is
//! unreachable, every request without a known order passes. The identifier of a request is chosen
//! by the code that creates the layer: this crate knows no trusted proxies and no addresses. The
//! format of the frames, and how a request is handled: docs/guide/gatekeeper.md.

use super::seed;
use evenkeel_ask::zeromq::gatekeeper::{RunningGatekeeper, start};
use evenkeel_client::layer::{self, EvenkeelLayer};
use evenkeel_config::settings;
use evenkeel_config::settings::gatekeeper::{MasterAddress, MasterAddressError};
use evenkeel_core::condition::Condition;
use evenkeel_core::units::Nanos;
use evenkeel_engine::domains::gatekeeper::GatekeeperEngine as Engine;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::start::ServerStartError;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::heartbeats::Heartbeats;
use http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep_until;

/// How requests are delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayBounds {
    /// A request that would wait longer is refused. If this is too low, bursts of real users are
    /// refused. If it is too high, their clients give up first. Default: 5 s.
    pub max_delay: Duration,
    /// The maximum number of requests delayed at once. Beyond it, a request that would have to wait
    /// is refused. Default: 1024.
    pub held_max: usize,
    /// The maximum number of identifiers with orders that are remembered, at 24 bytes each.
    /// Default: 65 536.
    pub keys_max: usize,
    /// The master gets a report of one in this number of refused requests; 0: of none. Default: 1.
    pub rejected_one_in: u64,
}

impl Default for DelayBounds {
    fn default() -> DelayBounds {
        let max_delay = Duration::from_secs(5);
        DelayBounds { max_delay, held_max: 1024, keys_max: 65_536, rejected_one_in: 1 }
    }
}

/// Why a gatekeeper could not be created.
#[derive(Debug, thiserror::Error)]
pub enum GatekeeperError {
    /// The address of the master is invalid.
    #[error("{0}")]
    Address(#[from] MasterAddressError),
    /// The name of the domain is invalid.
    #[error("the name of a domain has 1 to 255 bytes, none is NUL")]
    Domain,
    /// The system refuses a thread.
    #[error("{0}")]
    Thread(#[from] ServerStartError),
    /// The system gives no random numbers.
    #[error("the system provides no random numbers: {0}")]
    Random(#[source] std::io::Error),
}

/// The gatekeeper of one domain. Its clones share one table and one thread with the connections to
/// the master, which ends when the last clone is dropped.
#[derive(Clone)]
pub struct ServiceGatekeeper(Arc<GatekeeperInner>);

struct GatekeeperInner {
    keeper: Arc<Engine>,
    clock: Clock,
    _thread: RunningGatekeeper,
}

impl ServiceGatekeeper {
    /// Creates the gatekeeper of `domain` for the master at `master` (`tcp://127.0.0.1:10004`; its
    /// orders come from the next port). The master need not be reachable. Starts a thread.
    ///
    /// # Errors
    /// [`GatekeeperError`]; then no connection is made.
    pub fn new(
        master: &str,
        domain: &str,
        holding: DelayBounds,
    ) -> Result<ServiceGatekeeper, GatekeeperError> {
        let master: MasterAddress = master.parse()?;
        let control = master.next();
        ServiceGatekeeper::between(master, control, domain, holding)
    }

    /// Like [`ServiceGatekeeper::new`], for a master that sends its orders from another port than
    /// the next one.
    ///
    /// # Errors
    /// As [`ServiceGatekeeper::new`].
    pub fn at(
        master: &str,
        control: &str,
        domain: &str,
        holding: DelayBounds,
    ) -> Result<ServiceGatekeeper, GatekeeperError> {
        ServiceGatekeeper::between(master.parse()?, control.parse()?, domain, holding)
    }

    fn between(
        master: MasterAddress,
        control: MasterAddress,
        domain: &str,
        holding: DelayBounds,
    ) -> Result<ServiceGatekeeper, GatekeeperError> {
        if !settings::gatekeeper::is_domain(domain) {
            return Err(GatekeeperError::Domain);
        }
        let settings = settings::GatekeeperSettings {
            master,
            control,
            when: Condition::default(),
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
        let keeper =
            Engine::new(&settings, seed().map_err(GatekeeperError::Random)?, clock, &watch);
        let thread = start(&settings, &keeper, clock, &Heartbeats::default())?;
        Ok(ServiceGatekeeper(Arc::new(GatekeeperInner { keeper, clock, _thread: thread })))
    }

    /// Waits until a request of `identifier` may run, and reports it to the master. Call this
    /// within a tokio runtime that has time enabled. Dropping the future gives up the place.
    ///
    /// # Errors
    /// The request may not run. The duration is how long its client has to wait.
    pub async fn hold(&self, identifier: Vec<u8>) -> Result<(), Duration> {
        self.hold_noting(identifier, Vec::new()).await
    }

    /// Like [`ServiceGatekeeper::hold`], with a text that the master logs. At most 1024 bytes of it
    /// are sent.
    ///
    /// # Errors
    /// As [`ServiceGatekeeper::hold`].
    pub async fn hold_noting(
        &self,
        identifier: Vec<u8>,
        log_info: Vec<u8>,
    ) -> Result<(), Duration> {
        let GatekeeperInner { keeper, clock, .. } = &*self.0;
        let judged = keeper.judge(identifier, false, clock.now()).noting(log_info);
        if let Some(wait) = judged.refused() {
            judged.refuse(None);
            return Err(Duration::from_nanos(wait.0));
        }
        let passage = judged.pass(None);
        if let Some(until) = passage.until {
            sleep_until(clock.instant(until)).await;
        }
        Ok(())
    }
}

/// The layer. `T` returns a request's identifier, or a pair of the identifier and a text for the
/// master's log. If it returns `None`, the request passes and is not reported.
pub type GatekeeperLayer<T> = EvenkeelLayer<ServiceGatekeeper, T>;

impl layer::RequestGate<Vec<u8>> for ServiceGatekeeper {
    const REFUSED: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

    async fn admit(&self, identifier: Vec<u8>) -> Result<(), Duration> {
        self.admit((identifier, Vec::new())).await
    }
}

impl layer::RequestGate<(Vec<u8>, Vec<u8>)> for ServiceGatekeeper {
    const REFUSED: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

    async fn admit(&self, (identifier, log_info): (Vec<u8>, Vec<u8>)) -> Result<(), Duration> {
        self.hold_noting(identifier, log_info).await
    }
}
