//! `tollgate doctor`: one snapshot of the busiest clients of a running server, as text.
//!
//! For `watch -n 1` and scripts. Names come from strangers; nothing they hold reaches the terminal
//! but what can be seen.

use super::remote::{Error, Remote};
use crate::watch::printable::printable;
use crate::watch::snapshot::{Query, ROWS_DEFAULT, ROWS_MAX, Row, Snapshot, Table, UNIT_HITS};
use std::fmt::Write;

/// What is asked, and of whom.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The server.
    pub remote: Remote<'a>,
    /// Only this limit.
    pub limit: Option<&'a str>,
    /// In which form.
    pub form: Form,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A table of each limit.
    Tables,
    /// The same with the columns of Tempomat's doctor and no others, for its scripts.
    Buckets,
    /// The JSON as it comes.
    Json,
}

/// What is to be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// A table of each limit, or the JSON. The table of a limit that is not there is empty.
    pub text: String,
    /// Names the limits that there are, if there is none as was asked for.
    pub unknown: Option<String>,
}

/// Asks the admin door.
///
/// # Errors
/// [`Error`] when there is no snapshot to be had.
pub fn doctor(question: &Question<'_>) -> Result<Report, Error> {
    let Question { remote, limit, form } = *question;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Runtime)?;
    // Tempomat's showed all there were: as many as `hashMaxLen`, a thousand.
    let rows = if form == Form::Buckets { ROWS_MAX } else { ROWS_DEFAULT };
    let query = Query { limit: limit.map(String::from), rows };
    let (text, snapshot) = runtime.block_on(remote.snapshot(&query))?;
    let missing = limit.filter(|limit| !snapshot.known.iter().any(|name| name == limit));
    let unknown = missing.map(|limit| unknown(limit, &snapshot.known));
    let text = match form {
        Form::Json => format!("{}\n", printable(text.trim_end())),
        Form::Tables => table(&snapshot, limit, true),
        Form::Buckets => table(&snapshot, limit, false),
    };
    Ok(Report { text, unknown })
}

/// What is said when no limit is called `limit`.
fn unknown(limit: &str, known: &[String]) -> String {
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("no limit is called {}; there are: {}", printable(limit), printable(&known))
}

/// The tables of a snapshot, with or without how clients stand. A limit that was asked for has one
/// even if it is not there.
fn table(snapshot: &Snapshot, limit: Option<&str>, levels: bool) -> String {
    let mut text = String::new();
    for limit in &snapshot.limits {
        let hits = limit.unit == UNIT_HITS && levels;
        push_limit(
            &mut text,
            &limit.name,
            if hits { "Hits/s" } else { "Cpu[s]" },
            &sorted(limit),
            levels,
        );
    }
    if let (Some(name), true) = (limit, snapshot.limits.is_empty()) {
        push_limit(&mut text, name, "Cpu[s]", &[], levels);
    }
    if levels {
        push_others(&mut text, snapshot);
    }
    text
}

/// How those stand that it counts with, asks, tells or is told by.
fn push_others(text: &mut String, snapshot: &Snapshot) {
    let Snapshot { peers, store, master, gatekeepers, .. } = snapshot;
    let others = [
        peers.as_ref().map(ToString::to_string),
        store.as_ref().map(ToString::to_string),
        master.as_ref().map(ToString::to_string),
    ];
    let gatekeepers = gatekeepers.iter().map(ToString::to_string);
    for other in others.into_iter().flatten().chain(gatekeepers) {
        let _ = writeln!(text, "\n{other}");
    }
}

/// The heaviest first; of equals the one seen last.
fn sorted(limit: &Table) -> Vec<&Row> {
    let mut rows: Vec<&Row> = limit.rows.iter().collect();
    rows.sort_by(|a, b| {
        let heavier = b.cpu_per_second.total_cmp(&a.cpu_per_second);
        heavier.then(a.last_seen.total_cmp(&b.last_seen))
    });
    rows
}

fn push_limit(text: &mut String, name: &str, cost: &str, rows: &[&Row], levels: bool) {
    if !text.is_empty() {
        text.push('\n');
    }
    let (kind, head) = if levels { ("Limit", "      Level") } else { ("Bucket", "") };
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(text, "{kind}: {}", printable(name));
    let _ =
        writeln!(text, "{:>9} {cost:>9} {:>9} {:>8}{head}  Title", "Wait[s]", "Req/s", "Last[s]");
    for row in rows {
        let _ = write!(
            text,
            "{:>9.2} {:>9.2} {:>9.2} {:>8.0}",
            row.wait_average, row.cpu_per_second, row.requests_per_second, row.last_seen
        );
        if levels {
            let level = row.level.map_or_else(|| "-".to_owned(), |level| format!("{level:.2}"));
            let _ = write!(text, " {level:>10}");
        }
        let _ = writeln!(text, "  {}", printable(&row.key));
    }
}

#[cfg(test)]
mod tests;
