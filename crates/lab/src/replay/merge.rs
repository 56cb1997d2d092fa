//! Merges the requests of all logs in the order of their arrival.
//!
//! Logs are written when requests end, so each is out of order by up to the duration of requests. A
//! request is returned when every log has been read to a minute beyond it. A request that appears
//! later than that is played at the current position, and counted as late. A log is opened only
//! when its time comes: of a month of daily logs, one or two are open at once.

use super::entry::{LogEntry, LogFields};
use super::files::LogSource;
use super::reader::{self, DetectedLog, LogAccount, ReaderMessage};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_identity::address::ProxyTrust;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Receiver;

/// How far each log is read beyond a request before the request is returned.
const READ_AHEAD: Nanos = Nanos::from_secs(60);
/// The maximum number of requests in memory; beyond it, the first is returned without waiting.
const WAITING_MAX: usize = 500_000;
/// A request that is older than the last returned one by more than this counts as late.
const LATE_MIN: Nanos = Nanos::from_secs(1);

/// An iterator over the requests of all logs.
pub struct LogMerge {
    feeds: Vec<MergeFeed>,
    waiting: BinaryHeap<Reverse<WaitingEntry>>,
    numbered: u64,
    last: Time,
    /// The number of requests that appeared too late to be put in order.
    pub late: u64,
    trust: Arc<ProxyTrust>,
    count: Arc<AtomicU64>,
    /// The results of the logs that were read or could not be opened.
    pub accounts: Vec<LogAccount>,
}

struct MergeFeed {
    state: FeedState,
    /// The time up to which the log has been read.
    until: Time,
}

enum FeedState {
    Closed(Box<DetectedLog>),
    Open(Receiver<ReaderMessage>),
}

struct WaitingEntry {
    entry: LogEntry,
    number: u64,
}

impl WaitingEntry {
    fn rank(&self) -> (Time, u64) {
        (self.entry.start, self.number)
    }
}

impl PartialEq for WaitingEntry {
    fn eq(&self, other: &WaitingEntry) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for WaitingEntry {}

impl PartialOrd for WaitingEntry {
    fn partial_cmp(&self, other: &WaitingEntry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WaitingEntry {
    fn cmp(&self, other: &WaitingEntry) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl LogMerge {
    /// Detects the format of each log; a log that cannot be read gets its account at once. `count`
    /// counts the bytes that were read.
    #[must_use]
    pub fn new(places: &[LogSource], trust: ProxyTrust, count: Arc<AtomicU64>) -> LogMerge {
        let (mut feeds, mut accounts) = (Vec::new(), Vec::new());
        for place in places {
            match reader::open(place, &trust, &count) {
                Ok(log) => {
                    let until = log.first;
                    feeds.push(MergeFeed { state: FeedState::Closed(Box::new(log)), until });
                }
                Err(account) => accounts.push(*account),
            }
        }
        LogMerge {
            feeds,
            waiting: BinaryHeap::new(),
            numbered: 0,
            last: Time::ZERO,
            late: 0,
            trust: Arc::new(trust),
            count,
            accounts,
        }
    }

    /// The fields that every log with requests has. The result is complete when all logs have been
    /// read.
    #[must_use]
    pub fn tells(&self) -> LogFields {
        let played = self.accounts.iter().filter(|account| account.requests > 0);
        played.map(|account| account.tells).reduce(LogFields::and).unwrap_or_default()
    }

    /// Reads the next batch of the log at index `at`, and opens the log if necessary.
    fn pull(&mut self, at: usize) {
        let feed = &mut self.feeds[at];
        if let FeedState::Closed(_) = feed.state {
            let (_, none) = std::sync::mpsc::sync_channel(0);
            let FeedState::Closed(log) = std::mem::replace(&mut feed.state, FeedState::Open(none))
            else {
                return;
            };
            let name = log.name();
            match log.start(Arc::clone(&self.trust), &self.count) {
                Ok(receiver) => feed.state = FeedState::Open(receiver),
                Err(why) => {
                    let fault = Some(why.to_string());
                    self.accounts.push(LogAccount { name, fault, ..LogAccount::default() });
                }
            }
        }
        let FeedState::Open(receiver) = &feed.state else { return };
        match receiver.recv() {
            Ok(ReaderMessage::Batch(entries)) => {
                for entry in entries {
                    feed.until = feed.until.max(entry.end());
                    self.numbered += 1;
                    self.waiting.push(Reverse(WaitingEntry { entry, number: self.numbered }));
                }
            }
            Ok(ReaderMessage::End(account)) => {
                self.accounts.push(account);
                self.feeds.remove(at);
            }
            Err(_) => {
                self.feeds.remove(at);
            }
        }
    }
}

impl Iterator for LogMerge {
    type Item = LogEntry;

    fn next(&mut self) -> Option<LogEntry> {
        loop {
            let behind = self.feeds.iter().enumerate().min_by_key(|(_, feed)| feed.until);
            let behind = behind.map(|(at, feed)| (at, feed.until));
            let first = self.waiting.peek().map(|Reverse(first)| first.entry.start);
            let ready = match (first, behind) {
                (None, None) => return None,
                (Some(_), None) => true,
                (first, Some((_, until))) => {
                    let known = first.is_some_and(|first| first.plus(READ_AHEAD) <= until);
                    known || self.waiting.len() >= WAITING_MAX
                }
            };
            if let (false, Some((at, _))) = (ready, behind) {
                self.pull(at);
                continue;
            }
            let Reverse(WaitingEntry { mut entry, .. }) = self.waiting.pop()?;
            self.late += u64::from(entry.start.plus(LATE_MIN) < self.last);
            entry.start = entry.start.max(self.last);
            self.last = entry.start;
            return Some(entry);
        }
    }
}

#[cfg(test)]
mod tests;
