//! What is written to the client of a link: whether it is read, and the answer that is read ahead
//! if it is not.
//!
//! The stream of an HTTP/2 connection has no socket of its own. Its client does not read if the
//! task that sends the answer leaves frames unsent, or asks for no further one.

use crate::outbox::UnsentBytes;
use crate::timer::WaitTimer;
use std::cell::{Cell, RefCell};
use std::rc::Weak;
use std::task::Context;
use std::time::Duration;

/// A stream that its client does not read for this time counts as a connection of its own.
const STREAM_STUCK_AFTER: Duration = Duration::from_millis(100);

/// The reader of an answer ahead of its client.
///
/// The one implementation is the answer's body (`download.rs`). It holds the link of its client, so
/// the link can name it only by this trait.
pub(crate) trait ReadAhead {
    /// Reads on from the backend although the client takes nothing at the moment.
    fn read_ahead(&mut self, cx: &mut Context<'_>);
}

/// The answer of a link on its way to the client.
#[derive(Default)]
pub(crate) struct ClientWrites {
    /// The client does not read what is written to it.
    stuck: WaitTimer,
    /// Accepted bytes that the socket had no room for.
    unsent: UnsentBytes,
    /// The answer's body.
    download: RefCell<Option<Weak<RefCell<dyn ReadAhead>>>>,
    /// Since the task that sends the body last ran, that task has found that the backend has no
    /// more of it.
    drained: Cell<bool>,
}

impl ClientWrites {
    /// The writes to a connection with these unsent bytes.
    pub(super) fn new(unsent: UnsentBytes) -> ClientWrites {
        ClientWrites { unsent, ..ClientWrites::default() }
    }

    /// Whether some written bytes wait until the client reads.
    pub(super) fn wait_for_client(&self) -> bool {
        self.stuck.waits() || self.unsent.any()
    }

    /// Begins to send the body of an answer.
    pub(crate) fn begin(&self, download: Weak<RefCell<dyn ReadAhead>>) {
        *self.download.borrow_mut() = Some(download);
    }

    /// The whole answer is handed over.
    pub(super) fn end(&self) {
        self.download.take();
    }

    /// Returns the timer that runs while the client does not read.
    pub(crate) fn stuck(&self) -> &WaitTimer {
        &self.stuck
    }

    /// Whether the client of a stream has read nothing for a while.
    pub(crate) fn is_stream_stuck(&self, now: u64) -> bool {
        self.stuck.exceeds(STREAM_STUCK_AFTER, now, 0)
    }

    /// Everything that the backend has sent of the body so far is handed over.
    pub(crate) fn note_drained(&self) {
        self.drained.set(true);
    }

    /// The task that sends the answer has run. If it left some of the body, the client leaves it no
    /// room to send more: reads on ahead of it.
    pub(super) fn read_ahead(&self, cx: &mut Context<'_>, is_stream: bool, now: u64) {
        if self.drained.take() {
            return;
        }
        let download = self.download.borrow().as_ref().and_then(Weak::upgrade);
        if let Some(download) = download {
            if is_stream {
                self.stuck.begin(now);
            }
            download.borrow_mut().read_ahead(cx);
        }
    }
}
