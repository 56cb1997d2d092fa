//! One log, read by a thread of its own: lines become entries, in batches, as fast as somebody
//! takes them.
//!
//! Where a log knows the second only, those of one second are spread over it in the order of their
//! lines: else a page and all its images would ask at the same moment. A time that lies a day ahead
//! of the line before, and of the line behind it, is a mistake. What cannot be read is counted.

use super::entry::{Entry, Tells};
use super::files::{Line, Lines, Place};
use super::format::{Format, Unread};
use crate::client::address::Trust;
use crate::watch::printable::printable;
use evenkeel_core::units::{Nanos, SECOND, Time};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Lines by which a format is recognised.
const SAMPLE: usize = 64;
/// Entries that are handed over at once.
const BATCH: usize = 512;
/// Batches that wait to be taken.
const BATCHES: usize = 8;
/// Lines of one second that are spread over it; more are spread in parts.
const GROUP_MAX: usize = 50_000;
/// No log is silent for so long and then goes back again.
const LEAP: Nanos = Nanos::from_secs(86_400);
/// Neighbouring lines are not farther apart where times are right.
const DISORDER: Nanos = Nanos::from_secs(3_600);
/// What is shown of a line that cannot be read, in characters.
const EXAMPLE_MAX: usize = 160;

/// What reading a log came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its format, if it has one that is known.
    pub format: Option<&'static str>,
    /// Lines, comments and empty ones left out.
    pub lines: u64,
    /// Lines that are requests.
    pub requests: u64,
    /// Lines that could not be read.
    pub unread: u64,
    /// The first of them: its number and how it begins.
    pub example: Option<(u64, String)>,
    /// Requests that a cache had answered.
    pub cached: u64,
    /// Why it could not be read to its end.
    pub fault: Option<String>,
    /// Which fields it has.
    pub tells: Tells,
}

/// What a reader hands over.
pub enum Message {
    /// Requests, about in the order of their ends.
    Batch(Vec<Entry>),
    /// There are no more.
    End(Account),
}

/// A log whose format is known, and which can be read from its beginning.
pub struct Log {
    place: Place,
    format: Format,
    /// What was read of standard input already, which cannot be read again.
    read: Option<(Vec<String>, Lines)>,
    /// The earliest time of its first lines.
    pub first: Time,
}

/// Looks at the first lines of a log.
///
/// # Errors
/// It cannot be read, or none of them is a request; then this is what there is to say.
pub fn open(place: &Place, trust: &Trust, count: &Arc<AtomicU64>) -> Result<Log, Box<Account>> {
    let told = |fault: String| {
        let (name, fault) = (place.name(), Some(fault));
        Box::new(Account { name, fault, ..Account::default() })
    };
    // What is looked at here is read again later.
    let beside = Arc::new(AtomicU64::new(0));
    let seen = if *place == Place::Standard { count } else { &beside };
    let mut lines = place.open(seen).map_err(|why| told(why.to_string()))?;
    let sample = sample(&mut lines).map_err(|why| told(why.to_string()))?;
    let Some(mut format) = Format::of(&sample) else {
        let first = sample.first().map(|line| excerpt(line));
        let first = first.map_or("it is empty".into(), |line| format!("it begins with `{line}`"));
        return Err(told(format!("not an access log of a known format: {first}")));
    };
    let entry = |line: &String| format.read(line).ok()?.entry(trust).ok();
    let first = sample.iter().filter_map(entry).map(|entry| entry.start).min();
    let read = (*place == Place::Standard).then_some((sample, lines));
    Ok(Log { place: place.clone(), format, read, first: first.unwrap_or_default() })
}

fn sample(lines: &mut Lines) -> io::Result<Vec<String>> {
    let mut sample = Vec::new();
    while sample.len() < SAMPLE {
        match lines.read() {
            Ok(Some(Line::Whole(line))) => sample.push(String::from_utf8_lossy(line).into_owned()),
            Ok(Some(Line::TooLong)) => sample.push(String::new()),
            Ok(None) => break,
            Err(why) if sample.is_empty() => return Err(why),
            Err(_) => break,
        }
    }
    Ok(sample)
}

fn excerpt(line: &str) -> String {
    let short: String = line.chars().take(EXAMPLE_MAX).collect();
    printable(&short).into_owned()
}

impl Log {
    /// Reads it to its end, by a thread that waits while nobody takes what it has.
    ///
    /// # Errors
    /// It cannot be opened again, or there is no thread to be had.
    pub fn start(self, trust: Arc<Trust>, count: &Arc<AtomicU64>) -> io::Result<Receiver<Message>> {
        let (sender, receiver) = sync_channel(BATCHES);
        let (begun, lines) = match self.read {
            Some((begun, lines)) => (begun, lines),
            None => (Vec::new(), self.place.open(count)?),
        };
        let account = Account {
            name: self.place.name(),
            format: Some(self.format.name()),
            ..Account::default()
        };
        let mut reader = Reader {
            format: self.format,
            trust,
            account,
            number: 0,
            group: Group::default(),
            held: None,
            last: None,
            batch: Vec::with_capacity(BATCH),
            sender,
        };
        thread::Builder::new().name("log".to_owned()).spawn(move || reader.run(begun, lines))?;
        Ok(receiver)
    }
}

/// Entries of one moment that are still to be spread over its second.
#[derive(Default)]
struct Group {
    at: Time,
    entries: Vec<Entry>,
}

struct Reader {
    format: Format,
    trust: Arc<Trust>,
    account: Account,
    number: u64,
    group: Group,
    /// A group whose time may be a mistake: the next one will show.
    held: Option<Group>,
    last: Option<Time>,
    batch: Vec<Entry>,
    sender: SyncSender<Message>,
}

/// Nobody takes entries any more.
struct Gone;

impl Reader {
    fn run(&mut self, begun: Vec<String>, mut lines: Lines) {
        let read = begun.iter().try_for_each(|line| self.line(line));
        if read.is_err() {
            return;
        }
        loop {
            let told = match lines.read() {
                Ok(Some(Line::Whole(line))) => self.line(&String::from_utf8_lossy(line)),
                Ok(Some(Line::TooLong)) => {
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

    fn end(&mut self, group: Group) -> Result<(), Gone> {
        self.close(group, None)?;
        self.release(None)?;
        self.hand_over()?;
        let account = std::mem::take(&mut self.account);
        self.sender.send(Message::End(account)).map_err(|_| Gone)
    }

    fn line(&mut self, line: &str) -> Result<(), Gone> {
        self.number += 1;
        let draft = match self.format.read(line) {
            Ok(draft) => draft,
            Err(Unread::Nothing) => return Ok(()),
            Err(Unread::Faulty) => {
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

    fn take(&mut self, entry: Entry, at: Time) -> Result<(), Gone> {
        if at != self.group.at || self.group.entries.len() >= GROUP_MAX {
            let group = std::mem::replace(&mut self.group, Group { at, entries: Vec::new() });
            self.close(group, Some(at))?;
        }
        self.group.entries.push(entry);
        Ok(())
    }

    /// A group is whole; `next` is when the next one is.
    fn close(&mut self, mut group: Group, next: Option<Time>) -> Result<(), Gone> {
        if group.entries.is_empty() {
            return Ok(());
        }
        self.release(Some(group.at))?;
        group.spread();
        let ahead = self.last.is_none_or(|last| group.at > last.plus(LEAP));
        if ahead && next.is_some() {
            self.held = Some(group);
            return Ok(());
        }
        self.emit(group)
    }

    /// A group that was held back is right, unless what follows lies far before it.
    fn release(&mut self, next: Option<Time>) -> Result<(), Gone> {
        let Some(held) = self.held.take() else { return Ok(()) };
        if next.is_some_and(|next| next.plus(DISORDER) < held.at) {
            let count = held.entries.len() as u64;
            self.account.unread += count;
            let number = self.number;
            let told = || (number, "(its time lies far ahead of its neighbours)".to_owned());
            self.account.example.get_or_insert_with(told);
            return Ok(());
        }
        self.emit(held)
    }

    fn emit(&mut self, group: Group) -> Result<(), Gone> {
        self.last = Some(group.at);
        for entry in group.entries {
            self.account.requests += 1;
            self.batch.push(entry);
            if self.batch.len() >= BATCH {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Gone> {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        self.sender.send(Message::Batch(batch)).map_err(|_| Gone)
    }
}

impl Group {
    /// Gives each its own part of the second.
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
