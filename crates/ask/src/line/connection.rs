//! One connection: reads bytes, asks the engine, writes answers.
//!
//! All bytes that have arrived are answered together, with one reading of the clock and one write.
//! The buffers belong to the thread. A connection itself keeps only unfinished work: the beginning
//! of a query, and answers that its client has not read. While such answers exist, no more bytes
//! are read. So a client that does not read gets no further answers, and can make the door keep at
//! most [`ANSWER_BYTES`] and a chunk. The bytes are interpreted in `splitter`, `resp` and
//! `commands`. If a store counts, it is asked once about all queries that have arrived, and they
//! are answered when its answer is back: `store_client`. While a program waits for its turn, its
//! bytes are kept, up to a chunk, and only turns that it gives back are handled at once: `turns`.

use super::commands::RedisSession;
use super::link::{LineLink, LinkTurn};
use super::outcome::{InputOutcome, NextStep};
use super::splitter::TagSplitter;
use super::store_client::TagStoreClient;
use super::turns::{self, TurnCommand, TurnCommandResult, TurnReply};
use super::worker::LineWorker;
use evenkeel_core::units::{Cost, Nanos};
use evenkeel_engine::tags::questions::TagQuestions;
use evenkeel_engine::tags::{TAG_GROUP_MAX, TagBatch};
use evenkeel_engine::turns::{RefusalCause, TurnAnswer, TurnId, TurnLane, WaitingTurn};
use rustix::net::RecvFlags;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
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

/// The time for which `TRY` waits for the answer of the instance that gives out the turns.
const TRY_WAIT: Nanos = Nanos::from_millis(100);
/// The smallest number of turns of a connection at which those that were given back over another
/// one are forgotten.
const HELD_PRUNED: usize = 64;

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
    /// Tags and newlines. Whether lines may be about turns.
    Lines(TagSplitter, bool),
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
            LineCodec::Lines(lines, false) => answer_lines(lines, input, batch, out),
            LineCodec::Lines(lines, true) => {
                let plain = turns::plain_part(input, lines.begins_tag(), lines.tag_bytes_max());
                let taken = answer_lines(lines, &input[..plain], batch, out);
                let is_next = plain < input.len() && taken.used == plain;
                InputOutcome { then: if is_next { NextStep::Turn } else { taken.then }, ..taken }
            }
            LineCodec::Resp(session) => session.take(input, batch, out, max),
        }
    }

    /// The command about a turn at the beginning of `input`, and its length; `None` if it is not
    /// complete, or is about something else.
    fn turn<'a>(&self, input: &'a [u8]) -> Option<(TurnCommandResult<'a>, usize)> {
        match self {
            LineCodec::Lines(..) => turns::read_line(input),
            LineCodec::Resp(_) => turns::read_words(input),
        }
    }

    fn write_turn(&self, reply: &TurnReply, out: &mut Vec<u8>) {
        match self {
            LineCodec::Lines(..) => reply.write_line(out),
            LineCodec::Resp(session) => reply.write_resp(session.version(), out),
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
    /// The turn that the program waits for. Nothing after it is answered before.
    waiting: Option<TurnWait>,
    /// The turns that the connection has taken; some may have been given back over another one.
    turns: HeldTurns,
}

/// A turn that a program waits for.
struct TurnWait {
    turn: WaitingTurn,
    /// The reply if the program waits for too long.
    late: TurnReply,
    /// The replies to what the connection has sent since.
    after: Vec<u8>,
}

/// The turns of a connection, which are given back when it is dropped.
struct HeldTurns {
    lane: Option<TurnLane>,
    ids: Vec<TurnId>,
    pruned: usize,
}

impl HeldTurns {
    fn hold(&mut self, id: TurnId) {
        if self.ids.len() >= HELD_PRUNED.max(2 * self.pruned)
            && let Some(lane) = &self.lane
        {
            self.ids.retain(|id| lane.holds(*id));
            self.pruned = self.ids.len();
        }
        self.ids.push(id);
    }

    fn done(&mut self, id: TurnId, cost: Option<Cost>) -> bool {
        if let Some(at) = self.ids.iter().position(|own| *own == id) {
            self.ids.swap_remove(at);
        }
        self.lane.as_ref().is_some_and(|lane| lane.done(id, cost))
    }
}

impl Drop for HeldTurns {
    fn drop(&mut self) {
        let lane = self.lane.iter();
        lane.for_each(|lane| self.ids.iter().for_each(|id| _ = lane.done(*id, None)));
    }
}

impl<S: AsyncRead + AsyncWrite + AsFd + Unpin> LineConnection<S> {
    pub fn new(
        stream: S,
        worker: Rc<LineWorker>,
        link: Rc<LineLink>,
        client: Option<IpAddr>,
        speech: LineCodec,
    ) -> LineConnection<S> {
        let turns = HeldTurns { lane: worker.turns.clone(), ids: Vec::new(), pruned: 0 };
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
            waiting: None,
            turns,
        }
    }

    /// Runs until all work is done, or until it is the turn of other connections.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.link.served_by(cx.waker());
        for _ in 0..CHUNKS_PER_TURN {
            if self.link.is_closed() {
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
        if self.waiting.is_some() {
            return self.wait(cx);
        }
        match self.then {
            NextStep::Read => self.read(cx),
            NextStep::Resume => self.resume(cx),
            NextStep::Turn => Poll::Ready(self.take_turns(cx)),
            NextStep::End => self.linger(cx),
        }
    }

    /// Reads and answers the next chunk.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<StepResult>> {
        let worker = Rc::clone(&self.worker);
        let LineBuffers { input, output } = &mut *worker.scratch.borrow_mut();
        let mut chunk = ReadBuf::new(input);
        let count = match Pin::new(&mut self.stream).poll_read(cx, &mut chunk) {
            // Its programs still run.
            Poll::Pending if worker.is_draining() && self.turns.ids.is_empty() => {
                self.last_look(input)
            }
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

    /// Handles the commands about turns at the beginning of `kept`, until a program has to wait.
    fn take_turns(&mut self, cx: &mut Context<'_>) -> io::Result<StepResult> {
        let worker = Rc::clone(&self.worker);
        let output = &mut worker.scratch.borrow_mut().output;
        output.clear();
        let kept = std::mem::take(&mut self.kept);
        let (mut used, mut is_whole) = (0, true);
        while self.waiting.is_none() && output.len() <= ANSWER_BYTES {
            let Some((command, length)) = self.speech.turn(&kept[used..]) else {
                is_whole = used > 0;
                break;
            };
            used += length;
            if let Some(reply) = self.run(command) {
                self.speech.write_turn(&reply, output);
            }
        }
        // The rest of a command that is not complete has to arrive.
        self.then = if is_whole { NextStep::Resume } else { NextStep::Read };
        self.keep(kept, used);
        if self.waiting.is_some() {
            self.give_back_first();
        }
        self.begin_to_send(cx, output)
    }

    /// Runs a command about a turn. Returns its reply; `None` if the program has to wait.
    fn run(&mut self, command: TurnCommandResult<'_>) -> Option<TurnReply> {
        let now = self.worker.now();
        self.link.active.set(now.0 / 1_000_000);
        let fault = u64::from(command.is_err());
        self.worker.counts(&self.speech).record_questions(1, fault);
        let Some(lane) = &self.worker.turns else {
            return Some(TurnReply::Fault(
                "there are no turns: `line.turns` is not set".to_owned(),
            ));
        };
        let (tag, cost, wait, late) = match command {
            Err(fault) => return Some(TurnReply::Fault(fault)),
            Ok(TurnCommand::Done { id, cost }) => {
                let reply = TurnReply::Done(self.turns.done(id, cost));
                self.note_turns();
                return Some(reply);
            }
            Ok(TurnCommand::Place { tag }) => return Some(TurnReply::Place(lane.ahead(tag))),
            Ok(TurnCommand::Take { tag, cost, wait }) => (tag, cost, wait, TurnReply::Late),
            Ok(TurnCommand::Try { tag, cost }) => {
                let wait = if lane.asks_elsewhere() { TRY_WAIT } else { Nanos::ZERO };
                (tag, cost, Some(wait), TurnReply::Busy)
            }
        };
        let tag_bytes_max = self.worker.tag_bytes_max();
        if tag.len() > tag_bytes_max {
            return Some(TurnReply::Fault(format!("a tag has at most {tag_bytes_max} bytes")));
        }
        match lane.take(tag, cost) {
            TurnAnswer::Turn(id) => {
                self.turns.hold(id);
                self.note_turns();
                Some(TurnReply::Turn(id))
            }
            TurnAnswer::Full => Some(TurnReply::Busy),
            TurnAnswer::Waits(_) if wait == Some(Nanos::ZERO) => Some(late),
            TurnAnswer::Waits(turn) => {
                self.link.waits_until.set(wait.map(|wait| now.plus(wait)));
                self.waiting = Some(TurnWait { turn, late, after: Vec::new() });
                self.note_turns();
                None
            }
        }
    }

    /// Tells the worker whether the connection has anything to do with turns now.
    fn note_turns(&self) {
        self.link.turn.set(match &self.waiting {
            _ if !self.turns.ids.is_empty() => LinkTurn::Holds,
            Some(_) => LinkTurn::Waits,
            None => LinkTurn::None,
        });
    }

    /// Waits for a turn, and for the end of the connection.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<StepResult>> {
        let Some(waiting) = &mut self.waiting else { return Poll::Ready(Ok(StepResult::Step)) };
        let is_late = self.link.waits_until.get().is_some_and(|until| self.worker.now() >= until);
        let reply = match Pin::new(&mut waiting.turn).poll(cx) {
            Poll::Ready(Ok(id)) => TurnReply::Turn(id),
            Poll::Ready(Err(RefusalCause::WaitMax)) => waiting.late.clone(),
            Poll::Ready(Err(RefusalCause::LenMax)) => TurnReply::Busy,
            Poll::Pending if is_late => waiting.late.clone(),
            Poll::Pending => return self.watch(cx),
        };
        if let TurnReply::Turn(id) = reply {
            self.turns.hold(id);
        }
        Poll::Ready(self.end_wait(&reply, cx))
    }

    /// Reads while a program waits: to notice that it has gone, and because it may hold the turn
    /// that it waits for.
    fn watch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<StepResult>> {
        let worker = Rc::clone(&self.worker);
        if self.kept.len() >= CHUNK_BYTES {
            // The end of the program can be noticed only by reading more.
            return Poll::Ready(self.refuse_to_wait(cx));
        }
        let input = &mut worker.scratch.borrow_mut().input;
        let mut chunk = ReadBuf::new(input);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut chunk))?;
        if chunk.filled().is_empty() {
            return Poll::Ready(Ok(StepResult::End));
        }
        self.kept.extend_from_slice(chunk.filled());
        self.give_back_first();
        Poll::Ready(Ok(StepResult::Step))
    }

    /// Ends a wait behind which the program has sent too much.
    fn refuse_to_wait(&mut self, cx: &mut Context<'_>) -> io::Result<StepResult> {
        let fault = format!("more than {CHUNK_BYTES} bytes follow a TAKE that waits");
        self.kept = Vec::new();
        self.then = NextStep::End;
        self.end_wait(&TurnReply::Fault(fault), cx)
    }

    /// Answers the command that has waited, and those handled during the wait.
    fn end_wait(&mut self, reply: &TurnReply, cx: &mut Context<'_>) -> io::Result<StepResult> {
        let after = self.waiting.take().map(|waiting| waiting.after).unwrap_or_default();
        self.link.waits_until.set(None);
        self.note_turns();
        let worker = Rc::clone(&self.worker);
        let output = &mut worker.scratch.borrow_mut().output;
        output.clear();
        self.speech.write_turn(reply, output);
        output.extend_from_slice(&after);
        self.begin_to_send(cx, output)
    }

    /// Gives back the turns for which `kept` begins with a `DONE`, while a program waits.
    fn give_back_first(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        let mut used = 0;
        let has_room = |wait: &TurnWait| wait.after.len() <= ANSWER_BYTES;
        while self.waiting.as_ref().is_some_and(has_room)
            && let Some((Ok(command @ TurnCommand::Done { .. }), length)) =
                self.speech.turn(&kept[used..])
        {
            used += length;
            let reply = self.run(Ok(command));
            if let (Some(reply), Some(waiting)) = (reply, &mut self.waiting) {
                self.speech.write_turn(&reply, &mut waiting.after);
            }
        }
        self.keep(kept, used);
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
        let kept = std::mem::take(&mut self.kept);
        let mut batch = worker.lane.tell(self.client, asked);
        let taken = self.speech.take_all(&kept[..used], &mut batch, output);
        let asked = batch.asked();
        worker.store.iter().for_each(|store| store.queue_unreported(&asked));
        worker.counts(&self.speech).record_questions(taken.asked, taken.faults);
        self.keep(kept, used);
        self.begin_to_send(cx, output)
    }

    fn answer_kept(&mut self, output: &mut Vec<u8>) {
        let kept = std::mem::take(&mut self.kept);
        let used = self.answer(&kept, output);
        self.keep(kept, used);
    }

    /// Keeps what follows the first `used` bytes.
    fn keep(&mut self, mut kept: Vec<u8>, used: usize) {
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
