//! Warnings about limits before language models that count something else than they seem to.
//!
//! Such a limit is valid, so nothing is refused. Prices of models: `settings::proxy::tokens`. Which
//! paths are counted in tokens: `evenkeel_usage::Dialect`.

use super::{RATE, UNIT, WHEN};
use crate::fault::quoted;
use crate::reader::SectionReader;
use crate::tree::YamlNode;
use evenkeel_core::condition::{Clause, Condition};
use evenkeel_core::limit::LimitUnit;

/// The ends of paths of model servers' own APIs, which are not counted in tokens: those of
/// llama.cpp, SGLang, Text Generation Inference, vLLM and Gemini.
const UNCOUNTED: [&str; 7] = [
    "/completion",
    "/infill",
    "/generate",
    "/generate_stream",
    "/invocations",
    ":generatecontent",
    ":streamgeneratecontent",
];
/// Ollama's path, which is counted although it ends like one that is not.
const COUNTED: &str = "/api/generate";

/// Warns of a limit with this condition that counts in `unit`.
pub(super) fn warn(section: &mut SectionReader<'_, '_>, when: &Condition, unit: Option<LimitUnit>) {
    if let Some(rate) = section.node(RATE.name()).filter(|_| !section.has(UNIT.name())) {
        let written = rate.as_text().unwrap_or_default();
        let what = format!(
            "`rate` counts requests here; for tokens write `unit: tokens, rate: {written}`, for \
             requests `unit: hits`"
        );
        section.warn(rate.place, what);
        section.show(UNIT.name(), YamlNode::text("hits"));
    }
    if unit != Some(LimitUnit::Hits)
        && let Some(path) = uncounted(when)
    {
        let what = format!(
            "requests to {} are charged by time, not in tokens; refuse them with `action: deny`, \
             or count them with `unit: hits`",
            quoted(path)
        );
        section.warn(section.place_of(WHEN.name()), what);
    }
}

/// A path that the condition names and whose requests are not counted in tokens.
fn uncounted(condition: &Condition) -> Option<&str> {
    condition.clauses.iter().find_map(|clause| match clause {
        Clause::Path(paths) => {
            paths.given().iter().map(|path| &**path).find(|path| is_uncounted(path))
        }
        Clause::Any(all) => all.iter().find_map(uncounted),
        _ => None,
    })
}

fn is_uncounted(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    !path.ends_with(COUNTED) && UNCOUNTED.iter().any(|end| path.ends_with(end))
}
