//! A decision at once, for fronts that ask whether a request may run and say nothing afterwards.
//!
//! Such a request has no slot and is charged nothing, because no front says when it has ended or
//! what it cost. Limits in requests, rules and the debts from other doors count. A request that
//! would have to wait is refused.

use crate::original::OriginalRequest;
use evenkeel_core::units::{Cost, Nanos};
use evenkeel_engine::{AskOutcome, EngineLane, RequestRefusal, ServedReport};
use evenkeel_store::redis::StoreLane;

/// Decides on a request. With a `store`, limits are counted in it.
///
/// # Errors
/// The refusal.
pub async fn permit(
    lane: &EngineLane,
    store: Option<&StoreLane>,
    original: &OriginalRequest<'_>,
) -> Result<(), RequestRefusal> {
    let asked = match store {
        Some(store) => store.ask(lane, original).await,
        None => lane.ask(original),
    };
    match asked {
        AskOutcome::Refused(refusal) => Err(refusal),
        AskOutcome::Pass(mut charge) => match charge.wait_first() {
            Some(wait) => Err(charge.crowded_out(wait)),
            None => {
                charge.close(ServedReport::Nothing(Cost::ZERO), Nanos::ZERO, Nanos::ZERO);
                Ok(())
            }
        },
    }
}
