//! The charge of one request, shared by the exchange, the request's body and the answer's body. It
//! settles when the last of them drops it, or earlier with [`RequestAccount::settle`].
//!
//! A request never leaves its thread, so this is a cell without a lock. It is a cell because all
//! three owners change the charge. What is charged is decided in `engine`.

use bytes::Bytes;
use evenkeel_core::meter::header_cost;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::{Charge, QueueAdmission, RequestRefusal, TurnResult};
use evenkeel_models::ModelExchange;
use http::StatusCode;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

#[derive(Clone)]
pub(super) struct RequestAccount(Rc<OpenAccount>);

struct OpenAccount {
    /// `None` before the engine has admitted the request, and after the account is settled.
    charge: RefCell<Option<Charge>>,
    /// Present if the request asks a language model and costs are counted in tokens.
    model: RefCell<Option<Box<ModelExchange>>>,
    /// Whether the backend has begun its answer.
    answered: Cell<bool>,
}

impl RequestAccount {
    /// The account of a request that the engine has not admitted yet.
    pub(super) fn new() -> RequestAccount {
        RequestAccount(Rc::new(OpenAccount {
            charge: RefCell::new(None),
            model: RefCell::new(None),
            answered: Cell::new(false),
        }))
    }

    /// Opens the account: the engine has admitted the request.
    pub(super) fn open(&self, charge: Charge) {
        *self.0.charge.borrow_mut() = Some(charge);
    }

    /// The request asks a language model.
    pub(super) fn set_model(&self, model: Box<ModelExchange>) {
        *self.0.model.borrow_mut() = Some(model);
    }

    /// Calls `act` with the exchange with the language model, if the request asks one.
    pub(super) fn with_model<R>(&self, act: impl FnOnce(&mut ModelExchange) -> R) -> Option<R> {
        self.0.model.borrow_mut().as_deref_mut().map(act)
    }

    /// Handles a piece of the answer. Returns the bytes of it that go to the client.
    pub(super) fn pass(&self, bytes: Bytes) -> Bytes {
        let mut model = self.0.model.borrow_mut();
        let Some(model) = &mut *model else { return bytes };
        model.pass(bytes, self.0.charge.borrow_mut().as_mut())
    }

    /// Handles the end of the answer. Returns the rest of the bytes that go to the client.
    pub(super) fn finish(&self) -> Bytes {
        let mut model = self.0.model.borrow_mut();
        let Some(model) = &mut *model else { return Bytes::new() };
        model.finish(self.0.charge.borrow_mut().as_mut())
    }

    /// Calls `act` with the charge, unless the account is settled.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Charge) -> R) -> Option<R> {
        self.0.charge.borrow_mut().as_mut().map(act)
    }

    /// Waits for a slot before the backend.
    pub(super) async fn turn(&self) -> Result<(), RequestRefusal> {
        match self.enter() {
            QueueAdmission::Room => Ok(()),
            QueueAdmission::Refused(refusal) => Err(refusal),
            QueueAdmission::Waits(turn) => self.turned(turn.await),
        }
    }

    /// Asks for a slot. If the account is settled, there is always room.
    pub(super) fn enter(&self) -> QueueAdmission {
        self.with(Charge::enter).unwrap_or(QueueAdmission::Room)
    }

    /// Ends the waiting for a slot with its outcome.
    pub(super) fn turned(&self, turned: TurnResult) -> Result<(), RequestRefusal> {
        self.with(|charge| charge.accept_turn(turned)).unwrap_or(Ok(()))
    }

    /// The client keeps the backend waiting for the rest of the request. `flows`: the client is
    /// uploading. Returns whether other requests may use the slot in the meantime.
    pub(super) fn stall(&self, flows: bool) -> bool {
        self.with(|charge| charge.stall(flows)).unwrap_or(true)
    }

    /// Whether the backend has begun its answer.
    pub(super) fn is_answered(&self) -> bool {
        self.0.answered.get()
    }

    /// Returns a weak reference to this account, which does not keep it open.
    pub(super) fn shadow(&self) -> WeakAccount {
        WeakAccount(Rc::downgrade(&self.0))
    }

    /// There is no answer. If the backend has part of the request, it may have worked on it, so the
    /// time in which it waited for the client is charged, up to `most`.
    pub(super) fn abandon(&self, most: Duration) {
        self.with(|charge| charge.abandon(nanos(most)));
    }

    /// The connection to the backend was closed before the end of its answer. The time in which the
    /// backend waited for the client is charged, up to `most`.
    pub(super) fn cut(&self, most: Duration) {
        self.with(|charge| charge.cut(nanos(most)));
    }

    /// The backend has the last byte of the request. It works from now on, unless it has already
    /// answered. Returns whether it works.
    pub(super) fn sent(&self) -> bool {
        let works = !self.0.answered.get();
        if works {
            self.with(|charge| {
                charge.finish_delivery();
                charge.work();
            });
        }
        works
    }

    /// The head of the answer has arrived. Returns the time until which to hold it, if any. The
    /// cost header is removed unless `keep`.
    pub(super) fn head(
        &self,
        status: StatusCode,
        headers: &mut http::HeaderMap,
        keep: bool,
    ) -> Option<Time> {
        self.0.answered.set(true);
        let mut charge = self.0.charge.borrow_mut();
        let head = |model: &mut ModelExchange| model.head(charge.as_mut(), status, headers);
        let is_made_by_model = self.with_model(head) == Some(true);
        let charge = charge.as_mut()?;
        let name = charge.cost_header().and_then(|name| http::HeaderName::try_from(name).ok());
        let stated = name.as_ref().and_then(|name| stated_cost(headers, name));
        if let (Some(name), false) = (&name, keep) {
            headers.remove(name);
        }
        let until = charge.head(stated.as_ref().map(http::HeaderValue::as_bytes));
        if is_made_by_model {
            charge.record_first_byte(until);
        }
        until
    }

    /// Closes the account now, even if others still hold a reference.
    pub(super) fn settle(&self) {
        // Cleared in place: the charge is too large to move.
        *self.0.charge.borrow_mut() = None;
    }
}

/// The line of the cost header that counts: the first one that says anything about CPU time. Each
/// server on the way may add a line to `Server-Timing`.
fn stated_cost(headers: &http::HeaderMap, name: &http::HeaderName) -> Option<http::HeaderValue> {
    let mut lines = headers.get_all(name).iter();
    lines.find(|line| header_cost(line.as_bytes()) != Ok(None)).cloned()
}

fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// A weak reference to an account, which may have been closed.
#[derive(Default)]
pub(super) struct WeakAccount(Weak<OpenAccount>);

impl WeakAccount {
    /// The client keeps the backend waiting for the rest of the request. No effect once the backend
    /// has answered. `flows`: the client is uploading.
    pub(super) fn stall(&self, flows: bool) {
        if let Some(account) = self.unanswered() {
            account.stall(flows);
        }
    }

    /// Whether the request goes through the queue and the backend has not answered it yet.
    pub(super) fn stalls(&self) -> bool {
        self.unanswered().and_then(|account| account.with(|charge| charge.queues())) == Some(true)
    }

    fn unanswered(&self) -> Option<RequestAccount> {
        self.0.upgrade().map(RequestAccount).filter(|account| !account.is_answered())
    }
}
