//! The lines of those that were not here before: visitors that have waited and come back, visitors
//! that were served since, and strangers.
//!
//! In each line the least rank is next: a place in time (`known_clients`) plus the time that the
//! request's cost is worth, so a small request goes a little earlier. Of the cost, visitors
//! that come for the first page get 85 %, those that were served 10 %, and strangers 5 %. Groups
//! that burn (`crate::swarm`) get a hundredth of what these three get. Each line gets all that the
//! others do not ask for. Which requests are in which line is decided in
//! `known_clients`, and when these lines are served at all in `tiers`.

use super::guesses::FreeGuesses;
use super::known_clients::stamp_length;
use super::place::Line;
use super::prehashed::Map;
use super::request::RequestId;
use super::standing::PASS_MILLI_CPUS;
use super::turns::{HeadRequest, Tag, length};
use crate::key::KeyHash;
use crate::units::{Cost, Time};
use alloc::collections::BTreeSet;

/// Of the cost, the parts of the three lines while all of them wait.
const FIRST_PERCENT: u64 = 85;
const LATER_PERCENT: u64 = 10;
const STRANGERS_PERCENT: u64 = 5;
/// The part of the line of burning groups, in percent of the parts of the other three.
const BURNING_PERCENT: u64 = 1;
/// The upper bound of what a line is owed, in units of its next request.
const OWED_REQUESTS_MAX: u64 = 10;

const _: () = assert!(FIRST_PERCENT + LATER_PERCENT + STRANGERS_PERCENT == 100);

/// A waiting identity's position in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LineTurn {
    rank: Time,
    id: RequestId,
    estimate: Cost,
    client: KeyHash,
}

/// The request that an identity waits with.
#[derive(Clone, Copy, Debug)]
struct LineHead {
    line: Line,
    turn: LineTurn,
    size: Tag,
    /// Whether it goes first as long as its cost is unknown.
    is_free: bool,
}

/// What is waiting in a line, and what it is owed.
#[derive(Clone, Debug, Default)]
struct WaitingLine {
    turns: BTreeSet<LineTurn>,
    /// The sum of the estimates of `turns`.
    work: Cost,
    owed: Cost,
    guesses: FreeGuesses,
}

impl WaitingLine {
    fn next(&self) -> Option<&LineTurn> {
        self.turns.first()
    }

    fn is_owed_next(&self) -> bool {
        self.next().is_some_and(|next| self.owed >= next.estimate)
    }

    /// Notes what others got while this line waited, or less of it.
    fn owe(&mut self, more: Cost, less: Cost) {
        let next = self.next().map_or(0, |next| next.estimate.0.max(1));
        let most = Cost(next.saturating_mul(OWED_REQUESTS_MAX));
        self.owed = self.owed.plus(more).minus(less).min(most);
    }
}

/// The four lines.
///
/// Invariants: `heads` has an entry for exactly those identities with a turn in a line, and
/// `by_size` one for each of them that does not burn.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    first: WaitingLine,
    later: WaitingLine,
    strangers: WaitingLine,
    burning: WaitingLine,
    heads: Map<KeyHash, LineHead>,
    by_size: BTreeSet<(Tag, RequestId, KeyHash)>,
}

impl Lines {
    /// Sets the next request of an identity; `None`: it does not wait in a line (any longer).
    pub fn set_head(&mut self, client: KeyHash, line: Line, head: Option<HeadRequest>) {
        let before = self.heads.remove(&client);
        if let Some(LineHead { line, turn, size, .. }) = before {
            let line = self.line(line);
            line.turns.remove(&turn);
            line.work = line.work.minus(turn.estimate);
            self.by_size.remove(&(size, turn.id, client));
        }
        let Some(HeadRequest { id, estimate, weight, base, since, is_known }) = head else {
            return;
        };
        let waiting = self.line(line);
        let moves = stamp_length(estimate, weight, PASS_MILLI_CPUS);
        let is_free = match before.filter(|before| before.turn.id == id) {
            Some(before) => before.is_free,
            None => !is_known && waiting.guesses.admits(since.0.into(), moves.0.into()),
        };
        let rank = if is_free && !is_known { Time::ZERO } else { base.plus(moves) };
        let (turn, size) = (LineTurn { rank, id, estimate, client }, length(estimate, weight));
        waiting.turns.insert(turn);
        waiting.work = waiting.work.plus(estimate);
        if line != Line::Burning {
            self.by_size.insert((size, id, client));
        }
        self.heads.insert(client, LineHead { line, turn, size, is_free });
    }

    /// The identity that is next.
    pub fn next(&self) -> Option<(KeyHash, Line)> {
        let (line, turn) = self.next_turn()?;
        Some((turn.client, line))
    }

    /// The estimate of the request that is next.
    pub fn next_estimate(&self) -> Option<Cost> {
        self.next_turn().map(|(_, turn)| turn.estimate)
    }

    fn next_turn(&self) -> Option<(Line, &LineTurn)> {
        let first = || self.first.next().map(|turn| (Line::First, turn));
        let later = || self.later.next().map(|turn| (Line::Later, turn));
        let strangers = || self.strangers.next().map(|turn| (Line::Strangers, turn));
        let burning = || self.burning.next().map(|turn| (Line::Burning, turn));
        if self.burning.is_owed_next() {
            return burning();
        }
        match (self.strangers.is_owed_next(), self.later.is_owed_next()) {
            (true, _) => strangers(),
            (false, true) => later(),
            (false, false) => first().or_else(later).or_else(strangers).or_else(burning),
        }
    }

    /// The identity with the smallest request, if that is no larger than `size`.
    pub fn smallest(&self, size: Tag) -> Option<(KeyHash, Line)> {
        let (_, _, client) = self.by_size.first().filter(|(least, ..)| *least <= size)?;
        Some((*client, self.heads.get(client)?.line))
    }

    /// Notes that a request of `line` costs `more`, or `less`, than was noted so far.
    pub fn charge(&mut self, line: Line, more: Cost, less: Cost) {
        let part = |cost: Cost, part: u64, of: u64| Cost(cost.0 / of * part);
        match line {
            Line::Burning => self.burning.owe(less, more),
            _ => {
                self.burning.owe(part(more, BURNING_PERCENT, 100), part(less, BURNING_PERCENT, 100))
            }
        }
        match line {
            Line::Burning => {}
            Line::Strangers => self.strangers.owe(less, more),
            Line::First | Line::Later => {
                let (strangers, visitors) = (STRANGERS_PERCENT, FIRST_PERCENT + LATER_PERCENT);
                let part = |cost| part(cost, strangers, visitors);
                self.strangers.owe(part(more), part(less));
            }
        }
        match line {
            Line::First => {
                let part = |cost| part(cost, LATER_PERCENT, FIRST_PERCENT);
                self.later.owe(part(more), part(less));
            }
            Line::Later => self.later.owe(less, more),
            Line::Strangers | Line::Burning => {}
        }
    }

    /// The estimated cost of the first waiting request of each identity.
    pub fn work(&self) -> Cost {
        let others = self.strangers.work.plus(self.burning.work);
        self.first.work.plus(self.later.work).plus(others)
    }

    /// The cost of what will be served until those that wait in the line of later pages have got
    /// their turn.
    pub fn work_until_later(&self) -> Cost {
        let parts = if self.first.turns.is_empty() { 0 } else { FIRST_PERCENT };
        let work = u128::from(self.later.work.0) * u128::from(LATER_PERCENT + parts);
        Cost(u64::try_from(work / u128::from(LATER_PERCENT)).unwrap_or(u64::MAX))
    }

    /// The number of identities that wait in `line`.
    pub fn waiting(&self, line: Line) -> usize {
        match line {
            Line::First => self.first.turns.len(),
            Line::Later => self.later.turns.len(),
            Line::Strangers => self.strangers.turns.len(),
            Line::Burning => self.burning.turns.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    fn line(&mut self, line: Line) -> &mut WaitingLine {
        match line {
            Line::First => &mut self.first,
            Line::Later => &mut self.later,
            Line::Strangers => &mut self.strangers,
            Line::Burning => &mut self.burning,
        }
    }
}
