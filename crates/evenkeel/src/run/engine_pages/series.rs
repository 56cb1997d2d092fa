//! Reads the state of an inference engine's queue from its metrics, in Prometheus' text format or
//! in OpenMetrics.
//!
//! Engines use different names for the same quantity, and new versions use new names, so an unknown
//! name is not an error. Series of one name (of several engines in one server, or of several
//! models) are added up. Lines that cannot be read are skipped.

use evenkeel_engine::EngineReport;

/// The largest number of requests that is believed.
const REQUESTS_MAX: f64 = 1e6;

/// The quantity that a series counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Running,
    Waiting,
    /// Waiting requests by reason; only of use without `Waiting`, which contains them.
    WaitingByReason,
    CacheUsed,
}

/// The names of vLLM, SGLang, llama.cpp, TensorRT-LLM and Text Generation Inference.
const NAMES: [(&[u8], Quantity); 16] = [
    (b"vllm:num_requests_running", Quantity::Running),
    (b"sglang:num_running_reqs", Quantity::Running),
    (b"llamacpp:requests_processing", Quantity::Running),
    (b"trtllm_num_requests_running", Quantity::Running),
    (b"tgi_batch_current_size", Quantity::Running),
    (b"vllm:num_requests_waiting", Quantity::Waiting),
    (b"sglang:num_queue_reqs", Quantity::Waiting),
    (b"llamacpp:requests_deferred", Quantity::Waiting),
    (b"trtllm_num_requests_waiting", Quantity::Waiting),
    (b"tgi_queue_size", Quantity::Waiting),
    (b"vllm:num_requests_waiting_by_reason", Quantity::WaitingByReason),
    (b"vllm:kv_cache_usage_perc", Quantity::CacheUsed),
    (b"vllm:gpu_cache_usage_perc", Quantity::CacheUsed),
    (b"sglang:token_usage", Quantity::CacheUsed),
    (b"llamacpp:kv_cache_usage_ratio", Quantity::CacheUsed),
    (b"trtllm_kv_cache_utilization", Quantity::CacheUsed),
];

/// Reads a page. `None` if it does not say how many requests run and how many wait.
pub fn report(page: &[u8]) -> Option<EngineReport> {
    let (mut running, mut waiting, mut by_reason) = (None, None, None);
    let mut cache_used: Option<f64> = None;
    for (quantity, value) in page.split(|byte| *byte == b'\n').filter_map(sample) {
        let sum = match quantity {
            Quantity::Running => &mut running,
            Quantity::Waiting => &mut waiting,
            Quantity::WaitingByReason => &mut by_reason,
            Quantity::CacheUsed => {
                cache_used = Some(cache_used.unwrap_or(0.0).max(value.min(1.0)));
                continue;
            }
        };
        *sum = Some(sum.unwrap_or(0.0) + value);
    }
    let count = |sum: Option<f64>| sum.map(|sum| sum.min(REQUESTS_MAX).ceil() as usize);
    let (running, waiting) = (count(running)?, count(waiting.or(by_reason))?);
    Some(EngineReport { running, waiting, cache_used })
}

/// The quantity and the value of a line, if it is about one of the quantities. Values are finite
/// and not negative.
fn sample(line: &[u8]) -> Option<(Quantity, f64)> {
    let line = line.trim_ascii_start();
    let name_end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t'))?;
    let (name, rest) = line.split_at(name_end);
    let quantity = NAMES.iter().find(|(known, _)| *known == name)?.1;
    let rest = match rest.trim_ascii_start() {
        [b'{', labels @ ..] => after_labels(labels)?,
        rest => rest,
    };
    let value = rest.trim_ascii_start().split(u8::is_ascii_whitespace).next()?;
    let value: f64 = str::from_utf8(value).ok()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some((quantity, value))
}

/// The rest of a line after the closing brace of its labels. Their values are quoted and may
/// contain anything.
fn after_labels(labels: &[u8]) -> Option<&[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in labels.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(&labels[at + 1..]),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(page: &str) -> Option<(usize, usize, Option<f64>)> {
        report(page.as_bytes()).map(|one| (one.running, one.waiting, one.cache_used))
    }

    #[test]
    fn each_engine_is_understood() {
        let vllm = "# HELP vllm:num_requests_running Number of requests.\n\
            # TYPE vllm:num_requests_running gauge\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a/b\"} 12.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"a/b\"} 3.0\n\
            vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 3.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"a/b\"} 0.25\n\
            vllm:num_requests_running_total 99\n";
        assert_eq!(read(vllm), Some((12, 3, Some(0.25))));
        let sglang = "sglang:num_running_reqs{model_name=\"m\"} 4.0\n\
            sglang:num_queue_reqs{model_name=\"m\"} 0.0\n\
            sglang:token_usage{model_name=\"m\"} 0.5\n";
        assert_eq!(read(sglang), Some((4, 0, Some(0.5))));
        let llama = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n";
        assert_eq!(read(llama), Some((1, 2, None)));
        assert_eq!(read("tgi_batch_current_size 7\ntgi_queue_size 1\n"), Some((7, 1, None)));
    }

    #[test]
    fn waiting_by_reason_counts_only_without_the_whole() {
        let page = "vllm:num_requests_running 5\n\
            vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 2\n\
            vllm:num_requests_waiting_by_reason{reason=\"deferred\"} 1\n";
        assert_eq!(read(page), Some((5, 3, None)));
    }

    #[test]
    fn engines_of_one_server_are_added_up() {
        let page = "vllm:num_requests_running{engine=\"0\"} 5\n\
            vllm:num_requests_running{engine=\"1\"} 6\r\n\
            vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 2\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.1\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.9";
        assert_eq!(read(page), Some((11, 2, Some(0.9))));
    }

    #[test]
    fn odd_lines_are_read_or_left_out() {
        let page = "\n  vllm:num_requests_running  {model_name=\"a } \\\" 9\"}\t 3 1700000000000\n\
            vllm:num_requests_running NaN\nvllm:num_requests_running -1\n\
            vllm:num_requests_running{model_name=\"open 7\nvllm:num_requests_running\n\
            vllm:num_requests_running{} +Inf\n\u{fffd}\n\
            vllm:num_requests_waiting 1e0 # {trace=\"x\"} 5\n";
        assert_eq!(read(page), Some((3, 1, None)));
        let huge = "vllm:num_requests_running 1e300\nvllm:num_requests_waiting 0.5\n";
        assert_eq!(read(huge), Some((1_000_000, 1, None)));
    }

    #[test]
    fn a_page_of_something_else_is_no_report() {
        assert_eq!(read(""), None);
        assert_eq!(read("<html><body>not found</body></html>"), None);
        assert_eq!(read("vllm:num_requests_running 3\n"), None, "how many wait?");
        assert_eq!(read("process_open_fds 12\nup 1\n"), None);
    }

    #[test]
    fn fuzz_pages_of_metrics() {
        evenkeel_fuzz::fuzz().for_each(|bytes| {
            // Random bytes alone are hardly ever a line of a page, so they follow the names of
            // series.
            let lines: [&[u8]; 4] = [
                b"vllm:num_requests_waiting 2\nvllm:num_requests_running{a=\"",
                bytes,
                b"\"} 3\nsglang:token_usage ",
                bytes,
            ];
            for page in [bytes, &lines.concat()] {
                if let Some(report) = report(page) {
                    assert!(report.running <= 1_000_000 && report.waiting <= 1_000_000);
                    assert!(report.cache_used.is_none_or(|part| (0.0..=1.0).contains(&part)));
                }
            }
        });
    }
}
