//! The prefix cache: the blocks of prompts that the engine has computed recently.
//!
//! A block is 16 tokens (64 bytes of the prompt), and is identified by a hash of itself and all
//! blocks before it. The least recently used blocks are evicted. Unlike in a real engine, they use
//! no space in the KV cache of running sequences.

use model_bench::TOKEN_BYTES;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};

/// Tokens in a block of the KV cache.
pub const BLOCK_TOKENS: u64 = 16;

/// The hashes of the complete blocks of a prompt.
pub fn block_hashes(prompt: &[u8]) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    let blocks = prompt.chunks_exact(BLOCK_TOKENS as usize * TOKEN_BYTES);
    blocks
        .map(|block| {
            hasher.write(block);
            hasher.finish()
        })
        .collect()
}

/// A bounded set of blocks. The least recently used ones are evicted.
pub struct PrefixCache {
    blocks_max: usize,
    /// The time of the last use of each block, as a count of uses.
    uses: HashMap<u64, u64>,
    /// All uses in order. Only the last use of a block counts.
    order: VecDeque<(u64, u64)>,
    used: u64,
}

impl PrefixCache {
    pub fn new(tokens: u64) -> PrefixCache {
        let blocks_max = (tokens / BLOCK_TOKENS) as usize;
        PrefixCache { blocks_max, uses: HashMap::new(), order: VecDeque::new(), used: 0 }
    }

    /// The number of tokens at the beginning of a prompt that need not be computed again.
    pub fn known(&self, hashes: &[u64]) -> u64 {
        let known = hashes.iter().take_while(|hash| self.uses.contains_key(hash));
        known.count() as u64 * BLOCK_TOKENS
    }

    /// Remembers the blocks of a prompt. The first of them is evicted last.
    pub fn insert(&mut self, hashes: &[u64]) {
        for &hash in hashes.iter().take(self.blocks_max).rev() {
            self.used += 1;
            self.uses.insert(hash, self.used);
            self.order.push_back((hash, self.used));
        }
        while self.uses.len() > self.blocks_max {
            let Some((hash, used)) = self.order.pop_front() else { break };
            if self.uses.get(&hash) == Some(&used) {
                self.uses.remove(&hash);
            }
        }
        if self.order.len() > 2 * self.blocks_max {
            self.order.retain(|(hash, used)| self.uses.get(hash) == Some(used));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_known_by_all_that_precedes_them() {
        let (one, other) = ([b'a'; 200], [vec![b'b'; 64], vec![b'a'; 64]].concat());
        let mut cache = PrefixCache::new(1_000);
        cache.insert(&block_hashes(&one));
        assert_eq!(cache.known(&block_hashes(&one)), 48);
        assert_eq!(cache.known(&block_hashes(&one[..130])), 32);
        assert_eq!(cache.known(&block_hashes(&other)), 0);
    }

    #[test]
    fn the_least_recently_used_blocks_are_forgotten() {
        let mut cache = PrefixCache::new(2 * BLOCK_TOKENS);
        cache.insert(&[1]);
        cache.insert(&[2]);
        for _ in 0..100 {
            cache.insert(&[1]);
        }
        cache.insert(&[3]);
        assert_eq!([1, 2, 3].map(|hash| cache.known(&[hash]) > 0), [true, false, true]);
        assert!(cache.order.len() <= 4);
    }
}
