//! Reports to systemd's watchdog while all threads make progress.
//!
//! With `WatchdogSec=` in the unit, systemd restarts a service that does not report in time. A
//! simple timer would also report if no client were served. So the main thread reports for all, and
//! only while every thread with a heartbeat has beaten within half of that time. Without the
//! setting no report is sent.

use evenkeel_core::units::Nanos;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::heartbeats::Heartbeats;
use evenkeel_telemetry::sampler::WarningThrottle;
use sd_notify::NotifyState;
use std::time::Duration;

/// Interval between two heartbeats of a thread.
const BEAT_INTERVAL: Duration = Duration::from_millis(250);

/// The shortest useful setting: below it, a delay of one second would end the process.
const WATCHDOG_INTERVAL_MIN: Duration = Duration::from_secs(3);

/// Sends the heartbeats of the calling thread while its runtime runs tasks.
pub async fn beat(door: &'static str, beats: Heartbeats, clock: Clock) {
    let beat = beats.begin(door, clock.now());
    loop {
        tokio::time::sleep(BEAT_INTERVAL).await;
        beat.at(clock.now());
    }
}

/// The reports to systemd's watchdog, if it is enabled.
pub struct Watchdog {
    /// Maximum age of each thread's last heartbeat. `None` if the watchdog is off.
    within: Option<Nanos>,
    complaints: WarningThrottle,
}

impl Watchdog {
    /// Reads `WATCHDOG_USEC` and `WATCHDOG_PID` from the environment.
    pub fn from_environment() -> Watchdog {
        let every = sd_notify::watchdog_enabled().filter(|every| !every.is_zero());
        if let Some(every) = every.filter(|every| *every < WATCHDOG_INTERVAL_MIN) {
            tracing::warn!(
                ?every,
                "WatchdogSec= is too short: the watchdog is notified once a second"
            );
        }
        let within =
            every.map(|every| Nanos((every / 2).as_nanos().try_into().unwrap_or(u64::MAX)));
        Watchdog { within, complaints: WarningThrottle::default() }
    }

    /// Reports if all threads make progress, otherwise logs the ones that do not. Must be called
    /// once a second.
    pub fn tell(&self, watch: &Watch, clock: Clock) {
        let Some(within) = self.within else { return };
        let now = clock.now();
        let silent = watch.beats.silent(within, now);
        if silent.is_empty() {
            // If the report is lost, systemd restarts the process.
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        } else if self.complaints.ask(now) {
            tracing::error!(doors = ?silent, "threads are stuck: the watchdog is not notified");
        }
    }
}
