//! The key `proxy.queue.engine_metrics`: where inference engines report their own queues.
//!
//! The pages are fetched and read in `evenkeel/src/run/engine_pages`.

use crate::values::Read;
use std::fmt;

/// Maximum length of a path, in bytes.
const PATH_MAX: usize = 1_024;

/// Where the backends report how many requests wait inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineMetricsSetting {
    /// With `cost: tokens` at `/metrics` of each backend in a private network; otherwise nowhere.
    Auto,
    /// Nowhere.
    Off,
    /// At this path of each backend.
    Path(String),
}

impl fmt::Display for EngineMetricsSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineMetricsSetting::Auto => f.write_str("auto"),
            EngineMetricsSetting::Off => f.write_str("off"),
            EngineMetricsSetting::Path(path) => f.write_str(path),
        }
    }
}

/// Reads a value of the key.
pub(super) fn read(text: &str) -> Read<EngineMetricsSetting> {
    let is_path = text.starts_with('/') && text.len() <= PATH_MAX;
    match text {
        "auto" => Ok(EngineMetricsSetting::Auto),
        "off" => Ok(EngineMetricsSetting::Off),
        path if is_path && path.bytes().all(|b| b.is_ascii_graphic() && b != b'#') => {
            Ok(EngineMetricsSetting::Path(path.to_owned()))
        }
        _ => Err("not auto, off or a path, such as /metrics".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_or_a_path_is_read() {
        let path = |text: &str| Ok(EngineMetricsSetting::Path(text.to_owned()));
        assert_eq!(read("auto"), Ok(EngineMetricsSetting::Auto));
        assert_eq!(read("off"), Ok(EngineMetricsSetting::Off));
        assert_eq!(read("/prometheus/metrics?a=b"), path("/prometheus/metrics?a=b"));
        for faulty in ["", "metrics", "http://a/metrics", "/a b", "/a\n", "/ä", "/a#b"] {
            assert!(read(faulty).is_err(), "{faulty}");
        }
        assert!(read(&format!("/{}", "a".repeat(PATH_MAX))).is_err());
    }
}
