//! Requests to language models, which may cost far more than is expected of them.
//!
//! What one has cost so far counts at the owner at once, wherever it was asked for: the next turn
//! of its client is later.

use super::bounds::Pair;
use super::*;

/// Two instances with two slots, one for each of two clients at different instances. Returns the
/// client that gets the slot of the owner's request, if the other request has cost `so_far`.
fn next_client(unit: WorkUnit, so_far: Option<Cost>) -> u64 {
    let mut pair = Pair::new(2);
    for queue in &mut pair.queues {
        queue.set_settings(QueueSettings { unit, ..settings(2) }, None, pair.now);
    }
    let mut ask = |client: u64| {
        let node = usize::from(client == 1);
        let id = pair.queues[node].handle_arrival(arrival(client), pair.now);
        let outcomes = pair.relay_all();
        pair.now = pair.now.plus(Nanos(MILLI));
        (id, outcomes)
    };
    let [running, ending, first, second] = [1, 2, 1, 2].map(&mut ask);
    assert_eq!(running.1, [(1, AdmissionOutcome::Slot(running.0))]);
    assert_eq!(ending.1, [(0, AdmissionOutcome::Slot(ending.0))]);
    assert_eq!((first.1, second.1), (Vec::new(), Vec::new()));
    if let Some(cost) = so_far {
        pair.queues[1].handle_progress(running.0, cost);
        assert_eq!(pair.relay_all(), []);
    }
    pair.queues[0].handle_done(ending.0, Cost(PAGE.0), None, pair.now);
    match pair.relay_all()[..] {
        [(1, AdmissionOutcome::Slot(id))] if id == first.0 => 1,
        [(0, AdmissionOutcome::Slot(id))] if id == second.0 => 2,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_stream_has_cost_so_far_counts_at_the_owner() {
    let dear = Some(Cost(5 * PAGE.0));
    assert_eq!(next_client(WorkUnit::Tokens, None), 1, "it has asked first");
    assert_eq!(next_client(WorkUnit::Tokens, Some(Cost(PAGE.0 / 2))), 1, "as was expected");
    assert_eq!(next_client(WorkUnit::Tokens, dear), 2);
    assert_eq!(next_client(WorkUnit::CpuTime, dear), 1, "CPU time is not told");
}
