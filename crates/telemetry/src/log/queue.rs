//! The queue of log lines, and the thread that writes them.
//!
//! A line is put into the queue without waiting. A line that finds the queue full is lost and
//! counted. The reader of the log may have stopped for good, so the end of the thread is waited
//! for with a deadline.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// How long the end of a log waits until its lines are written.
const END_MAX: Duration = Duration::from_secs(1);

/// Where lines go in.
pub struct LogQueue {
    lines: SyncSender<Vec<u8>>,
    lost: Arc<AtomicUsize>,
}

/// The thread that writes the lines. When this is dropped, lines that wait are still written, for
/// at most a second; later ones are lost.
pub struct LogWriter {
    lines: SyncSender<Vec<u8>>,
    lost: Arc<AtomicUsize>,
    ending: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl LogQueue {
    /// Starts a thread that writes to `out`, behind a queue of `lines_max` lines.
    pub fn start(
        lines_max: usize,
        out: impl Write + Send + 'static,
    ) -> io::Result<(LogQueue, LogWriter)> {
        let (lines, waiting) = sync_channel(lines_max);
        let (end, ended) = sync_channel(1);
        let (lost, ending) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let to_end = Arc::clone(&ending);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || {
            write(&waiting, out, &to_end);
            drop((waiting, end));
        })?;
        let queue = LogQueue { lines: lines.clone(), lost: Arc::clone(&lost) };
        Ok((queue, LogWriter { lines, lost, ending, ended }))
    }
}

/// Writes lines until the log is to end and none waits.
fn write(lines: &Receiver<Vec<u8>>, mut out: impl Write, ending: &AtomicBool) {
    while let Ok(first) = lines.recv() {
        let mut line = Some(first);
        while let Some(text) = line {
            // There is no other place to tell of it.
            let _ = out.write_all(&text);
            line = lines.try_recv().ok();
        }
        let _ = out.flush();
        if ending.load(SeqCst) {
            break;
        }
    }
}

impl LogWriter {
    /// Lines lost so far because the queue was full.
    pub fn lost(&self) -> usize {
        self.lost.load(Relaxed)
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.ending.store(true, SeqCst);
        // An empty line wakes the thread. A full queue needs none: the thread is awake, or stuck.
        let _ = self.lines.try_send(Vec::new());
        // Nothing is sent: the thread's end closes the channel.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

impl Write for &LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(line.to_vec()).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = &'a LogQueue;

    fn make_writer(&'a self) -> &'a LogQueue {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// A reader that says when it was given a line, and takes it when it is allowed to.
    struct Slow {
        given: SyncSender<()>,
        go: Receiver<()>,
        paper: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.given.send(());
            let _ = self.go.recv();
            self.paper.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_waits_is_written_at_the_end_and_what_finds_no_room_is_counted() {
        let ((given, is_given), (allow, go)) = (sync_channel(0), sync_channel(0));
        let paper = Arc::<Mutex<Vec<u8>>>::default();
        let slow = Slow { given, go, paper: Arc::clone(&paper) };
        let (queue, writer) = LogQueue::start(2, slow).expect("a thread");
        (&queue).write_all(b"1").expect("never fails");
        is_given.recv().expect("the thread has taken the first line");
        for line in [b"2", b"3", b"4", b"5"] {
            (&queue).write_all(line).expect("never fails");
        }
        assert_eq!(writer.lost(), 2);
        drop((is_given, allow));
        drop(writer);
        assert_eq!(paper.lock()[..], *b"123");
        (&queue).write_all(b"6").expect("never fails");
        assert_eq!(queue.lost.load(Relaxed), 3, "after the end");
    }

    #[test]
    fn a_reader_that_has_stopped_is_not_waited_for_without_end() {
        let ((given, _is_given), (_allow, go)) = (sync_channel(0), sync_channel(0));
        let slow = Slow { given, go, paper: Arc::default() };
        let (queue, writer) = LogQueue::start(1, slow).expect("a thread");
        (&queue).write_all(b"1").expect("never fails");
        drop(writer);
    }
}
