//! Seals messages to a group, so that only instances with the secret can read them, and no message
//! is accepted twice.
//!
//! A message is `version | sender | counter | sealed(time | frame) | tag`: one byte, 16 bytes, 8
//! bytes, then AES-256-GCM over 8 bytes of Unix time in milliseconds and the frame, with all before
//! it authenticated too. A sender draws a name of 128 random bits when it starts. Its key is
//! derived from the secret, the cluster and that name, and the nonce is its counter. So no key is
//! ever used with the same nonce twice, over all restarts, without stored state.
//!
//! A receiver keeps the counters that it has seen of each sender. It refuses times that are far
//! from its own clock or before its own start. So messages whose counters it has forgotten (of a
//! sender long silent, or of all senders after a restart) cannot be replayed. Without a secret the
//! key can be derived by anyone: the seal then keeps clusters apart and proves nothing. This module
//! has no clock and no socket: `multicast` and `nats` bring both.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use std::collections::HashMap;

/// The only version of the format.
const VERSION: u8 = 1;
/// The length of version, sender and counter, which precede the sealed part and are authenticated
/// with it.
const HEAD_BYTES: usize = 1 + 16 + 8;
/// The length of the time at the start of the sealed part.
const TIME_BYTES: usize = 8;
/// The length of the authentication tag.
const TAG_BYTES: usize = 16;
/// The difference in length between a message and its frame, in bytes.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TIME_BYTES + TAG_BYTES;
/// The greatest difference between a message's time and the receiver's clock, in milliseconds.
/// Clocks that differ by more have to be set. An older message is of no use for counting.
pub const SKEW_MS: u64 = 60_000;
/// The number of counters, up to the highest of a sender, that are tracked one by one. Older ones
/// are refused.
const REPLAY_WINDOW: u64 = 128;

/// The name of a sender: random, and valid until the process ends.
pub type SenderId = [u8; 16];

/// Why a message is refused or cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The message does not have the format of a sealed message.
    #[error("not a message of the peer protocol")]
    Foreign,
    /// The message was sealed with another secret or for another cluster, or was changed.
    #[error("forged, or from another secret or cluster")]
    Forged,
    /// The message's time is far from the receiver's clock, or before the receiver's start.
    #[error("too old or too new; do the clocks agree within a minute?")]
    Stale,
    /// The message was received before, or its counter is too old to tell.
    #[error("played again")]
    Replayed,
    /// The table of senders is full.
    #[error("too many senders")]
    Crowded,
    /// No key can be made, or the frame is too long for the cipher.
    #[error("it cannot be sealed")]
    Unsealed,
}

/// The contents of an accepted message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenedMessage {
    /// The message is this instance's own, received back from the group.
    Own,
    Frame(SenderId, Vec<u8>),
}

/// The key material that all instances of a cluster have in common.
struct GroupKey {
    key: Prk,
    cluster: String,
}

/// The length of a derived key, for `aws_lc_rs::hkdf`.
struct KeyBytes;

impl KeyType for KeyBytes {
    fn len(&self) -> usize {
        32
    }
}

impl GroupKey {
    fn key_of(&self, sender: &SenderId) -> Option<LessSafeKey> {
        let info = [b"group aes-256-gcm ".as_slice(), sender, self.cluster.as_bytes()];
        let mut bytes = [0; 32];
        self.key.expand(&info, KeyBytes).ok()?.fill(&mut bytes).ok()?;
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?))
    }
}

/// One instance's end of the group: seals its own messages and opens those of others.
pub struct GroupSeal {
    root: GroupKey,
    own: SenderId,
    sealing: LessSafeKey,
    counter: u64,
    senders: HashMap<SenderId, SenderState>,
    senders_max: usize,
    /// When this instance started, in milliseconds of Unix time.
    since: u64,
}

struct SenderState {
    key: LessSafeKey,
    /// The highest counter seen. `seen` has a bit for each counter up to it: bit 0 for the highest
    /// itself, bit 1 for the one before, and so on.
    highest: u64,
    seen: u128,
    /// When the sender's last message was accepted, in milliseconds of this instance's clock.
    at: u64,
}

impl GroupSeal {
    /// Makes the end of a sender named `own`, which must be random and never used before, or a key
    /// would be used with the same nonce twice. `secret` is empty if there is none. `now` is the
    /// Unix time in milliseconds.
    pub fn new(
        secret: &[u8],
        cluster: &str,
        own: SenderId,
        senders_max: usize,
        now: u64,
    ) -> Result<GroupSeal, SealError> {
        let key = Salt::new(HKDF_SHA256, b"evenkeel peers").extract(secret);
        let root = GroupKey { key, cluster: cluster.to_owned() };
        let sealing = root.key_of(&own).ok_or(SealError::Unsealed)?;
        let senders = HashMap::new();
        Ok(GroupSeal { root, own, sealing, counter: 0, senders, senders_max, since: now })
    }

    /// Seals a frame into a message.
    pub fn seal(&mut self, frame: &[u8], now: u64) -> Result<Vec<u8>, SealError> {
        self.counter += 1;
        let mut head = [0; HEAD_BYTES];
        head[0] = VERSION;
        head[1..17].copy_from_slice(&self.own);
        head[17..].copy_from_slice(&self.counter.to_be_bytes());
        let mut sealed = Vec::with_capacity(frame.len() + OVERHEAD_BYTES);
        sealed.extend_from_slice(&now.to_be_bytes());
        sealed.extend_from_slice(frame);
        let nonce = nonce(self.counter);
        let done = self.sealing.seal_in_place_append_tag(nonce, Aad::from(head), &mut sealed);
        done.map_err(|_| SealError::Unsealed)?;
        sealed.splice(..0, head);
        Ok(sealed)
    }

    /// Opens a message. An error leaves the replay state unchanged.
    pub fn open(&mut self, message: &[u8], now: u64) -> Result<OpenedMessage, SealError> {
        let (head, sealed) = message.split_first_chunk::<HEAD_BYTES>().ok_or(SealError::Foreign)?;
        if head[0] != VERSION || sealed.len() < TIME_BYTES + TAG_BYTES {
            return Err(SealError::Foreign);
        }
        let (mut sender, mut counter) = ([0; 16], [0; 8]);
        sender.copy_from_slice(&head[1..17]);
        counter.copy_from_slice(&head[17..]);
        let counter = u64::from_be_bytes(counter);
        if sender == self.own {
            return Ok(OpenedMessage::Own);
        }
        let known = self.senders.get(&sender);
        if known.is_some_and(|heard| heard.has_seen(counter)) {
            return Err(SealError::Replayed);
        }
        let fresh = match known {
            Some(_) => None,
            None => Some(self.root.key_of(&sender).ok_or(SealError::Forged)?),
        };
        let key = known.map(|heard| &heard.key).or(fresh.as_ref()).ok_or(SealError::Forged)?;
        let mut sealed = sealed.to_vec();
        let opened = key.open_in_place(nonce(counter), Aad::from(*head), &mut sealed);
        let opened = opened.map_err(|_| SealError::Forged)?;
        let (time, frame) = opened.split_first_chunk::<TIME_BYTES>().ok_or(SealError::Foreign)?;
        let time = u64::from_be_bytes(*time);
        if time.abs_diff(now) > SKEW_MS || time < self.since {
            return Err(SealError::Stale);
        }
        let frame = frame.to_vec();
        if let Some(key) = fresh {
            self.make_room(now)?;
            self.senders.insert(sender, SenderState { key, highest: counter, seen: 0, at: now });
        }
        if let Some(heard) = self.senders.get_mut(&sender) {
            heard.note(counter, now);
        }
        Ok(OpenedMessage::Frame(sender, frame))
    }

    /// Forgets senders that have been silent for so long that none of their messages could be
    /// replayed.
    fn make_room(&mut self, now: u64) -> Result<(), SealError> {
        if self.senders.len() >= self.senders_max {
            self.senders.retain(|_, heard| heard.at.saturating_add(2 * SKEW_MS) >= now);
        }
        match self.senders.len() < self.senders_max {
            true => Ok(()),
            false => Err(SealError::Crowded),
        }
    }
}

impl SenderState {
    fn has_seen(&self, counter: u64) -> bool {
        let Some(behind) = self.highest.checked_sub(counter) else { return false };
        behind >= REPLAY_WINDOW || self.seen >> behind & 1 == 1
    }

    fn note(&mut self, counter: u64, now: u64) {
        self.at = now;
        if counter > self.highest {
            let ahead = counter - self.highest;
            self.seen = if ahead < REPLAY_WINDOW { self.seen << ahead } else { 0 };
            self.highest = counter;
        }
        self.seen |= 1 << (self.highest - counter);
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const SECRET: &[u8] = b"0123456789abcdef";

    fn end(name: u8, secret: &[u8], cluster: &str) -> GroupSeal {
        GroupSeal::new(secret, cluster, [name; 16], 3, NOW).expect("a key")
    }

    fn framed(opened: Result<OpenedMessage, SealError>) -> Result<Vec<u8>, SealError> {
        opened.map(|opened| match opened {
            OpenedMessage::Own => b"own".to_vec(),
            OpenedMessage::Frame(_, frame) => frame,
        })
    }

    #[test]
    fn what_is_sealed_is_opened_once_by_those_who_know_the_secret() {
        let (mut a, mut b) = (end(1, SECRET, "c"), end(2, SECRET, "c"));
        let message = a.seal(b"frame", NOW).expect("sealed");
        assert_eq!(message.len(), 5 + OVERHEAD_BYTES);
        assert!(!message.windows(5).any(|part| part == b"frame"));
        assert_eq!(framed(b.open(&message, NOW)), Ok(b"frame".to_vec()));
        assert_eq!(framed(b.open(&message, NOW)), Err(SealError::Replayed));
        assert_eq!(a.open(&message, NOW), Ok(OpenedMessage::Own));
        for mut stranger in
            [end(3, b"0123456789abcdeF", "c"), end(3, SECRET, "d"), end(3, b"", "c")]
        {
            assert_eq!(stranger.open(&message, NOW), Err(SealError::Forged));
            let theirs = stranger.seal(b"frame", NOW).expect("sealed");
            assert_eq!(b.open(&theirs, NOW), Err(SealError::Forged));
        }
    }

    /// Another implementation made these bytes from docs/protocol/peers.md.
    #[test]
    fn a_message_stands_as_documented() {
        let message = end(1, SECRET, "c").seal(b"frame", NOW).expect("sealed");
        let (head, sealed) = message.split_at(HEAD_BYTES);
        assert_eq!(head[..17], [1; 17]);
        assert_eq!(head[17..], [0, 0, 0, 0, 0, 0, 0, 1]);
        let hex: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "9a0d7abba48d44900d37caff4b63401c35a1b416d51105f6900ac65d39");
    }

    #[test]
    fn a_message_that_was_changed_anywhere_is_refused_and_changes_nothing() {
        let (mut a, mut b) = (end(1, SECRET, "c"), end(2, SECRET, "c"));
        let message = a.seal(b"frame", NOW).expect("sealed");
        for at in 0..message.len() {
            let mut forged = message.clone();
            forged[at] ^= 1;
            assert!(b.open(&forged, NOW).is_err(), "byte {at}");
        }
        (0..message.len()).for_each(|end| assert!(b.open(&message[..end], NOW).is_err()));
        assert_eq!(framed(b.open(&message, NOW)), Ok(b"frame".to_vec()));
    }

    #[test]
    fn messages_may_overtake_each_other_and_each_counts_once() {
        let (mut a, mut b) = (end(1, SECRET, "c"), end(2, SECRET, "c"));
        let sealed: Vec<_> = (0..300_u16).map(|n| a.seal(&n.to_be_bytes(), NOW)).collect();
        let sealed: Vec<_> = sealed.into_iter().map(|message| message.expect("sealed")).collect();
        for order in [&[5, 3, 4, 3, 5, 200, 72][..], &[73, 71, 200, 73, 299, 172, 171]] {
            for n in order {
                let fits = framed(b.open(&sealed[*n], NOW));
                assert!(matches!(fits, Ok(_) | Err(SealError::Replayed)), "{fits:?}");
            }
        }
        let again: Vec<_> = (0..300).filter(|n| b.open(&sealed[*n], NOW).is_ok()).collect();
        let expected: Vec<_> = (173..299).filter(|n| *n != 200).collect();
        assert_eq!(again, expected);
        assert!(sealed.iter().all(|message| b.open(message, NOW) == Err(SealError::Replayed)));
    }

    #[test]
    fn nothing_is_believed_that_is_old_or_was_sent_before_we_were_there() {
        let (mut a, mut b) = (end(1, SECRET, "c"), end(2, SECRET, "c"));
        let message = a.seal(b"frame", NOW).expect("sealed");
        assert_eq!(b.open(&message, NOW + SKEW_MS + 1), Err(SealError::Stale));
        let ahead = a.seal(b"frame", NOW + SKEW_MS + 1).expect("sealed");
        assert_eq!(b.open(&ahead, NOW), Err(SealError::Stale));
        assert!(b.open(&message, NOW).is_ok());
        // After a restart the replay state is empty.
        let mut again = GroupSeal::new(SECRET, "c", [2; 16], 3, NOW + 1).expect("a key");
        assert_eq!(again.open(&message, NOW + 1), Err(SealError::Stale));
    }

    #[test]
    fn senders_are_bounded_and_forgotten_only_when_nothing_could_be_played_again() {
        let mut b = end(9, SECRET, "c");
        let first = end(1, SECRET, "c").seal(b"frame", NOW).expect("sealed");
        let mut hear = |name: u8, now: u64| {
            let message = end(name, SECRET, "c").seal(b"frame", now).expect("sealed");
            framed(b.open(&message, now)).map(|_| ())
        };
        let third = NOW + SKEW_MS;
        assert_eq!((hear(1, NOW), hear(2, NOW), hear(3, third)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(hear(4, third), Err(SealError::Crowded));
        let later = NOW + 2 * SKEW_MS + 1;
        assert_eq!((hear(4, later), hear(5, later)), (Ok(()), Ok(())));
        assert_eq!(hear(6, later), Err(SealError::Crowded));
        assert_eq!(framed(b.open(&first, later)), Err(SealError::Stale));
    }

    #[test]
    fn fuzz_sealed_messages() {
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            let mut b = end(2, SECRET, "c");
            assert!(b.open(bytes, NOW).is_err());
            // A valid head before random bytes.
            let mut message = end(1, SECRET, "c").seal(b"frame", NOW).expect("sealed");
            message.truncate(HEAD_BYTES);
            message.extend_from_slice(bytes);
            assert!(b.open(&message, NOW).is_err());
            assert!(b.senders.is_empty());
        });
    }
}
