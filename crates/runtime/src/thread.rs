//! Threads that end together with their owner.
//!
//! Each thread receives its orders through a handle and ends when the handle is dropped; dropping a
//! [`OwnedThread`] waits for the end.

use std::io;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, LocalOptions};

/// The maximum number of task polls between two looks at the system's event queue. Each poll takes
/// microseconds, so timers are late by a millisecond or two at most. The runtime's default interval
/// is shorter and costs a busy thread a few percent of its time.
const POLLS_PER_EVENT_CHECK: u32 = 256;

/// A thread that runs until this value is dropped.
pub struct OwnedThread<S> {
    /// The handle for orders. Invariant: declared first, so that it is dropped before the thread is
    /// joined.
    pub orders: S,
    _joined: JoinOnDrop,
}

struct JoinOnDrop(Option<JoinHandle<()>>);

impl Drop for JoinOnDrop {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // An error means a panic, which has already been logged.
            let _ = thread.join();
        }
    }
}

impl<S> OwnedThread<S> {
    /// Starts `body`, which must end when `orders` is dropped.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub fn start(
        name: &str,
        orders: S,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<OwnedThread<S>> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(OwnedThread { orders, _joined: JoinOnDrop(Some(thread)) })
    }

    /// Starts `serve` on a runtime of the thread's own, where tasks do not need to be `Send`. When
    /// `serve` ends, all tasks are dropped, and then `ended`. A name lookup that is still running
    /// is not waited for.
    ///
    /// # Errors
    /// If the system provides no thread or no runtime.
    pub fn serve<F: Future<Output = ()>>(
        name: &str,
        orders: S,
        ended: impl Send + 'static,
        serve: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<OwnedThread<S>> {
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = OwnedThread::start(name, orders, move || match Builder::new_current_thread()
            .enable_all()
            .event_interval(POLLS_PER_EVENT_CHECK)
            .build_local(LocalOptions::default())
        {
            Ok(runtime) => {
                let _ = ready.send(Ok(()));
                runtime.block_on(async { serve().await });
                runtime.shutdown_background();
                drop(ended);
            }
            Err(error) => drop(ready.send(Err(error))),
        })?;
        is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("it ended immediately")))?;
        Ok(thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use tokio::sync::watch;

    /// Increments a counter when it is dropped.
    struct Noted(Arc<AtomicUsize>, usize);

    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.compare_exchange(self.1, self.1 + 1, SeqCst, SeqCst).expect("in order");
        }
    }

    #[test]
    fn it_is_told_and_then_waited_for() {
        let ends = Arc::<AtomicUsize>::default();
        let noted = |at| Noted(Arc::clone(&ends), at);
        let (orders, mut told) = watch::channel(());
        let (task, serving, ended) = (noted(1), noted(0), noted(2));
        let thread = OwnedThread::serve("test", orders, ended, move || async move {
            tokio::task::spawn_local(async move {
                let _task = task;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
            let _serving = serving;
            let _ = told.changed().await;
        });
        let thread = thread.expect("it starts");
        assert_eq!(ends.load(SeqCst), 0);
        drop(thread);
        assert_eq!(ends.load(SeqCst), 3, "its end was waited for");
    }
}
