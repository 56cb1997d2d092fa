//! Facts about the program of a client, from the start of its connection.
//!
//! They are only stored if a limit or a condition names one of them. They are found in
//! `front/prints.rs`, and interpreted in `identity::prints`.

use evenkeel_core::fact::ClientFact;
use evenkeel_core::units::Time;
use evenkeel_identity::prints::PrintParse;
use evenkeel_identity::prints::h2::{self, AcknowledgementFinder};
use evenkeel_identity::prints::ja4::Ja4;
use evenkeel_identity::prints::rtt::RttVerdict;
use evenkeel_runtime::clock::Clock;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

/// The fingerprints of a connection, as far as they are wanted and known.
#[derive(Default)]
pub(crate) struct LinkPrints(OnceCell<Box<FoundPrints>>);

#[derive(Default)]
struct FoundPrints {
    ja4: OnceCell<Ja4>,
    rtt: OnceCell<RttVerdict>,
    h2: OnceCell<String>,
    pending: RefCell<PendingPrints>,
}

/// What is still to be read.
#[derive(Default)]
struct PendingPrints {
    /// The bytes of the client so far, while the fingerprint of HTTP/2 is not known.
    frames: Option<Vec<u8>>,
    acknowledgement: Option<Box<PendingAcknowledgement>>,
}

/// The acknowledgement of the settings (HTTP/2), while it decides how the client is connected.
struct PendingAcknowledgement {
    finder: AcknowledgementFinder,
    round_trip: Duration,
    /// When the settings were written, with the first bytes of the connection.
    written: Option<Time>,
    decided: Rc<Notify>,
}

/// Finding.
impl LinkPrints {
    fn found(&self) -> &FoundPrints {
        self.0.get_or_init(Box::default)
    }

    pub(crate) fn set_ja4(&self, print: Ja4) {
        let _ = self.found().ja4.set(print);
    }

    pub(crate) fn set_rtt(&self, verdict: RttVerdict) {
        let _ = self.found().rtt.set(verdict);
    }

    /// Begins to read the fingerprint of HTTP/2 from what the client sends.
    pub(crate) fn expect_frames(&self) {
        self.found().pending.borrow_mut().frames = Some(Vec::new());
    }

    /// Lets the acknowledgement of the settings decide how the client is connected.
    pub(crate) fn expect_acknowledgement(&self, round_trip: Duration) {
        self.found().pending.borrow_mut().acknowledgement =
            Some(Box::new(PendingAcknowledgement {
                finder: AcknowledgementFinder::default(),
                round_trip,
                written: None,
                decided: Rc::default(),
            }));
    }

    /// Notes what the client has sent.
    pub(crate) fn note_read(&self, bytes: &[u8], clock: &Clock) {
        if let Some(found) = self.0.get() {
            found.read_frames(bytes);
            found.read_acknowledgement(bytes, clock);
        }
    }

    /// Notes that bytes are written to the client. Returns whether the time until its answer is
    /// measured.
    pub(crate) fn note_write(&self, clock: &Clock) -> bool {
        let Some(found) = self.0.get() else { return false };
        let pending = &mut found.pending.borrow_mut().acknowledgement;
        pending.as_mut().is_some_and(|pending| {
            pending.written.get_or_insert_with(|| clock.now());
            true
        })
    }
}

/// Using.
impl LinkPrints {
    /// Returns a fact about the connection.
    pub(crate) fn fact(&self, fact: ClientFact) -> Option<&str> {
        let found = self.0.get()?;
        match fact {
            ClientFact::Ja4 => found.ja4.get().map(Ja4::as_str),
            ClientFact::Rtt => found.rtt.get().map(|rtt| rtt.as_str()),
            ClientFact::H2 => found.h2.get().map(String::as_str),
            _ => None,
        }
    }

    /// Whether it is not decided yet how the client is connected.
    pub(crate) fn is_undecided(&self) -> bool {
        self.0.get().is_some_and(|found| found.pending.borrow().acknowledgement.is_some())
    }

    /// Waits until it is decided how the client is connected: for as long as a direct client takes.
    pub(crate) async fn decide(&self) {
        let Some(found) = self.0.get() else { return };
        let pending = found.pending.borrow().acknowledgement.as_ref().map(|pending| {
            (RttVerdict::direct_max(pending.round_trip), Rc::clone(&pending.decided))
        });
        let Some((longest, decided)) = pending else { return };
        if tokio::time::timeout(longest, decided.notified()).await.is_err() {
            found.decide(RttVerdict::Relayed);
        }
    }
}

impl FoundPrints {
    fn read_frames(&self, bytes: &[u8]) {
        let frames = &mut self.pending.borrow_mut().frames;
        let Some(before) = frames.as_mut() else { return };
        // Most clients send all of it at once.
        let all = if before.is_empty() {
            bytes
        } else {
            before.extend_from_slice(bytes);
            &before[..]
        };
        match h2::read(all) {
            PrintParse::More if before.is_empty() => before.extend_from_slice(bytes),
            PrintParse::More => {}
            PrintParse::Whole(print) => {
                let _ = self.h2.set(print);
                *frames = None;
            }
            PrintParse::Bad => *frames = None,
        }
    }

    fn read_acknowledgement(&self, bytes: &[u8], clock: &Clock) {
        let mut pending = self.pending.borrow_mut();
        let Some(pending_ack) = &mut pending.acknowledgement else { return };
        if !pending_ack.finder.read(bytes) {
            return;
        }
        let since = |written: Time| clock.now().0.saturating_sub(written.0);
        let elapsed = Duration::from_nanos(pending_ack.written.map_or(0, since));
        let round_trip = pending_ack.round_trip;
        let verdict = RttVerdict::of_acknowledgement(elapsed, round_trip);
        tracing::debug!(
            target: "evenkeel::proxy", ?elapsed, ?round_trip, %verdict, "round trip of HTTP/2"
        );
        drop(pending);
        self.decide(verdict);
    }

    fn decide(&self, verdict: RttVerdict) {
        if let Some(pending) = self.pending.borrow_mut().acknowledgement.take() {
            let _ = self.rtt.set(verdict);
            pending.decided.notify_waiters();
        }
    }
}
