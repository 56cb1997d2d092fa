//! Writes findings for people and for scripts.
//!
//! People get a line for each check, and below those that found something why it matters and what
//! to do. Scripts get JSON with the same texts.

use super::examine::{Finding, FindingLevel};
use evenkeel_telemetry::printable::printable;
use evenkeel_telemetry::snapshot::TopSnapshot;
use serde::Serialize;
use std::fmt::Write;

/// How text is shown.
#[derive(Clone, Copy, Debug)]
pub struct PrintStyle {
    /// Whether the terminal shows colours.
    pub has_colors: bool,
}

impl PrintStyle {
    /// The name of a level, padded to a column.
    fn mark(self, level: FindingLevel) -> String {
        let (name, codes) = match level {
            FindingLevel::Ok => ("ok", "32"),
            FindingLevel::Unknown => ("?", "2"),
            FindingLevel::Warning => ("warning", "1;33"),
            FindingLevel::Problem => ("problem", "1;31"),
        };
        let padded = format!("{name:<8}");
        if self.has_colors { format!("\x1b[{codes}m{padded}\x1b[0m") } else { padded }
    }
}

/// How many findings have each level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct FindingCounts {
    problems: usize,
    warnings: usize,
    ok: usize,
    unknown: usize,
}

impl FindingCounts {
    fn of(findings: &[Finding]) -> FindingCounts {
        let count = |level| findings.iter().filter(|one| one.level == level).count();
        FindingCounts {
            problems: count(FindingLevel::Problem),
            warnings: count(FindingLevel::Warning),
            ok: count(FindingLevel::Ok),
            unknown: count(FindingLevel::Unknown),
        }
    }
}

/// The findings as text.
pub fn text(findings: &[Finding], style: PrintStyle) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail, here and below.
    for Finding { check, level, found, why, todo } in findings {
        let mark = style.mark(*level);
        let _ = writeln!(text, "{mark} {check:<17} {}", printable(found));
        if !matches!(level, FindingLevel::Warning | FindingLevel::Problem) {
            continue;
        }
        let _ = writeln!(text, "{:9}why: {why}", "");
        for (index, line) in todo.iter().enumerate() {
            let begin = if index == 0 { "do:  " } else { "     " };
            let _ = writeln!(text, "{:9}{begin}{}", "", printable(line));
        }
    }
    let FindingCounts { problems, warnings, ok, unknown } = FindingCounts::of(findings);
    let number = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    };
    let (problems, warnings) = (number(problems, "problem"), number(warnings, "warning"));
    let _ = writeln!(text, "\n{problems}, {warnings}, {ok} ok, {unknown} not examined");
    text.push_str(
        "Each check is explained in doctor.md of the guide (docs/guide, or \
         /usr/share/doc/evenkeel/guide). Live figures: evenkeel clients\n",
    );
    text
}

#[derive(Serialize)]
struct Report<'a> {
    findings: &'a [Finding],
    #[serde(flatten)]
    counts: FindingCounts,
    /// What the former `doctor --json` printed, for the scripts that read it.
    #[serde(flatten)]
    top: Option<&'a TopSnapshot>,
}

/// The findings as JSON, with the members of `/api/top` if the server runs.
///
/// # Errors
/// If a figure cannot be written in JSON.
pub fn json(findings: &[Finding], top: Option<&TopSnapshot>) -> serde_json::Result<String> {
    let report = Report { findings, counts: FindingCounts::of(findings), top };
    let json = serde_json::to_string_pretty(&report)?;
    Ok(json.lines().map(|line| format!("{}\n", printable(line))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        let finding = |level, todo: &[&str]| Finding {
            check: "cpus",
            level,
            found: "cpus is 8\u{1b}[31m".to_owned(),
            why: "It matters.",
            todo: todo.iter().map(|line| (*line).to_owned()).collect(),
        };
        vec![
            finding(FindingLevel::Ok, &[]),
            finding(FindingLevel::Problem, &["proxy:", "  cpus: 2"]),
        ]
    }

    #[test]
    fn text_says_why_and_what_to_do() {
        let text = text(&findings(), PrintStyle { has_colors: false });
        let lines = [
            "problem  cpus              cpus is 8\\u001b[31m",
            "         why: It matters.",
            "         do:  proxy:",
            "                cpus: 2",
            "",
            "1 problem, 0 warnings, 1 ok, 0 not examined",
        ];
        assert!(text.contains(&lines.join("\n")), "{text}");
        let colored = super::text(&findings(), PrintStyle { has_colors: true });
        assert!(colored.contains("\x1b[1;31mproblem \x1b[0m cpus"), "{colored}");
    }

    #[test]
    fn json_has_the_same() {
        let json = json(&findings(), None).expect("JSON");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["problems"], 1);
        assert_eq!(json["findings"][1]["level"], "problem");
        assert_eq!(json["findings"][1]["do"][1], "  cpus: 2");
    }
}
