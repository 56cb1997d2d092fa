//! One request of Envoy, from its head to the end of the response.
//!
//! All of it is in the body of the gRPC answer: hyper polls it for the next message, and drops it
//! when Envoy resets the stream or the connection is gone. The charge is dropped with it, and with
//! that the slot is free. While a request waits, the stream is still read, because Envoy may end it
//! without a reset when a client disconnects.
//!
//! The request until its turn: `request`. The response: `response`. What is said: `answer`.

mod request;
mod response;

use super::answer;
use super::body::{BodyMode, HeldBody};
use super::context::{ExchangeSettings, ExchangeThread};
use super::endpoints::ChosenEndpoint;
use super::head::{self, MessageHead};
use super::wire::processing_request::Request;
use super::wire::{BodySendMode, ProcessingRequest, ProcessingResponse};
use bytes::Bytes;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::{Charge, QueueAdmission, QueueTurn, Quota, RequestRefusal};
use evenkeel_grpc::body::{GrpcBody, trailers};
use evenkeel_grpc::frames::{FrameReader, encode_frame};
use evenkeel_grpc::held_bytes::HeldBytes;
use evenkeel_identity::answer::AnswerFormat;
use evenkeel_models::ModelExchange;
use evenkeel_telemetry::registry::Counter;
use evenkeel_usage::Dialect;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use prost::Message;
use std::collections::VecDeque;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// The maximum length of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// While a request waits, no more than this many bytes of its stream are read ahead.
const AHEAD_BYTES_MAX: usize = 16 * 1024;
/// How much longer than a request may wait Envoy is asked to wait for the answer.
const TIMEOUT_SLACK: Duration = Duration::from_secs(1);
/// With `STREAMED`, Envoy sends no more of a body than its buffer holds until it gets answers.
/// After this time without a piece, the decision is made on those that are here.
const PIECE_TIMEOUT: Duration = Duration::from_millis(100);

pub struct Exchange {
    /// The messages of Envoy; `None` after their end.
    incoming: Option<Incoming>,
    frames: FrameReader,
    held: HeldBytes,
    peer: IpAddr,
    thread: Rc<ExchangeThread>,
    site: Arc<ExchangeSettings>,
    bad: Counter,
    /// The account of the request, from its admission until it is settled.
    charge: Option<Charge>,
    format: AnswerFormat,
    /// The API of a language model that the request uses, if costs are counted in tokens.
    dialect: Option<Dialect>,
    /// Present if the request asks a language model, from the decision on it.
    model: Option<Box<ModelExchange>>,
    /// The backend that was named to Envoy.
    endpoint: Option<ChosenEndpoint>,
    stage: RequestStage,
    /// The request, until it may go to the backend.
    arriving: Option<Box<ArrivingRequest>>,
    /// What the request, or its response, waits for, after Envoy was asked for time.
    waiting: Option<Waiting>,
    /// The messages that go to Envoy next.
    outbox: VecDeque<ProcessingResponse>,
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
}

/// A request that has not got its turn yet.
struct ArrivingRequest {
    head: MessageHead,
    client: IpAddr,
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
    /// The time at which the response may go on.
    Hold(Time, ProcessingResponse),
}

impl Exchange {
    /// A stream of the Envoy at `peer`. `bad` counts streams with messages that are not valid.
    pub fn new(
        incoming: Incoming,
        peer: IpAddr,
        thread: Rc<ExchangeThread>,
        site: Arc<ExchangeSettings>,
        bad: Counter,
    ) -> Exchange {
        Exchange {
            incoming: Some(incoming),
            frames: FrameReader::new(MESSAGE_BYTES_MAX),
            held: HeldBytes::new(&thread.pieces),
            peer,
            thread,
            site,
            bad,
            charge: None,
            format: AnswerFormat::Text,
            dialect: None,
            model: None,
            endpoint: None,
            stage: RequestStage::Outside,
            arriving: None,
            waiting: None,
            outbox: VecDeque::new(),
            request_mode: BodyMode(BodySendMode::None),
            response_mode: BodyMode(BodySendMode::None),
        }
    }

    /// The body of the answer to this call.
    pub fn into_body(self) -> GrpcBody {
        // In a box, because each message moves it.
        let exchange = Some(Box::new(self));
        GrpcBody::Local(Box::pin(StreamBody::new(unfold(exchange, async |exchange| {
            let mut exchange = exchange?;
            let end = match exchange.next().await {
                Ok(Some(message)) => {
                    return Some((Ok(Frame::data(encode_frame(&message))), Some(exchange)));
                }
                Ok(None) => Status::ok(""),
                Err(status) => {
                    exchange.bad.increment(1);
                    status
                }
            };
            Some((Ok(Frame::trailers(trailers(&end))), None))
        }))))
    }

    /// The next message to Envoy; `None` if the stream is over.
    async fn next(&mut self) -> Result<Option<ProcessingResponse>, Status> {
        loop {
            if let Some(message) = self.outbox.pop_front() {
                return Ok(Some(message));
            }
            if let Some(waiting) = self.waiting.take() {
                if self.wait(waiting).await?.is_none() {
                    return Ok(None);
                }
                continue;
            }
            let message = match self.may_be_stuck() {
                true => tokio::time::timeout(PIECE_TIMEOUT, self.read()).await,
                false => Ok(self.read().await),
            };
            let Ok(message) = message else {
                self.decide().await;
                continue;
            };
            let Some(message) = message? else { return Ok(None) };
            let observes = message.observability_mode;
            self.handle(message).await?;
            if observes {
                // Envoy expects no answer then, and waits for none.
                self.outbox.clear();
            }
        }
    }

    /// Whether Envoy may wait for an answer before it sends more of the body that is awaited.
    fn may_be_stuck(&self) -> bool {
        self.request_mode.0 == BodySendMode::Streamed
            && self.arriving.as_ref().is_some_and(|arriving| arriving.body.messages > 0)
    }

    /// The next message of Envoy; `None` if it has ended the stream.
    async fn read(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        loop {
            if let Some(message) = self.frames.take()? {
                self.held.set(self.frames.buffered_bytes())?;
                let wrong = |fault| Status::invalid_argument(format!("not a message: {fault}"));
                return ProcessingRequest::decode(message).map(Some).map_err(wrong);
            }
            match piece(&mut self.incoming).await {
                Some(bytes) => self.take(&bytes)?,
                None => return Ok(None),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Status> {
        self.frames.push(bytes);
        self.held.set(self.frames.buffered_bytes())
    }

    async fn handle(&mut self, message: ProcessingRequest) -> Result<(), Status> {
        if let Some(protocol) = &message.protocol_config {
            self.request_mode = BodyMode(protocol.request_body_mode());
            self.response_mode = BodyMode(protocol.response_body_mode());
        }
        let (source, observes) = (head::source(&message), message.observability_mode);
        match message.request {
            Some(Request::RequestHeaders(headers)) => {
                return self.arrive(headers, source, observes).await;
            }
            Some(Request::ResponseHeaders(headers)) => self.answered(headers, observes),
            Some(Request::RequestBody(body)) => self.request_body(body).await,
            Some(Request::ResponseBody(body)) => self.response_body(body),
            Some(Request::RequestTrailers(_)) => self.request_trailers().await,
            Some(Request::ResponseTrailers(_)) => self.response_trailers(),
            None => return Err(Status::invalid_argument("a message of an unknown kind")),
        }
        Ok(())
    }

    /// Adds a message to those that go to Envoy.
    fn send(&mut self, message: ProcessingResponse) {
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
            Waiting::Turn(_) => None,
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
                    Some(bytes) => self.take(&bytes)?,
                    None => return Ok(None),
                },
            }
        }
    }

    /// Refuses the request. `quota`: the state of the limit, for the client.
    fn refuse(&mut self, refusal: &RequestRefusal, quota: Option<Quota>) {
        self.charge = None;
        self.arriving = None;
        self.send(match self.dialect {
            Some(dialect) => answer::refuse_model(dialect, refusal, quota.as_slice()),
            None => answer::refuse(refusal, self.format),
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let is_cut = match self.stage {
            RequestStage::Outside => false,
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
async fn piece(incoming: &mut Option<Incoming>) -> Option<Bytes> {
    while let Some(frame) = incoming.as_mut()?.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(bytes)) => return Some(bytes),
            Ok(Err(_)) => {}
            Err(_) => break,
        }
    }
    *incoming = None;
    None
}
