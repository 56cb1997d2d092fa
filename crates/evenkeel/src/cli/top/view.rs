//! The state of the screen: the last answer, and the selected limit, order and filter.
//!
//! Keys and answers change it. It does not depend on a terminal.

use crate::cli::remote::AdminClientError;
use evenkeel_telemetry::snapshot::{ClientRow, LimitTable, ShownUnit, TopSnapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::cmp::Ordering;
use std::ops::ControlFlow;

/// The maximum length of a filter, in characters.
const FILTER_CHARS_MAX: usize = 100;
/// The number of rows that a page key scrolls by.
const PAGE_ROWS: usize = 10;

/// The column by which rows are ordered, largest first; names and ages are in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    Cost,
    Debt,
    Wait,
    Requests,
    Total,
    Seen,
    Name,
}

impl RowOrder {
    const ALL: [RowOrder; 7] = [
        RowOrder::Cost,
        RowOrder::Debt,
        RowOrder::Wait,
        RowOrder::Requests,
        RowOrder::Total,
        RowOrder::Seen,
        RowOrder::Name,
    ];

    fn next(self) -> RowOrder {
        let at = RowOrder::ALL.iter().position(|order| *order == self).unwrap_or_default();
        RowOrder::ALL[(at + 1) % RowOrder::ALL.len()]
    }

    /// Compares two rows. In `shadow` mode no client waits, so the order is by how long the limit
    /// would act.
    fn compare(self, a: &ClientRow, b: &ClientRow, shadow: bool) -> Ordering {
        // An unknown level counts as no debt.
        let level = |row: &ClientRow| row.level.unwrap_or(f64::INFINITY);
        match self {
            RowOrder::Cost => b.cpu_per_second.total_cmp(&a.cpu_per_second),
            RowOrder::Debt => level(a).total_cmp(&level(b)),
            RowOrder::Wait if shadow => b.wait.total_cmp(&a.wait),
            RowOrder::Wait => b.wait_average.total_cmp(&a.wait_average),
            RowOrder::Requests => b.requests_per_second.total_cmp(&a.requests_per_second),
            RowOrder::Total => b.cpu_total.total_cmp(&a.cpu_total),
            RowOrder::Seen => a.last_seen.total_cmp(&b.last_seen),
            RowOrder::Name => a.key.cmp(&b.key),
        }
    }
}

/// The state of the screen.
pub struct TopView {
    pub address: String,
    pub order: RowOrder,
    pub reversed: bool,
    /// Only clients with this text in their names are shown, in upper or lower case.
    pub filter: String,
    pub mode: KeyMode,
    pub snapshot: Option<TopSnapshot>,
    /// For each door: the CPU-seconds per second that its backend worked between the last two
    /// answers.
    pub busy: Vec<Option<f64>>,
    /// For each limit: the decisions per second that shadow mode did not enforce between the last
    /// two answers.
    pub would: Vec<Option<f64>>,
    /// The error of the last request; `None` if it succeeded.
    pub fault: Option<String>,
    /// The number of rows above the first visible one.
    scrolled: usize,
    paused: bool,
    /// Door and name of the selected limit, because a reload may change its position.
    limit: Option<(String, String)>,
    /// The limit to select with the first answer; `None` after that.
    wanted: Option<String>,
}

/// The meaning of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyMode {
    Look,
    /// As `Look`, with the requests of the backend in place of the clients.
    Backend,
    Filter,
    Help,
}

impl TopView {
    pub fn new(address: &str, limit: Option<&str>) -> TopView {
        TopView {
            address: address.to_owned(),
            order: RowOrder::Cost,
            reversed: false,
            filter: String::new(),
            mode: KeyMode::Look,
            snapshot: None,
            busy: Vec::new(),
            would: Vec::new(),
            fault: None,
            scrolled: 0,
            paused: false,
            limit: None,
            wanted: limit.map(String::from),
        }
    }

    pub fn paused(&self) -> bool {
        self.paused
    }

    /// Takes over the snapshot of an answer, or its error.
    pub fn answered(&mut self, answer: Result<(String, TopSnapshot), AdminClientError>) {
        let snapshot = match answer {
            Ok((_, snapshot)) => snapshot,
            Err(fault) => {
                self.fault = Some(fault.to_string());
                return;
            }
        };
        self.fault = None;
        self.busy = snapshot.load.iter().map(|load| self.busy(load, snapshot.now)).collect();
        self.would = snapshot.limits.iter().map(|table| self.would(table, snapshot.now)).collect();
        if let Some(wanted) = self.wanted.take() {
            let found = snapshot.limits.iter().find(|table| table.name == wanted);
            self.limit = found.map(place);
            if found.is_none() {
                self.fault = Some(format!(
                    "there is no limit {wanted}; known are: {}",
                    snapshot.known.join(", ")
                ));
            }
        }
        self.snapshot = Some(snapshot);
    }

    /// The CPUs that the backend of a door has used since the last answer, or the thousands of
    /// tokens per second.
    fn busy(&self, load: &evenkeel_telemetry::snapshot::LoadSnapshot, now: f64) -> Option<f64> {
        let before = self.snapshot.as_ref()?;
        let was = before.load.iter().find(|was| was.door == load.door)?;
        let (worked, time) = (load.busy_seconds - was.busy_seconds, now - before.now);
        // The counters of a restarted server begin at zero, so there is no rate.
        (time > 0.0 && worked >= 0.0).then(|| worked / time)
    }

    /// The decisions per second of a limit that were not enforced since the last answer.
    fn would(&self, table: &LimitTable, now: f64) -> Option<f64> {
        let before = self.snapshot.as_ref()?;
        let was = before.limits.iter().find(|was| place(was) == place(table))?;
        let (more, time) = (table.would.checked_sub(was.would)?, now - before.now);
        (time > 0.0).then(|| more as f64 / time)
    }

    /// All limits of the last answer.
    pub fn limits(&self) -> &[LimitTable] {
        self.snapshot.as_ref().map(|snapshot| &snapshot.limits[..]).unwrap_or_default()
    }

    /// The unit of the figures of a limit.
    pub fn unit_of(&self, table: &LimitTable) -> ShownUnit {
        let unit = self.snapshot.as_ref().map(|snapshot| snapshot.unit_of(table));
        unit.unwrap_or(ShownUnit::CpuSeconds)
    }

    /// The index of the selected limit; the first limit if none was selected or it no longer
    /// exists.
    pub fn shown(&self) -> usize {
        let chosen = |table: &LimitTable| self.limit.as_ref() == Some(&place(table));
        self.limits().iter().position(chosen).unwrap_or_default()
    }

    /// The visible clients in order, beginning after the rows that were scrolled past.
    pub fn rows(&self) -> Vec<&ClientRow> {
        let Some(table) = self.limits().get(self.shown()) else { return Vec::new() };
        let filter = self.filter.to_lowercase();
        let fits = |row: &&ClientRow| row.key.to_lowercase().contains(&filter);
        let mut rows: Vec<&ClientRow> = table.rows.iter().filter(fits).collect();
        let compare = |a: &ClientRow, b: &ClientRow| self.order.compare(a, b, table.shadow);
        rows.sort_by(|a, b| compare(a, b).then_with(|| a.key.cmp(&b.key)));
        if self.reversed {
            rows.reverse();
        }
        rows.drain(..self.scrolled.min(rows.len().saturating_sub(1)));
        rows
    }

    /// Handles a key; `Break` means that the user leaves.
    pub fn pressed(&mut self, key: KeyEvent) -> ControlFlow<()> {
        if key.kind == KeyEventKind::Release {
            return ControlFlow::Continue(());
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return ControlFlow::Break(());
        }
        match self.mode {
            KeyMode::Look | KeyMode::Backend => return self.looking(key.code),
            KeyMode::Filter => self.filtering(key.code),
            KeyMode::Help => self.mode = KeyMode::Look,
        }
        ControlFlow::Continue(())
    }

    fn looking(&mut self, key: KeyCode) -> ControlFlow<()> {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return ControlFlow::Break(()),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(self.limits().len().saturating_sub(1)),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('b') if self.mode == KeyMode::Backend => self.mode = KeyMode::Look,
            KeyCode::Char('b') => self.mode = KeyMode::Backend,
            KeyCode::Char('/') => self.mode = KeyMode::Filter,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.mode = KeyMode::Help,
            KeyCode::Down => self.scroll(1),
            KeyCode::PageDown => self.scroll(PAGE_ROWS),
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(PAGE_ROWS),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn filtering(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = KeyMode::Look,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = KeyMode::Look;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(c)
            }
            _ => {}
        }
        self.scrolled = 0;
    }

    fn scroll(&mut self, by: usize) {
        // Scroll to the last row at most.
        self.scrolled += by.min(self.rows().len().saturating_sub(1));
    }

    /// Selects the limit `by` positions further.
    fn turn(&mut self, by: usize) {
        let at = (self.shown() + by) % self.limits().len().max(1);
        self.limit = self.limits().get(at).map(place);
        self.scrolled = 0;
    }
}

fn place(table: &LimitTable) -> (String, String) {
    (table.door.clone(), table.name.clone())
}
