//! The engine of turns as one of several instances: they count what tags use together, and may have
//! one line of turns.
//!
//! The interface: `replicated`. The owner of the line: `evenkeel_core::queue::shared`.

use super::{TurnEngine, TurnRules};
use crate::replicated::SharedAdmission;
use crate::shards::{ShardedEngine, Shards};
use evenkeel_core::replica::ReplicatedLimit;

impl ShardedEngine for TurnEngine {
    type Rules = TurnRules;
    type Own = ();

    fn shards(&self) -> &Shards<TurnRules, ()> {
        &self.shards
    }

    fn shared_limits(&self) -> Vec<ReplicatedLimit> {
        let rules = self.shards.rules();
        rules.marks.shared(rules.limiter.limits(), 1.0)
    }

    fn admission(&self) -> Option<&dyn SharedAdmission> {
        self.shards.rules().settings.shared.then_some(&self.gate as &dyn SharedAdmission)
    }

    fn end_queue_sharing(&self) {
        self.gate.end_sharing(self.shards.clock.now());
    }
}
