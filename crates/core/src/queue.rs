//! The fair queue before a backend: nobody waits while there is room, and when there is none it
//! is shared out by what requests cost.
//!
//! At most `concurrency` requests are with the backend. Those that wait are in one of two tiers:
//! clients in credit come first, those in debt share what is left, at least a tenth of the cost.
//! In both, flows take turns by start-time fair queueing (`turns`), so it does not
//! matter how many connections a flow opens. A client that has nothing with the backend may use
//! one of `reserve` slots more if it would have gone before something that is there and asks for
//! little beside it: who comes anew and uses little finds room at once, even while everybody is in
//! credit. `depth` watches whether the backend takes in so many.
//!
//! The requests of a client wait one behind the other, where the first of them belongs: each is
//! served from the place it was given when it came. So a client's order is kept whatever becomes
//! of its account meanwhile, and no request takes others along to a better place.
//!
//! This is a state machine without locks or a clock. It does not look into any bucket (the door
//! asks the limiter for a request's [`Place`]), and it never finds out costs by itself.

pub mod concurrency;
mod crowd;
mod depth;
pub mod known;
mod lines;
mod routes;
mod spread;
mod tiers;
mod turns;

use crate::classify::Key;
use crate::key::KeyHash;
use crate::meter::estimate::RouteHash;
use crate::units::{Cost, Nanos, Time, Weight};
use alloc::collections::VecDeque;
use crowd::{Crowd, Crowds, Flow, Pace};
use depth::Depth;
use hashbrown::hash_map::Entry;
use known::Known;
use lines::{Line, Lines};
use routes::Routes;
use spread::Map;
use tiers::{Share, Tiers};
use turns::Head;

/// The longest that anybody is told to stay away.
const RETRY_AFTER_MAX: Nanos = Nanos::from_secs(3_600);

/// The bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many requests the backend works on at once, at least 1. Too low: it stands idle. Too
    /// high: they wait there, where nobody puts them into order.
    pub concurrency: usize,
    /// How many more for clients in credit that have nothing with the backend, whose turn would
    /// have come before one that is there, and who ask for little beside it; all but one also for
    /// such buckets in debt, too, and for such clients of a bucket. No more than the backend takes
    /// in ([`Queue::taken_in`]). Default: two per processor, at least two. Too low: many who use
    /// little wait for each other. Too high: a swarm overloads the backend. 0: nobody is preferred
    /// for asking for little.
    pub reserve: usize,
    /// How many requests may wait. Default: 4096. Too low: bursts are refused. Too high: memory,
    /// some 500 bytes each, and waits that nobody sits through.
    pub len_max: usize,
    /// How long a request may wait. Default: 30 s.
    pub wait_max: Nanos,
    /// How many clients are remembered as [`known`]; those in credit who are not share one flow's
    /// turn among those in debt. 0, the default: nobody is told apart. Too low: who comes seldom
    /// is a stranger at each visit. Too high: memory, 36 bytes each.
    pub known_max: usize,
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// With those who owe nothing; its client is its flow.
    Credit,
    /// With those in debt: of its buckets this one is latest, and all who are charged there are
    /// one flow.
    Debt(Key),
}

impl Place {
    /// With all others of whom nothing is known, as one flow among those in debt.
    pub const STRANGERS: Place =
        Place::Debt(Key { limit: u8::MAX, hash: KeyHash::from_bits(u64::MAX) });
}

/// A request that comes.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Who sends it: the key of the first limit.
    pub client: KeyHash,
    /// How it stands with its limits.
    pub place: Place,
    /// What it will probably cost.
    pub estimate: Cost,
    /// Whether that is a guess, as nothing is known of its route. Of those whose turn it is equally
    /// such a request goes first: it may ask for little, and then nobody like it waits again.
    pub is_guess: bool,
    /// The route that this is known of: [`Queue::handle_estimate`] tells more of it. `None`: it
    /// stays what it is.
    pub route: Option<RouteHash>,
    /// How much more than others it gets.
    pub weight: Weight,
}

/// A request in the queue or with the backend. Later ones are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

/// A request that found no room, or waited for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which one.
    pub id: Id,
    /// How long until what its flow has waiting now will have been served.
    pub retry_after: Nanos,
}

/// What a cancelled request leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It waited; its place is free.
    Waiting,
    /// It is with the backend, and keeps its slot until `handle_done`.
    Running,
    /// It is neither here nor there.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    share: Share,
    since: Time,
}

/// A client that has requests waiting, the first of them in `place`, or with the backend.
#[derive(Clone, Copy, Debug)]
struct Client {
    place: Place,
    line: Line,
    crowd: Crowd,
    running: usize,
}

impl Client {
    fn new(place: Place) -> Client {
        Client { place, line: Line::default(), crowd: Crowd::default(), running: 0 }
    }

    /// Whether it has nothing here.
    fn is_gone(&self) -> bool {
        self.crowd.count == 0 && self.running == 0
    }
}

/// The queue.
pub struct Queue {
    settings: Settings,
    /// Who is no stranger, where these are told apart.
    known: Option<Known>,
    last: u64,
    /// The only one that is here and not with the backend, if there is a slot for it: it has no
    /// place in any order, since it needs none. That is how most requests pass.
    ready: Option<(Id, Waiting)>,
    waiting: Lines,
    running: Map<Id, Share>,
    clients: Map<KeyHash, Client>,
    /// What is known by now of the routes that they take.
    routes: Routes,
    tiers: Tiers,
    crowds: Crowds,
    depth: Depth,
    credit_pace: Pace,
    debt_pace: Pace,
    refused: VecDeque<Refused>,
}

impl Queue {
    /// Nobody waits, nothing runs.
    #[must_use]
    pub fn new(settings: Settings) -> Queue {
        Queue {
            settings: Settings { concurrency: settings.concurrency.max(1), ..settings },
            known: known_if(settings.known_max),
            last: 0,
            ready: None,
            waiting: Lines::default(),
            running: Map::default(),
            clients: Map::default(),
            routes: Routes::default(),
            tiers: Tiers::new(),
            crowds: Crowds::default(),
            depth: Depth::new(),
            credit_pace: Pace::default(),
            debt_pace: Pace::default(),
            refused: VecDeque::new(),
        }
    }

    /// The bounds.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Takes over other bounds; who waits, waits on, unless it has waited for too long by them.
    pub fn set_settings(&mut self, settings: Settings) {
        self.line_up_ready();
        if settings.known_max != self.settings.known_max {
            self.known = known_if(settings.known_max);
        }
        self.settings = Settings { concurrency: settings.concurrency.max(1), ..settings };
    }

    /// From now on at most `concurrency` requests are sent to the backend; what runs, runs on.
    pub fn set_concurrency(&mut self, concurrency: usize) {
        self.line_up_ready();
        self.settings.concurrency = concurrency.max(1);
    }

    /// How many requests the backend takes in at once, as far as that was seen: more would wait
    /// inside it.
    #[must_use]
    pub fn taken_in(&self) -> Option<usize> {
        self.depth.most()
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len() + usize::from(self.ready.is_some())
    }

    /// Whether requests of others than `client` wait.
    #[must_use]
    pub fn others_wait(&self, client: KeyHash) -> bool {
        let own = self.clients.get(&client).map_or(0, |client| client.crowd.count);
        self.waiting.len() > own
    }

    /// How many requests are with the backend.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// How many clients and flows are remembered, for whoever wants to see that it is bounded.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.clients.len() + self.tiers.len() + self.routes.len()
    }

    /// A request comes, and waits until `poll_dispatch` or `poll_refused` names it: ask both.
    pub fn handle_arrival(&mut self, arrival: Arrival, now: Time) -> Id {
        self.last += 1;
        let id = Id(self.last);
        let share = Share::new(&arrival, self.place_of(&arrival, now));
        self.line_up_ready();
        if self.waiting.is_empty() && self.running.len() < self.settings.concurrency {
            self.ready = Some((id, Waiting { share, since: now }));
        } else {
            self.line_up(id, Waiting { share, since: now });
        }
        id
    }

    /// Requests on `route` are taken to cost `estimate` from now on. Those that wait are when their
    /// turn comes; those that run, if it is more than was thought.
    pub fn handle_estimate(&mut self, route: RouteHash, estimate: Cost) {
        if self.waiting.is_empty() {
            return;
        }
        self.routes.learn(route, estimate);
        let dearer = |share: &&mut Share| {
            share.route == Some(route) && routes::is_far(estimate, share.estimate)
        };
        for share in self.running.values_mut().filter(dearer) {
            self.tiers.raise(share, estimate);
        }
    }

    /// A request that was with the backend is over, and has cost `cost`: its slot is free. Whether
    /// that says something of others like it: it does not if it has waited inside the backend.
    pub fn handle_done(&mut self, id: Id, cost: Cost) -> bool {
        let Some(share) = self.running.remove(&id) else { return false };
        let Share { count, beside, estimate, .. } = share;
        let telling = !share.is_light || self.depth.handle_done(count, beside, estimate, cost);
        let cost = if telling { cost } else { estimate };
        self.tiers.settle(&share, cost, self.running.values());
        if let Entry::Occupied(mut client) = self.clients.entry(share.client) {
            client.get_mut().running = client.get().running.saturating_sub(1);
            if client.get().is_gone() {
                client.remove();
            }
        }
        telling
    }

    /// Nobody wants the answer any more. Whoever waited is gone at once; what runs keeps its slot.
    pub fn handle_cancel(&mut self, id: Id) -> Cancelled {
        self.line_up_ready();
        if self.running.contains_key(&id) {
            return Cancelled::Running;
        }
        match self.remove(id) {
            Some(_) => Cancelled::Waiting,
            None => Cancelled::Unknown,
        }
    }

    /// Refuses what has waited for too long.
    pub fn handle_timeout(&mut self, now: Time) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.line_up_ready();
            let Some((id, _)) = self.waiting.first() else { break };
            self.refuse(id);
        }
    }

    /// When the next request will have waited for too long.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let ready = || self.ready.as_ref().map(|(_, ready)| ready);
        let oldest = self.waiting.first().map(|(_, oldest)| oldest).or_else(ready)?;
        Some(oldest.since.plus(self.settings.wait_max))
    }

    /// A request that goes to the backend now, if there is one: ask until there is none, after
    /// each arrival and whenever a slot becomes free.
    pub fn poll_dispatch(&mut self, now: Time) -> Option<Id> {
        if let Some((id, ready)) = self.ready.take() {
            self.pass(id, ready.share, now);
            return Some(id);
        }
        if self.waiting.is_empty() {
            return None;
        }
        let (id, client, place) = self.next_as_known(now)?;
        let known = self.clients.get_mut(&client)?;
        let mut share = self.waiting.leave(id, &mut known.line)?.share;
        known.running += 1;
        self.count_in(&mut share, now);
        self.routes.leave(share.route);
        self.count(client, |crowd| crowd.minus(share.estimate));
        let next = self.head(client);
        let here = next.filter(|(_, next)| *next == place);
        self.tiers.serve(&mut share, here.map(|(head, _)| head));
        if next.is_some() && here.is_none() {
            self.refresh(client);
        }
        self.running.insert(id, share);
        let others = self.tiers.waiting(place) > 0;
        self.pace(place).serve(share.estimate, others, now);
        Some(id)
    }

    /// Whose turn it is by what is known by now, if there is a slot for it: who was put into order
    /// by a guess is put where it belongs when it comes up.
    fn next_as_known(&mut self, now: Time) -> Option<(Id, KeyHash, Place)> {
        loop {
            let (client, place) = self.next(now)?;
            let id = self.first_of(client)?;
            let share = &mut self.waiting.get_mut(id)?.share;
            let Some(known) = self.routes.instead(share) else {
                return Some((id, client, place));
            };
            share.is_guess = false;
            let before = core::mem::replace(&mut share.estimate, known);
            self.count(client, |crowd| crowd.minus(before).plus(known));
            self.refresh(client);
        }
    }

    /// A request that is to be refused, if there is one.
    pub fn poll_refused(&mut self) -> Option<Refused> {
        self.refused.pop_front()
    }

    /// Where a request really belongs: strangers in credit belong together.
    fn place_of(&self, arrival: &Arrival, now: Time) -> Place {
        match &self.known {
            Some(known) if arrival.place == Place::Credit => {
                let is_known = known.handle_request(arrival.client, now);
                if is_known { Place::Credit } else { Place::STRANGERS }
            }
            _ => arrival.place,
        }
    }

    /// A request finds nobody waiting and a slot free.
    fn pass(&mut self, id: Id, mut share: Share, now: Time) {
        let Share { client, place, .. } = share;
        let known = self.clients.entry(client).or_insert(Client::new(place));
        known.place = place;
        known.running += 1;
        self.count_in(&mut share, now);
        self.tiers.pass(&mut share);
        self.running.insert(id, share);
        self.pace(place).pause();
    }

    /// A request goes to the backend: notes how many there are then.
    fn count_in(&mut self, share: &mut Share, now: Time) {
        share.count = self.running.len() + 1;
        share.is_light = self.tiers.is_light(share);
        share.beside = share.count > self.settings.concurrency;
        if share.beside {
            self.depth.handle_beside(share.count, now);
        }
    }

    /// Whoever need not wait does so nevertheless, before anything else happens.
    fn line_up_ready(&mut self) {
        if let Some((id, ready)) = self.ready.take() {
            self.line_up(id, ready);
        }
    }

    /// A request waits; one of those that do may have to go.
    fn line_up(&mut self, id: Id, waiting: Waiting) {
        let Share { client, place, estimate, .. } = waiting.share;
        self.routes.join(&waiting.share);
        let known = self.clients.entry(client).or_insert(Client::new(place));
        self.waiting.join(id, waiting, &mut known.line);
        let is_first = known.line.first() == Some(id);
        self.count(client, |crowd| crowd.plus(estimate));
        if is_first {
            self.refresh(client);
        }
        while self.waiting.len() > self.settings.len_max.saturating_add(self.about_to_go()) {
            let Some(newest) = self.newest_of_largest() else { break };
            self.refuse(newest);
        }
    }

    /// Whose turn it is, if there is a slot for it. Who may have a reserved slot goes first in any,
    /// for the backend may have no room for more.
    fn next(&self, now: Time) -> Option<(KeyHash, Place)> {
        let credit = || self.newcomers().next().map(|client| (client, Place::Credit));
        if self.running.len() < self.settings.concurrency {
            return credit().filter(|_| self.settings.reserve > 0).or_else(|| self.tiers.next());
        }
        if self.free_slots() == 0 || !self.depth.has_room(self.running.len() + 1, now) {
            return None;
        }
        // One reserved slot is always left to those in credit.
        let debt = || self.tiers.fresh_in_debt(self.free_slots()).filter(|_| self.free_slots() > 1);
        credit().or_else(debt)
    }

    /// Clients who may have a reserved slot, in their order.
    fn newcomers(&self) -> impl Iterator<Item = KeyHash> {
        // Some may have requests there that were sent when they were in debt.
        let idle = |client: &KeyHash| self.clients.get(client).is_some_and(|c| c.running == 0);
        self.tiers.fresh(self.free_slots()).filter(idle)
    }

    /// How many of those that wait find a slot when next asked, and so need no room.
    fn about_to_go(&self) -> usize {
        let has_room = || self.depth.has_room(self.running.len() + 1, Time::ZERO);
        match self.settings.concurrency.saturating_sub(self.running.len()) {
            0 if !has_room() => 0,
            0 => self.newcomers().take(self.free_slots()).count(),
            free => free,
        }
    }

    /// Slots that are free for somebody, reserved ones too.
    fn free_slots(&self) -> usize {
        let slots = self.settings.concurrency.saturating_add(self.settings.reserve);
        slots.saturating_sub(self.running.len())
    }

    /// What a client has waiting changes.
    fn count(&mut self, client: KeyHash, change: impl FnOnce(Crowd) -> Crowd) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        let before = known.crowd;
        known.crowd = change(before);
        self.crowds.change(Flow::of(client, known.place), client, before, known.crowd);
    }

    /// Tells the tiers what the client waits for, and where.
    fn refresh(&mut self, client: KeyHash) {
        let head = self.head(client);
        let Some(known) = self.clients.get_mut(&client) else { return };
        let (before, crowd) = (known.place, known.crowd);
        let place = head.map_or(before, |(_, place)| place);
        if before != place {
            known.place = place;
            self.tiers.set_head(client, before, None);
            self.crowds.change(Flow::of(client, before), client, crowd, Crowd::default());
            self.crowds.change(Flow::of(client, place), client, Crowd::default(), crowd);
        }
        self.tiers.set_head(client, place, head.map(|(head, _)| head));
    }

    /// Forgets a client that has nothing here.
    fn dismiss(&mut self, client: KeyHash) {
        if self.clients.get(&client).is_some_and(Client::is_gone) {
            self.clients.remove(&client);
        }
    }

    /// The client's request that has waited longest.
    fn first_of(&self, client: KeyHash) -> Option<Id> {
        self.clients.get(&client)?.line.first()
    }

    /// What that waits for, and where.
    fn head(&self, client: KeyHash) -> Option<(Head, Place)> {
        let id = self.first_of(client)?;
        let Share { estimate, is_guess, weight, place, .. } = self.waiting.get(id)?.share;
        Some((Head { is_known: !is_guess, estimate, id, weight }, place))
    }

    fn newest_of_largest(&self) -> Option<Id> {
        let client = self.crowds.largest()?;
        self.clients.get(&client)?.line.last()
    }

    /// Takes a request that waits out of the queue.
    fn remove(&mut self, id: Id) -> Option<Waiting> {
        let client = self.waiting.get(id)?.share.client;
        let line = &mut self.clients.get_mut(&client)?.line;
        let gone = self.waiting.leave(id, line)?;
        self.routes.leave(gone.share.route);
        self.count(client, |crowd| crowd.minus(gone.share.estimate));
        self.refresh(client);
        self.dismiss(client);
        Some(gone)
    }

    fn refuse(&mut self, id: Id) {
        let Some(waiting) = self.waiting.get(id) else { return };
        let client = waiting.share.client;
        let place = self.clients.get(&client).map_or(Place::Credit, |known| known.place);
        let retry_after = self.drain_time(client, place);
        self.remove(id);
        self.refused.push_back(Refused { id, retry_after });
    }

    /// How long until what a client's flow has waiting will have been served, if the flows that
    /// wait beside it share alike.
    fn drain_time(&mut self, client: KeyHash, place: Place) -> Nanos {
        let cost = self.crowds.cost(Flow::of(client, place));
        let flows = self.tiers.waiting(place).max(1) as u64;
        let slots = self.settings.concurrency;
        let all = Cost(cost.0.saturating_mul(flows));
        self.pace(place).time_for(all, slots).min(RETRY_AFTER_MAX)
    }

    fn pace(&mut self, place: Place) -> &mut Pace {
        match place {
            Place::Credit => &mut self.credit_pace,
            Place::Debt(_) => &mut self.debt_pace,
        }
    }
}

fn known_if(keys_max: usize) -> Option<Known> {
    (keys_max > 0).then(|| Known::new(keys_max))
}
