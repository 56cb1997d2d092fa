//! One request of Envoy, from its head to the end of the response.
//!
//! All of it is in the body of the gRPC answer: hyper polls it for the next message, and drops it
//! when Envoy resets the stream or the connection is gone. The charge is dropped with it, and with
//! that the slot is free. While a request waits, the stream is still read, because Envoy may end it
//! without a reset when a client disconnects. What is said: `answer`.

use super::answer;
use super::context::{ExchangeSettings, ExchangeThread};
use super::head::{self, MessageHead};
use super::wire::processing_request::Request;
use super::wire::{BodySendMode, HttpHeaders, ProcessingRequest, ProcessingResponse};
use crate::original::OriginalRequest;
use bytes::Bytes;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::{AskOutcome, Charge, QueueAdmission, QueueTurn, RequestRefusal};
use evenkeel_grpc::body::{GrpcBody, trailers};
use evenkeel_grpc::frames::{FrameReader, encode_frame};
use evenkeel_grpc::held_bytes::HeldBytes;
use evenkeel_identity::answer::AnswerFormat;
use evenkeel_telemetry::registry::Counter;
use futures_util::stream::unfold;
use http::HeaderValue;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use prost::Message;
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
    stage: RequestStage,
    /// What the request, or its response, waits for, after Envoy was asked for time.
    waiting: Option<Waiting>,
    /// Whether Envoy sends on only what it gets back of the bodies of request and response.
    is_duplex: [bool; 2],
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

enum Waiting {
    /// The time at which a request may ask for a slot.
    Start(Time),
    /// The turn of a request.
    Turn(QueueTurn),
    /// The time at which the response may go on.
    Hold(Time, ProcessingResponse),
}

type Answer = Result<Option<ProcessingResponse>, Status>;

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
            stage: RequestStage::Outside,
            waiting: None,
            is_duplex: [false; 2],
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
    async fn next(&mut self) -> Answer {
        if let Some(waiting) = self.waiting.take() {
            return self.wait(waiting).await;
        }
        while let Some(message) = self.read().await? {
            let observes = message.observability_mode;
            let answer = self.handle(message).await?;
            // Envoy expects no answer then, and waits for none.
            if !observes {
                return Ok(answer);
            }
        }
        Ok(None)
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

    async fn handle(&mut self, message: ProcessingRequest) -> Answer {
        if let Some(protocol) = &message.protocol_config {
            self.is_duplex = [protocol.request_body_mode(), protocol.response_body_mode()]
                .map(|mode| mode == BodySendMode::FullDuplexStreamed);
        }
        let (source, observes) = (head::source(&message), message.observability_mode);
        let [request_duplex, response_duplex] = self.is_duplex;
        Ok(Some(match message.request {
            Some(Request::RequestHeaders(headers)) => {
                return self.arrive(headers, source, observes).await;
            }
            Some(Request::ResponseHeaders(headers)) => return self.answered(headers, observes),
            Some(Request::RequestBody(body)) => answer::pass_request_body(body, request_duplex),
            Some(Request::ResponseBody(body)) => {
                if body.end_of_stream {
                    self.charge = None;
                }
                answer::pass_response_body(body, response_duplex)
            }
            Some(Request::RequestTrailers(_)) => answer::pass_request_trailers(),
            Some(Request::ResponseTrailers(_)) => {
                self.charge = None;
                answer::pass_response_trailers()
            }
            None => return Err(Status::invalid_argument("a message of an unknown kind")),
        }))
    }

    /// Decides on a request.
    async fn arrive(
        &mut self,
        headers: HttpHeaders,
        source: Option<IpAddr>,
        observes: bool,
    ) -> Answer {
        if self.charge.is_some() || self.stage != RequestStage::Outside {
            return Err(Status::invalid_argument("a second request on one stream"));
        }
        let head = MessageHead::read(headers.headers);
        let client = self.site.trust.client_of_envoy(self.peer, source, &head.headers);
        self.format = AnswerFormat::of(&head.headers);
        let lane = &self.thread.lane;
        let mut original =
            OriginalRequest::of_pseudo_headers(client, &head.pseudo, &head.headers, true);
        let robots = lane.robots();
        original.signer = robots
            .as_ref()
            .and_then(|robots| robots.signed(&original.signed(), self.thread.clock.now()));
        let asked = match &self.thread.store {
            Some(store) => store.ask(lane, &original).await,
            None => lane.ask(&original),
        };
        match asked {
            AskOutcome::Refused(refusal) => Ok(Some(answer::refuse(&refusal, self.format))),
            AskOutcome::Pass(charge) if observes => {
                self.charge = Some(charge);
                self.begin()
            }
            AskOutcome::Pass(charge) => {
                let until = charge.delay_until();
                self.charge = Some(charge);
                match until {
                    Some(until) => self.ask_for_time(Waiting::Start(until)),
                    None => self.enter(false).await,
                }
            }
        }
    }

    /// Asks Envoy to wait, before the request or the response does.
    fn ask_for_time(&mut self, waiting: Waiting) -> Answer {
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
        Ok(Some(answer::wait_for(time.saturating_add(TIMEOUT_SLACK))))
    }

    /// Asks for a slot. `asked`: Envoy was asked for time already, which it can be once.
    async fn enter(&mut self, asked: bool) -> Answer {
        match self.charge.as_mut().map(Charge::enter) {
            None | Some(QueueAdmission::Room) => self.begin(),
            Some(QueueAdmission::Refused(refusal)) => self.refuse(&refusal),
            Some(QueueAdmission::Waits(turn)) if asked => self.take_turn(turn).await,
            Some(QueueAdmission::Waits(turn)) => self.ask_for_time(Waiting::Turn(turn)),
        }
    }

    async fn wait(&mut self, waiting: Waiting) -> Answer {
        let clock = self.thread.clock;
        match waiting {
            Waiting::Start(until) => {
                match self.unless_gone(tokio::time::sleep_until(clock.instant(until))).await? {
                    Some(()) => self.enter(true).await,
                    None => Ok(None),
                }
            }
            Waiting::Turn(turn) => self.take_turn(turn).await,
            Waiting::Hold(until, answer) => {
                let held = tokio::time::sleep_until(clock.instant(until));
                Ok(self.unless_gone(held).await?.map(|()| answer))
            }
        }
    }

    async fn take_turn(&mut self, turn: QueueTurn) -> Answer {
        let Some(turned) = self.unless_gone(turn).await? else { return Ok(None) };
        match self.charge.as_mut().map(|charge| charge.accept_turn(turned)) {
            Some(Err(refusal)) => self.refuse(&refusal),
            Some(Ok(())) | None => self.begin(),
        }
    }

    /// Waits for `event`, and meanwhile for the end of the stream: `None` if that comes first.
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

    /// Lets the request go to the backend.
    fn begin(&mut self) -> Answer {
        self.stage = RequestStage::Running;
        self.charge.iter_mut().for_each(Charge::work);
        Ok(Some(answer::pass_request()))
    }

    fn refuse(&mut self, refusal: &RequestRefusal) -> Answer {
        self.charge = None;
        Ok(Some(answer::refuse(refusal, self.format)))
    }

    /// Handles the head of the response.
    fn answered(&mut self, headers: HttpHeaders, observes: bool) -> Answer {
        let is_whole = headers.end_of_stream;
        let head = MessageHead::read(headers.headers);
        let Some(charge) = &mut self.charge else { return Ok(Some(answer::pass_response(None))) };
        self.stage = RequestStage::Answered;
        let name = charge.cost_header().map(str::to_owned);
        let stated = name.as_ref().and_then(|name| head.headers.get(name));
        let until = charge.head(stated.map(HeaderValue::as_bytes));
        if head.is_event_stream() && !self.site.charge_streams {
            charge.leave();
        }
        if is_whole {
            self.charge = None;
        }
        let removed = name.filter(|_| stated.is_some() && !self.site.keep_cost_header);
        let answer = answer::pass_response(removed);
        match until {
            Some(until) if !observes => self.ask_for_time(Waiting::Hold(until, answer)),
            _ => Ok(Some(answer)),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let (RequestStage::Running, Some(charge)) = (self.stage, &mut self.charge) {
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
