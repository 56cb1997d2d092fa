//! The output of the demo: a line for each second, a summary and a verdict in words; or all of it
//! as JSON.
//!
//! The verdict follows from the numbers alone: if they show no difference, it says so. The numbers
//! come from `tally` and, for the debts, from the engine.

use crate::demo::tally::VisitorResults;
use serde::Serialize;
use std::io::{self, Write};

/// The results of both visitors in one second.
#[derive(Clone, Debug, Serialize)]
pub struct DemoSecond {
    /// The number of the second, from 1.
    pub second: u64,
    pub crawler: VisitorResults,
    pub human: VisitorResults,
}

/// The account of a visitor at the limit on single addresses, at the end of a part.
#[derive(Clone, Debug, Serialize)]
pub struct VisitorAccount {
    /// The remaining budget in CPU-seconds; a negative number is debt.
    pub level_cpu_s: f64,
    /// Seconds until the debt is paid.
    pub wait_s: f64,
}

/// One part of the demo: some seconds, with or without the throttle.
#[derive(Clone, Debug, Serialize)]
pub struct DemoPart {
    /// The action for a client in debt: `queue`, `hold`, `delay` or `reject`; `None` without the
    /// throttle.
    pub action: Option<&'static str>,
    pub seconds: Vec<DemoSecond>,
    /// The results of the crawler over the whole part.
    pub crawler: VisitorResults,
    /// The results of the human over the whole part.
    pub human: VisitorResults,
    /// How long the human had been waiting for a page when the part ended, in milliseconds.
    pub human_waiting_ms: f64,
    /// The account of the crawler at the end; `None` without the throttle.
    pub crawler_account: Option<VisitorAccount>,
    /// The account of the human at the end; `None` without the throttle.
    pub human_account: Option<VisitorAccount>,
}

/// The results of the whole demo.
#[derive(Clone, Debug, Serialize)]
pub struct DemoOutcome {
    pub without: DemoPart,
    pub with: DemoPart,
    /// The difference between the parts, in words.
    pub verdict: String,
}

impl DemoPart {
    /// The wait of the human for a page, in milliseconds: the median, or the wait that was not over
    /// at the end if that is longer.
    pub fn human_wait_ms(&self) -> f64 {
        self.human.wait_p50_ms.unwrap_or_default().max(self.human_waiting_ms)
    }

    pub fn title(&self) -> String {
        title(self.action)
    }
}

impl DemoOutcome {
    /// Joins both parts and adds the verdict.
    pub fn of(without: DemoPart, with: DemoPart) -> DemoOutcome {
        let verdict = verdict(&without, &with);
        DemoOutcome { without, with, verdict }
    }
}

fn title(action: Option<&str>) -> String {
    match action {
        None => String::from("Without the throttle"),
        Some(action) => format!("With the throttle ({action})"),
    }
}

/// What the throttle changed, in words and numbers.
fn verdict(without: &DemoPart, with: &DemoPart) -> String {
    let (before, after) = (without.human_wait_ms(), with.human_wait_ms());
    let facts = format!(
        "Without the throttle the crawler took {} of the site's CPU time and the human waited {} \
         for a page. With it the crawler got {}, and the human waited {}.",
        percent(without.crawler.cpu_share),
        millis(before),
        percent(with.crawler.cpu_share),
        millis(after),
    );
    let judged = if with.human.refused > without.human.refused {
        format!(
            "But {} of the human's requests were refused, which must not happen.",
            with.human.refused
        )
    } else if after * 2.0 > before {
        String::from(
            "The difference is not clear: the run was too short to use up the burst, or this \
             machine is busy with other work. Try `--seconds 20`.",
        )
    } else {
        format!("The human's pages arrived {:.0} times faster.", before / after.max(0.1))
    };
    format!("{facts} {judged}")
}

/// Prints the heading of a part and of its columns.
pub fn heading(out: &mut impl Write, action: Option<&str>, seconds: u64) -> io::Result<()> {
    writeln!(out, "\n{}, {seconds} s\n", title(action))?;
    writeln!(out, "        | crawler                      | human")?;
    writeln!(out, " second | pages refused   wait     CPU | pages refused   wait     CPU")
}

/// Prints one second as a line.
pub fn second(out: &mut impl Write, second: &DemoSecond) -> io::Result<()> {
    writeln!(out, " {:6} | {} | {}", second.second, cells(&second.crawler), cells(&second.human))
}

fn cells(got: &VisitorResults) -> String {
    let wait = got.wait_p50_ms.map_or_else(|| String::from("-"), millis);
    let share = percent(got.cpu_share);
    format!("{:5} {:7} {wait:>8} {share:>5}", got.served, got.refused)
}

/// Prints the summary with the verdict.
pub fn summary(out: &mut impl Write, outcome: &DemoOutcome) -> io::Result<()> {
    let parts = [&outcome.without, &outcome.with];
    writeln!(out, "\nIn all\n")?;
    row(out, "", parts.map(DemoPart::title))?;
    row(out, "crawler: pages", parts.map(|part| part.crawler.served.to_string()))?;
    row(out, "crawler: refused", parts.map(|part| part.crawler.refused.to_string()))?;
    row(out, "crawler: CPU", parts.map(|part| percent(part.crawler.cpu_share)))?;
    row(out, "crawler: debt at the end", parts.map(owes))?;
    row(out, "human: pages", parts.map(|part| part.human.served.to_string()))?;
    row(out, "human: refused", parts.map(|part| part.human.refused.to_string()))?;
    row(out, "human: wait, median", parts.map(|part| millis(part.human_wait_ms())))?;
    row(out, "human: wait, 95th percentile", parts.map(tail))?;
    row(out, "human: wait, longest", parts.map(longest))?;
    writeln!(out, "\n{}", folded(&outcome.verdict))
}

fn row(out: &mut impl Write, name: &str, cells: [String; 2]) -> io::Result<()> {
    let [without, with] = cells;
    writeln!(out, "  {name:28}{without:>20}{with:>30}")
}

fn owes(part: &DemoPart) -> String {
    match &part.crawler_account {
        Some(account) if account.level_cpu_s < 0.0 => {
            format!("{:.1} CPU-s, {:.0} s to pay", -account.level_cpu_s, account.wait_s)
        }
        Some(_) => String::from("nothing"),
        None => String::from("-"),
    }
}

fn tail(part: &DemoPart) -> String {
    millis(part.human.wait_p95_ms.unwrap_or_default().max(part.human_waiting_ms))
}

fn longest(part: &DemoPart) -> String {
    millis(part.human.wait_max_ms.unwrap_or_default().max(part.human_waiting_ms))
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

fn millis(wait: f64) -> String {
    if wait < 10.0 { format!("{wait:.1} ms") } else { format!("{wait:.0} ms") }
}

/// `text` wrapped to lines of at most 88 characters.
pub fn folded(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let gap = if width == 0 {
            ""
        } else if width + word.len() > 87 {
            "\n"
        } else {
            " "
        };
        width = if gap == "\n" { word.len() } else { width + gap.len() + word.len() };
        lines.push_str(gap);
        lines.push_str(word);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(action: Option<&'static str>, cpu_share: f64, wait_ms: f64) -> DemoPart {
        let crawler = VisitorResults { served: 10, cpu_share, ..VisitorResults::default() };
        let human =
            VisitorResults { served: 4, wait_p50_ms: Some(wait_ms), ..VisitorResults::default() };
        DemoPart {
            action,
            seconds: Vec::new(),
            crawler,
            human,
            human_waiting_ms: 0.0,
            crawler_account: None,
            human_account: None,
        }
    }

    #[test]
    fn the_verdict_follows_from_the_figures() {
        let better = DemoOutcome::of(part(None, 0.99, 1600.0), part(Some("hold"), 0.1, 4.0));
        assert!(better.verdict.contains("99% of the site's CPU time"), "{}", better.verdict);
        assert!(better.verdict.contains("400 times faster"), "{}", better.verdict);
        let same = DemoOutcome::of(part(None, 0.99, 1600.0), part(Some("hold"), 0.98, 1500.0));
        assert!(same.verdict.contains("difference is not clear"), "{}", same.verdict);
        let mut refusing = part(Some("reject"), 0.1, 4.0);
        refusing.human.refused = 3;
        let worse = DemoOutcome::of(part(None, 0.99, 1600.0), refusing);
        assert!(worse.verdict.contains("3 of the human's requests"), "{}", worse.verdict);
    }

    #[test]
    fn who_still_waits_at_the_end_has_waited() {
        let mut starved = part(None, 1.0, 0.0);
        starved.human.wait_p50_ms = None;
        starved.human_waiting_ms = 1900.0;
        assert!((starved.human_wait_ms() - 1900.0).abs() < f64::EPSILON);
    }

    #[test]
    fn lines_are_folded_between_words() {
        let text = "word ".repeat(60);
        let folded = folded(&text);
        assert!(folded.lines().all(|line| line.len() <= 88));
        assert_eq!(folded.split_whitespace().count(), 60);
    }
}
