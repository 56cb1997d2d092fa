//! The answer of `/api/setup`: facts about this process for `evenkeel doctor` and `evenkeel
//! upgrade`.
//!
//! It gathers and does not judge: `doctor` does.

use super::sources::{AdminSources, ReadinessStage};
use evenkeel_config::host::{HostFacts, StateFolder};
use evenkeel_core::units::{SECOND, Time};
use evenkeel_telemetry::snapshot::setup::{
    ClientAddressFacts, FailedReplacement, RequestFacts, SetupSnapshot,
};

/// The facts as they are now.
pub fn snapshot(sources: &AdminSources, stage: ReadinessStage) -> SetupSnapshot {
    let (watch, setup) = (&sources.watch, &sources.setup);
    let now = sources.clock.now();
    let secs = |at: Time| at.0 as f64 / SECOND as f64;
    let process = watch.process.lock().clone();
    let program = setup.program.as_ref();
    let counts = watch.request_counts_since_reload();
    let [[trusted_with, trusted_without], [other_with, other_without]] = counts.client_addresses;
    let host = HostFacts::read();
    let overflows = host.listen_overflows.zip(setup.listen_overflows);
    let votes = watch.untrusted_proxies();
    SetupSnapshot {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        ready: stage == ReadinessStage::Ready,
        now: secs(now),
        started: secs(watch.started),
        config_since: secs(process.config_since.unwrap_or(watch.started)),
        clock_step: sources.clock.step() as f64 / SECOND as f64,
        config_file: setup.config_file.as_ref().map(|path| path.display().to_string()),
        restart_keys: process.restart_keys,
        program: program.map(|program| program.path.display().to_string()),
        program_replaced: program.and_then(|program| program.is_replaced()),
        not_replaced: process
            .not_replaced
            .map(|(why, at)| FailedReplacement { why, seconds: now.since(at).as_secs_f64() }),
        host,
        listen_overflows: overflows.map(|(now, then)| now.saturating_sub(then)),
        requests: RequestFacts { all: counts.all, late: counts.late, crowded: counts.crowded },
        state: setup.state_file.as_deref().map(StateFolder::of),
        clients: ClientAddressFacts {
            trusted_with,
            trusted_without,
            other_with,
            other_without,
            recent: votes.votes,
            recent_forwarding: votes.forwarding,
            headers: votes.headers.names().into_iter().map(str::to_owned).collect(),
            peers: votes.candidates,
        },
    }
}
