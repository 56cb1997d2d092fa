//! The state of the screen: the last answer, and the selected limit, order and filter.
//!
//! Keys and answers change it. It does not depend on a terminal.

use crate::cli::remote::Error;
use evenkeel_telemetry::snapshot::{Row, Snapshot, Table};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::cmp::Ordering;
use std::ops::ControlFlow;

/// The maximum length of a filter, in characters.
const FILTER_MAX: usize = 100;
/// The number of rows that a page key scrolls by.
const PAGE: usize = 10;

/// The column by which rows are ordered, largest first; names and ages are in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Cost,
    Debt,
    Wait,
    Requests,
    Total,
    Seen,
    Name,
}

impl Order {
    const ALL: [Order; 7] = [
        Order::Cost,
        Order::Debt,
        Order::Wait,
        Order::Requests,
        Order::Total,
        Order::Seen,
        Order::Name,
    ];

    fn next(self) -> Order {
        let at = Order::ALL.iter().position(|order| *order == self).unwrap_or_default();
        Order::ALL[(at + 1) % Order::ALL.len()]
    }

    /// Compares two rows. In `shadow` mode no client waits, so the order is by how long the limit
    /// would act.
    fn compare(self, a: &Row, b: &Row, shadow: bool) -> Ordering {
        // An unknown level counts as no debt.
        let level = |row: &Row| row.level.unwrap_or(f64::INFINITY);
        match self {
            Order::Cost => b.cpu_per_second.total_cmp(&a.cpu_per_second),
            Order::Debt => level(a).total_cmp(&level(b)),
            Order::Wait if shadow => b.wait.total_cmp(&a.wait),
            Order::Wait => b.wait_average.total_cmp(&a.wait_average),
            Order::Requests => b.requests_per_second.total_cmp(&a.requests_per_second),
            Order::Total => b.cpu_total.total_cmp(&a.cpu_total),
            Order::Seen => a.last_seen.total_cmp(&b.last_seen),
            Order::Name => a.key.cmp(&b.key),
        }
    }
}

/// The state of the screen.
pub struct View {
    pub address: String,
    pub order: Order,
    pub reversed: bool,
    /// Only clients with this text in their names are shown, in upper or lower case.
    pub filter: String,
    pub mode: Mode,
    pub snapshot: Option<Snapshot>,
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
pub enum Mode {
    Look,
    Filter,
    Help,
}

impl View {
    pub fn new(address: &str, limit: Option<&str>) -> View {
        View {
            address: address.to_owned(),
            order: Order::Cost,
            reversed: false,
            filter: String::new(),
            mode: Mode::Look,
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
    pub fn answered(&mut self, answer: Result<(String, Snapshot), Error>) {
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
                    "no limit is called {wanted}; there are: {}",
                    snapshot.known.join(", ")
                ));
            }
        }
        self.snapshot = Some(snapshot);
    }

    /// The CPUs that the backend of a door has used since the last answer.
    fn busy(&self, load: &evenkeel_telemetry::snapshot::Load, now: f64) -> Option<f64> {
        let before = self.snapshot.as_ref()?;
        let was = before.load.iter().find(|was| was.door == load.door)?;
        let (worked, time) = (load.busy_seconds - was.busy_seconds, now - before.now);
        // The counters of a restarted server begin at zero, so there is no rate.
        (time > 0.0 && worked >= 0.0).then(|| worked / time)
    }

    /// The decisions per second of a limit that were not enforced since the last answer.
    fn would(&self, table: &Table, now: f64) -> Option<f64> {
        let before = self.snapshot.as_ref()?;
        let was = before.limits.iter().find(|was| place(was) == place(table))?;
        let (more, time) = (table.would.checked_sub(was.would)?, now - before.now);
        (time > 0.0).then(|| more as f64 / time)
    }

    /// All limits of the last answer.
    pub fn limits(&self) -> &[Table] {
        self.snapshot.as_ref().map(|snapshot| &snapshot.limits[..]).unwrap_or_default()
    }

    /// The index of the selected limit; the first limit if none was selected or it no longer
    /// exists.
    pub fn shown(&self) -> usize {
        let chosen = |table: &Table| self.limit.as_ref() == Some(&place(table));
        self.limits().iter().position(chosen).unwrap_or_default()
    }

    /// The visible clients in order, beginning after the rows that were scrolled past.
    pub fn rows(&self) -> Vec<&Row> {
        let Some(table) = self.limits().get(self.shown()) else { return Vec::new() };
        let filter = self.filter.to_lowercase();
        let fits = |row: &&Row| row.key.to_lowercase().contains(&filter);
        let mut rows: Vec<&Row> = table.rows.iter().filter(fits).collect();
        let compare = |a: &Row, b: &Row| self.order.compare(a, b, table.shadow);
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
            Mode::Look => return self.looking(key.code),
            Mode::Filter => self.filtering(key.code),
            Mode::Help => self.mode = Mode::Look,
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
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Down => self.scroll(1),
            KeyCode::PageDown => self.scroll(PAGE),
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(PAGE),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn filtering(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::Look,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Look;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
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

fn place(table: &Table) -> (String, String) {
    (table.door.clone(), table.name.clone())
}
