//! The request until its turn: its head, its body if the decision needs that, the decision, and
//! what Envoy may send on then.
//!
//! Which body is read before the decision depends on how Envoy sends bodies. With
//! `FULL_DUPLEX_STREAMED` it holds head and body until it gets them back. With `STREAMED` and
//! `BUFFERED` it sends a body only after an answer to the head, so the head passes and the body
//! waits. A backend begins no work without the body.

use super::super::answer::{self, HeadChange, PiecePassage};
use super::super::body::HeldBody;
use super::super::endpoints::Endpoints;
use super::super::head::MessageHead;
use super::super::wire::{BodySendMode, HttpBody};
use super::{ArrivingRequest, Exchange, RequestStage, Waiting};
use crate::original::OriginalRequest;
use evenkeel_engine::AskOutcome;
use evenkeel_models::ModelExchange;
use evenkeel_usage::Dialect;
use http::header::{self, HeaderMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// For how long a body waits if all bodies together take too much and a limit counts by something
/// in them. Envoy keeps the rest of it.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);

impl Exchange {
    /// Handles the head of a request.
    pub(super) async fn arrive(
        &mut self,
        head: MessageHead,
        has_body: bool,
        source: Option<IpAddr>,
        observes: bool,
    ) -> Result<(), Status> {
        if self.arriving.is_some() || self.charge.is_some() || self.stage != RequestStage::Outside {
            return Err(Status::invalid_argument("a second request on one stream"));
        }
        let client = self.site.trust.client_of_envoy(self.peer, source, &head.headers);
        self.dialect = self.site.tokens.as_ref().and_then(|_| Dialect::of_path(head.path()));
        let asks_model = self.asks_model(&head).is_some();
        let needs_body = asks_model || self.site.counts_by_body;
        let awaits_body = has_body
            && needs_body
            && self.may_await_body()
            // A client that waits for an answer before it sends more would wait forever.
            && !evenkeel_models::is_stream(&head.headers);
        let is_head_sent = awaits_body && !self.request_mode.is_duplex();
        if is_head_sent {
            let mut set = HeaderMap::new();
            if asks_model && self.response_mode.is_sent() {
                ModelExchange::ask_for_plain(&mut set);
            }
            let mut change = HeadChange::setting(set);
            if self.site.endpoints.is_some() {
                // If no body follows, nothing can be set any more: what the client wrote must go.
                change.remove_endpoint();
            }
            change.keep_within(&head);
            self.send(answer::pass_request(change));
        }
        let body = HeldBody::new(&self.thread.bodies);
        self.arriving = Some(Box::new(ArrivingRequest {
            head,
            client,
            has_body,
            observes,
            is_head_sent,
            awaits_body,
            body,
        }));
        if !awaits_body {
            self.read_model(has_body);
            self.decide().await;
        }
        Ok(())
    }

    /// Whether the decision may wait for the body. A backend has to be chosen before the head goes
    /// on; only bodies in these modes are known by then.
    fn may_await_body(&self) -> bool {
        let mode = self.request_mode;
        let changes_head = mode.is_duplex() || mode.0 == BodySendMode::Buffered;
        mode.is_sent() && (changes_head || self.site.endpoints.is_none())
    }

    /// The API of the language model that a request with this head asks.
    fn asks_model(&self, head: &MessageHead) -> Option<Dialect> {
        self.dialect.and_then(|_| ModelExchange::dialect(&head.pseudo.method, head.path()))
    }

    /// Handles a piece of the body of the request.
    pub(super) async fn request_body(&mut self, body: HttpBody) {
        let Some(arriving) = &mut self.arriving else {
            let (length, ends) = (body.body.len(), body.end_of_stream);
            let answer = answer::pass_request_body(body, self.request_mode.passage());
            return self.pass_upload(length, ends, answer);
        };
        arriving.body.add(body);
        let mut is_full = arriving.body.is_full(self.site.body_bytes_max);
        if is_full && !arriving.body.is_whole && self.site.counts_by_body {
            // A limit may depend on what follows.
            let room = arriving.body.wait_for_room();
            is_full = Box::pin(tokio::time::timeout(ROOM_TIMEOUT, room)).await.is_err()
                || arriving.body.is_full(self.site.body_bytes_max);
        }
        if arriving.body.is_whole || is_full || self.request_mode.is_single() {
            self.decide().await;
        }
    }

    /// Handles the trailers of the request.
    pub(super) async fn request_trailers(&mut self) {
        let Some(arriving) = &mut self.arriving else {
            return self.pass_upload(0, true, answer::pass_request_trailers());
        };
        arriving.body.end(true);
        arriving.body.has_trailers = true;
        self.decide().await;
    }

    /// Reads what the request asks a language model for, if it asks one.
    fn read_model(&mut self, has_body: bool) {
        let Some(arriving) = &self.arriving else { return };
        let ArrivingRequest { head, body, .. } = &**arriving;
        let dialect = self.asks_model(head).filter(|_| has_body);
        let Some((dialect, weights)) = dialect.zip(self.site.tokens.as_ref()) else { return };
        let length = if body.is_whole { Some(body.data().len() as u64) } else { head.length() };
        let weights = Arc::clone(weights);
        let model = ModelExchange::new(weights, dialect, &head.headers, body.data(), length);
        self.model = Some(Box::new(model));
    }

    /// Decides on the request.
    pub(super) async fn decide(&mut self) {
        if self.arriving.as_ref().is_some_and(|arriving| arriving.awaits_body) {
            self.read_model(true);
        }
        let Some(arriving) = &self.arriving else { return };
        let ArrivingRequest { head, client, observes, body, .. } = &**arriving;
        let lane = &self.thread.lane;
        let mut original =
            OriginalRequest::of_pseudo_headers(*client, &head.pseudo, &head.headers, true);
        let robots = lane.robots();
        original.signer = robots
            .as_ref()
            .and_then(|robots| robots.signed(&original.signed(), self.thread.clock.now()));
        original.body = body.data();
        original.model = self.model.as_deref();
        let asked = match &self.thread.store {
            Some(store) => Box::pin(store.ask(lane, &original)).await,
            None => lane.ask(&original),
        };
        let observes = *observes;
        self.forget_body();
        match asked {
            AskOutcome::Refused(refusal) => {
                let quota = self.thread.lane.quota_of(&refusal);
                self.refuse(&refusal, quota);
            }
            AskOutcome::Pass(charge) if observes => {
                self.charge = Some(charge);
                self.begin();
            }
            AskOutcome::Pass(charge) => {
                let until = charge.delay_until();
                self.charge = Some(charge);
                match until {
                    Some(until) => self.ask_for_time(Waiting::Start(until)),
                    None => {
                        if let Some(turn) = self.enter() {
                            self.ask_for_time(Waiting::Turn(turn));
                        }
                    }
                }
            }
        }
    }

    /// Forgets the body if Envoy has it as well and nothing in it will change, or if all bodies
    /// together take too much.
    fn forget_body(&mut self) {
        let may_change = self.request_mode.may_replace_request() && self.model.is_some();
        let is_duplex = self.request_mode.is_duplex();
        if let Some(arriving) = self.arriving.as_mut().filter(|_| !is_duplex)
            && !(may_change && arriving.body.is_counted())
        {
            arriving.body.forget();
        }
    }

    /// Chooses the backend. Returns whether there is one, or none is to be named.
    fn choose_endpoint(&mut self) -> bool {
        let endpoints = self.site.endpoints.as_ref();
        let observes = self.arriving.as_ref().is_some_and(|arriving| arriving.observes);
        let Some(endpoints) = endpoints.filter(|_| !observes) else { return true };
        let hashes = self.model.as_ref().map(|model| model.prefixes()).unwrap_or_default();
        self.endpoint = Endpoints::choose(endpoints, hashes, &self.subset, self.now_ms());
        self.endpoint.is_some()
    }

    /// Lets the request go to the backend.
    pub(super) fn begin(&mut self) {
        if self.arriving.is_some() && !self.choose_endpoint() {
            return self.end_with(answer::no_backend(self.dialect));
        }
        self.stage = RequestStage::Running;
        let follows = self.arriving.as_ref().is_some_and(|arriving| {
            // If it sends bodies in one message, Envoy does not show what is beyond it.
            let shows = self.request_mode.is_sent() && !self.request_mode.is_single();
            arriving.has_body && !arriving.body.is_complete() && shows
        });
        self.begin_upload(follows);
        if self.model.is_some() && !(self.request_mode.is_sent() && self.response_mode.is_sent()) {
            self.thread.warn_of_bodies();
        }
        if let Some(arriving) = self.arriving.take() {
            self.release(*arriving);
        }
    }

    /// Sends Envoy what it may send on: the head, and the body as far as it is here.
    fn release(&mut self, mut request: ArrivingRequest) {
        let is_duplex = self.request_mode.is_duplex();
        let endpoint = self.endpoint.as_ref().map(|endpoint| endpoint.name().clone());
        let mut change = HeadChange { endpoint, ..HeadChange::default() };
        let mut replaced = None;
        if let Some(model) = self.model.as_mut().filter(|_| self.response_mode.is_sent()) {
            // The event with the usage is removed from the answer again.
            let may_replace = request.body.is_whole
                && request.head.may_change()
                && self.request_mode.may_replace_request()
                && self.response_mode.may_replace_pieces();
            let body = may_replace.then(|| request.body.data());
            let headers = &mut request.head.headers;
            let had_coding = headers.contains_key(header::ACCEPT_ENCODING);
            replaced = model.prepare(headers, body);
            let lengths = replaced.as_ref().map(|_| header::CONTENT_LENGTH);
            change.copy(lengths.into_iter().chain([header::ACCEPT_ENCODING]), headers);
            if !had_coding {
                // It counts as one that is added.
                headers.remove(header::ACCEPT_ENCODING);
            }
        }
        if !change.keep_within(&request.head) {
            // Envoy chooses.
            self.endpoint = None;
        }
        let (mut messages, has_trailers) = (request.body.messages, request.body.has_trailers);
        if !request.is_head_sent {
            self.send(answer::pass_request(change));
        } else if self.request_mode.is_single() && messages > 0 {
            self.send(answer::pass_buffered_request(change, replaced.take()));
            messages -= 1;
        }
        if is_duplex {
            let (pieces, held) = request.body.into_pieces(replaced);
            pieces.for_each(|piece| {
                self.send(answer::pass_request_body(piece, PiecePassage::Back));
            });
            self.sending = Some(held);
        } else {
            for _ in 0..messages {
                self.send(answer::pass_request_body(HttpBody::default(), PiecePassage::Same));
            }
        }
        if has_trailers {
            self.send(answer::pass_request_trailers());
        }
    }
}
