//! The sending side of a replica: a report each period, resending of unacknowledged reports,
//! hellos and names.
//!
//! A report is encoded once and is the same for all peers. Over links each peer gets the frames of
//! the log from its own position on. Over a group all peers get each frame once. No bucket is
//! charged here.

use super::content::{self, ReplicaHello};
use super::log::LoggedFrame;
use super::peer::ReplicaPeer;
use super::unsent::ReportBody;
use super::wire::{self, PeerFrameKind, PeerFrameWriter, REPORT_BYTES};
use super::{
    HELD_BACK_PERIODS_MAX, REPLICA_BOUNDS, Replica, ReplicaEvent, ReplicaSettings, held_back_max,
};
use crate::key::KeyHash;
use crate::units::{Nanos, Time};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Interval between two hellos over a group, in periods.
const HELLO_PERIODS: u64 = 12;
/// Number of periods after which the parts of a report over a group count as lost.
const LATE_PERIODS: usize = 4;

impl Replica {
    /// Runs the work of a period if it is over. Must be called at [`Replica::poll_timeout`] or
    /// later; an earlier call has no effect.
    pub fn handle_timeout(&mut self, now: Time) {
        if now < self.next_tick {
            return;
        }
        let next = self.next_tick.plus(self.settings.period);
        self.next_tick = if next > now { next } else { now.plus(self.settings.period) };
        self.period += 1;
        self.cut(false, now);
        self.forget_silent_peers(now);
        self.send_hellos(now);
        self.resend(now);
        self.flush();
        self.retry_state_request(now);
    }

    /// Reports all unreported charges before this instance shuts down; later they are lost.
    pub fn handle_shutdown(&mut self, now: Time) {
        self.cut(true, now);
        self.flush();
    }

    /// Returns the next frame to send and its link, if there is one.
    pub fn poll_transmit(&mut self) -> Option<(u64, Arc<[u8]>)> {
        if self.out.is_empty() {
            let due = self.peers.values_mut().filter(|peer| peer.ack_due);
            let links: Vec<u64> =
                due.filter_map(|peer| peer.ready.or(peer.links.last().copied())).collect();
            links.into_iter().for_each(|link| self.acknowledge(link));
        }
        let frame = self.out.pop_front()?;
        self.count_sent(&frame);
        Some(frame)
    }

    pub(super) fn count_sent(&mut self, (link, frame): &(u64, Arc<[u8]>)) {
        let speaker = self.links.get(link).and_then(|link| link.speaker);
        let peer = speaker.and_then(|speaker| self.peers.get_mut(&speaker.node));
        let counts = peer.map(|peer| &mut peer.counts).into_iter();
        for counts in counts.chain([&mut self.totals.counts]) {
            counts.frames_out += 1;
            counts.bytes_out += frame.len() as u64;
        }
    }

    /// Creates a report of the unreported charges: of `all` of them, or only of those that may not
    /// wait.
    pub(super) fn cut(&mut self, all: bool, now: Time) {
        let (period, live) = (self.settings.period, self.live_instances(now));
        let quiet: Vec<u64> =
            self.limits.iter().map(|limit| held_back_max(limit, period, live)).collect();
        let this = self.period;
        let ripe = |limit: usize, unsent: &super::unsent::UnsentCharge| {
            all || unsent.amount >= quiet[limit] || this >= unsent.since + HELD_BACK_PERIODS_MAX
        };
        let room = self.settings.frame_max.saturating_sub(REPORT_BYTES);
        let mut bodies = self.tally.cut(&self.limits, room, ripe);
        if bodies.is_empty() {
            bodies.push(ReportBody { bytes: Vec::new(), entries: 0 });
        }
        self.totals.reports += 1;
        self.totals.entries_out += bodies.iter().map(|body| body.entries).sum::<u64>();
        self.firsts.push_back(self.next);
        if self.firsts.len() > LATE_PERIODS {
            self.firsts.pop_front();
        }
        self.trim(now);
        let parts = bodies.len() as u64;
        for (part, body) in (0..).zip(bodies) {
            self.store_part(&body, part, parts, now);
        }
        self.trim(now);
    }

    /// Numbers a part of a report. Over links it is kept until all peers have it; over a group it
    /// is sent.
    fn store_part(&mut self, body: &ReportBody, part: u64, parts: u64, now: Time) {
        let number = self.next;
        self.next += 1;
        let kept = self.log.first().map_or(number, |sent| sent.number);
        let late = self.firsts.front().copied().unwrap_or(number);
        let oldest = if self.settings.reliable { kept } else { late };
        let mut writer = PeerFrameWriter::head(PeerFrameKind::Report, self.sender(), now);
        content::write_report(&mut writer, self.period, number, oldest, [part, parts]);
        writer.bytes(&body.bytes);
        let frame: Arc<[u8]> = writer.done().into();
        if self.settings.reliable {
            self.log.push(LoggedFrame { number, cut: now, frame });
        } else {
            self.send_all(&frame);
        }
    }

    /// Drops reports that all peers have, and those that are too old or too many.
    fn trim(&mut self, now: Time) {
        let heard = |peer: &&ReplicaPeer| peer.heard > Time::ZERO;
        let heard = self.peers.values().filter(heard).map(|peer| peer.acked.base());
        // While there are no peers, reports wait for the first one.
        let done = heard.min().unwrap_or(0);
        while let Some(sent) = self.log.trim(done, now) {
            let missing =
                |peer: &&mut ReplicaPeer| peer.heard > Time::ZERO && !peer.acked.has(sent.number);
            for peer in self.peers.values_mut().filter(missing) {
                peer.counts.lost_out += 1;
                self.totals.counts.lost_out += 1;
            }
        }
    }

    /// Forgets peers after a long silence, and reports peers that have just become silent.
    fn forget_silent_peers(&mut self, now: Time) {
        let period = self.settings.period;
        let mut silent = Vec::new();
        self.peers.retain(|node, peer| {
            peer.frames = 0;
            let quiet_since = now.since(peer.heard.max(peer.since));
            let just = |peer: &ReplicaPeer| {
                let before = now.minus(period);
                !peer.is_live(period, now) && peer.is_live(period, before) && peer.heard <= before
            };
            if just(peer) && !peer.name.is_empty() {
                silent.push((*node, peer.name.clone()));
            }
            !peer.links.is_empty() || quiet_since <= REPLICA_BOUNDS.forget_after
        });
        silent
            .into_iter()
            .for_each(|(node, name)| self.push_event(ReplicaEvent::Silent { node, name }));
    }

    /// Sends hellos that are due, and acknowledgements on links that carry no reports.
    fn send_hellos(&mut self, now: Time) {
        let again = !self.settings.reliable && self.period.is_multiple_of(HELLO_PERIODS);
        let due = core::mem::take(&mut self.hello_due) || again;
        let links: Vec<u64> = self.links.keys().copied().collect();
        for link in links {
            let speaker = self.links.get(&link).and_then(|link| link.speaker);
            let peer = speaker.and_then(|speaker| self.peers.get(&speaker.node));
            let ready = peer.is_some_and(|peer| peer.ready.is_some());
            let used = peer.is_some_and(|peer| peer.ready == Some(link));
            if due || (self.settings.reliable && !ready) {
                self.send_hello(link, now);
            }
            if self.settings.reliable && speaker.is_some() && !used {
                self.acknowledge(link);
            }
        }
    }

    /// Sends a hello, the limits and the queues of this instance on a link.
    pub(super) fn send_hello(&mut self, link: u64, now: Time) {
        let mut writer = PeerFrameWriter::head(PeerFrameKind::Hello, self.sender(), now);
        let ReplicaSettings { name, period, cpus_milli, .. } = &self.settings;
        let (period, cpus_milli, digest) = (*period, *cpus_milli, self.digest);
        content::write_hello(&mut writer, ReplicaHello { name, period, cpus_milli, digest });
        self.send(link, writer.done().into());
        let limits = self.limits.iter();
        let written = limits.map(|limit| {
            let mut writer = PeerFrameWriter::part();
            content::write_limit(&mut writer, limit);
            writer.done()
        });
        let packed = pack_pieces(written, self.settings.frame_max.saturating_sub(REPORT_BYTES));
        for (part, bytes) in (0..).zip(packed) {
            let mut writer = PeerFrameWriter::head(PeerFrameKind::Limits, self.sender(), now);
            writer.word(digest);
            writer.number(part);
            writer.bytes(&bytes);
            self.send(link, writer.done().into());
        }
        self.announce_queues(link, now);
        self.announce_handover(link, now);
    }

    /// Sends on a link which reports of the peer at its other end have been seen.
    pub(super) fn acknowledge(&mut self, link: u64) {
        let Some(speaker) = self.links.get(&link).and_then(|link| link.speaker) else { return };
        let sender = self.sender();
        let Some(peer) = self.peers.get_mut(&speaker.node) else { return };
        peer.ack_due = false;
        let none = super::SequenceWindow::default();
        let seen = peer.seen.as_ref().unwrap_or(&none);
        let mut writer = PeerFrameWriter::head(PeerFrameKind::Ack, sender, peer.heard);
        content::write_ack(&mut writer, speaker, seen);
        self.send(link, writer.done().into());
    }

    /// Rewinds peers that have not acknowledged a report in time, so that it is sent again.
    fn resend(&mut self, now: Time) {
        let wait = Nanos(self.settings.period.0.saturating_mul(2));
        let due = |peer: &&mut ReplicaPeer| peer.ready.is_some() && now >= peer.resend_at;
        for peer in self.peers.values_mut().filter(due) {
            let mut waiting = self.log.since(peer.acked.base());
            let first = waiting.find(|sent| !peer.acked.has(sent.number));
            if let Some(first) = first.filter(|sent| now.since(sent.cut) >= wait) {
                peer.next = peer.next.min(first.number);
                peer.resend_at = now.plus(wait);
            }
        }
    }

    /// Queues for every peer the reports that it has not been sent yet.
    pub(super) fn flush(&mut self) {
        for peer in self.peers.values_mut() {
            let Some(link) = peer.ready else { continue };
            for sent in self.log.since(peer.next) {
                if self.out.len() >= REPLICA_BOUNDS.out_max {
                    return;
                }
                peer.next = sent.number + 1;
                if !peer.acked.has(sent.number) {
                    self.out.push_back((link, Arc::clone(&sent.frame)));
                }
            }
        }
    }

    /// Queues a frame that is not a report over a link; drops and counts it if the queue is full.
    pub(super) fn send(&mut self, link: u64, frame: Arc<[u8]>) {
        if self.out.len() < REPLICA_BOUNDS.out_max {
            self.out.push_back((link, frame));
        } else {
            self.totals.crowded += 1;
        }
    }

    /// Queues a frame for all peers.
    pub(super) fn send_all(&mut self, frame: &Arc<[u8]>) {
        let mut links: Vec<u64> = self.peers.values().filter_map(|peer| peer.ready).collect();
        if !self.settings.reliable {
            links = self.links.keys().copied().collect();
        }
        links.into_iter().for_each(|link| self.send(link, Arc::clone(frame)));
    }

    /// Queues a frame for one peer. Over a group it goes to all peers, and names its addressee.
    pub(super) fn send_to(&mut self, node: u64, frame: Arc<[u8]>) {
        let link = match self.settings.reliable {
            true => self.peers.get(&node).and_then(|peer| peer.ready),
            false => self.links.keys().next().copied(),
        };
        if let Some(link) = link {
            self.send(link, frame);
        }
    }

    /// Sends the names of the heaviest keys to all peers: at most
    /// [`super::ReplicaBounds::names_max`].
    pub fn send_names<'a>(
        &mut self,
        names: impl IntoIterator<Item = (usize, KeyHash, &'a str)>,
        now: Time,
    ) {
        let limits = &self.limits;
        let written =
            names.into_iter().take(REPLICA_BOUNDS.names_max).filter_map(|(limit, key, name)| {
                let mut writer = PeerFrameWriter::part();
                writer.word(limits.get(limit)?.fingerprint);
                writer.word(key.bits());
                writer.text(name);
                Some(writer.done())
            });
        let room = self.settings.frame_max.saturating_sub(wire::HEAD_BYTES);
        for bytes in pack_pieces(written, room) {
            let mut writer = PeerFrameWriter::head(PeerFrameKind::Names, self.sender(), now);
            writer.bytes(&bytes);
            self.send_all(&writer.done().into());
        }
    }
}

/// Joins pieces as long as they fit into `room` bytes; a single piece may be longer.
pub(super) fn pack_pieces(pieces: impl Iterator<Item = Vec<u8>>, room: usize) -> Vec<Vec<u8>> {
    let mut packed: Vec<Vec<u8>> = Vec::new();
    for piece in pieces {
        match packed.last_mut() {
            Some(last) if last.len() + piece.len() <= room => last.extend(piece),
            _ => packed.push(piece),
        }
    }
    packed
}
