//! Draws a view: the load of the backends, the limits, the clients of one limit, and the keys.
//!
//! Names come from strangers, so hidden characters in them are escaped before they reach the
//! terminal.

use super::view::{KeyMode, RowOrder, TopView};
use evenkeel_telemetry::printable::printable;
use evenkeel_telemetry::snapshot::{
    BurningGroupRow, ClientRow, LimitTable, LoadSnapshot, OpenRequestRow, ShownUnit,
};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

/// The width of a bar, in columns.
const BAR_COLUMNS: usize = 16;
const KEYS: &str = " q quit  Tab limit  s sort  r reverse  / filter  b backend  p pause  ? help";
const HELP: [&str; 14] = [
    "Level   what is left, in CPU-seconds, hits, tokens or money; below zero it is debt",
    "Wait    recent average waiting time of its requests, in seconds",
    "Would   limits in shadow: seconds for which the limit would act on the client;",
    "        no request waits for it",
    "/s      recent cost per second, in the same unit; Share: of all listed clients",
    "Total   since the client is listed;  Last: seconds since its last request",
    "b             show the requests that the backend has; again: the clients",
    "Tab, arrows   next limit, previous limit",
    "s, r          sort by the next column; reverse the order",
    "/             show only clients with this text in their names; Esc: all",
    "up, down      scroll (also page up, page down); Home: first row",
    "p, space      pause the display; press again to continue",
    "q, Esc        quit",
    "any key closes this help",
];

pub fn draw(frame: &mut Frame<'_>, view: &TopView) {
    let loads = view.snapshot.as_ref().map(|snapshot| &snapshot.load[..]).unwrap_or_default();
    let height = |count: usize| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
    let mut lines = Vec::new();
    let refused = view.snapshot.iter().filter_map(|snapshot| snapshot.refused_config.as_ref());
    lines.extend(refused.map(|why| format!(" {}", printable(&why.to_string())).red().into()));
    for (at, load) in loads.iter().enumerate() {
        lines.push(load_line(load, view.busy.get(at).copied().flatten()));
        if let Some(queue) = &load.shared_queue {
            lines.push(format!("   {}", printable(&queue.owner_line())).into());
            lines.push(format!("   {}", queue.requests_line()).into());
        }
        lines.extend(
            load.client_times.lines().map(|line| format!("   {}", printable(&line)).into()),
        );
        let swarm = load.swarm_line();
        lines.extend(swarm.map(|line| format!("   {}", printable(&line)).yellow().into()));
        let groups = load.swarm.iter().flat_map(|swarm| &swarm.groups);
        let said = |group: &BurningGroupRow| format!("     {}", printable(&group.to_string()));
        lines.extend(groups.map(|group| said(group).yellow().into()));
        let sentence = load.long_running();
        lines.extend(sentence.map(|text| format!("   {}", printable(&text)).yellow().into()));
    }
    let parts = [height(1), height(lines.len()), height(1), Constraint::Fill(1), height(1)];
    let [title, load, tabs, table, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(headline(view), title);
    frame.render_widget(Paragraph::new(lines), load);
    frame.render_widget(limits(view), tabs);
    match view.mode {
        KeyMode::Backend => running(frame, loads, table),
        _ => clients(frame, view, table),
    }
    frame.render_widget(footer(view), foot);
    if view.mode == KeyMode::Help {
        help(frame, table);
    }
}

fn headline(view: &TopView) -> Line<'static> {
    let mut line = Line::from(vec![" evenkeel ".bold(), Span::raw(view.address.clone())]);
    if let Some(snapshot) = &view.snapshot {
        line.push_span(format!("  {} UTC", time_of_day(snapshot.now)));
    }
    if view.paused() {
        line.push_span("  paused".yellow().bold());
    }
    if let Some(fault) = &view.fault {
        line.push_span(format!("  {}", printable(fault)).red().bold());
    } else if view.snapshot.is_none() {
        line.push_span("  asking ...");
    }
    line
}

/// The time of day in UTC of `now`, which is in seconds since the Unix epoch.
fn time_of_day(now: f64) -> String {
    let seconds = now as u64 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

fn load_line(load: &LoadSnapshot, busy: Option<f64>) -> Line<'static> {
    let share = busy.zip(load.capacity());
    let share = share.map_or(0.0, |(busy, all)| busy / all.max(f64::MIN_POSITIVE));
    let full = (share.clamp(0.0, 1.0) * BAR_COLUMNS as f64).round() as usize;
    let color = if share > 0.9 { Color::Red } else { Color::Green };
    let mut line = Line::from(vec![
        Span::raw(format!(" {:<10}[", printable(&load.door))),
        Span::styled("|".repeat(full), Style::new().fg(color)),
        Span::raw(format!("{}] {}", " ".repeat(BAR_COLUMNS - full), load.use_line(busy))),
        Span::raw(format!("  working {}", load.working)),
    ]);
    // Below a shared queue has a line with what is of this instance and what of all.
    if let (Some(crowd), None) = (load.crowd, &load.shared_queue) {
        line.push_span(format!("  waiting {}", crowd.waiting));
        line.push_span(format!("  slots {}/{}", crowd.running, crowd.concurrency));
    }
    line
}

fn limits(view: &TopView) -> Line<'static> {
    let mut line = Line::from(" ");
    for (at, table) in view.limits().iter().enumerate() {
        let name = format!(" {} ", printable(&table.name));
        let name = if at == view.shown() { name.reversed() } else { Span::raw(name) };
        line.push_span(name);
    }
    let Some(table) = view.limits().get(view.shown()) else { return line };
    line.push_span(format!("  {}, ", printable(&table.door)));
    if let Some(words) = view.unit_of(table).words() {
        line.push_span(format!("{words}, "));
    }
    if table.shadow {
        line.push_span("shadow: ".magenta().bold());
        line.push_span(format!("would {}", printable(&table.action)));
        if let Some(rate) = view.would.get(view.shown()).copied().flatten() {
            line.push_span(format!(" {rate:.1}/s"));
        }
        line.push_span(format!(", {} so far; nothing is enforced", table.would));
    } else {
        line.push_span(printable(&table.action).into_owned());
    }
    line
}

/// The requests that are with the backends, the oldest first, and the oldest that waits for each.
fn running(frame: &mut Frame<'_>, loads: &[LoadSnapshot], area: Rect) {
    let head = format!("{:>10}  {:<12}{:<24}Request", "Age", "Stage", "Client");
    let mut lines = vec![Line::from(head.bold())];
    for load in loads {
        let with_backend = load.running.iter().map(|request| {
            let stage = if request.stalled { "client" } else { "working" };
            (stage, request)
        });
        let waits = load.oldest_waiting.iter().map(|request| ("waiting", request));
        lines.extend(with_backend.chain(waits).map(|(stage, request)| {
            let OpenRequestRow { client, route, age, .. } = request;
            Line::from(format!("{age:>10.1}  {stage:<12}{client:<24}{}", printable(route)))
        }));
    }
    if lines.len() == 1 {
        lines.push(" no request is with the backend".dim().into());
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn clients(frame: &mut Frame<'_>, view: &TopView, area: Rect) {
    let Some(table) = view.limits().get(view.shown()) else { return };
    let all: f64 = table.rows.iter().map(|row| row.cpu_per_second).sum();
    let unit = view.unit_of(table);
    let mut lines = vec![head(table, unit, view.order)];
    let rows = view.rows();
    let shown = rows.iter().take(usize::from(area.height));
    lines.extend(shown.map(|row| client(row, all, unit, table.shadow)));
    if rows.is_empty() {
        let none =
            if table.rows.is_empty() { "no clients yet" } else { "no client matches the filter" };
        lines.push(format!(" {none}").dim().into());
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn head(table: &LimitTable, unit: ShownUnit, order: RowOrder) -> Line<'static> {
    let cost = unit.head();
    let columns = [
        (format!("{:>10}", "Level"), order == RowOrder::Debt),
        (format!("{:>9}", if table.shadow { "Would" } else { "Wait" }), order == RowOrder::Wait),
        (format!("{cost:>9}"), order == RowOrder::Cost),
        (format!("{:>7}", "Share"), false),
        (format!("{:>9}", "Req/s"), order == RowOrder::Requests),
        (format!("{:>10}", "Total"), order == RowOrder::Total),
        (format!("{:>6}", "Last"), order == RowOrder::Seen),
        ("  Client".to_owned(), order == RowOrder::Name),
    ];
    let spans = columns.map(|(text, by)| if by { text.bold().underlined() } else { text.bold() });
    Line::from(spans.to_vec())
}

/// The line of one client. In shadow mode no client waits, so the line shows how long the limit
/// would act on the client.
fn client(row: &ClientRow, all: f64, unit: ShownUnit, shadow: bool) -> Line<'static> {
    let share = if all > 0.0 { 100.0 * row.cpu_per_second / all } else { 0.0 };
    let level = row.level.map_or_else(|| "-".to_owned(), |level| unit.amount(level, 2));
    let line = Line::from(format!(
        "{level:>10}{:>9.2}{:>9}{share:>6.0}%{:>9.2}{:>10}{:>6.0}  {}",
        if shadow { row.wait } else { row.wait_average },
        unit.amount(row.cpu_per_second, 2),
        row.requests_per_second,
        unit.amount(row.cpu_total, 1),
        row.last_seen,
        printable(&row.key)
    ));
    let in_debt = row.level.is_some_and(|level| level < 0.0);
    match (in_debt, shadow) {
        (true, false) => line.red().bold(),
        (true, true) => line.magenta().bold(),
        (false, _) => line,
    }
}

fn footer(view: &TopView) -> Line<'static> {
    match view.mode {
        KeyMode::Filter => Line::from(format!(" show names with: {}_", printable(&view.filter))),
        _ if view.filter.is_empty() => Line::from(KEYS).dim(),
        _ => Line::from(format!("{}   [{}]", KEYS, printable(&view.filter))),
    }
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    frame.render_widget(Clear, area);
    let lines: Vec<Line<'_>> = HELP.iter().map(|text| Line::from(format!(" {text}"))).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests;
