//! The page at `/`: the busiest clients as a plain table, and where else to look.
//!
//! No scripts, nothing from outside. Names come from strangers: everything is escaped.

use crate::watch::printable::printable;
use crate::watch::snapshot::{Row, Snapshot, Table, UNIT_CPU};
use std::fmt::Write;

/// Rows of each limit on the page.
pub const ROWS: usize = 20;

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>Tollgate</title>
<style>
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }
body { margin: 1rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { padding: .15rem .5rem; text-align: right; font-variant-numeric: tabular-nums }
th:last-child, td:last-child { text-align: left; width: 50%; overflow-wrap: anywhere }
tr:nth-child(even) { background: color-mix(in srgb, currentColor 6%, transparent) }
.debt { font-weight: bold }
</style>
<h1>Tollgate</h1>
<p><a href=\"/metrics\">metrics</a> · <a href=\"/api/top\">top</a> ·
<a href=\"/api/config\">configuration</a> · <a href=\"/healthz\">health</a> ·
<a href=\"/readyz\">readiness</a></p>
";

/// The page for one look at the server.
pub fn html(snapshot: &Snapshot) -> String {
    let mut html = String::from(HEAD);
    for load in &snapshot.load {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            html,
            "<p>{}: the backend works on {} requests, {} CPUs are shared out, {:.1} CPU-seconds \
             so far.</p>",
            escaped(&load.door),
            load.working,
            load.cpus,
            load.busy_seconds
        );
    }
    for limit in &snapshot.limits {
        table(&mut html, limit);
    }
    html.push_str("</html>\n");
    html
}

fn table(html: &mut String, limit: &Table) {
    let _ = writeln!(
        html,
        "<h2>{}</h2>\n<p>action: {}, levels in {}</p>\n<table>\n<tr><th>Wait[s]<th>Cpu[s]\
         <th>Req/s<th>Last[s]<th>Level<th>Title",
        escaped(&limit.name),
        escaped(&limit.action),
        if limit.unit == UNIT_CPU { "CPU-seconds" } else { "requests" },
    );
    for row in &limit.rows {
        line(html, row);
    }
    html.push_str("</table>\n");
}

fn line(html: &mut String, row: &Row) {
    let in_debt = row.level.is_some_and(|level| level < 0.0);
    let _ = writeln!(
        html,
        "<tr{}><td>{:.2}<td>{:.2}<td>{:.2}<td>{:.0}<td>{}<td>{}",
        if in_debt { " class=\"debt\"" } else { "" },
        row.wait_average,
        row.cpu_per_second,
        row.requests_per_second,
        row.last_seen,
        row.level.map_or_else(|| "-".to_owned(), |level| format!("{level:.2}")),
        escaped(&row.key)
    );
}

fn escaped(text: &str) -> String {
    let safe = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    safe.replace('"', "&quot;").replace('\'', "&#39;")
}
