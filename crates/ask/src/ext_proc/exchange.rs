//! One request of Envoy, from its head to the end of the response.
//!
//! All of it is in the body of the gRPC answer: it is polled for the next message, and dropped
//! when Envoy resets the stream or the connection is gone. The charge is dropped with it, and with
//! that the slot is free. While a request waits, the stream is still read, because Envoy may end it
//! without a reset when a client disconnects.
//!
//! The request until its turn: `request`; an upload that follows: `upload`. The response:
//! `response`. What is said: `answer`.

mod request;
mod response;
mod upload;

use super::answer::{self, EnvoyAnswer};
use super::body::{BodyMode, HeldBody};
use super::context::{ExchangeSettings, ExchangeThread};
use super::endpoints::{ChosenEndpoint, EndpointSubset};
use super::head::{self, MessageHead};
use super::view::{BodyView, EnvoyMessage, MessagePart};
use super::wire::{BodySendMode, HttpBody};
use bytes::Bytes;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::{Charge, QueueAdmission, QueueTurn, Quota, RequestRefusal};
use evenkeel_grpc::body::{GrpcBody, trailers};
use evenkeel_grpc::call::CallBody;
use evenkeel_grpc::frames::FrameReader;
use evenkeel_grpc::held_bytes::{HeldBytes, MESSAGE_BYTES_MAX, MessageTime, SMALL_BYTES};
use evenkeel_grpc::protobuf::ProtobufError;
use evenkeel_identity::answer::AnswerFormat;
use evenkeel_models::ModelExchange;
use evenkeel_telemetry::registry::Counter;
use evenkeel_usage::Dialect;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::StreamBody;
use std::collections::VecDeque;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use upload::UploadStage;

/// While a request waits, no more than this many bytes of its stream are read ahead.
const AHEAD_BYTES_MAX: usize = 16 * 1024;
/// How much longer than a request may wait Envoy is asked to wait for the answer.
const TIMEOUT_SLACK: Duration = Duration::from_secs(1);
/// With `STREAMED`, Envoy sends no more of a body than its buffer holds until it gets answers.
/// After this time without a piece, the decision is made on those that are here; and if the backend
/// has the request already, others may use its slot.
const PIECE_TIMEOUT: Duration = Duration::from_millis(100);

pub struct Exchange {
    /// The messages of Envoy; `None` after their end.
    incoming: Option<CallBody>,
    frames: FrameReader,
    held: HeldBytes,
    /// The time of the large message that is arriving.
    time: MessageTime,
    peer: IpAddr,
    thread: Rc<ExchangeThread>,
    site: Arc<ExchangeSettings>,
    bad: Counter,
    /// The account of the request, from its admission until it is settled.
    charge: Option<Charge>,
    /// The API of a language model that the request uses, if costs are counted in tokens.
    dialect: Option<Dialect>,
    /// Present if the request asks a language model, from the decision on it.
    model: Option<Box<ModelExchange>>,
    /// The backends that Envoy allows.
    subset: EndpointSubset,
    /// The backend that was named to Envoy.
    endpoint: Option<ChosenEndpoint>,
    stage: RequestStage,
    /// How much of the request the backend has.
    upload: UploadStage,
    /// The request, until it may go to the backend.
    arriving: Option<Box<ArrivingRequest>>,
    /// The event that the request, or its response, waits for, after Envoy was asked for time.
    waiting: Option<Waiting>,
    /// The messages that go to Envoy next.
    outbox: VecDeque<EnvoyAnswer>,
    /// The bytes of the body in `outbox`.
    sending: Option<HeldBytes>,
    /// How Envoy sends the bodies of request and response.
    request_mode: BodyMode,
    response_mode: BodyMode,
}

/// How far the request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStage {
    /// It has not arrived, or not got its turn.
    Outside,
    /// The backend works on it.
    Running,
    /// The head of the response has arrived.
    Answered,
    /// It was refused, which ends the stream.
    Refused,
}

/// A request that has not got its turn yet.
struct ArrivingRequest {
    head: MessageHead,
    client: IpAddr,
    /// Whether a body follows.
    has_body: bool,
    /// Whether Envoy does not wait for answers.
    observes: bool,
    /// Whether Envoy may have sent the head to the backend already.
    is_head_sent: bool,
    /// Whether the body is awaited before the decision.
    awaits_body: bool,
    body: HeldBody,
}

enum Waiting {
    /// The time at which a request may ask for a slot.
    Start(Time),
    /// The turn of a request.
    Turn(QueueTurn),
    /// The turn of a request of which the backend has a part, and the answer that continues then.
    Resume(QueueTurn, EnvoyAnswer),
    /// The time at which the response may go on.
    Hold(Time, EnvoyAnswer),
}

impl Exchange {
    /// A stream of the Envoy at `peer`. `bad` counts streams with messages that are not valid.
    pub fn new(
        incoming: CallBody,
        peer: IpAddr,
        thread: Rc<ExchangeThread>,
        site: Arc<ExchangeSettings>,
        bad: Counter,
    ) -> Exchange {
        Exchange {
            incoming: Some(incoming),
            frames: FrameReader::new(MESSAGE_BYTES_MAX),
            held: HeldBytes::new(&thread.pieces),
            time: MessageTime::default(),
            peer,
            thread,
            site,
            bad,
            charge: None,
            dialect: None,
            model: None,
            subset: EndpointSubset::default(),
            endpoint: None,
            stage: RequestStage::Outside,
            upload: UploadStage::Whole,
            arriving: None,
            waiting: None,
            outbox: VecDeque::new(),
            sending: None,
            request_mode: BodyMode(BodySendMode::None),
            response_mode: BodyMode(BodySendMode::None),
        }
    }

    /// The body of the answer to this call.
    pub fn into_body(self) -> GrpcBody {
        // In a box, because each message moves it.
        let exchange = Some(Box::new(self));
        GrpcBody::stream(StreamBody::new(unfold(exchange, async |exchange| {
            let mut exchange = exchange?;
            let end = match exchange.next().await {
                Ok(Some(frame)) => return Some((Ok(Frame::data(frame)), Some(exchange))),
                Ok(None) => Status::ok(""),
                Err(status) => {
                    exchange.bad.increment(1);
                    status
                }
            };
            Some((Ok(Frame::trailers(trailers(&end))), None))
        })))
    }

    /// The next message to Envoy, in its gRPC frame; `None` if the stream is over. What is seldom
    /// needed is in boxes, because each request copies the state of all this some times.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.outbox.pop_front() {
                return Ok(Some(message.into_frame()));
            }
            self.sending = None;
            if self.stage == RequestStage::Refused {
                return Ok(None);
            }
            if let Some(waiting) = self.waiting.take() {
                if Box::pin(self.wait(waiting)).await?.is_none() {
                    return Ok(None);
                }
                continue;
            }
            let message = match self.may_be_stuck() {
                true => Box::pin(tokio::time::timeout(PIECE_TIMEOUT, self.read())).await,
                false => Ok(self.read().await),
            };
            let Ok(message) = message else {
                Box::pin(self.handle_pause()).await;
                continue;
            };
            let Some(message) = message? else { return Ok(None) };
            self.handle(message).await?;
        }
    }

    /// Whether a pause in what Envoy sends means something: it may wait for an answer before it
    /// sends more of the body that is awaited, or the client may have stopped sending.
    fn may_be_stuck(&self) -> bool {
        match &self.arriving {
            Some(arriving) => {
                self.request_mode.0 == BodySendMode::Streamed && arriving.body.messages > 0
            }
            None => self.upload.may_stall(),
        }
    }

    async fn handle_pause(&mut self) {
        match self.arriving.is_some() {
            true => self.decide().await,
            false => self.stall(),
        }
    }

    /// The next message of Envoy; `None` if it has ended the stream. A large one waits until there
    /// is room for it, and Envoy keeps the rest of it.
    async fn read(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.frames.take()? {
                self.held.clear();
                self.time.clear();
                return Ok(Some(message));
            }
            let length = self.frames.length()?.filter(|length| *length > SMALL_BYTES);
            let piece = match length {
                Some(length) => Box::pin(self.piece_of_large(length)).await?,
                None => piece(&mut self.incoming).await,
            };
            let Some(piece) = piece else { return Ok(None) };
            self.frames.push(piece);
        }
    }

    /// The next piece of a message of this length, as soon as there is room for it.
    async fn piece_of_large(&mut self, length: usize) -> Result<Option<Bytes>, Status> {
        self.held.set(length).await;
        self.time.wait(pin!(piece(&mut self.incoming))).await
    }

    async fn handle(&mut self, bytes: Bytes) -> Result<(), Status> {
        let message = EnvoyMessage::decode(&bytes).map_err(invalid)?;
        if let Some([request, response]) = message.modes {
            (self.request_mode, self.response_mode) = (BodyMode(request), BodyMode(response));
        }
        let shared = |view: BodyView<'_>| {
            let BodyView { body, end_of_stream } = view;
            HttpBody { body: bytes.slice_ref(body), end_of_stream }
        };
        let observes = message.observes;
        match message.part {
            Some(MessagePart::RequestHeaders(headers)) => {
                let head = MessageHead::of_request(headers).map_err(invalid)?;
                let source = message.source.and_then(head::source);
                if self.site.endpoints.is_some() {
                    self.subset = EndpointSubset::of(message.subset().map_err(invalid)?);
                }
                self.arrive(head, !headers.end_of_stream, source, observes).await?;
            }
            Some(MessagePart::ResponseHeaders(headers)) => {
                self.answered(headers, message.code_details, observes)?;
            }
            Some(MessagePart::RequestBody(body)) => self.request_body(shared(body)).await,
            Some(MessagePart::ResponseBody(body)) => self.response_body(shared(body)),
            Some(MessagePart::RequestTrailers) => self.request_trailers().await,
            Some(MessagePart::ResponseTrailers) => self.response_trailers(),
            None => return Err(Status::invalid_argument("a message of an unknown kind")),
        }
        if observes {
            // Envoy expects no answer then, and waits for none.
            self.outbox.clear();
        }
        Ok(())
    }

    /// Adds a message to those that go to Envoy.
    fn send(&mut self, message: EnvoyAnswer) {
        self.outbox.push_back(message);
    }

    /// The time in milliseconds, as the choice of backends counts it.
    fn now_ms(&self) -> u64 {
        self.thread.clock.now().0 / 1_000_000
    }

    /// Asks Envoy to wait, before the request or the response does.
    fn ask_for_time(&mut self, waiting: Waiting) {
        let until = match &waiting {
            Waiting::Start(until) | Waiting::Hold(until, _) => Some(*until),
            Waiting::Turn(_) | Waiting::Resume(..) => None,
        };
        let delay = until.map_or(Nanos::ZERO, |until| until.since(self.thread.clock.now()));
        let turn = match &waiting {
            Waiting::Hold(..) => Duration::ZERO,
            _ => self.site.wait_max,
        };
        self.waiting = Some(waiting);
        let time = Duration::from_nanos(delay.0).saturating_add(turn);
        self.send(answer::wait_for(time.saturating_add(TIMEOUT_SLACK)));
    }

    /// Asks for a slot. Returns the turn to wait for, if there is none.
    fn enter(&mut self) -> Option<QueueTurn> {
        match self.charge.as_mut().map(Charge::enter) {
            None | Some(QueueAdmission::Room) => self.begin(),
            Some(QueueAdmission::Refused(refusal)) => self.refuse(&refusal, None),
            Some(QueueAdmission::Waits(turn)) => return Some(turn),
        }
        None
    }

    /// Waits. `None` if the stream ends before that.
    async fn wait(&mut self, waiting: Waiting) -> Result<Option<()>, Status> {
        let clock = self.thread.clock;
        match waiting {
            Waiting::Start(until) => {
                let delay = tokio::time::sleep_until(clock.instant(until));
                if self.unless_gone(delay).await?.is_none() {
                    return Ok(None);
                }
                // Envoy can be asked for time only once.
                match self.enter() {
                    Some(turn) => self.take_turn(turn).await,
                    None => Ok(Some(())),
                }
            }
            Waiting::Turn(turn) => self.take_turn(turn).await,
            Waiting::Resume(turn, answer) => self.resume(turn, answer).await,
            Waiting::Hold(until, answer) => {
                let held = tokio::time::sleep_until(clock.instant(until));
                Ok(self.unless_gone(held).await?.map(|()| self.send(answer)))
            }
        }
    }

    async fn take_turn(&mut self, turn: QueueTurn) -> Result<Option<()>, Status> {
        let Some(turned) = self.unless_gone(turn).await? else { return Ok(None) };
        match self.charge.as_mut().map(|charge| charge.accept_turn(turned)) {
            Some(Err(refusal)) => self.refuse(&refusal, None),
            Some(Ok(())) | None => self.begin(),
        }
        Ok(Some(()))
    }

    /// Waits for `event` or the end of the stream: `None` if that comes first.
    async fn unless_gone<T>(
        &mut self,
        event: impl Future<Output = T>,
    ) -> Result<Option<T>, Status> {
        let mut event = pin!(event);
        loop {
            if self.frames.buffered_bytes() >= AHEAD_BYTES_MAX {
                return Ok(Some(event.await));
            }
            tokio::select! {
                biased;
                result = event.as_mut() => return Ok(Some(result)),
                piece = piece(&mut self.incoming) => match piece {
                    Some(bytes) => self.frames.push(bytes),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Refuses the request. `quota`: the state of the limit, for the client.
    fn refuse(&mut self, refusal: &RequestRefusal, quota: Option<Quota>) {
        let answer = match self.dialect {
            Some(dialect) => answer::refuse_model(dialect, refusal, quota.as_slice()),
            None => {
                let headers = self.arriving.as_ref().map(|arriving| &arriving.head.headers);
                let format = headers.map_or(AnswerFormat::Text, AnswerFormat::of);
                answer::refuse(refusal, format)
            }
        };
        self.end_with(answer);
    }

    /// Ends the request and the stream with this answer to the client.
    fn end_with(&mut self, answer: EnvoyAnswer) {
        self.charge = None;
        self.arriving = None;
        self.stage = RequestStage::Refused;
        self.send(answer);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let is_cut = match self.stage {
            RequestStage::Outside | RequestStage::Refused => false,
            RequestStage::Running => true,
            // A model makes its answer while it is sent.
            RequestStage::Answered => self.model.is_some() && self.response_mode.is_sent(),
        };
        if let (true, Some(charge)) = (is_cut, &mut self.charge) {
            // The client has disconnected, and the backend may not have noticed.
            let most = u64::try_from(self.site.abort_linger.as_nanos()).unwrap_or(u64::MAX);
            charge.cut(Nanos(most));
        }
    }
}

/// The next piece of a body; `None` after its end.
async fn piece(incoming: &mut Option<CallBody>) -> Option<Bytes> {
    let piece = incoming.as_mut()?.piece().await;
    let piece = piece.and_then(Result::ok);
    if piece.is_none() {
        *incoming = None;
    }
    piece
}

fn invalid(fault: ProtobufError) -> Status {
    Status::invalid_argument(format!("not a message: {fault}"))
}
