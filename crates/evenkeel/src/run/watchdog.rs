//! systemd's watchdog is told that all is well, as long as it is.
//!
//! With `WatchdogSec=` in the unit, systemd ends a service that has not spoken for so long, and
//! starts it again. A timer would speak even if nobody were served; so the main thread speaks for
//! all, and only while every thread that beats has done so within half of that time. Without the
//! setting nothing is sent.

use crate::clock::Clock;
use crate::watch::Watch;
use crate::watch::counts::beats::Beats;
use crate::watch::sampler::Seldom;
use evenkeel_core::units::Nanos;
use sd_notify::NotifyState;
use std::time::Duration;

/// Between two beats of a thread.
const PERIOD: Duration = Duration::from_millis(250);

/// Less than this, and a second's delay would end the program.
const LEAST: Duration = Duration::from_secs(3);

/// The beat of the calling thread's runtime, for as long as it goes round.
pub async fn beat(door: &'static str, beats: Beats, clock: Clock) {
    let beat = beats.begin(door, clock.now());
    loop {
        tokio::time::sleep(PERIOD).await;
        beat.at(clock.now());
    }
}

/// What systemd wants to hear, if anything.
pub struct Watchdog {
    /// Threads have to beat within this.
    within: Option<Nanos>,
    complaints: Seldom,
}

impl Watchdog {
    /// As the environment says (`WATCHDOG_USEC`, `WATCHDOG_PID`).
    pub fn from_environment() -> Watchdog {
        let every = sd_notify::watchdog_enabled().filter(|every| !every.is_zero());
        if let Some(every) = every.filter(|every| *every < LEAST) {
            tracing::warn!(?every, "WatchdogSec= is too short: it is told once a second");
        }
        let within =
            every.map(|every| Nanos((every / 2).as_nanos().try_into().unwrap_or(u64::MAX)));
        Watchdog { within, complaints: Seldom::default() }
    }

    /// Tells it that all is well, if it is; to be called once a second.
    pub fn tell(&self, watch: &Watch, clock: Clock) {
        let Some(within) = self.within else { return };
        let now = clock.now();
        let silent = watch.beats.silent(within, now);
        if silent.is_empty() {
            // Whoever does not hear it starts us again.
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        } else if self.complaints.ask(now) {
            tracing::error!(doors = ?silent, "threads are stuck: the watchdog is told nothing");
        }
    }
}
