//! The response: its head is charged for, and the tokens in the body of a language model.
//!
//! A body passes unchanged, except that the event with the usage is removed from a stream if the
//! client has not asked for it. The slot is free at the end of the response.

use super::super::answer::{self, HeadChange, PiecePassage};
use super::super::head::MessageHead;
use super::super::view::HeadersView;
use super::super::wire::HttpBody;
use super::{Exchange, RequestStage, Waiting, invalid};
use bytes::Bytes;
use evenkeel_core::units::Time;
use evenkeel_engine::Charge;
use http::{HeaderValue, header};
use tonic::Status;

impl Exchange {
    /// Handles the head of the response.
    pub(super) fn answered(
        &mut self,
        headers: HeadersView<'_>,
        details: Option<&[u8]>,
        observes: bool,
    ) -> Result<(), Status> {
        let Some(charge) = &self.charge else {
            self.send(answer::pass_response(HeadChange::default()));
            return Ok(());
        };
        let needs_all = self.model.is_some() || self.endpoint.is_some();
        let cost_header = charge.cost_header().unwrap_or_default().as_bytes();
        let head = MessageHead::of_response(headers, |name| {
            needs_all || name == cost_header || name == header::CONTENT_TYPE.as_str().as_bytes()
        });
        let head = head.map_err(invalid)?;
        self.stage = RequestStage::Answered;
        if let Some(endpoint) = &self.endpoint {
            endpoint.handle_answer(&head, details, self.now_ms());
        }
        if head.headers.contains_key(header::TRAILER) && !self.response_mode.is_duplex() {
            // What is held back of the last event could not be sent before the trailers.
            self.model.iter_mut().for_each(|model| model.pass_unchanged());
        }
        let (change, until) = self.charge_head(&head);
        if headers.end_of_stream {
            self.finish();
        }
        let answer = answer::pass_response(change);
        match until {
            Some(until) if !observes => self.ask_for_time(Waiting::Hold(until, answer)),
            _ => self.send(answer),
        }
        Ok(())
    }

    /// Charges for the head of the response. Returns how it changes for the client, and until when
    /// it is held.
    fn charge_head(&mut self, head: &MessageHead) -> (HeadChange, Option<Time>) {
        let Some(charge) = &mut self.charge else { return (HeadChange::default(), None) };
        let is_body_sent = self.response_mode.is_sent();
        let is_made_by_model = self.model.as_mut().is_some_and(|model| {
            // Without the body, the tokens are those that a model makes in that time.
            let read = is_body_sent.then_some(&mut *charge);
            model.head(read, head.status, &head.headers)
        });
        if is_made_by_model && !is_body_sent {
            charge.assume_tokens();
        }
        let name = charge.cost_header().map(str::to_owned);
        let stated = name.as_ref().and_then(|name| head.headers.get(name));
        let until = charge.head(stated.map(HeaderValue::as_bytes));
        let remove = name.filter(|_| stated.is_some() && !self.site.keep_cost_header);
        let mut change = HeadChange { remove, ..HeadChange::default() };
        if is_made_by_model {
            charge.record_first_byte(until);
        }
        if self.model.is_some() {
            evenkeel_models::answer::set_quotas(&mut change.set, &charge.quotas());
            // It works until the end of its answer.
            charge.work();
        }
        if head.is_event_stream() && !self.site.charge_streams {
            charge.leave();
        }
        (change, until)
    }

    /// Handles a piece of the body of the response.
    pub(super) fn response_body(&mut self, piece: HttpBody) {
        let HttpBody { body: arrived, end_of_stream } = piece;
        let mut body = match &mut self.model {
            Some(model) => model.pass(arrived.clone(), self.charge.as_mut()),
            None => arrived.clone(),
        };
        if end_of_stream {
            let rest = self.finish();
            if !rest.is_empty() {
                body = [&body[..], &rest].concat().into();
            }
        }
        let changes = self.response_mode.may_replace_pieces() && body != arrived;
        let passage = match self.response_mode.passage() {
            PiecePassage::Same if changes => PiecePassage::Other,
            passage => passage,
        };
        self.send(answer::pass_response_body(HttpBody { body, end_of_stream }, passage));
    }

    /// Handles the trailers of the response.
    pub(super) fn response_trailers(&mut self) {
        let body = self.finish();
        // An event that is not complete before trailers can be sent only in this mode.
        if !body.is_empty() && self.response_mode.is_duplex() {
            let piece = HttpBody { body, end_of_stream: false };
            self.send(answer::pass_response_body(piece, PiecePassage::Back));
        }
        self.send(answer::pass_response_trailers());
    }

    /// The response is complete: settles the account. Returns the rest of the bytes that go to the
    /// client.
    fn finish(&mut self) -> Bytes {
        let charge = self.charge.as_mut().filter(|_| self.response_mode.is_sent());
        let rest = self.model.as_mut().map(|model| model.finish(charge));
        self.charge.iter_mut().for_each(Charge::rest);
        self.charge = None;
        self.endpoint = None;
        rest.unwrap_or_default()
    }
}
