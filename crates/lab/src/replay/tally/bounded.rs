//! A map with a maximum number of entries: when it is full, the lighter half is removed.
//!
//! Heavy entries stay, so the entries that matter to a report are in it. Removed entries are
//! counted.

use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, Iter};
use std::hash::Hash;

/// The map. The function `weigh` gives the weight of an entry.
pub struct BoundedMap<K, V> {
    entries: HashMap<K, V, RandomState>,
    max: usize,
    weigh: fn(&V) -> u64,
    /// The number of removed entries.
    pub gone: u64,
}

impl<K: Hash + Eq, V: Default> BoundedMap<K, V> {
    /// Makes a map for `max` entries, of which the lightest by `weigh` are removed first.
    pub fn new(max: usize, weigh: fn(&V) -> u64) -> BoundedMap<K, V> {
        BoundedMap { entries: HashMap::default(), max: max.max(2), weigh, gone: 0 }
    }

    /// The entry of `key`, which is created if it does not exist, and whether it was created.
    pub fn entry(&mut self, key: K) -> (&mut V, bool) {
        if self.entries.len() >= self.max && !self.entries.contains_key(&key) {
            self.shed();
        }
        match self.entries.entry(key) {
            Entry::Occupied(known) => (known.into_mut(), false),
            Entry::Vacant(vacant) => (vacant.insert(V::default()), true),
        }
    }

    fn shed(&mut self) {
        let mut weights: Vec<u64> = self.entries.values().map(self.weigh).collect();
        let half = weights.len() / 2;
        let (_, bar, _) = weights.select_nth_unstable(half);
        let (bar, weigh, before) = (*bar, self.weigh, self.entries.len());
        let heavier = weights.iter().filter(|weight| **weight > bar).count();
        // Among entries of equal weight, only the necessary number is removed.
        let mut room = (self.max / 2).saturating_sub(heavier);
        self.entries.retain(|_, value| {
            let weight = weigh(value);
            let spared = weight == bar && room > 0;
            room -= usize::from(spared);
            weight > bar || spared
        });
        self.gone += (before - self.entries.len()) as u64;
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key)
    }

    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heavy_stay() {
        let mut map: BoundedMap<u32, u64> = BoundedMap::new(100, |weight| *weight);
        for key in 0..10_000 {
            *map.entry(key).0 += if key % 1_000 == 7 { 1_000 } else { 1 };
            assert!(map.count() <= 100);
        }
        let heavy = map.iter().filter(|(_, weight)| **weight == 1_000).count();
        assert_eq!((heavy, map.gone as usize + map.count()), (10, 10_000));
        assert!(map.get_mut(&7).is_some());
    }
}
