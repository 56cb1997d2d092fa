//! Requests that wait for their client: the body does not arrive, or the client does not read the
//! answer.
//!
//! A client that sends next to nothing of a body must make room when there is none. While no
//! backend has its request, its connection is closed; once a backend has it, the request is given
//! up if others wait for a slot.
//!
//! A stream set aside has given its slot to others but keeps its connection to the backend, and a
//! client may have a hundred streams on each of its connections. So each stream set aside counts
//! like a connection. Together they may use half of the room for connections, in equal parts per
//! thread. If there is none left, the newest stream of the connection with the most such streams
//! ends, so no client is cut off for the streams of another.

use super::ThreadContext;
use crate::link::ClientLink;
use std::collections::HashMap;
use std::rc::Rc;

/// Checks a request if its backend waits for its body. `crowded`: others wait for a slot or for the
/// backend.
pub(crate) fn check_upload(link: &ClientLink, crowded: bool, now: u64) {
    if !link.upload.is_awaited_by_backend() {
        return;
    }
    if crowded && link.upload.trickles(now) && link.account.borrow().stalls() {
        link.upload.give_up();
    } else if !link.upload.is_queued() {
        link.stall(now);
    }
}

impl ThreadContext {
    /// Sets a stream aside: it has no slot and keeps its connection to the backend. If there is no
    /// room, it ends, or a stream of a connection that has more of them.
    pub(crate) fn set_aside(&self, link: &ClientLink) {
        let Some(over) = link.over.as_ref() else { return };
        if link.aside.get() || link.is_closed() {
            return;
        }
        if self.one_more_aside(false) || (self.ends_another(over) && self.one_more_aside(true)) {
            link.aside.set(true);
            return;
        }
        self.ends(link);
    }

    /// The stream has ended: gives its room back if it was set aside.
    pub(crate) fn release_aside(&self, link: &ClientLink) {
        if link.aside.replace(false) {
            self.aside.set(self.aside.get() - 1);
            self.room.give_back();
        }
    }

    /// Takes the room for a stream set aside if there is some, or in any case if `free`.
    fn one_more_aside(&self, free: bool) -> bool {
        let bound = self.settings().bounds.connections;
        let most = bound.div_ceil(2 * self.room.shared.threads.max(1));
        let fits = free || bound == 0 || self.aside.get() < most;
        let taken = fits && if free { self.one_more(true) } else { self.one_more_or_shed() };
        self.aside.set(self.aside.get() + usize::from(taken));
        taken
    }

    /// Ends a stream of the connection that has the most streams set aside, unless that is `over`
    /// with one more. The room is given back soon. Returns whether a stream was ended.
    fn ends_another(&self, over: &Rc<ClientLink>) -> bool {
        let streams = self.streams.all();
        let aside = || streams.iter().filter(|link| link.aside.get() && !link.is_closed());
        let connection = |link: &ClientLink| link.over.as_ref().map(Rc::as_ptr);
        let mut counts = HashMap::new();
        for link in aside() {
            *counts.entry(connection(link)).or_insert(0_usize) += 1;
        }
        let own = counts.get(&Some(Rc::as_ptr(over))).copied().unwrap_or(0) + 1;
        let Some((most, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else {
            return false;
        };
        let of_most = || aside().filter(|link| connection(link) == most);
        if of_most().count() <= own {
            return false;
        }
        let newest = of_most().max_by_key(|link| link.place.get());
        newest.iter().for_each(|link| self.ends(link));
        newest.is_some()
    }

    fn ends(&self, link: &ClientLink) {
        self.watch.proxy.connections.shed.increment(1);
        link.close();
    }
}
