//! The answer's body on its way to the client.
//!
//! A frame is read when the client's side asks for it. If it does not, because the client reads
//! nothing, up to [`AHEAD_BYTES_MAX`] are read anyway: the backend may still be working after it
//! sent an early head, and the clock runs until the end of its answer. Only a backend that the
//! proxy does not read from waits for the client, so only then does the clock stop and the slot
//! become free for others. A language model does not wait: it makes its answer whether or not it is
//! read. So far more of its stream is read ahead ([`MODEL_AHEAD_BYTES_MAX`]), and it keeps its slot
//! during that time.
//!
//! If the client disconnects: `abort.rs`.

use super::abort;
use super::account::RequestAccount;
use super::backends::lease::UpstreamLease;
use super::body::{PolledFrame, extended};
use super::context::ThreadContext;
use super::failure::{BodyError, UpstreamFailure};
use super::headers;
use super::link::{ClientLink, ReadAhead};
use bytes::Bytes;
use evenkeel_engine::Charge;
use evenkeel_telemetry::counts::BackendFault;
use http_body::{Frame, SizeHint};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

/// The maximum number of bytes that are read ahead of the client. A larger value costs memory for
/// each client that reads slowly. With a smaller value, more slow clients keep a slot.
const AHEAD_BYTES_MAX: usize = 64 * 1024;

/// The same for the stream of a language model. With a smaller value, a client that reads slowly
/// gives its slot away while the model still works for it.
const MODEL_AHEAD_BYTES_MAX: usize = 4 << 20;

/// The number of bytes read ahead on one thread from which on streams of language models are
/// treated like other answers.
const THREAD_AHEAD_BYTES_MAX: usize = 64 << 20;

/// The memory that a frame takes in addition to its data, in bytes.
const FRAME_BYTES: usize = size_of::<Frame<Bytes>>();

pub(super) enum AnswerBody {
    /// The whole body at once.
    Whole(Option<Bytes>),
    /// The body comes from the backend.
    Stream(Rc<RefCell<AnswerDownload>>),
}

/// A body that comes from the backend, with its connection.
pub(super) struct AnswerDownload {
    /// `None` if the body is complete or given up.
    source: Option<UpstreamLease>,
    /// Frames that have arrived and were not asked for yet, and their size in bytes.
    ahead: VecDeque<Frame<Bytes>>,
    ahead_bytes: usize,
    link: Rc<ClientLink>,
    thread: Rc<ThreadContext>,
    account: RequestAccount,
    /// Whether the answer is being sent to the client. False while it is held.
    released: bool,
    /// The error to return the next time a frame is asked for.
    broken: Option<BodyError>,
    /// Whether the backend is to stop when the client disconnects: the answer is a stream that is
    /// charged while it lasts.
    pub(super) ends_with_client: bool,
    /// Whether the answer is a stream of events of a language model.
    pub(super) is_model_stream: bool,
}

impl AnswerDownload {
    pub(super) fn new(
        lease: UpstreamLease,
        link: &Rc<ClientLink>,
        thread: &Rc<ThreadContext>,
        account: RequestAccount,
    ) -> AnswerDownload {
        AnswerDownload {
            source: Some(lease),
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            link: Rc::clone(link),
            thread: Rc::clone(thread),
            account,
            released: false,
            broken: None,
            ends_with_client: false,
            is_model_stream: false,
        }
    }

    /// Holds the answer until `over`.
    ///
    /// # Errors
    /// The answer breaks off in the meantime.
    pub(super) async fn hold(
        &mut self,
        over: impl Future<Output = ()>,
    ) -> Result<(), UpstreamFailure> {
        let mut over = pin!(over);
        poll_fn(|cx| match self.poll_ahead(cx) {
            Ok(()) => over.as_mut().poll(cx).map(Ok),
            Err(failure) => {
                self.source = None;
                self.account.settle();
                Poll::Ready(Err(failure))
            }
        })
        .await
    }

    /// Ends the hold and returns the body for the client.
    ///
    /// # Errors
    /// The answer is already known to be broken, so the client can still get an error status.
    pub(super) async fn release(mut self) -> Result<AnswerBody, UpstreamFailure> {
        self.released = true;
        poll_fn(|cx| Poll::Ready(self.look_ahead(cx))).await?;
        if self.ahead.is_empty() {
            let Some(UpstreamLease { wire, .. }) = &mut self.source else {
                self.link.end_request(self.thread.now());
                return Ok(AnswerBody::Whole(None));
            };
            let whole = wire.whole().map(|bytes| self.account.pass(bytes));
            if wire.is_through() {
                self.finish();
                self.link.end_request(self.thread.now());
                return Ok(AnswerBody::Whole(whole));
            }
        }
        let link = Rc::clone(&self.link);
        let download = Rc::new(RefCell::new(self));
        link.writes.begin(Rc::downgrade(&download) as Weak<RefCell<dyn ReadAhead>>);
        Ok(AnswerBody::Stream(download))
    }

    fn look_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), UpstreamFailure> {
        let Some(lease) = &mut self.source else { return Ok(()) };
        let Err(fault) = lease.wire.look_ahead(cx) else { return Ok(()) };
        let failure = UpstreamFailure::from(fault).by(&lease.backend.name);
        self.source = None;
        self.account.settle();
        Err(failure)
    }

    fn is_full(&self) -> bool {
        let has_room = self.is_model_stream && self.thread.ahead.get() < THREAD_AHEAD_BYTES_MAX;
        self.ahead_bytes >= if has_room { MODEL_AHEAD_BYTES_MAX } else { AHEAD_BYTES_MAX }
    }

    fn set_ahead_bytes(&mut self, bytes: usize) {
        let others = self.thread.ahead.get() - self.ahead_bytes;
        self.thread.ahead.set(others + bytes);
        self.ahead_bytes = bytes;
    }

    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), UpstreamFailure> {
        while !self.is_full() {
            match self.poll_backend(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.set_ahead_bytes(self.ahead_bytes + bytes_of(&frame));
                    self.ahead.push_back(frame);
                }
                Poll::Ready(Some(Err(failure))) => return Err(failure),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Returns the next frame from the backend. The clock runs while the proxy waits for it.
    fn poll_backend(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamFailure>>> {
        let Some(UpstreamLease { wire, backend, .. }) = &mut self.source else {
            return Poll::Ready(None);
        };
        let polled = wire.poll_frame(cx);
        if polled.is_pending() && !self.link.backend.is_late() {
            self.account.with(Charge::work);
            self.link.backend.begin_body(self.thread.now());
            return Poll::Pending;
        }
        self.account.with(Charge::rest);
        self.link.backend.end_body();
        let ended = wire.is_through();
        Poll::Ready(match polled {
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    headers::trailers(trailers, None);
                }
                Some(Ok(self.passed(frame, ended)))
            }
            Poll::Ready(Some(Err(fault))) => {
                Some(Err(UpstreamFailure::from(fault).by(&backend.name)))
            }
            Poll::Ready(None) => {
                let rest = self.finish();
                (!rest.is_empty()).then(|| Ok(Frame::data(rest)))
            }
            Poll::Pending => {
                wire.retire_if_silent();
                Some(Err(UpstreamFailure::new(BackendFault::Idle).by(&backend.name)))
            }
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        self.link.note_frame_requested();
        let frame = match self.ahead.pop_front() {
            Some(frame) => {
                self.set_ahead_bytes(self.ahead_bytes - bytes_of(&frame));
                Some(frame)
            }
            None => match self.poll_backend(cx).map(Option::transpose) {
                Poll::Ready(Ok(frame)) => frame,
                Poll::Ready(Err(failure)) => return self.fail(&failure, cx),
                Poll::Pending => {
                    self.link.writes.note_drained();
                    return Poll::Pending;
                }
            },
        };
        if self.is_over() {
            self.link.end_request(self.thread.now());
        }
        Poll::Ready(match frame {
            Some(frame) => {
                self.link.note_frame_sent(self.thread.now());
                Some(Ok(frame))
            }
            None => self.broken.take().map(Err),
        })
    }

    fn fail(&mut self, failure: &UpstreamFailure, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        self.give_up(failure);
        if failure.fault == BackendFault::Idle {
            return Poll::Ready(Some(Err(BodyError::BackendLate)));
        }
        // The error is returned one poll later: when a body fails, hyper throws away what it has
        // not written yet. A client that got no byte of its answer would conclude that its
        // request was not run.
        self.broken = Some(BodyError::BackendEnded);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether all is handed over except perhaps an error.
    fn is_over(&self) -> bool {
        self.source.is_none() && self.ahead.is_empty()
    }

    /// A frame of the body on its way to the client. `ended`: it is the last one.
    fn passed(&mut self, frame: Frame<Bytes>, ended: bool) -> Frame<Bytes> {
        let frame = match frame.into_data() {
            Ok(data) => Frame::data(self.account.pass(data)),
            Err(trailers) => trailers,
        };
        let rest = if ended { self.finish() } else { Bytes::new() };
        match (rest.is_empty(), frame.data_ref()) {
            (true, _) => frame,
            (false, Some(data)) => Frame::data([&data[..], &rest].concat().into()),
            // Events after the last complete one are of more use to a client than trailers.
            (false, None) => Frame::data(rest),
        }
    }

    /// The whole body has arrived: closes the account and returns the connection to the pool.
    /// Returns what of the body was held back.
    fn finish(&mut self) -> Bytes {
        let rest = self.account.finish();
        if let Some(lease) = self.source.take() {
            self.keep(lease);
        }
        self.account.settle();
        rest
    }

    /// Keeps the connection for another request, unless it carried the stream of a language model:
    /// llama.cpp closes its end after a stream without having announced it. The next request would
    /// fail, and one with a body is not sent again.
    fn keep(&self, lease: UpstreamLease) {
        if !self.is_model_stream {
            lease.keep(self.thread.now());
        }
    }

    /// Gives up the body and closes its connection. The backend failed, unless the client's own
    /// body did.
    fn give_up(&mut self, failure: &UpstreamFailure) {
        if let Some(lease) = self.source.take().filter(|_| !self.link.upload.has_failed()) {
            self.thread.record_failure(&self.link, &lease.backend.name, failure);
        }
        self.account.settle();
        if self.ahead.is_empty() {
            self.link.end_request(self.thread.now());
        }
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.source.as_ref();
        let rest = rest.map_or(SizeHint::with_exact(0), |lease| lease.wire.size_hint());
        extended(&rest, self.ahead_bytes - self.ahead.len() * FRAME_BYTES)
    }
}

impl ReadAhead for AnswerDownload {
    /// Reads as far as there is room.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        if let Err(failure) = self.poll_ahead(cx) {
            self.give_up(&failure);
            self.broken = Some(BodyError::BackendEnded);
        }
        if self.source.is_some() && self.is_full() {
            self.account.with(Charge::give_way);
            self.thread.set_aside(&self.link);
        }
    }
}

/// The size of a buffered frame, in bytes.
fn bytes_of(frame: &Frame<Bytes>) -> usize {
    FRAME_BYTES + frame.data_ref().map_or(0, Bytes::len)
}

impl Drop for AnswerDownload {
    fn drop(&mut self) {
        self.set_ahead_bytes(0);
        if !self.is_over() {
            self.link.end_request(self.thread.now());
        }
        let Some(lease) = self.source.take() else { return };
        if lease.wire.is_through() {
            self.keep(lease);
        } else if self.released && self.ends_with_client {
            drop(lease);
            abort::cut_off(&self.thread, &self.account);
        } else if self.released {
            abort::run_on(&self.thread, &self.account, abort::AbandonedExchange::Body(lease));
        }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        match self.get_mut() {
            AnswerBody::Whole(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            AnswerBody::Stream(download) => download.borrow_mut().poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Whole(bytes) => bytes.is_none(),
            AnswerBody::Stream(download) => {
                let download = download.borrow();
                download.is_over() && download.broken.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            AnswerBody::Stream(download) => download.borrow().size_hint(),
        }
    }
}
