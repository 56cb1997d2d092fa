//! What is known of one other instance: which of its reports have been seen, which of ours it has,
//! how it is reached, and what there is to show of it.
//!
//! A peer is forgotten some time after it was last heard, and not before anything that it could
//! still send again is too old to be sent: so nothing is counted twice for having been forgotten.

use super::window::Window;
use super::wire::Sender;
use crate::units::{Nanos, Time};
use alloc::string::String;
use alloc::vec::Vec;

/// Nothing is older that is sent again.
const AGE_MAX: Nanos = Nanos::from_secs(120);

/// One other instance, in one of its lives.
pub struct Peer {
    /// Which of its lives.
    pub life: u64,
    /// Its name for people; empty until it has said it.
    pub name: String,
    /// The links that it speaks on.
    pub links: Vec<u64>,
    /// The link on which it has said what it has, and is told things since.
    pub ready: Option<u64>,
    /// Its reports that have been seen; `None` before the first.
    pub seen: Option<Window>,
    /// Our reports that it has.
    pub acked: Window,
    /// The next report to send it on the present link.
    pub next: u64,
    /// When what it has not acknowledged is sent again.
    pub resend_at: Time,
    /// Whether it is to be told what has been seen.
    pub ack_due: bool,
    /// When it was first heard.
    pub since: Time,
    /// When it was last heard.
    pub heard: Time,
    /// By how much its clock seemed to be behind ours, when a frame of it came soonest.
    pub behind: i64,
    /// How often it says that it reports.
    pub period: Nanos,
    /// The number of its last period that was heard.
    pub report: u64,
    /// Thousandths of CPUs that it has to share out.
    pub cpus_milli: u32,
    /// Which limits it has said to have, and which parts of that have been compared.
    pub digest: u64,
    /// Parts of its limits that have been compared.
    pub compared: u128,
    /// Frames of it in this period.
    pub frames: u32,
    /// How often it was given the state.
    pub given: u8,
    /// What there is to show.
    pub counts: Counts,
}

/// What was exchanged with one peer, or with all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of frames that it sent.
    pub bytes_in: u64,
    /// Bytes of frames that it was sent; over a group, what all were sent.
    pub bytes_out: u64,
    /// Frames that it sent.
    pub frames_in: u64,
    /// Frames that it was sent.
    pub frames_out: u64,
    /// Entries of it that were charged here.
    pub entries_in: u64,
    /// Its frames of reports that never came.
    pub lost_in: u64,
    /// Our frames of reports that were dropped before it had them.
    pub lost_out: u64,
    /// Its frames that came more than once.
    pub repeated: u64,
    /// Its entries of limits that are not here.
    pub unshared: u64,
}

impl Peer {
    /// A peer that is heard for the first time in this life.
    pub fn new(sender: Sender, period: Nanos, now: Time) -> Peer {
        Peer {
            life: sender.life,
            name: String::new(),
            links: Vec::new(),
            ready: None,
            seen: None,
            acked: Window::default(),
            next: 0,
            resend_at: now,
            ack_due: false,
            since: now,
            heard: now,
            behind: i64::MAX,
            period,
            report: 0,
            cpus_milli: 0,
            digest: 0,
            compared: 0,
            frames: 0,
            given: 0,
            counts: Counts::default(),
        }
    }

    /// A frame came that it made at `at` by its own clock: how long ago that was, by how long
    /// frames take that come at once.
    pub fn age(&mut self, at: Time, now: Time) -> Nanos {
        let behind = now.0.wrapping_sub(at.0).cast_signed();
        self.behind = self.behind.min(behind);
        Nanos(behind.saturating_sub(self.behind).max(0).cast_unsigned().min(AGE_MAX.0))
    }

    /// Whether it has been heard of lately.
    pub fn lives(&self, period: Nanos, now: Time) -> bool {
        let period = self.period.max(period);
        now.since(self.heard) <= Nanos(period.0.saturating_mul(3))
    }
}

/// One other instance, to be shown.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its identity.
    pub node: u64,
    /// Its name for people; empty until it has said it.
    pub name: String,
    /// The links that it speaks on.
    pub links: Vec<u64>,
    /// Whether it has been heard within three periods.
    pub lives: bool,
    /// When it was first heard.
    pub since: Time,
    /// When it was last heard.
    pub heard: Time,
    /// How often it says that it reports.
    pub period: Nanos,
    /// The number of its last period that was heard.
    pub report: u64,
    /// CPUs that it has to share out, in thousandths.
    pub cpus_milli: u32,
    /// For how long the oldest report has waited that it has not acknowledged.
    pub behind: Nanos,
    /// What was exchanged with it.
    pub counts: Counts,
}
