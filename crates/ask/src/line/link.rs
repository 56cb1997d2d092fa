//! The part of a connection that its worker can access: to end it, to wake it, and to choose the
//! one that is closed if there are too many.
//!
//! The connection itself is in `connection`.

use evenkeel_core::units::Time;
use std::cell::{Cell, RefCell};
use std::task::Waker;

/// The use of turns by a connection. If there are too many connections, the least comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkTurn {
    /// Nothing.
    #[default]
    None,
    /// A program waits for a turn.
    Waits,
    /// A program holds a turn, and is silent while it runs.
    Holds,
}

/// The part of a connection that its worker can access.
#[derive(Default)]
pub struct LineLink {
    /// The time of the last query, in milliseconds.
    pub active: Cell<u64>,
    /// The index in the list of its thread.
    pub place: Cell<usize>,
    /// When the program has waited for its turn for as long as it wants to.
    pub waits_until: Cell<Option<Time>>,
    /// The use of turns by the program.
    pub turn: Cell<LinkTurn>,
    closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl LineLink {
    pub fn served_by(&self, waker: &Waker) {
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
