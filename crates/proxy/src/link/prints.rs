//! What the start of a connection tells about the program of its client.
//!
//! Nothing is stored unless a limit or a condition names one of these facts. How they are found:
//! `front/prints.rs`. What they mean: `identity::prints`.

use evenkeel_core::fact::ClientFact;
use evenkeel_identity::prints::ja4::Ja4;
use evenkeel_identity::prints::rtt::RttVerdict;
use evenkeel_identity::prints::{PrintParse, h2};
use std::cell::{OnceCell, RefCell};

/// The fingerprints of a connection, as far as they are wanted and known.
#[derive(Default)]
pub(crate) struct LinkPrints(OnceCell<Box<FoundPrints>>);

#[derive(Default)]
struct FoundPrints {
    ja4: OnceCell<Ja4>,
    rtt: OnceCell<RttVerdict>,
    h2: OnceCell<String>,
    /// What the client has sent so far, while the fingerprint of HTTP/2 is not known.
    frames: RefCell<Option<Vec<u8>>>,
}

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
        *self.found().frames.borrow_mut() = Some(Vec::new());
    }

    /// Notes what the client has sent.
    pub(crate) fn note_read(&self, bytes: &[u8]) {
        if let Some(found) = self.0.get() {
            found.note_read(bytes);
        }
    }
}

impl FoundPrints {
    fn note_read(&self, bytes: &[u8]) {
        let mut frames = self.frames.borrow_mut();
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
}
