//! `evenkeel clients`: one snapshot of the busiest clients of a running server, as text.
//!
//! It is made for `watch -n 1` and for scripts. Names come from strangers, so hidden characters in
//! them are escaped before they reach the terminal.

use super::remote::{AdminClient, AdminClientError};
use evenkeel_telemetry::printable::printable;
use evenkeel_telemetry::snapshot::{
    ClientRow, LimitTable, LoadSnapshot, OpenRequestRow, QueueInstanceRow, ROWS_DEFAULT, ROWS_MAX,
    ShownUnit, TopQuery, TopSnapshot,
};
use std::fmt::Write;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientsFormat {
    Tables,
    /// The tables of Tempomat's doctor, for existing scripts.
    Buckets,
    /// The JSON of the server, unchanged except for hidden characters.
    Json,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientsReport {
    /// One table for each limit, or the JSON. The table of an unknown limit is empty.
    pub text: String,
    /// An error message with the names of all limits, if the requested limit does not exist.
    pub unknown: Option<String>,
}

/// Asks the admin door of the server about one limit, or about all.
pub fn clients(
    remote: &AdminClient<'_>,
    limit: Option<&str>,
    form: ClientsFormat,
) -> Result<ClientsReport, AdminClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(AdminClientError::Runtime)?;
    // Tempomat's doctor showed all rows: `hashMaxLen` of them, a thousand.
    let rows = if form == ClientsFormat::Buckets { ROWS_MAX } else { ROWS_DEFAULT };
    let query = TopQuery { limit: limit.map(String::from), rows };
    let (text, snapshot) = runtime.block_on(remote.snapshot(&query))?;
    let missing = limit.filter(|limit| !snapshot.known.iter().any(|name| name == limit));
    let unknown = missing.map(|limit| unknown(limit, &snapshot.known));
    let text = match form {
        ClientsFormat::Json => format!("{}\n", printable(text.trim_end())),
        ClientsFormat::Tables => tables(&snapshot, limit),
        ClientsFormat::Buckets => buckets(&snapshot, limit),
    };
    Ok(ClientsReport { text, unknown })
}

/// The error message if no limit has the name `limit`.
fn unknown(limit: &str, known: &[String]) -> String {
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("there is no limit {}; known are: {}", printable(limit), printable(&known))
}

/// The tables of a snapshot. A requested limit has a table even if it does not exist.
fn tables(snapshot: &TopSnapshot, limit: Option<&str>) -> String {
    let mut text = String::new();
    if let Some(refused) = &snapshot.refused_config {
        let _ = writeln!(text, "{}", printable(&refused.to_string()));
    }
    push_swarms(&mut text, snapshot);
    for limit in &snapshot.limits {
        let refuses = limit.action == "reject" && !limit.shadow;
        push_limit(&mut text, &limit.name, snapshot.unit_of(limit), refuses, &sorted(limit));
    }
    if let (Some(name), true) = (limit, snapshot.limits.is_empty()) {
        push_limit(&mut text, name, ShownUnit::CpuSeconds, false, &[]);
    }
    for load in &snapshot.load {
        push_client_times(&mut text, load);
        push_running(&mut text, load);
        push_capacity(&mut text, load);
        push_engines(&mut text, load);
        push_shared_queue(&mut text, load);
    }
    push_robots(&mut text, snapshot);
    push_others(&mut text, snapshot);
    text
}

/// Adds a line for each robot, if there are any.
fn push_robots(text: &mut String, snapshot: &TopSnapshot) {
    if !snapshot.robots.is_empty() {
        text.push_str("\nRobots:\n");
    }
    for robot in &snapshot.robots {
        let _ = writeln!(text, "{}", printable(&robot.to_string()));
    }
}

/// Adds how long clients wait for their answers, each counted once.
fn push_client_times(text: &mut String, load: &LoadSnapshot) {
    for (at, line) in load.client_times.lines().enumerate() {
        let blank = if at == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{blank}{}: {}", printable(&load.door), printable(&line));
    }
}

/// Adds the requests that are with the backend, if there are any, and what waits for it.
fn push_running(text: &mut String, load: &LoadSnapshot) {
    if load.running.is_empty() && load.oldest_waiting.is_none() {
        return;
    }
    let _ = write!(text, "\nBackend of {}:", printable(&load.door));
    match &load.oldest_waiting {
        Some(oldest) => {
            let waiting = load.crowd.map_or(1, |crowd| crowd.waiting.max(1));
            let here = if load.shared_queue.is_some() { " here" } else { "" };
            let _ = writeln!(text, " {waiting} waiting{here}, the oldest for {:.1} s", oldest.age);
        }
        None if load.shared_queue.is_some() => text.push_str(" none waiting here\n"),
        None => text.push_str(" none waiting\n"),
    }
    let _ = writeln!(text, "{:>9}  {:<39}  Request", "Age[s]", "Client");
    for OpenRequestRow { client, route, age, stalled } in &load.running {
        let stalled = if *stalled { " (waits for its client)" } else { "" };
        let _ = writeln!(text, "{age:>9.1}  {client:<39}  {}{stalled}", printable(route));
    }
    if let Some(sentence) = load.long_running() {
        let _ = writeln!(text, "{}", printable(&sentence));
    }
}

/// Adds the capacity of the backend per second, if it is counted in tokens.
fn push_capacity(text: &mut String, load: &LoadSnapshot) {
    if let Some(capacity) = load.capacity_line() {
        let _ = writeln!(text, "\nCapacity of {}: {capacity}", printable(&load.door));
    }
}

/// Adds a line for each inference engine that reports its own queue.
fn push_engines(text: &mut String, load: &LoadSnapshot) {
    if !load.engines.is_empty() {
        let _ = writeln!(text, "\nEngines of {}:", printable(&load.door));
    }
    for engine in &load.engines {
        let _ = writeln!(text, "{}", printable(&engine.to_string()));
    }
}

/// Adds the state of the queue that instances share, with a line for each of them.
fn push_shared_queue(text: &mut String, load: &LoadSnapshot) {
    let Some(queue) = &load.shared_queue else { return };
    let owner = queue.owner_line();
    let _ = writeln!(text, "\nQueue of {}: {}", printable(&load.door), printable(&owner));
    let _ = writeln!(text, "{}", queue.requests_line());
    let _ = writeln!(text, "{:>9} {:>9} {:>9}  Instance", "Waiting", "Running", "Kept");
    for one in &queue.instances {
        let QueueInstanceRow { name, here, owns, silent, apart, waiting, running, kept } = one;
        let marks = [
            (*here, "this one"),
            (*owns, "owns the queue"),
            (*silent, "silent"),
            (*apart, "has not joined"),
        ];
        let marks = marks.into_iter().filter_map(|(is_so, mark)| is_so.then_some(mark));
        let marks = marks.collect::<Vec<_>>().join(", ");
        let marks = if marks.is_empty() { marks } else { format!(" ({marks})") };
        let kept = kept.map_or_else(|| "-".to_owned(), |kept| kept.to_string());
        let name = printable(name);
        let _ = writeln!(text, "{waiting:>9} {running:>9} {kept:>9}  {name}{marks}");
    }
}

/// The tables as Tempomat's doctor prints them: framed, and without levels.
fn buckets(snapshot: &TopSnapshot, limit: Option<&str>) -> String {
    let mut text = String::new();
    for limit in &snapshot.limits {
        push_bucket(&mut text, &limit.name, &sorted(limit));
    }
    if let (Some(name), true) = (limit, snapshot.limits.is_empty()) {
        push_bucket(&mut text, name, &[]);
    }
    text
}

/// Adds the swarms at the doors. They come first: a swarm makes the tables long.
fn push_swarms(text: &mut String, snapshot: &TopSnapshot) {
    for load in &snapshot.load {
        let (Some(swarm), Some(line)) = (&load.swarm, load.swarm_line()) else { continue };
        let _ = writeln!(text, "{}: {}", printable(&load.door), printable(&line));
        for group in &swarm.groups {
            let _ = writeln!(text, "  {}", printable(&group.to_string()));
            if !group.when.is_empty() {
                let _ = writeln!(text, "    when: {}", printable(&group.when));
            }
        }
    }
}

/// Adds the status of the peers, the store, the master and the gatekeepers, as far as they exist.
fn push_others(text: &mut String, snapshot: &TopSnapshot) {
    let TopSnapshot { peers, store, master, gatekeepers, .. } = snapshot;
    let others = [
        peers.as_ref().map(ToString::to_string),
        store.as_ref().map(ToString::to_string),
        master.as_ref().map(ToString::to_string),
    ];
    let gatekeepers = gatekeepers.iter().map(ToString::to_string);
    for other in others.into_iter().flatten().chain(gatekeepers) {
        let _ = writeln!(text, "\n{other}");
    }
    let apart = peers.iter().flat_map(|peers| &peers.apart);
    for (index, one) in apart.enumerate() {
        let begin = if index == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{begin}{}", printable(&one.to_string()));
    }
}

/// The rows by cost, heaviest first; equal rows by their last request, latest first.
fn sorted(limit: &LimitTable) -> Vec<&ClientRow> {
    let mut rows: Vec<&ClientRow> = limit.rows.iter().collect();
    rows.sort_by(|a, b| {
        let heavier = b.cpu_per_second.total_cmp(&a.cpu_per_second);
        heavier.then(a.last_seen.total_cmp(&b.last_seen))
    });
    rows
}

/// Adds the table of a limit with this name and unit; `refuses` says whether it refuses requests.
fn push_limit(text: &mut String, name: &str, unit: ShownUnit, refuses: bool, rows: &[&ClientRow]) {
    if !text.is_empty() {
        text.push('\n');
    }
    // Writing to a String cannot fail, here and below.
    let words = unit.words().map(|words| format!(" ({words})")).unwrap_or_default();
    let _ = writeln!(text, "Limit: {}{words}", printable(name));
    let cost = if unit == ShownUnit::CpuSeconds { "Cpu[s]" } else { unit.head() };
    let _ = writeln!(
        text,
        "{:>9} {cost:>9} {:>9} {:>8}      Level  Title",
        "Wait[s]", "Req/s", "Last[s]"
    );
    for row in rows {
        let level = row.level.map_or_else(|| "-".to_owned(), |level| unit.amount(level, 2));
        let _ = writeln!(
            text,
            "{:>9.2} {:>9} {:>9.2} {:>8.0} {level:>10}  {}{}",
            row.wait_average,
            unit.amount(row.cpu_per_second, 2),
            row.requests_per_second,
            row.last_seen,
            printable(&row.key),
            if refuses && unit == ShownUnit::Hits { refusals(row) } else { String::new() }
        );
    }
}

/// The requests of a client that are refused, in words. A few are left out: the two rates are not
/// of exactly the same moments.
fn refusals(row: &ClientRow) -> String {
    let refused = row.uncounted_per_second();
    match refused >= 0.1 && refused > row.requests_per_second / 10.0 {
        true => format!(" ({refused:.1} requests/s refused)"),
        false => String::new(),
    }
}

/// The column heads of Tempomat's doctor.
const COLUMNS: [&str; 5] = ["Wait[s]", "Cpu[s]", "Req/s", "Last[s]", "Title"];

/// Adds a framed table: heads centred, numbers right-aligned, titles left-aligned.
fn push_bucket(text: &mut String, name: &str, rows: &[&ClientRow]) {
    if !text.is_empty() {
        text.push('\n');
    }
    let cells: Vec<[String; 5]> = rows
        .iter()
        .map(|row| {
            let figures = [row.wait_average, row.cpu_per_second, row.requests_per_second];
            let [wait, cpu, requests] = figures.map(|figure| format!("{figure:.2}"));
            [wait, cpu, requests, format!("{:.0}", row.last_seen), title(&row.key)]
        })
        .collect();
    let width = |column: usize| {
        let widest = cells.iter().map(|row| row[column].chars().count()).max();
        widest.unwrap_or(0).max(COLUMNS[column].len())
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = widths.map(|width| "-".repeat(width + 2)).join("+");
    let head: [String; 5] =
        std::array::from_fn(|column| format!("{:^1$}", COLUMNS[column], widths[column]));
    let _ = writeln!(text, "Bucket: {}", printable(name));
    let _ = writeln!(text, "+{line}+\n| {} |\n+{line}+", head.join(" | "));
    for [wait, cpu, requests, last, title] in &cells {
        let [a, b, c, d, e] = widths;
        let _ = writeln!(
            text,
            "| {wait:>a$} | {cpu:>b$} | {requests:>c$} | {last:>d$} | {title:<e$} |"
        );
    }
    let _ = writeln!(text, "+{line}+");
}

/// The name of a client as Tempomat prints it: an address is a network of one address.
fn title(key: &str) -> String {
    match key.parse() {
        Ok(IpAddr::V4(_)) => format!("{key}/32"),
        Ok(IpAddr::V6(_)) => format!("{key}/128"),
        Err(_) => printable(key).into_owned(),
    }
}

#[cfg(test)]
mod tests;
