//! The link of one thread to one server: makes the connection, and makes it again when it is lost.
//!
//! A link is either good or not, and while it is not, no request waits for it. A link stops being
//! good when the connection ends, when the server reports that it cannot work at present, or when
//! an answer is overdue. In the last case the link is good again as soon as that answer has
//! arrived, and if it has not arrived after a second, the connection is replaced. So a slow server
//! delays each request that is waiting for it once, by at most the deadline, and delays no later
//! request. What must be done before a link is good: `lane::background`.

mod bounded;
pub mod connect;

use super::script::MissedAnswer;
use connect::{RedisConnectError, RedisConnection};
use evenkeel_config::settings::store::{StoreServer, StoreServers};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::counts::store::StoreCounts;
use redis::{Pipeline, Value};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// The first pause before a new attempt to connect. Each further one is twice as long.
const RETRY_MIN: Duration = Duration::from_millis(20);
/// The longest pause before a new attempt to connect.
const RETRY_MAX: Duration = Duration::from_millis(500);
/// A connection with an answer overdue for this long is given up.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// The time after the deadline for which a late answer is still awaited. Longer than it takes to
/// give up a stalled connection.
const LATE_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const _: () = assert!(
    LATE_ANSWER_TIMEOUT.as_nanos() > STALLED_AFTER.as_nanos() + OVERDUE_CHECK_INTERVAL.as_nanos()
);
/// The interval at which a connection is checked for overdue answers.
const OVERDUE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The link of one thread to one server.
pub struct ServerLink {
    place: Arc<StoreServers>,
    /// The server; `None` for the master that the sentinels name.
    server: Option<StoreServer>,
    wire: RefCell<Option<Rc<RedisConnection>>>,
    /// Whether the first attempt to connect has failed, or the last connection was lost.
    failed: Cell<bool>,
    /// The task that keeps the link good.
    pub keeper: OnceCell<AbortHandle>,
}

impl ServerLink {
    /// Makes a link without a connection.
    pub fn new(place: &Arc<StoreServers>, server: Option<StoreServer>) -> Rc<ServerLink> {
        let place = Arc::clone(place);
        let (wire, failed, keeper) = (RefCell::default(), Cell::default(), OnceCell::new());
        Rc::new(ServerLink { place, server, wire, failed, keeper })
    }

    /// The address of the server, or of the first sentinel.
    pub fn name(&self) -> String {
        let first = self.server.as_ref().or(self.place.servers.first());
        first.map(|server| server.end.to_string()).unwrap_or_default()
    }

    /// The server, if it is fixed.
    pub fn server(&self) -> Option<&StoreServer> {
        self.server.as_ref()
    }

    /// The connection, if it is usable now.
    fn good_wire(&self) -> Option<Rc<RedisConnection>> {
        let wire = self.wire.borrow();
        wire.as_ref().filter(|wire| wire.may_be_asked()).cloned()
    }

    /// Whether the link is good, so that it may be asked.
    pub fn is_good(&self) -> bool {
        self.good_wire().is_some()
    }

    /// Sends a question and waits for the answer until `deadline`. A later answer makes the link
    /// good again and is passed to `late`.
    pub async fn ask(
        &self,
        pipeline: Pipeline,
        deadline: Instant,
        late: impl FnOnce(Vec<Value>) + 'static,
    ) -> Result<Vec<Value>, MissedAnswer> {
        let wire = self.good_wire().ok_or(MissedAnswer::Away)?;
        let asked = Rc::clone(&wire);
        let mut answer = Box::pin(async move { asked.send(&pipeline).await });
        match tokio::time::timeout_at(deadline, &mut answer).await {
            Ok(Ok(values)) => Ok(values),
            Ok(Err(why)) => {
                wire.break_off(why.to_string());
                Err(MissedAnswer::Late)
            }
            Err(_) => {
                wire.overdue.set(wire.overdue.get() + 1);
                tokio::task::spawn_local(async move {
                    let answer = timeout(LATE_ANSWER_TIMEOUT, answer).await;
                    wire.overdue.set(wire.overdue.get().saturating_sub(1));
                    if let Ok(Ok(values)) = answer {
                        late(values);
                    }
                });
                Err(MissedAnswer::Late)
            }
        }
    }

    /// Gives the connection up, because the server cannot work at present.
    pub fn give_up(&self, why: &str) {
        self.wire.borrow().iter().for_each(|wire| wire.break_off(why.to_owned()));
    }

    /// Ends the link, because it is no longer used. Pending questions may still be answered.
    pub fn end(&self, counts: &StoreCounts) {
        self.keeper.get().into_iter().for_each(AbortHandle::abort);
        let wire = self.wire.borrow_mut().take();
        if wire.is_some() || self.failed.get() {
            counts.mark_closed(wire.is_some());
        }
    }

    /// Keeps the link good until `open` returns `None`, which makes a connection and proves that it
    /// is usable.
    pub async fn keep(
        self: Rc<Self>,
        clock: Clock,
        counts: Arc<StoreCounts>,
        open: impl AsyncFn(&Rc<Self>) -> Option<Result<RedisConnection, RedisConnectError>>,
    ) {
        let mut wait = Duration::ZERO;
        loop {
            sleep(wait).await;
            wait = (wait * 2).clamp(RETRY_MIN, RETRY_MAX);
            match open(&self).await {
                None => return,
                Some(Ok(wire)) => {
                    self.wire.replace(Some(Rc::new(wire)));
                    counts.mark_good(self.failed.replace(false));
                    let opened = clock.now();
                    let why = self.until_broken().await;
                    // A server that cannot work tells all pending requests so. Each of them holds
                    // the connection, so it is closed only when the last one has its answer.
                    self.wire.borrow_mut().take();
                    self.failed.set(true);
                    counts.mark_failed(true, &self.name(), &why);
                    // A connection that fails at once does not reset the pause.
                    if Duration::from_nanos(clock.now().since(opened).0) >= RETRY_MAX {
                        wait = Duration::ZERO;
                    }
                }
                Some(Err(why)) if self.failed.replace(true) => {
                    counts.update_failure(&why.to_string())
                }
                Some(Err(why)) => counts.mark_failed(false, &self.name(), &why.to_string()),
            }
        }
    }

    /// Makes a connection, without using it for the link.
    ///
    /// # Errors
    /// [`RedisConnectError`].
    pub async fn connect(&self, within: Duration) -> Result<RedisConnection, RedisConnectError> {
        match &self.server {
            Some(server) => connect::connect(&self.place, server, within).await,
            None => connect::connect_to_master(&self.place, within).await,
        }
    }

    /// Whether the first attempt to connect has failed, or the last connection was lost.
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Waits until the connection is lost or given up, and returns the reason.
    async fn until_broken(&self) -> String {
        let Some(wire) = self.wire.borrow().clone() else { return String::new() };
        let mut stalled = Duration::ZERO;
        loop {
            tokio::select! {
                () = wire.news.notified() => return wire.end(),
                () = sleep(OVERDUE_CHECK_INTERVAL) => {}
            }
            stalled = if wire.overdue.get() > 0 {
                stalled + OVERDUE_CHECK_INTERVAL
            } else {
                Duration::ZERO
            };
            if stalled >= STALLED_AFTER {
                wire.close();
                return format!("no answer for {STALLED_AFTER:?}");
            }
        }
    }
}
