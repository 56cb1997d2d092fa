//! The metrics, log lines and status of the peers (`/api/peers`).
//!
//! Log lines that others can cause without end are thinned out: refused messages to one line a
//! minute, news of peers to ten a second. No decision is made here.

pub mod queue;

use evenkeel_config::settings::peers::PeersSettings;
use evenkeel_core::replica::{PeerSnapshot, Replica, ReplicaEvent, ReplicaTotals};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::peers::{PeerCounts, PeerStatus, PeersStatus};
use evenkeel_telemetry::printable::printable;
use evenkeel_telemetry::sampler::{LineSampler, WarningThrottle};
use queue::{QueueNews, QueueReports};
use std::collections::HashMap;
use std::sync::Arc;

/// The time after which a peer that is known has told of its queues.
const QUEUES_KNOWN_AFTER: Nanos = Nanos::from_secs(3);

/// The reporter of the peers' state.
pub struct PeerReporter {
    watch: Arc<Watch>,
    counts: PeerCounts,
    complaints: WarningThrottle,
    news: LineSampler,
    refused: u64,
    /// The totals up to which the counters have been advanced.
    before: ReplicaTotals,
    queue_news: QueueNews,
    name: String,
    via: &'static str,
    cluster: String,
    period: f64,
}

impl PeerReporter {
    /// Makes a reporter. `name` is the name of this instance for its peers.
    #[must_use]
    pub fn new(settings: &PeersSettings, name: String, watch: Arc<Watch>) -> PeerReporter {
        PeerReporter {
            counts: PeerCounts::new(watch.registry()),
            watch,
            complaints: WarningThrottle::default(),
            news: LineSampler::default(),
            refused: 0,
            before: ReplicaTotals::default(),
            queue_news: QueueNews::default(),
            name,
            via: settings.via.word(),
            cluster: settings.cluster.clone(),
            period: settings.period.as_secs_f64(),
        }
    }

    /// Counts a refused message, and logs at most one a minute.
    pub fn note_refused(&mut self, from: &str, why: &str, now: Time) {
        self.refused += 1;
        self.counts.refused.increment(1);
        if self.complaints.ask(now) {
            let refused = self.refused;
            tracing::warn!(
                target: "evenkeel::peers", %from, why = %printable(why), refused,
                "a message from a peer was refused and has no effect"
            );
        }
    }

    /// Counts charges that were dropped for lack of room.
    pub fn count_dropped(&self, dropped: u64) {
        if dropped > 0 {
            self.counts.uncounted.increment(dropped);
        }
    }

    /// Logs a change of a peer.
    pub fn tell(&self, event: &ReplicaEvent, now: Time) {
        if !matches!(event, ReplicaEvent::Silent { .. }) && !self.news.ask(now).write {
            return;
        }
        let clean = |text: &str| printable(text).into_owned();
        match event {
            ReplicaEvent::Joined { name, .. } => {
                let peer = clean(name);
                tracing::info!(target: "evenkeel::peers", peer, "a peer takes part in counting");
            }
            ReplicaEvent::Silent { name, .. } => {
                tracing::warn!(
                    target: "evenkeel::peers", peer = clean(name),
                    "a peer has been silent for three periods; limits are applied without its \
                     counts"
                );
            }
            ReplicaEvent::Differs { name, limit, theirs, ours, counts } => {
                let (peer, limit, theirs) = (clean(name), clean(limit), clean(theirs));
                let ours = ours.as_deref().unwrap_or("absent");
                let what = match counts {
                    true => {
                        "a limit is configured differently on a peer: both share counts, and each \
                         decides by its own configuration"
                    }
                    false => {
                        "a peer has a limit that differs from this instance's: its counts are not \
                         shared"
                    }
                };
                tracing::warn!(target: "evenkeel::peers", peer, limit, theirs, ours, "{what}");
            }
            ReplicaEvent::Wanted { .. }
            | ReplicaEvent::Own { .. }
            | ReplicaEvent::HandedOver { .. }
            | ReplicaEvent::QueueUp { .. }
            | ReplicaEvent::QueueDown { .. }
            | ReplicaEvent::QueueLost { .. } => {}
        }
    }

    /// Updates the metrics and the status.
    pub fn show(
        &mut self,
        replica: &Replica,
        addresses: &HashMap<u64, String>,
        queues: &QueueReports,
        now: Time,
    ) {
        let (totals, peers) = (replica.totals(), replica.peers(now));
        self.count(&totals);
        let live = peers.iter().filter(|peer| peer.lives).count();
        self.counts.peers[0].set(live as i64);
        self.counts.peers[1].set((peers.len() - live) as i64);
        let lag = peers.iter().filter(|peer| peer.lives).map(|peer| peer.behind).max();
        self.counts.lag.set(i64::try_from(lag.unwrap_or_default().0).unwrap_or(i64::MAX));
        let [keys_waiting, frames_kept, _] = replica.backlog();
        let row = |peer: &PeerSnapshot| PeerStatus {
            queue: queues.part(peer.node),
            queue_apart: apart(peer, queues, replica, now),
            ..row(peer, addresses, now)
        };
        let status = PeersStatus {
            node: replica.node(),
            name: self.name.clone(),
            via: self.via,
            cluster: self.cluster.clone(),
            period_seconds: self.period,
            live: live + 1,
            cpus: replica.cpus_milli(now) as f64 / 1_000.0,
            keys_waiting,
            frames_kept,
            refused: self.refused,
            queue: queues.own(),
            peers: peers.iter().map(row).collect(),
        };
        self.queue_news.tell(queues, |node| printable(&status.name_of(node)).into_owned());
        self.watch.peers.write(status);
    }

    /// Advances the counters by the difference to the last totals.
    fn count(&mut self, totals: &ReplicaTotals) {
        let before = std::mem::replace(&mut self.before, *totals);
        let (new, old) = (&totals.counts, &before.counts);
        let counts = &self.counts;
        for (counter, new, old) in [
            (&counts.frames[0], new.frames_in, old.frames_in),
            (&counts.frames[1], new.frames_out, old.frames_out),
            (&counts.entries[0], new.entries_in, old.entries_in),
            (&counts.entries[1], totals.entries_out, before.entries_out),
            (&counts.lost[0], new.lost_in, old.lost_in),
            (&counts.lost[1], new.lost_out, old.lost_out),
            (&counts.queue_messages[0], new.queue_messages_in, old.queue_messages_in),
            (&counts.queue_messages[1], new.queue_messages_out, old.queue_messages_out),
            (&counts.uncounted, totals.dropped, before.dropped),
        ] {
            counter.increment(new - old);
        }
    }
}

/// Why a peer does not share a queue of this instance. A peer that has just come may not have told
/// of its queues.
fn apart(
    peer: &PeerSnapshot,
    queues: &QueueReports,
    replica: &Replica,
    now: Time,
) -> Option<&'static str> {
    let is_known = peer.lives && now.since(peer.since) >= QUEUES_KNOWN_AFTER;
    is_known.then(|| queues.apart(replica, peer.node)).flatten()
}

fn row(peer: &PeerSnapshot, addresses: &HashMap<u64, String>, now: Time) -> PeerStatus {
    let address = peer.links.iter().rev().find_map(|link| addresses.get(link));
    let since = |at: Time| now.since(at.max(peer.since)).as_secs_f64();
    PeerStatus {
        node: peer.node,
        name: peer.name.clone(),
        address: address.cloned().unwrap_or_default(),
        live: peer.lives,
        known_seconds: since(peer.since),
        silent_seconds: since(peer.heard),
        behind_seconds: peer.behind.as_secs_f64(),
        report: peer.report,
        period_seconds: peer.period.as_secs_f64(),
        cpus: f64::from(peer.cpus_milli) / 1_000.0,
        bytes_in: peer.counts.bytes_in,
        bytes_out: peer.counts.bytes_out,
        entries_in: peer.counts.entries_in,
        entries_unshared: peer.counts.unshared,
        lost_in: peer.counts.lost_in,
        lost_out: peer.counts.lost_out,
        repeated: peer.counts.repeated,
        clients_in: peer.counts.clients_in,
        queue: None,
        queue_apart: None,
        queue_messages_in: peer.counts.queue_messages_in,
        queue_messages_out: peer.counts.queue_messages_out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_config::settings::peers::PeerTransport;
    use evenkeel_core::replica::ReplicaSettings;
    use evenkeel_telemetry::prometheus;
    use std::time::Duration;

    const START: Time = Time(1_790_000_000_000_000_000);

    fn instance(node: u64) -> Replica {
        let settings = ReplicaSettings {
            node,
            life: 1,
            name: format!("node {node}"),
            period: Nanos::from_secs(1),
            frame_max: 1_200,
            reliable: true,
            cpus_milli: 1_000,
            nodes_max: 8,
        };
        let mut replica = Replica::new(settings, Vec::new(), START);
        replica.handle_up(7, START);
        replica
    }

    fn exchange(a: &mut Replica, b: &mut Replica) {
        loop {
            let frames = [a.poll_transmit(), b.poll_transmit()];
            if frames.iter().all(Option::is_none) {
                return;
            }
            for (to, frame) in [&mut *b, &mut *a].into_iter().zip(frames) {
                let Some((link, bytes)) = frame else { continue };
                to.handle_frame(link, &bytes, START, &mut |_| {}).expect("a sound frame");
            }
        }
    }

    #[test]
    fn a_lag_below_a_second_is_shown() {
        let (mut a, mut b) = (instance(1), instance(2));
        exchange(&mut a, &mut b);
        let sent = START.plus(Nanos::from_secs(1));
        a.handle_timeout(sent);
        let watch = Arc::new(Watch::new(START));
        let settings = PeersSettings {
            via: PeerTransport::Nats { servers: Vec::new(), credentials_file: None },
            cluster: "test".to_owned(),
            secret_file: None,
            tls: None,
            period: Duration::from_secs(1),
            cpus_shared: false,
            nodes_max: 8,
        };
        let mut shown = PeerReporter::new(&settings, "a".to_owned(), Arc::clone(&watch));
        shown.show(
            &a,
            &HashMap::new(),
            &QueueReports::default(),
            sent.plus(Nanos::from_millis(250)),
        );
        let text = prometheus::text(watch.registry(), &[]);
        let line = "evenkeel_peer_lag_seconds 0.25";
        assert!(text.lines().any(|shown| shown == line), "{text}");
    }
}
