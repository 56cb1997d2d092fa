//! One connection: reads bytes, asks the engine, writes answers.
//!
//! All bytes that have arrived are answered together, with one reading of the clock and one write.
//! The buffers belong to the thread. A connection itself keeps only unfinished work: the beginning
//! of a query, and answers that its client has not read. While such answers exist, no more bytes
//! are read. So a client that does not read gets no further answers, and can make the door keep at
//! most [`ANSWER_BYTES`] and a chunk. What the bytes mean: `splitter`, `resp` and `commands`. If a
//! store counts, it is asked once about all queries that have arrived, and they are answered when
//! its answer is back: `store_client`.

use super::commands::RedisSession;
use super::outcome::{InputOutcome, NextStep};
use super::splitter::TagSplitter;
use super::store_client::TagStoreClient;
use super::worker::LineWorker;
use evenkeel_engine::tags::questions::TagQuestions;
use evenkeel_engine::tags::{TAG_GROUP_MAX, TagBatch};
use rustix::net::RecvFlags;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The size of one read, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;
/// The number of unsent answer bytes at which answering pauses until the client has read them.
const ANSWER_BYTES: usize = 64 * 1024;
/// The spare capacity, in bytes, that the buffer for the beginning of a query may keep.
const KEPT_BYTES: usize = 1024;
/// The number of chunks read from one connection before others get a turn.
const CHUNKS_PER_TURN: usize = 4;
/// The maximum number of bytes read and discarded at the end, so that closing does not destroy the
/// last reply.
const LINGER_BYTES: usize = 256 * 1024;

/// The queries that the store is being asked about.
type StoreQuery = Pin<Box<dyn Future<Output = TagQuestions>>>;

/// The buffers of one thread, which its connections share.
pub struct LineBuffers {
    input: Box<[u8]>,
    output: Vec<u8>,
}

impl Default for LineBuffers {
    fn default() -> LineBuffers {
        LineBuffers { input: vec![0; CHUNK_BYTES].into(), output: Vec::new() }
    }
}

/// The protocol of a client, with its parser state.
#[derive(Clone)]
pub enum LineCodec {
    /// Tags and newlines.
    Lines(TagSplitter),
    Resp(RedisSession),
}

impl LineCodec {
    /// Answers the queries in `input`, and pauses after [`ANSWER_BYTES`] of answers.
    pub fn take(
        &mut self,
        input: &[u8],
        batch: &mut TagBatch<'_>,
        out: &mut Vec<u8>,
    ) -> InputOutcome {
        self.take_until(input, batch, out, ANSWER_BYTES)
    }

    /// Answers all queries in `input`, whatever the size of the answers.
    pub fn take_all(
        &mut self,
        input: &[u8],
        batch: &mut TagBatch<'_>,
        out: &mut Vec<u8>,
    ) -> InputOutcome {
        self.take_until(input, batch, out, usize::MAX)
    }

    fn take_until(
        &mut self,
        input: &[u8],
        batch: &mut TagBatch<'_>,
        out: &mut Vec<u8>,
        max: usize,
    ) -> InputOutcome {
        match self {
            LineCodec::Lines(lines) => answer_lines(lines, input, batch, out),
            LineCodec::Resp(session) => session.take(input, batch, out, max),
        }
    }
}

/// Answers tags in groups. A tag that is too long is answered `OK` and not counted.
fn answer_lines(
    lines: &mut TagSplitter,
    input: &[u8],
    batch: &mut TagBatch<'_>,
    out: &mut Vec<u8>,
) -> InputOutcome {
    let (mut asked, mut faults) = (0, 0);
    let (mut group, mut len) = ([None; TAG_GROUP_MAX], 0);
    let mut answer = |group: &[Option<&[u8]>]| {
        batch.ask(group, |served| out.extend_from_slice(if served { b"OK\n" } else { b"NO\n" }));
    };
    let used = lines.take(input, |tag| {
        asked += 1;
        faults += u64::from(tag.is_none());
        group[len] = tag;
        len += 1;
        if len == TAG_GROUP_MAX {
            answer(&group);
            len = 0;
        }
    });
    answer(&group[..len]);
    InputOutcome { used, asked, faults, then: NextStep::Read }
}

/// The part of a connection that its worker can access.
#[derive(Default)]
pub struct LineLink {
    /// The time of the last query, in milliseconds.
    pub active: Cell<u64>,
    /// The index in the list of its thread.
    pub place: Cell<usize>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl LineLink {
    fn served_by(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    pub fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Wakes the connection's task to check its state.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

pub struct LineConnection<S> {
    stream: S,
    worker: Rc<LineWorker>,
    link: Rc<LineLink>,
    client: Option<IpAddr>,
    speech: LineCodec,
    /// The beginning of a query, or queries not answered yet because of unsent answers.
    kept: Vec<u8>,
    /// Answers that the client has not read. Those from index `sent` on are still to be sent.
    unsent: Vec<u8>,
    sent: usize,
    then: NextStep,
    lingered: usize,
    /// The query to the store that is running, and the number of bytes of `kept` that it covers.
    /// While it is set, no bytes are read.
    store_query: Option<(StoreQuery, usize)>,
}

impl<S: AsyncRead + AsyncWrite + AsFd + Unpin> LineConnection<S> {
    pub fn new(
        stream: S,
        worker: Rc<LineWorker>,
        link: Rc<LineLink>,
        client: Option<IpAddr>,
        speech: LineCodec,
    ) -> LineConnection<S> {
        LineConnection {
            stream,
            worker,
            link,
            client,
            speech,
            kept: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            then: NextStep::Read,
            lingered: 0,
            store_query: None,
        }
    }

    /// Runs until there is nothing to do, or until it is the turn of other connections.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.link.served_by(cx.waker());
        for _ in 0..CHUNKS_PER_TURN {
            if self.link.closed.get() {
                return Poll::Ready(());
            }
            // If the connection fails, no peer is left to report the error to.
            if !matches!(ready!(self.step(cx)), Ok(StepResult::Step)) {
                return Poll::Ready(());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<StepResult>> {
        if !self.unsent.is_empty() {
            return self.send(cx);
        }
        if let Some((asking, used)) = &mut self.store_query {
            let (asked, used) = (ready!(asking.as_mut().poll(cx)), *used);
            return Poll::Ready(self.reply(cx, asked, used));
        }
        match self.then {
            NextStep::Read => self.read(cx),
            NextStep::Resume => self.resume(cx),
            NextStep::End => self.linger(cx),
        }
    }

    /// Reads and answers the next chunk.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<StepResult>> {
        let worker = Rc::clone(&self.worker);
        let LineBuffers { input, output } = &mut *worker.scratch.borrow_mut();
        let mut chunk = ReadBuf::new(input);
        let count = match Pin::new(&mut self.stream).poll_read(cx, &mut chunk) {
            Poll::Pending if worker.is_draining() => self.last_look(input),
            poll => ready!(poll).map(|()| chunk.filled().len())?,
        };
        if count == 0 {
            // Complete queries were answered; an incomplete one is ignored.
            return Poll::Ready(Ok(StepResult::End));
        }
        let chunk = &input[..count];
        if let Some(store) = &worker.store {
            self.kept.extend_from_slice(chunk);
            self.begin_to_ask(store);
            return Poll::Ready(Ok(StepResult::Step));
        }
        if self.kept.is_empty() {
            let used = self.answer(chunk, output);
            self.kept.extend_from_slice(&chunk[used..]);
        } else {
            self.kept.extend_from_slice(chunk);
            self.answer_kept(output);
        }
        Poll::Ready(self.begin_to_send(cx, output))
    }

    /// Reads bytes that have arrived but that the runtime has not reported yet. Closing without
    /// reading them would destroy replies in transit.
    fn last_look(&self, input: &mut [u8]) -> usize {
        rustix::net::recv(&self.stream, input, RecvFlags::DONTWAIT).map_or(0, |(count, _)| count)
    }

    /// Answers the queries for which there was no room.
    fn resume(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<StepResult>> {
        let worker = Rc::clone(&self.worker);
        if let Some(store) = &worker.store {
            self.begin_to_ask(store);
            return Poll::Ready(Ok(StepResult::Step));
        }
        let output = &mut worker.scratch.borrow_mut().output;
        self.answer_kept(output);
        Poll::Ready(self.begin_to_send(cx, output))
    }

    /// Asks the store about all queries in `kept` at once.
    fn begin_to_ask(&mut self, store: &Rc<TagStoreClient>) {
        let mut batch = self.worker.lane.note(self.client);
        self.link.active.set(batch.now().0 / 1_000_000);
        // The bytes are parsed twice: now to find the queries, and in `reply` to write the answers.
        // This first output is discarded, and the parser state is a copy.
        let mut out = Vec::new();
        let taken = self.speech.clone().take(&self.kept, &mut batch, &mut out);
        let asked = batch.asked();
        self.then = taken.then;
        self.store_query = Some((Box::pin(Rc::clone(store).ask(asked)), taken.used));
    }

    /// Writes the replies: parses the same bytes again, now with the store's answers. Both passes
    /// must ask the same queries in the same order.
    fn reply(
        &mut self,
        cx: &mut Context<'_>,
        asked: TagQuestions,
        used: usize,
    ) -> io::Result<StepResult> {
        self.store_query = None;
        let worker = Rc::clone(&self.worker);
        let output = &mut worker.scratch.borrow_mut().output;
        output.clear();
        let mut kept = std::mem::take(&mut self.kept);
        let mut batch = worker.lane.tell(self.client, asked);
        let taken = self.speech.take_all(&kept[..used], &mut batch, output);
        let asked = batch.asked();
        worker.store.iter().for_each(|store| store.queue_unreported(&asked));
        worker.counts(&self.speech).record_questions(taken.asked, taken.faults);
        kept.drain(..used);
        if !kept.is_empty() {
            kept.shrink_to(KEPT_BYTES);
            self.kept = kept;
        }
        self.begin_to_send(cx, output)
    }

    fn answer_kept(&mut self, output: &mut Vec<u8>) {
        let mut kept = std::mem::take(&mut self.kept);
        let used = self.answer(&kept, output);
        kept.drain(..used);
        // Ten thousand silent connections must not take much memory.
        if !kept.is_empty() {
            kept.shrink_to(KEPT_BYTES);
            self.kept = kept;
        }
    }

    /// Answers the queries in `input`, all at the same time. Returns the number of bytes consumed.
    fn answer(&mut self, input: &[u8], output: &mut Vec<u8>) -> usize {
        output.clear();
        let mut batch = self.worker.lane.batch(self.client);
        self.link.active.set(batch.now().0 / 1_000_000);
        let taken = self.speech.take(input, &mut batch, output);
        drop(batch);
        self.worker.counts(&self.speech).record_questions(taken.asked, taken.faults);
        self.then = taken.then;
        taken.used
    }

    /// Sends as much as the client accepts at once, and keeps the rest.
    fn begin_to_send(&mut self, cx: &mut Context<'_>, output: &[u8]) -> io::Result<StepResult> {
        if output.is_empty() {
            return Ok(StepResult::Step);
        }
        let sent = match Pin::new(&mut self.stream).poll_write(cx, output) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => 0,
        };
        if sent < output.len() {
            self.unsent = output[sent..].to_vec();
            self.sent = 0;
        }
        Ok(StepResult::Step)
    }

    /// Sends more of the kept answers.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<StepResult>> {
        let rest = &self.unsent[self.sent..];
        let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
        if sent == 0 {
            return Poll::Ready(Ok(StepResult::End));
        }
        self.sent += sent;
        if self.sent == self.unsent.len() {
            self.unsent = Vec::new();
        }
        Poll::Ready(Ok(StepResult::Step))
    }

    /// Shuts the write side down and waits for the client to close its side. Closing while the
    /// client still sends would destroy answers that it has not read.
    fn linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<StepResult>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        let worker = Rc::clone(&self.worker);
        let scratch = &mut *worker.scratch.borrow_mut();
        let mut chunk = ReadBuf::new(&mut scratch.input);
        match Pin::new(&mut self.stream).poll_read(cx, &mut chunk) {
            Poll::Pending if worker.is_draining() => return Poll::Ready(Ok(StepResult::End)),
            poll => ready!(poll)?,
        }
        self.lingered += chunk.filled().len();
        let end = chunk.filled().is_empty() || self.lingered > LINGER_BYTES;
        Poll::Ready(Ok(if end { StepResult::End } else { StepResult::Step }))
    }
}

enum StepResult {
    Step,
    End,
}
