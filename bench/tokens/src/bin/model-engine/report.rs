//! What the engine says of itself: `/metrics` as vLLM names them, `/stats` and `/timeline`.
//!
//! Of the metrics only those that say how full the engine is: Evenkeel reads them.

use crate::batch::Batch;
use crate::tally::TenantTally;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The page of Prometheus' format.
pub fn metrics(batch: &Batch) -> String {
    let mut page = String::new();
    let gauges = [
        ("num_requests_running", batch.running() as f64),
        ("num_requests_waiting", batch.waiting() as f64),
        ("kv_cache_usage_perc", batch.kv_usage()),
    ];
    for (name, value) in gauges {
        let _ = writeln!(page, "# TYPE vllm:{name} gauge\nvllm:{name}{{engine=\"0\"}} {value}");
    }
    page
}

fn tenant(one: &TenantTally) -> Value {
    json!({"requests": one.requests, "finished": one.finished, "aborted": one.aborted,
           "prompt": one.prompt, "cached": one.cached, "output": one.output})
}

/// Totals, and what each tenant has got. `at`: seconds since the engine began.
pub fn stats(batch: &Batch, at: f64) -> Value {
    let tally = &batch.tally;
    let tenants: Map<String, Value> =
        tally.names.iter().cloned().zip(tally.tenants.iter().map(tenant)).collect();
    json!({"at": at, "running": batch.running(), "waiting": batch.waiting(),
           "kv_peak": tally.kv_peak, "preemptions": tally.preemptions,
           "late_steps": tally.late_steps, "tenants": tenants})
}

/// The course of the totals: for each sample the time, what runs and waits, and of each tenant in
/// the order of `names` the tokens of prompts, those of them in the cache, and of the output.
pub fn timeline(batch: &Batch) -> Value {
    let samples = batch.tally.timeline.iter().map(|sample| {
        let tenants = sample.tenants.iter().map(|one| json!([one.prompt, one.cached, one.output]));
        json!([sample.at, sample.running, sample.waiting, tenants.collect::<Vec<_>>()])
    });
    json!({"names": batch.tally.names, "samples": samples.collect::<Vec<_>>()})
}
