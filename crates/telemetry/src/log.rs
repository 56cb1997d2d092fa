//! The log: lines of text or JSON on standard error.
//!
//! A line stays one line and moves no cursor, whatever a stranger sent: the writer escapes control
//! characters once more, however the field was written. `Watch` decides which decisions get a line.
//!
//! If standard error is the journal of systemd, each line of text begins with its priority
//! (`sd-daemon(3)`), which the journal removes. So `journalctl -p warning` finds warnings.
//!
//! A thread of its own writes the lines from a bounded queue. The reader of standard error may be
//! slow or stop, and no request waits for it. Lines that find the queue full are lost and counted.

mod queue;

use super::printable::printable;
use evenkeel_config::settings::{LogFormat, LogLevel, LogSettings};
use evenkeel_config::variables;
use queue::{LogQueue, LogWriter};
use std::io::{self, Write};
use std::os::fd::AsFd;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// The maximum number of lines that wait to be written.
const QUEUE_LINES_MAX: usize = 4_096;

/// The handle that changes the level of the log while it runs.
type LevelHandle = reload::Handle<LevelFilter, tracing_subscriber::Registry>;

/// The running log. When it is dropped, it writes the lines that still wait, for a second at most.
pub struct LogThread {
    filter: LevelHandle,
    writer: LogWriter,
}

impl LogThread {
    /// Applies the level of a changed configuration. The format is a restart-only key.
    pub fn reload(&self, log: LogSettings) {
        // This fails only if the log is gone, and then there is no place to report it.
        let _ = self.filter.reload(level(log.level));
    }

    /// The number of lines lost so far because the reader of standard error was too slow.
    pub fn lost(&self) -> usize {
        self.writer.lost()
    }
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// This process has one already.
    #[error("the log is already set up")]
    Taken,
    /// The system gives no thread.
    #[error("cannot start the thread of the log: {0}")]
    Thread(#[from] io::Error),
}

/// Sends all log lines from now on to standard error.
///
/// # Errors
/// [`InstallError::Taken`] when called twice in one process; or the system gives no thread.
pub fn install(log: LogSettings) -> Result<LogThread, InstallError> {
    let (queue, writer) = LogQueue::start(QUEUE_LINES_MAX, io::stderr())?;
    let journal = is_journal(variables::journal_stream().as_deref(), io::stderr());
    let (subscriber, filter) = subscriber(log, journal, queue);
    subscriber.try_init().map_err(|_| InstallError::Taken)?;
    Ok(LogThread { filter, writer })
}

/// Whether a file is the journal of systemd, by its device and inode in `JOURNAL_STREAM`
/// (`systemd.exec(5)`). It is not if only the starting program logs to the journal.
fn is_journal(stream: Option<&str>, file: impl AsFd) -> bool {
    let named = stream.and_then(|stream| stream.split_once(':'));
    let Some((device, inode)) = named else { return false };
    rustix::fs::fstat(file)
        .is_ok_and(|found| device.parse() == Ok(found.st_dev) && inode.parse() == Ok(found.st_ino))
}

/// The subscriber that [`install`] uses, with any writer. `journal`: lines of text begin with their
/// priority.
fn subscriber<W>(
    log: LogSettings,
    journal: bool,
    writer: W,
) -> (impl Subscriber + Send + Sync, LevelHandle)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(level(log.level));
    // What matters of the events of these crates, Evenkeel logs itself. With their own lines, a
    // stranger could fill the log: `h2` logs each unexpected frame.
    let ours = filter_fn(|line| {
        let from = |part: &str| line.target().split("::").next() == Some(part);
        !(from("async_nats") || from("h2") && *line.level() <= Level::WARN)
    });
    let priorities = journal && log.format == LogFormat::Text;
    let writer = EscapingMakeWriter { writer, priorities };
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    let lines = match log.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    (tracing_subscriber::registry().with(filter).with(ours).with(lines), handle)
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// A maker of writers that escape their lines, and write the priority before each if `priorities`.
struct EscapingMakeWriter<W> {
    writer: W,
    priorities: bool,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for EscapingMakeWriter<W> {
    type Writer = EscapingWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        EscapingWriter { writer: self.writer.make_writer(), priority: "" }
    }

    fn make_writer_for(&'a self, line: &Metadata<'_>) -> Self::Writer {
        let priority = if self.priorities { priority(*line.level()) } else { "" };
        EscapingWriter { writer: self.writer.make_writer(), priority }
    }
}

/// The priority of a line as the journal reads it.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// Escapes all hidden characters in a line except its final line feed. Each `write` gets a whole
/// line.
struct EscapingWriter<W> {
    writer: W,
    priority: &'static str,
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let body = text.strip_suffix('\n').unwrap_or(&text);
        let safe = format!("{}{}\n", self.priority, printable(body));
        self.writer.write_all(safe.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests;
