//! One connection: bytes in, questions to the engine, bytes out.
//!
//! All that has arrived is answered at once with one reading of the clock and one write. Buffers
//! belong to the thread; a connection keeps only what is neither here nor there: the beginning of
//! a question, and answers that its client does not take. While there are such answers nothing is
//! read, so who does not read is not answered further, and nobody makes us keep more than
//! [`ANSWER_BYTES`] and a chunk. What the bytes say: `lines`, `resp` and `commands`. Where a store
//! counts, all that has arrived is asked there at once, and answered when it is back: `elsewhere`.

use super::commands::Session;
use super::elsewhere::Elsewhere;
use super::lines::Lines;
use super::worker::Worker;
use crate::engine::tags::asked::Asked;
use crate::engine::tags::{Batch, GROUP};
use rustix::net::RecvFlags;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// Bytes of answers after which no more questions are answered before these are taken.
const ANSWER_BYTES: usize = 64 * 1024;
/// Room that the beginning of a question may take beyond its length.
const KEPT_BYTES: usize = 1024;
/// Chunks read from one connection before others get their turn.
const CHUNKS_PER_TURN: usize = 4;
/// Bytes passed over after a fault, so that closing does not take the reply back.
const LINGER_BYTES: usize = 256 * 1024;

/// Questions that are with the store.
type Asking = Pin<Box<dyn Future<Output = Asked>>>;

/// The buffers of one thread.
pub struct Scratch {
    input: Box<[u8]>,
    output: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch { input: vec![0; CHUNK_BYTES].into(), output: Vec::new() }
    }
}

/// What a client speaks.
#[derive(Clone)]
pub enum Speech {
    /// Tags and newlines.
    Lines(Lines),
    /// The Redis protocol.
    Resp(Session),
}

/// What became of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// So many are dealt with.
    pub used: usize,
    /// So many questions were in them,
    pub asked: u64,
    /// and so many of these were not proper.
    pub faults: u64,
    /// What to do next.
    pub then: Then,
}

/// What a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Waits for more: what is left is the beginning of a question.
    Read,
    /// Goes on with what is left, once the answers are taken.
    Resume,
    /// Ends, once the answers are taken.
    End,
}

impl Speech {
    /// Answers what `input` asks.
    pub fn take(&mut self, input: &[u8], batch: &mut Batch<'_>, out: &mut Vec<u8>) -> Taken {
        self.take_until(input, batch, out, ANSWER_BYTES)
    }

    /// The same, however many bytes that makes.
    pub fn take_all(&mut self, input: &[u8], batch: &mut Batch<'_>, out: &mut Vec<u8>) -> Taken {
        self.take_until(input, batch, out, usize::MAX)
    }

    fn take_until(
        &mut self,
        input: &[u8],
        batch: &mut Batch<'_>,
        out: &mut Vec<u8>,
        max: usize,
    ) -> Taken {
        match self {
            Speech::Lines(lines) => answer_lines(lines, input, batch, out),
            Speech::Resp(session) => session.take(input, batch, out, max),
        }
    }
}

/// Answers tags in groups. Who asks too long a question is let through, as if nobody had asked.
fn answer_lines(
    lines: &mut Lines,
    input: &[u8],
    batch: &mut Batch<'_>,
    out: &mut Vec<u8>,
) -> Taken {
    let (mut asked, mut faults) = (0, 0);
    let (mut group, mut len) = ([None; GROUP], 0);
    let mut answer = |group: &[Option<&[u8]>]| {
        batch.ask(group, |served| out.extend_from_slice(if served { b"OK\n" } else { b"NO\n" }));
    };
    let used = lines.take(input, |tag| {
        asked += 1;
        faults += u64::from(tag.is_none());
        group[len] = tag;
        len += 1;
        if len == GROUP {
            answer(&group);
            len = 0;
        }
    });
    answer(&group[..len]);
    Taken { used, asked, faults, then: Then::Read }
}

/// What others see of a connection.
#[derive(Default)]
pub struct Link {
    /// When it last did something, in milliseconds.
    pub active: Cell<u64>,
    /// Where it stands in its thread's list.
    pub place: Cell<usize>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Link {
    fn served_by(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }

    /// Ends the connection, whatever it is at.
    pub fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Has the connection look at its orders.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// One connection with all that it keeps.
pub struct Talk<S> {
    stream: S,
    worker: Rc<Worker>,
    link: Rc<Link>,
    client: Option<IpAddr>,
    speech: Speech,
    /// The beginning of a question, or questions for which there was no room.
    kept: Vec<u8>,
    /// Answers that the client has not taken.
    unsent: Vec<u8>,
    sent: usize,
    then: Then,
    lingered: usize,
    /// What others count who are asked just now, and of how much of `kept` that is.
    asking: Option<(Asking, usize)>,
}

impl<S: AsyncRead + AsyncWrite + AsFd + Unpin> Talk<S> {
    /// A connection that has just been opened.
    pub fn new(
        stream: S,
        worker: Rc<Worker>,
        link: Rc<Link>,
        client: Option<IpAddr>,
        speech: Speech,
    ) -> Talk<S> {
        Talk {
            stream,
            worker,
            link,
            client,
            speech,
            kept: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            then: Then::Read,
            lingered: 0,
            asking: None,
        }
    }

    /// Goes on until there is nothing to do, or others are to have their turn.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.link.served_by(cx.waker());
        for _ in 0..CHUNKS_PER_TURN {
            if self.link.closed.get() {
                return Poll::Ready(());
            }
            // A connection that fails has nobody to be told.
            if !matches!(ready!(self.step(cx)), Ok(Next::Step)) {
                return Poll::Ready(());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        if !self.unsent.is_empty() {
            return self.send(cx);
        }
        if let Some((asking, used)) = &mut self.asking {
            let (asked, used) = (ready!(asking.as_mut().poll(cx)), *used);
            return Poll::Ready(self.reply(cx, asked, used));
        }
        match self.then {
            Then::Read => self.read(cx),
            Then::Resume => self.resume(cx),
            Then::End => self.linger(cx),
        }
    }

    /// Answers the next chunk.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        let worker = Rc::clone(&self.worker);
        let Scratch { input, output } = &mut *worker.scratch.borrow_mut();
        let mut chunk = ReadBuf::new(input);
        let count = match Pin::new(&mut self.stream).poll_read(cx, &mut chunk) {
            Poll::Pending if worker.is_draining() => self.last_look(input),
            poll => ready!(poll).map(|()| chunk.filled().len())?,
        };
        if count == 0 {
            // Whole questions were answered; half of one is none.
            return Poll::Ready(Ok(Next::End));
        }
        let chunk = &input[..count];
        if let Some(store) = &worker.store {
            self.kept.extend_from_slice(chunk);
            self.begin_to_ask(store);
            return Poll::Ready(Ok(Next::Step));
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

    /// What has arrived and the runtime was not told of yet: to close without having read it would
    /// take back replies that are under way.
    fn last_look(&self, input: &mut [u8]) -> usize {
        rustix::net::recv(&self.stream, input, RecvFlags::DONTWAIT).map_or(0, |(count, _)| count)
    }

    /// Answers what there was no room for.
    fn resume(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        let worker = Rc::clone(&self.worker);
        if let Some(store) = &worker.store {
            self.begin_to_ask(store);
            return Poll::Ready(Ok(Next::Step));
        }
        let output = &mut worker.scratch.borrow_mut().output;
        self.answer_kept(output);
        Poll::Ready(self.begin_to_send(cx, output))
    }

    /// Has the store asked all that is in `kept`, in one go.
    fn begin_to_ask(&mut self, store: &Rc<Elsewhere>) {
        let mut batch = self.worker.lane.note(self.client);
        self.link.active.set(batch.now().0 / 1_000_000);
        // Whatever is said for the first time is said to nobody.
        let mut out = Vec::new();
        let taken = self.speech.clone().take(&self.kept, &mut batch, &mut out);
        let asked = batch.asked();
        self.then = taken.then;
        self.asking = Some((Box::pin(Rc::clone(store).ask(asked)), taken.used));
    }

    /// Replies to what was asked: the same bytes again, with the answers at hand.
    fn reply(&mut self, cx: &mut Context<'_>, asked: Asked, used: usize) -> io::Result<Next> {
        self.asking = None;
        let worker = Rc::clone(&self.worker);
        let output = &mut worker.scratch.borrow_mut().output;
        output.clear();
        let mut kept = std::mem::take(&mut self.kept);
        let mut batch = worker.lane.tell(self.client, asked);
        let taken = self.speech.take_all(&kept[..used], &mut batch, output);
        let asked = batch.asked();
        worker.store.iter().for_each(|store| store.owe(&asked));
        worker.counts(&self.speech).asked(taken.asked, taken.faults);
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
        // Ten thousand that are silent are to cost little.
        if !kept.is_empty() {
            kept.shrink_to(KEPT_BYTES);
            self.kept = kept;
        }
    }

    /// Answers what `input` asks, all at one moment; says how much of it is dealt with.
    fn answer(&mut self, input: &[u8], output: &mut Vec<u8>) -> usize {
        output.clear();
        let mut batch = self.worker.lane.batch(self.client);
        self.link.active.set(batch.now().0 / 1_000_000);
        let taken = self.speech.take(input, &mut batch, output);
        drop(batch);
        self.worker.counts(&self.speech).asked(taken.asked, taken.faults);
        self.then = taken.then;
        taken.used
    }

    /// Sends what the client takes at once, and keeps the rest.
    fn begin_to_send(&mut self, cx: &mut Context<'_>, output: &[u8]) -> io::Result<Next> {
        if output.is_empty() {
            return Ok(Next::Step);
        }
        let sent = match Pin::new(&mut self.stream).poll_write(cx, output) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => 0,
        };
        if sent < output.len() {
            self.unsent = output[sent..].to_vec();
            self.sent = 0;
        }
        Ok(Next::Step)
    }

    /// Sends more of what was kept.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        let rest = &self.unsent[self.sent..];
        let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
        if sent == 0 {
            return Poll::Ready(Ok(Next::End));
        }
        self.sent += sent;
        if self.sent == self.unsent.len() {
            self.unsent = Vec::new();
        }
        Poll::Ready(Ok(Next::Step))
    }

    /// Says that nothing follows, and waits for the client to say so too: to close while it still
    /// sends would take back what it has not read.
    fn linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        let worker = Rc::clone(&self.worker);
        let scratch = &mut *worker.scratch.borrow_mut();
        let mut chunk = ReadBuf::new(&mut scratch.input);
        match Pin::new(&mut self.stream).poll_read(cx, &mut chunk) {
            Poll::Pending if worker.is_draining() => return Poll::Ready(Ok(Next::End)),
            poll => ready!(poll)?,
        }
        self.lingered += chunk.filled().len();
        let end = chunk.filled().is_empty() || self.lingered > LINGER_BYTES;
        Poll::Ready(Ok(if end { Next::End } else { Next::Step }))
    }
}

/// Whether a connection goes on.
enum Next {
    Step,
    End,
}
