//! Hashes of the beginning of a prompt, by which requests of one conversation are recognised.
//!
//! A backend that has answered a conversation still has its beginning in its cache, so the next
//! request of this conversation is cheaper there. A later request has more messages at its end; the
//! hashes of the shorter beginnings stay the same.
//!
//! The order is that in which models read: `system` or `instructions` comes first, wherever it is
//! in the body. Declarations of tools are left out: they are the same for all clients of a program,
//! and often longer than the bytes that are hashed. Another `model` makes no difference.

use xxhash_rust::xxh64::Xxh64;

/// Hashes of the first bytes of a prompt: of its texts and roles. They have no secret key, so a
/// client can make up two prompts with the same hash; use them to choose a backend and for nothing
/// else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptPrefixes(
    /// The hashes of the first [`PromptPrefixes::LENGTHS`] bytes; 0 where the prompt is shorter.
    pub [u64; 4],
);

impl PromptPrefixes {
    /// How many bytes of the prompt each hash covers.
    pub const LENGTHS: [usize; 4] = [512, 2 << 10, 8 << 10, BYTES_MAX];
}

/// How many bytes of a prompt are hashed.
const BYTES_MAX: usize = 32 << 10;
/// Stands before each string. No valid text contains it.
const SEPARATOR: u8 = 0xff;

/// The place of a string in the order of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptPlace {
    /// Before all messages.
    System,
    /// Among the messages, in their order.
    Messages,
}

/// Collects the beginning of a prompt as its texts are read, in two parts that can come in any
/// order.
#[derive(Debug, Default)]
pub(super) struct PromptBeginning {
    system: Vec<u8>,
    messages: Vec<u8>,
}

impl PromptBeginning {
    /// A string, or a number, begins.
    pub(super) fn begin(&mut self, place: PromptPlace) {
        self.add(place, &[SEPARATOR]);
    }

    /// The next bytes of that string.
    pub(super) fn add(&mut self, place: PromptPlace, bytes: &[u8]) {
        let part = match place {
            PromptPlace::System => &mut self.system,
            PromptPlace::Messages => &mut self.messages,
        };
        let fits = bytes.len().min(BYTES_MAX - part.len());
        part.extend_from_slice(&bytes[..fits]);
    }

    pub(super) fn prefixes(&self) -> PromptPrefixes {
        let mut hash = Xxh64::new(0);
        let mut begin = 0;
        PromptPrefixes(PromptPrefixes::LENGTHS.map(|end| {
            if end > self.system.len() + self.messages.len() {
                return 0;
            }
            hash.update(range_of(&self.system, begin, end));
            let [begin_left, end_left] =
                [begin, end].map(|at| at.saturating_sub(self.system.len()));
            hash.update(range_of(&self.messages, begin_left, end_left));
            begin = end;
            hash.digest().max(1)
        }))
    }
}

/// The part of `bytes` between two places, which may be beyond its end.
fn range_of(bytes: &[u8], begin: usize, end: usize) -> &[u8] {
    &bytes[begin.min(bytes.len())..end.min(bytes.len())]
}
