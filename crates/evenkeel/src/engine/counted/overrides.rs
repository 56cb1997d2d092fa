//! What an operator has said of single clients, for a while: that they are exempt, or what they
//! weigh.
//!
//! A client is a key's hash, so what is said of one under a limit holds for each of its requests,
//! whatever other limits count them. The list is bounded, each entry has an end, and nothing of it
//! outlives the program. Who may say it, and how: the admin door. Looking up costs nothing while
//! nothing is said.

use evenkeel_core::classify::Keys;
use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{Time, Weight};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most clients that something is said of at once.
pub const OVERRIDES_MAX: usize = 256;

/// What is said of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Its requests are neither counted nor held up.
    Exempt,
    /// Where requests wait for room, its requests weigh so much in place of 1.
    Weigh(Weight),
}

/// Something that was said of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// What it is undone by.
    pub id: u64,
    /// The limit under which the client was found, and what it is called there.
    pub limit: String,
    /// The client's name for people.
    pub key: String,
    /// The client.
    pub hash: KeyHash,
    /// What is said of it.
    pub effect: Effect,
    /// When it was said.
    pub since: Time,
    /// When it ends.
    pub until: Time,
    /// Who said it, for people.
    pub by: String,
}

/// All that is said.
#[derive(Debug, Default)]
pub struct Overrides {
    said: Mutex<Vec<Override>>,
    last: AtomicU64,
}

/// The list is full: something has to be undone first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{OVERRIDES_MAX} clients have overrides already; undo one first")]
pub struct Full;

impl Overrides {
    /// Says something of a client, in place of what was said of it before.
    ///
    /// # Errors
    /// There is no room; nothing has changed then.
    pub fn say(&self, said: Override) -> Result<Override, Full> {
        let said = Override { id: self.last.fetch_add(1, Relaxed) + 1, ..said };
        let mut all = self.said.lock();
        let others = all.iter().filter(|other| other.hash != said.hash).count();
        if others >= OVERRIDES_MAX {
            return Err(Full);
        }
        all.retain(|other| other.hash != said.hash);
        all.push(said.clone());
        Ok(said)
    }

    /// Takes back what has this id.
    pub fn undo(&self, id: u64) -> Option<Override> {
        let mut all = self.said.lock();
        let at = all.iter().position(|said| said.id == id)?;
        Some(all.remove(at))
    }

    /// Takes back what has ended by `now`.
    pub fn end(&self, now: Time) -> Vec<Override> {
        let mut all = self.said.lock();
        let (ended, rest) = all.drain(..).partition(|said| said.until <= now);
        *all = rest;
        ended
    }

    /// Everything that is said, the latest last.
    #[must_use]
    pub fn list(&self) -> Vec<Override> {
        self.said.lock().clone()
    }

    /// The same for those who decide.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        let mut all: Vec<_> =
            self.said.lock().iter().map(|said| (said.hash, said.effect, said.until)).collect();
        all.sort_unstable_by_key(|(hash, ..)| *hash);
        InForce(all.into())
    }
}

/// What is said of clients, by hash, in order.
#[derive(Clone, Debug)]
pub struct InForce(Arc<[(KeyHash, Effect, Time)]>);

impl Default for InForce {
    fn default() -> InForce {
        InForce(Arc::from([]))
    }
}

impl InForce {
    /// What is said of the client with these keys: exempt if anything says so, else the product of
    /// its weights.
    #[must_use]
    pub fn of(&self, keys: &Keys, now: Time) -> Effect {
        let mut weight = Weight::ONE;
        if self.0.is_empty() {
            return Effect::Weigh(weight);
        }
        for key in keys.as_slice() {
            let Ok(at) = self.0.binary_search_by_key(&key.hash, |(hash, ..)| *hash) else {
                continue;
            };
            match self.0[at] {
                (_, _, until) if until <= now => {}
                (_, Effect::Exempt, _) => return Effect::Exempt,
                (_, Effect::Weigh(said), _) => weight = weight.times(said),
            }
        }
        Effect::Weigh(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::classify::Key;

    fn said(hash: u64, effect: Effect, until: u64) -> Override {
        Override {
            id: 0,
            limit: "ip".to_owned(),
            key: "192.0.2.1".to_owned(),
            hash: KeyHash::from_bits(hash),
            effect,
            since: Time(0),
            until: Time(until),
            by: "127.0.0.1".to_owned(),
        }
    }

    fn keys(hashes: &[u64]) -> Keys {
        let mut keys = Keys::default();
        for (limit, hash) in (0..).zip(hashes) {
            keys.push(Key { limit, hash: KeyHash::from_bits(*hash) });
        }
        keys
    }

    #[test]
    fn what_is_said_holds_until_its_end_and_for_its_client_alone() {
        let all = Overrides::default();
        let half = Weight::new(500);
        all.say(said(7, Effect::Exempt, 100)).expect("room");
        all.say(said(8, Effect::Weigh(half), 200)).expect("room");
        all.say(said(9, Effect::Weigh(half), 200)).expect("room");
        let force = all.in_force();
        let one = Effect::Weigh(Weight::ONE);
        assert_eq!(force.of(&keys(&[7]), Time(99)), Effect::Exempt);
        assert_eq!(force.of(&keys(&[7]), Time(100)), one);
        assert_eq!(force.of(&keys(&[1, 7]), Time(99)), Effect::Exempt);
        assert_eq!(force.of(&keys(&[8]), Time(0)), Effect::Weigh(half));
        assert_eq!(force.of(&keys(&[8, 9]), Time(0)), Effect::Weigh(Weight::new(250)));
        assert_eq!(force.of(&keys(&[1, 2]), Time(0)), one);
        assert_eq!(InForce::default().of(&keys(&[7]), Time(0)), one);
        assert_eq!(all.end(Time(100)).len(), 1);
        assert_eq!(all.list().len(), 2);
    }

    #[test]
    fn the_list_is_bounded_and_what_is_said_again_takes_the_place_of_what_was_said() {
        let all = Overrides::default();
        for hash in 0..OVERRIDES_MAX as u64 {
            all.say(said(hash + 1, Effect::Exempt, 100)).expect("room");
        }
        assert_eq!(all.say(said(9_999, Effect::Exempt, 100)), Err(Full));
        let again = all.say(said(3, Effect::Weigh(Weight::new(100)), 100)).expect("its own place");
        assert_eq!(all.list().len(), OVERRIDES_MAX);
        assert_eq!(all.undo(again.id).map(|said| said.effect), Some(again.effect));
        assert_eq!(all.undo(again.id), None);
        all.say(said(9_999, Effect::Exempt, 100)).expect("room again");
    }
}
