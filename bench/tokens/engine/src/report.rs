//! The reports of the engine: `/metrics` with the names of vLLM, `/stats` and `/timeline`.

use crate::batch::Batch;
use crate::tally::{Histogram, TenantTally};
use serde_json::{Map, Value, json};
use std::fmt::Write;

const MODEL: &str = "model_name=\"simulated\",engine=\"0\"";

/// The metrics in Prometheus' text format.
pub fn metrics(batch: &Batch) -> String {
    let (tally, total) = (&batch.tally, batch.tally.total());
    let mut page = String::new();
    let gauges = [
        ("num_requests_running", batch.running() as f64),
        ("num_requests_waiting", batch.waiting() as f64),
        ("kv_cache_usage_perc", batch.kv_usage()),
    ];
    for (name, value) in gauges {
        let _ = writeln!(page, "# TYPE vllm:{name} gauge\nvllm:{name}{{{MODEL}}} {value}");
    }
    let queries = total.prompt + total.cached;
    let counters = [
        ("num_preemptions_total", tally.preemptions),
        ("prompt_tokens_total", queries),
        ("generation_tokens_total", total.output),
        ("prefix_cache_queries_total", queries),
        ("prefix_cache_hits_total", total.cached),
    ];
    for (name, value) in counters {
        let _ = writeln!(page, "# TYPE vllm:{name} counter\nvllm:{name}{{{MODEL}}} {value}");
    }
    let name = "vllm:request_success_total";
    let _ = writeln!(page, "# TYPE {name} counter");
    for (reason, value) in [("length", total.finished), ("abort", total.aborted)] {
        let _ = writeln!(page, "{name}{{{MODEL},finished_reason=\"{reason}\"}} {value}");
    }
    histogram(&mut page, "time_to_first_token_seconds", &tally.first_token);
    histogram(&mut page, "e2e_request_latency_seconds", &tally.whole);
    page
}

fn histogram(page: &mut String, name: &str, of: &Histogram) {
    let _ = writeln!(page, "# TYPE vllm:{name} histogram");
    for (bound, count) in of.buckets() {
        let _ = writeln!(page, "vllm:{name}_bucket{{{MODEL},le=\"{bound}\"}} {count}");
    }
    let _ = writeln!(page, "vllm:{name}_bucket{{{MODEL},le=\"+Inf\"}} {}", of.count);
    let _ = writeln!(page, "vllm:{name}_sum{{{MODEL}}} {}", of.sum);
    let _ = writeln!(page, "vllm:{name}_count{{{MODEL}}} {}", of.count);
}

fn tenant(one: &TenantTally) -> Value {
    json!({"requests": one.requests, "finished": one.finished, "aborted": one.aborted,
           "prompt": one.prompt, "cached": one.cached, "output": one.output})
}

/// Totals, and the same of each tenant. `at`: seconds since the engine began.
pub fn stats(batch: &Batch, at: f64) -> Value {
    let tally = &batch.tally;
    let tenants: Map<String, Value> =
        tally.names.iter().cloned().zip(tally.tenants.iter().map(tenant)).collect();
    json!({
        "at": at, "running": batch.running(), "waiting": batch.waiting(),
        "kv_tokens": batch.kv_tokens(), "kv_peak": tally.kv_peak,
        "preemptions": tally.preemptions, "steps": tally.steps, "late_steps": tally.late_steps,
        "total": tenant(&tally.total()), "tenants": tenants,
    })
}

/// The totals over time. Each sample has the time, what runs and waits, and for each tenant, in the
/// order of `names`, the tokens of prompts, of prompts in the cache, and of outputs.
pub fn timeline(batch: &Batch) -> Value {
    let samples = batch.tally.timeline.iter().map(|sample| {
        let tenants = sample.tenants.iter().map(|one| json!([one.prompt, one.cached, one.output]));
        json!([sample.at, sample.running, sample.waiting, tenants.collect::<Vec<_>>()])
    });
    json!({"names": batch.tally.names, "samples": samples.collect::<Vec<_>>()})
}
