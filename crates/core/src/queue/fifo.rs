//! The waiting requests in order of arrival: an intrusive doubly linked list (FIFO) over all of
//! them, and one more for each client.
//!
//! A request stores its neighbours in both lists, so joining and leaving take constant time. A
//! hundred thousand requests may wait, so the nodes are small, and in boxes: a map of them would
//! have room for twice as many.
//! Invariant, for each list: `a.after == Some(b)` exactly if `b.before == Some(a)`; the first
//! request has no `before`, and the last has no `after`. Every request in `standing` is in both
//! lists, and no other one is. The order of service does not depend on these lists: see `queue`.

use super::prehashed::Map;
use super::request::RequestId;
use super::share::WaitingRequest;
use alloc::boxed::Box;
use core::num::NonZeroU64;

/// The id of a request. The ids of a queue begin at 1, so this has the size of an id.
type FifoLink = Option<NonZeroU64>;

fn link_to(id: RequestId) -> FifoLink {
    NonZeroU64::new(id.0)
}

fn id_of(link: FifoLink) -> Option<RequestId> {
    link.map(|id| RequestId(id.get()))
}

/// The two ends of a list; both `None` if the list is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FifoEnds {
    first: FifoLink,
    last: FifoLink,
}

impl FifoEnds {
    /// The request that has waited longest.
    pub fn first(self) -> Option<RequestId> {
        id_of(self.first)
    }

    /// The request that came last.
    pub fn last(self) -> Option<RequestId> {
        id_of(self.last)
    }

    /// Appends a request. Returns its links.
    fn push(&mut self, id: RequestId) -> FifoLinks {
        let before = core::mem::replace(&mut self.last, link_to(id));
        self.first = self.first.or(self.last);
        FifoLinks { before, after: None }
    }
}

/// The links of a request in one list.
#[derive(Clone, Copy, Debug, Default)]
struct FifoLinks {
    before: FifoLink,
    after: FifoLink,
}

/// A list node: a waiting request and its links in both lists.
#[derive(Clone, Debug)]
struct FifoNode {
    waiting: WaitingRequest,
    /// The links in the list of all waiting requests.
    all: FifoLinks,
    /// The links in the list of the client's requests.
    own: FifoLinks,
}

const _: () = assert!(size_of::<FifoNode>() <= 128, "there may be many of them");

/// All waiting requests. `all` has the ends of the list over all of them; the caller keeps the ends
/// of each client's list.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestFifo {
    standing: Map<RequestId, Box<FifoNode>>,
    all: FifoEnds,
    /// The next request of the round; none if there is no round.
    round: FifoLink,
}

impl RequestFifo {
    /// Appends a request to both lists; `own` is the list of its client. `id` must be new.
    pub fn join(&mut self, id: RequestId, waiting: WaitingRequest, own: &mut FifoEnds) {
        let (all, own) = (self.all.push(id), own.push(id));
        self.link(all.before, |one| one.all.after = link_to(id));
        self.link(own.before, |one| one.own.after = link_to(id));
        self.standing.insert(id, Box::new(FifoNode { waiting, all, own }));
    }

    /// Removes a request from both lists; `line` must be the list of its client. Returns `None` if
    /// the request does not wait.
    pub fn leave(&mut self, id: RequestId, line: &mut FifoEnds) -> Option<WaitingRequest> {
        let FifoNode { waiting, all, own } = *self.standing.remove(&id)?;
        if self.round == link_to(id) {
            self.round = all.after;
        }
        match all.before {
            Some(before) => self.link(Some(before), |one| one.all.after = all.after),
            None => self.all.first = all.after,
        }
        match all.after {
            Some(after) => self.link(Some(after), |one| one.all.before = all.before),
            None => self.all.last = all.before,
        }
        match own.before {
            Some(before) => self.link(Some(before), |one| one.own.after = own.after),
            None => line.first = own.after,
        }
        match own.after {
            Some(after) => self.link(Some(after), |one| one.own.before = own.before),
            None => line.last = own.before,
        }
        Some(waiting)
    }

    fn link(&mut self, link: FifoLink, change: impl FnOnce(&mut FifoNode)) {
        if let Some(one) = id_of(link).and_then(|id| self.standing.get_mut(&id)) {
            change(one);
        }
    }

    /// The request that has waited longest of all.
    pub fn first(&self) -> Option<(RequestId, &WaitingRequest)> {
        let id = self.all.first()?;
        Some((id, self.get(id)?))
    }

    /// Begins a round: each waiting request once, in order of arrival, also those that arrive
    /// before its end.
    pub fn start_round(&mut self) {
        self.round = self.all.first;
    }

    /// The next request of the round; `None` if there is no round (any longer).
    pub fn next_in_round(&mut self) -> Option<RequestId> {
        let id = id_of(self.round)?;
        self.round = self.standing.get(&id)?.all.after;
        Some(id)
    }

    /// The next request of the same client.
    pub fn after(&self, id: RequestId) -> Option<RequestId> {
        id_of(self.standing.get(&id)?.own.after)
    }

    pub fn get(&self, id: RequestId) -> Option<&WaitingRequest> {
        self.standing.get(&id).map(|one| &one.waiting)
    }

    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut WaitingRequest> {
        self.standing.get_mut(&id).map(|one| &mut one.waiting)
    }

    /// The number of waiting requests.
    pub fn len(&self) -> usize {
        self.standing.len()
    }

    pub fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::known_clients::Standing;
    use super::super::request::{Arrival, QueuePlace};
    use super::super::standing::Visit;
    use super::*;
    use crate::key::KeyHash;
    use crate::units::{Cost, Time, Weight};
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn waiting(client: u64) -> WaitingRequest {
        let client = KeyHash::from_bits(client);
        let arrival = Arrival {
            client,
            place: QueuePlace::Credit,
            estimate: Cost(1),
            is_guess: false,
            route: None,
            own: None,
            weight: Weight::ONE,
            visit: Visit::Unknown,
            accepts_waiting_page: false,
            burns: false,
        };
        let standing = Standing::plain(client, QueuePlace::Credit, Time::ZERO);
        WaitingRequest::new(&arrival, standing, Time::ZERO)
    }

    proptest! {
        /// Compares the ends of all lists with plain vectors while requests join and leave, and a
        /// round with all that wait.
        #[test]
        fn ends_are_those_of_plain_lists(
            steps in prop::collection::vec((0..4usize, 0..40usize), 0..200)
        ) {
            let mut lines = RequestFifo::default();
            let mut own = [FifoEnds::default(); 4];
            let mut plain: Vec<(usize, RequestId)> = Vec::new();
            for (count, (client, step)) in steps.into_iter().enumerate() {
                if step < 20 {
                    let id = RequestId(count as u64 + 1);
                    lines.join(id, waiting(client as u64), &mut own[client]);
                    plain.push((client, id));
                } else if !plain.is_empty() {
                    let (client, id) = plain.remove(step % plain.len());
                    let gone = lines.leave(id, &mut own[client]);
                    let of = KeyHash::from_bits(client as u64);
                    prop_assert_eq!(gone.map(|one| one.client), Some(of));
                    prop_assert!(lines.leave(id, &mut own[client]).is_none());
                }
                prop_assert_eq!(lines.first().map(|(id, _)| id), plain.first().map(|one| one.1));
                prop_assert_eq!(lines.len(), plain.len());
                let next = lines.next_in_round();
                prop_assert!(next.is_none_or(|id| plain.iter().any(|one| one.1 == id)));
                for (client, line) in own.iter().enumerate() {
                    let mut of = plain.iter().filter(|one| one.0 == client).map(|one| one.1);
                    prop_assert_eq!(line.first(), of.next());
                    prop_assert_eq!(line.last(), of.next_back().or(line.first()));
                }
            }
            lines.start_round();
            let round = core::iter::from_fn(|| lines.next_in_round());
            prop_assert!(round.eq(plain.into_iter().map(|one| one.1)));
        }
    }
}
