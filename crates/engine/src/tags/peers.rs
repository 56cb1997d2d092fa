//! The engine of tags as one of several instances: how it notes its charges and applies those of
//! other instances.
//!
//! Hits are noted when they are served. Tags share out no CPUs, so the number of instances changes
//! none of their limits. The interface: `replicated`.

use super::{TagEngine, TagEngineRules, TagSampling};
use crate::shards::{ShardedEngine, Shards};
use evenkeel_core::replica::ReplicatedLimit;

impl ShardedEngine for TagEngine {
    type Rules = TagEngineRules;
    type Own = TagSampling;

    fn shards(&self) -> &Shards<TagEngineRules, TagSampling> {
        &self.shards
    }

    fn shared_limits(&self) -> Vec<ReplicatedLimit> {
        let rules = self.shards.rules();
        rules.marks.shared(rules.limiter.limits(), 1.0)
    }
}
