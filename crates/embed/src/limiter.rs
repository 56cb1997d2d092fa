//! An engine of this process, with the limits of the `line` section of a configuration, as a gate
//! for the layer of `evenkeel_client`.
//!
//! It counts what this process alone is asked: there are no peers and no store. A request without a
//! tag is not asked about.

use super::seed;
use evenkeel_client::layer::RequestGate;
use evenkeel_config::fault::{ConfigFault, ConfigFaults, TextPlace};
use evenkeel_engine::tags::{TagEngine, TagLane};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use http::StatusCode;
use std::sync::Arc;
use std::time::Duration;

/// The limits of one process; its clones share their counters.
#[derive(Clone)]
pub struct LocalLimiter(Arc<TagLane>);

impl LocalLimiter {
    /// An engine with the limits of the `line` section of a configuration; its listeners are not
    /// opened.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration; or the system gives no random numbers.
    pub fn new(configuration: &str) -> Result<LocalLimiter, ConfigFaults> {
        let name = "configuration of the layer";
        let fault =
            |what| ConfigFaults::new(name, vec![ConfigFault::new(TextPlace::at(1, 1), what)]);
        let config = evenkeel_config::parse(name, configuration.as_bytes(), 1.0)?;
        let Some(mut line) = config.settings.line else {
            let what = "the section `line`, which contains the limits, is missing";
            return Err(fault(what.to_owned()));
        };
        let seed =
            seed().map_err(|why| fault(format!("the system provides no random numbers: {why}")))?;
        evenkeel_config::source::read_limits(&mut line)?;
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(clock.now()));
        let tags = TagEngine::new(&line, 1, seed, clock, watch);
        Ok(LocalLimiter(Arc::new(tags.lane(0))))
    }
}

impl RequestGate<Vec<u8>> for LocalLimiter {
    const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

    async fn admit(&self, tag: Vec<u8>) -> Result<(), Duration> {
        let refused = self.0.batch(None).ask_state(&tag, 1);
        match refused.and_then(|told| told.retry) {
            Some(wait) => Err(Duration::from_nanos(wait.0)),
            None => Ok(()),
        }
    }
}
