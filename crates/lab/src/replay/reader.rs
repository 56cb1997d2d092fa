//! Reads one log in a thread of its own, which turns lines into entries and sends them in batches.
//!
//! If a log records times to the second only, the entries of one second are spread over it in the
//! order of their lines; otherwise a page and all its images would arrive at the same moment. A
//! time that is more than a day ahead of the line before, and ahead of the line after, is a
//! mistake. Unreadable lines are counted.

use super::entry::{LogEntry, LogFields};
use super::files::{LogLine, LogLines, LogSource};
use super::format::{AccessLogFormat, LineReadError};
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_identity::address::ProxyTrust;
use evenkeel_telemetry::printable::printable;
use serde::Serialize;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// The number of lines from which the format is detected.
const DETECTION_LINES: usize = 64;
const BATCH_ENTRIES: usize = 512;
/// The number of batches that wait for the receiver; then the thread waits.
const BATCHES_MAX: usize = 8;
/// The maximum number of lines of one second that are spread together; more are spread in parts.
const GROUP_MAX: usize = 50_000;
/// A time further ahead of the line before than this may be a mistake.
const LEAP_MIN: Nanos = Nanos::from_secs(86_400);
/// Correct times of neighbouring lines go back by this at most.
const DISORDER_MAX: Nanos = Nanos::from_secs(3_600);
/// The maximum length of the excerpt of an unreadable line, in characters.
const EXAMPLE_CHARS_MAX: usize = 160;

/// The result of reading a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogAccount {
    pub name: String,
    /// The format of the log; `None` if it is unknown.
    pub format: Option<&'static str>,
    /// The number of lines, without comments and empty ones.
    pub lines: u64,
    /// The number of lines that are requests and are played.
    pub requests: u64,
    /// The number of lines that could not be read.
    pub unread: u64,
    /// The line number and the beginning of the first unreadable line.
    pub example: Option<(u64, String)>,
    /// The number of requests that a cache had answered; they are not played.
    pub cached: u64,
    /// Why the log could not be read to its end.
    pub fault: Option<String>,
    #[serde(skip)]
    pub tells: LogFields,
}

pub enum ReaderMessage {
    /// Requests, approximately in the order of their ends.
    Batch(Vec<LogEntry>),
    /// The end of the log; no further message follows.
    End(LogAccount),
}

/// A log of a known format that is ready to be read from its beginning.
pub struct DetectedLog {
    place: LogSource,
    format: AccessLogFormat,
    /// The lines already read from standard input, which cannot be read again, and the rest of it.
    read: Option<(Vec<String>, LogLines)>,
    /// The earliest time in its first lines.
    pub first: Time,
}

/// Detects the format of a log from its first lines.
///
/// # Errors
/// Returns the account of the log, with the reason, if it cannot be read or has no known format.
pub fn open(
    place: &LogSource,
    trust: &ProxyTrust,
    count: &Arc<AtomicU64>,
) -> Result<DetectedLog, Box<LogAccount>> {
    let told = |fault: String| {
        let (name, fault) = (place.name(), Some(fault));
        Box::new(LogAccount { name, fault, ..LogAccount::default() })
    };
    // The bytes read here are read again later, so they are not counted yet.
    let beside = Arc::new(AtomicU64::new(0));
    let seen = if *place == LogSource::Standard { count } else { &beside };
    let mut lines = place.open(seen).map_err(|why| told(why.to_string()))?;
    let sample = sample(&mut lines).map_err(|why| told(why.to_string()))?;
    let Some(mut format) = AccessLogFormat::of(&sample) else {
        let first = sample.first().map(|line| excerpt(line));
        let first = first.map_or("it is empty".into(), |line| format!("it begins with `{line}`"));
        return Err(told(format!("not an access log of a known format: {first}")));
    };
    let entry = |line: &String| format.read(line).ok()?.entry(trust).ok();
    let first = sample.iter().filter_map(entry).map(|entry| entry.start).min();
    let read = (*place == LogSource::Standard).then_some((sample, lines));
    Ok(DetectedLog { place: place.clone(), format, read, first: first.unwrap_or_default() })
}

fn sample(lines: &mut LogLines) -> io::Result<Vec<String>> {
    let mut sample = Vec::new();
    while sample.len() < DETECTION_LINES {
        match lines.read() {
            Ok(Some(LogLine::Whole(line))) => {
                sample.push(String::from_utf8_lossy(line).into_owned())
            }
            Ok(Some(LogLine::TooLong)) => sample.push(String::new()),
            Ok(None) => break,
            Err(why) if sample.is_empty() => return Err(why),
            Err(_) => break,
        }
    }
    Ok(sample)
}

fn excerpt(line: &str) -> String {
    let short: String = line.chars().take(EXAMPLE_CHARS_MAX).collect();
    printable(&short).into_owned()
}

impl DetectedLog {
    #[must_use]
    pub fn name(&self) -> String {
        self.place.name()
    }

    /// Starts a thread that reads the log to its end. The thread waits while the receiver is slow.
    pub fn start(
        self,
        trust: Arc<ProxyTrust>,
        count: &Arc<AtomicU64>,
    ) -> io::Result<Receiver<ReaderMessage>> {
        let (sender, receiver) = sync_channel(BATCHES_MAX);
        let (begun, lines) = match self.read {
            Some((begun, lines)) => (begun, lines),
            None => (Vec::new(), self.place.open(count)?),
        };
        let account = LogAccount {
            name: self.place.name(),
            format: Some(self.format.name()),
            ..LogAccount::default()
        };
        let mut reader = LogReader {
            format: self.format,
            trust,
            account,
            number: 0,
            group: TimeGroup::default(),
            held: None,
            last: None,
            batch: Vec::with_capacity(BATCH_ENTRIES),
            sender,
        };
        thread::Builder::new().name("log".to_owned()).spawn(move || reader.run(begun, lines))?;
        Ok(receiver)
    }
}

/// Entries with the same time that have yet to be spread over its second.
#[derive(Default)]
struct TimeGroup {
    at: Time,
    entries: Vec<LogEntry>,
}

struct LogReader {
    format: AccessLogFormat,
    trust: Arc<ProxyTrust>,
    account: LogAccount,
    number: u64,
    group: TimeGroup,
    /// A group with a time that may be a mistake; the next group decides.
    held: Option<TimeGroup>,
    last: Option<Time>,
    batch: Vec<LogEntry>,
    sender: SyncSender<ReaderMessage>,
}

/// The receiver of entries was dropped.
struct ReceiverGoneError;

impl LogReader {
    fn run(&mut self, begun: Vec<String>, mut lines: LogLines) {
        let read = begun.iter().try_for_each(|line| self.line(line));
        if read.is_err() {
            return;
        }
        loop {
            let told = match lines.read() {
                Ok(Some(LogLine::Whole(line))) => self.line(&String::from_utf8_lossy(line)),
                Ok(Some(LogLine::TooLong)) => {
                    (self.number, self.account.lines) = (self.number + 1, self.account.lines + 1);
                    self.unread("(longer than 64 KiB)");
                    Ok(())
                }
                Ok(None) => break,
                Err(why) => {
                    self.account.fault = Some(why.to_string());
                    break;
                }
            };
            if told.is_err() {
                return;
            }
        }
        let group = std::mem::take(&mut self.group);
        let _ = self.end(group);
    }

    fn end(&mut self, group: TimeGroup) -> Result<(), ReceiverGoneError> {
        self.close(group, None)?;
        self.release(None)?;
        self.hand_over()?;
        let account = std::mem::take(&mut self.account);
        self.sender.send(ReaderMessage::End(account)).map_err(|_| ReceiverGoneError)
    }

    fn line(&mut self, line: &str) -> Result<(), ReceiverGoneError> {
        self.number += 1;
        let draft = match self.format.read(line) {
            Ok(draft) => draft,
            Err(LineReadError::Nothing) => return Ok(()),
            Err(LineReadError::Faulty) => {
                self.account.lines += 1;
                self.unread(line);
                return Ok(());
            }
        };
        self.account.lines += 1;
        if draft.cached {
            self.account.cached += 1;
            return Ok(());
        }
        let (at, tells) = (draft.time, draft.tells);
        match draft.entry(&self.trust) {
            Ok(entry) => {
                self.account.tells = self.account.tells.or(tells);
                self.take(entry, at)
            }
            Err(_) => {
                self.unread(line);
                Ok(())
            }
        }
    }

    fn unread(&mut self, line: &str) {
        self.account.unread += 1;
        let number = self.number;
        self.account.example.get_or_insert_with(|| (number, excerpt(line)));
    }

    fn take(&mut self, entry: LogEntry, at: Time) -> Result<(), ReceiverGoneError> {
        if at != self.group.at || self.group.entries.len() >= GROUP_MAX {
            let group = std::mem::replace(&mut self.group, TimeGroup { at, entries: Vec::new() });
            self.close(group, Some(at))?;
        }
        self.group.entries.push(entry);
        Ok(())
    }

    /// Completes a group; `next` is the time of the next group.
    fn close(&mut self, mut group: TimeGroup, next: Option<Time>) -> Result<(), ReceiverGoneError> {
        if group.entries.is_empty() {
            return Ok(());
        }
        self.release(Some(group.at))?;
        group.spread();
        let ahead = self.last.is_none_or(|last| group.at > last.plus(LEAP_MIN));
        if ahead && next.is_some() {
            self.held = Some(group);
            return Ok(());
        }
        self.emit(group)
    }

    /// Sends the group that was held back, or discards it if `next` is far before it.
    fn release(&mut self, next: Option<Time>) -> Result<(), ReceiverGoneError> {
        let Some(held) = self.held.take() else { return Ok(()) };
        if next.is_some_and(|next| next.plus(DISORDER_MAX) < held.at) {
            let count = held.entries.len() as u64;
            self.account.unread += count;
            let number = self.number;
            let told = || (number, "(its time is far ahead of the lines around it)".to_owned());
            self.account.example.get_or_insert_with(told);
            return Ok(());
        }
        self.emit(held)
    }

    fn emit(&mut self, group: TimeGroup) -> Result<(), ReceiverGoneError> {
        self.last = Some(group.at);
        for entry in group.entries {
            self.account.requests += 1;
            self.batch.push(entry);
            if self.batch.len() >= BATCH_ENTRIES {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), ReceiverGoneError> {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH_ENTRIES));
        self.sender.send(ReaderMessage::Batch(batch)).map_err(|_| ReceiverGoneError)
    }
}

impl TimeGroup {
    /// Gives each coarse entry its own part of the second.
    fn spread(&mut self) {
        let count = self.entries.len() as u64;
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if entry.coarse {
                let part = (place as u64 * 2 + 1) * (SECOND / 2) / count;
                entry.start = entry.start.plus(Nanos(part));
            }
        }
    }
}
