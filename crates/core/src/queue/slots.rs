//! The slots of the queue: how many there are, which of them are free and for which tier, and which
//! client gets the next one.
//!
//! The order within the tiers is that of `tiers`. `capacity_probe` knows how many requests the
//! backend accepts.

use super::brief_slots::BriefSlots;
use super::place::Place;
use super::share::WaitingRequest;
use super::{Queue, QueueSettings, WorkUnit};
use crate::key::KeyHash;
use crate::units::Time;

impl Queue {
    /// Sets the slots for requests that are known to be brief. Requests that run are not affected.
    pub fn set_brief_slots(&mut self, brief: BriefSlots) {
        self.enqueue_ready();
        self.brief = brief;
    }

    /// Whether a request that arrives finds a slot at once, if no other waits.
    pub(super) fn has_slot(&self, arrived: &WaitingRequest) -> bool {
        match self.in_slots() < self.slots() {
            true => self.tiers.passes(arrived.place, self.shared_slots()),
            false => self.has_brief_slot(arrived),
        }
    }

    fn has_brief_slot(&self, request: &WaitingRequest) -> bool {
        let WaitingRequest { place, estimate, is_guess, .. } = *request;
        place == Place::Credit
            && self.free_workers() > 0
            && self.brief.admits(estimate, is_guess, self.in_slots())
    }

    /// The client that is next, if its request may have a slot for brief ones.
    fn next_brief(&self) -> Option<(KeyHash, Place)> {
        if self.in_slots() >= self.brief.count {
            return None;
        }
        let next = self.tiers.next(self.shared_slots())?;
        let first = self.waiting.get(self.first_of(next.0)?)?;
        self.has_brief_slot(first).then_some(next)
    }

    /// The client that is next, if there is a slot for it. A client that may use a reserved slot
    /// goes first in any slot, because the backend may have no room for more requests.
    pub(super) fn next(&self, now: Time) -> Option<(KeyHash, Place)> {
        let credit = || self.newcomers().next().map(|client| (client, Place::Credit));
        let free = self.free_slots();
        let lines = || match self.settings.unit {
            WorkUnit::CpuTime => self.tiers.fresh_in_lines(free, self.slots_for_lines()),
            WorkUnit::Tokens => self.tiers.next_in_lines(self.shared_slots()),
        };
        if self.in_slots() < self.slots() {
            // With a language model, this would share out slots instead of tokens.
            let goes_first = self.settings.reserve > 0 && self.settings.unit == WorkUnit::CpuTime;
            let light = credit().filter(|_| goes_first);
            let next = light.or_else(|| self.tiers.next(self.shared_slots()));
            if let Some((_, Place::Line(_))) = next
                && self.settings.reserve > 0
            {
                return lines().or(next);
            }
            if next.is_some() || self.tiers.leaves_room(self.shared_slots()) {
                return next;
            }
        }
        if let Some(brief) = self.next_brief() {
            return Some(brief);
        }
        if free == 0 || !self.has_room(now) {
            return None;
        }
        // One reserved slot is always left to clients in credit.
        let debt = || self.tiers.fresh_in_debt(free).filter(|_| free > 1);
        credit().or_else(lines).or_else(debt)
    }

    /// The number of slots for those that were not here before, and those in debt, while some of
    /// the former are here: all but one, but no fewer than processors. With tokens, reserved slots
    /// are among them, because the size of a request does not matter there.
    pub(super) fn shared_slots(&self) -> usize {
        let QueueSettings { unit, reserve, cpus_milli, .. } = self.settings;
        let (slots, at_least) = match unit {
            WorkUnit::CpuTime => {
                let cpus = usize::try_from(cpus_milli.div_ceil(1_000)).unwrap_or(usize::MAX);
                (self.slots(), cpus.saturating_add(self.staying))
            }
            WorkUnit::Tokens => (self.slots().saturating_add(reserve), 1),
        };
        slots.saturating_sub(1).max(at_least).min(slots)
    }

    /// The number of slots for those that were not here before, if they ask for little.
    fn slots_for_lines(&self) -> usize {
        self.shared_slots().saturating_add(self.settings.reserve)
    }

    /// Clients in credit that may use a reserved slot. With CPU time: those with nothing in
    /// service, lightest request first. With tokens: those that have less than their equal part of
    /// the slots and are at most a few requests ahead of others, in the order of their turns. The
    /// size of a request does not matter there, because a model works on many requests at a time.
    /// But the last slot is for clients that were served before: it might be occupied for long, and
    /// there is no end of new clients.
    pub(super) fn newcomers(&self) -> impl Iterator<Item = KeyHash> {
        let running = |client: &KeyHash| self.clients.get(client).map_or(0, |known| known.running);
        let is_time = self.settings.unit == WorkUnit::CpuTime;
        // A client in credit may have running requests that were sent while it was in debt.
        let idle = move |client: &KeyHash| running(client) == 0;
        let light = is_time.then(|| self.tiers.fresh(self.free_slots()).filter(idle));
        let is_last = self.free_slots() <= 1;
        let may_have_last = move |client: &KeyHash| {
            self.known.as_ref().is_none_or(|known| known.stamp(*client).is_some())
        };
        let has_little =
            move |client: &KeyHash| running(client) * self.clients.len() < self.slots();
        let next = (!is_time).then(|| {
            let little = self.tiers.behind_others().filter(has_little);
            little.filter(move |client| !is_last || may_have_last(client))
        });
        light.into_iter().flatten().chain(next.into_iter().flatten())
    }

    /// The number of waiting requests that the next `poll_dispatch` calls will send, and that
    /// therefore do not count against `len_max`. `Time::ZERO`: a slot that is only probed does not
    /// count.
    pub(super) fn dispatchable_count(&self) -> usize {
        match self.slots().saturating_sub(self.in_slots()) {
            // Those after it may not be brief.
            0 if self.next_brief().is_some() => 1,
            0 if !self.has_room(Time::ZERO) => 0,
            0 => self.newcomers().take(self.free_slots().min(self.free_workers())).count(),
            free => free,
        }
    }

    /// The number of slots without the reserved ones. Requests that stay have additional ones, as
    /// far as the backend is known to accept that many.
    pub(super) fn slots(&self) -> usize {
        let concurrency = self.settings.concurrency;
        let most = self.settings.workers.or(self.depth.most()).unwrap_or(usize::MAX);
        concurrency.saturating_add(self.staying).min(most.max(concurrency))
    }

    /// Moves requests from reserved slots to free ones if their clients would get these now. The
    /// reserved slots are then free for the next requests of these clients.
    pub(super) fn leave_reserved(&mut self) {
        let mut free = self.slots().saturating_sub(self.in_slots()).min(self.beside);
        if free == 0 || self.settings.unit == WorkUnit::CpuTime {
            return;
        }
        for share in self.running.values_mut() {
            if free > 0 && share.beside && self.tiers.is_behind_others(share) {
                share.beside = false;
                self.beside -= 1;
                free -= 1;
            }
        }
    }

    /// The number of running requests that count against the slots. With CPU time, requests are
    /// brief, so any of them may be the one in a reserved slot. Requests to a language model are
    /// not: a client that got reserved slots again and again would have the same number of slots as
    /// others, whatever it costs.
    pub(super) fn in_slots(&self) -> usize {
        match self.settings.unit {
            WorkUnit::CpuTime => self.running.len(),
            WorkUnit::Tokens => self.running.len() - self.beside,
        }
    }

    /// The number of free slots, reserved ones included.
    pub(super) fn free_slots(&self) -> usize {
        self.slots().saturating_add(self.settings.reserve).saturating_sub(self.running.len())
    }

    /// The number of workers of the backend that are free; `usize::MAX` if it is not known.
    pub(super) fn free_workers(&self) -> usize {
        let free = |workers: usize| workers.saturating_sub(self.running.len());
        self.settings.workers.map_or(usize::MAX, free)
    }

    /// Whether the backend has room for one more request, as far as is known.
    pub(super) fn has_room(&self, now: Time) -> bool {
        match self.settings.workers {
            Some(_) => self.free_workers() > 0,
            None => self.depth.has_room(self.running.len() + 1, now),
        }
    }
}
