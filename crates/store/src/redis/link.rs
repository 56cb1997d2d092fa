//! The link of one thread to one server: makes the connection, and makes it again when it is lost.
//!
//! A link is either good or not, and while it is not, no request waits for it. A link stops being
//! good when the connection ends, when the server reports that it cannot work at present, or when
//! an answer is overdue. In the last case the link is good again as soon as that answer has
//! arrived, and if it has not arrived after a second, the connection is replaced. So a slow server
//! delays each request that is waiting for it once, by at most the deadline, and delays no later
//! request. Before a link is good, the server must know the scripts and must have received a part
//! of the pending hits.

mod bounded;
mod connect;

use super::lane::StoreLane;
use super::lane::asking::ScriptQuestion;
use super::script::{self, CounterAsk, ServerRefusal};
use connect::{RedisConnectError, RedisConnection};
use evenkeel_config::settings::store::{StoreServer, StoreServers};
use evenkeel_core::units::Time;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::counts::store::StoreCounts;
use redis::{Pipeline, RedisError, Value};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
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
/// The number of counters to report to a server before it is asked for any.
const PROOF_REPORTS_MAX: usize = 64;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissedAnswer {
    /// There is no good connection. The question was not sent.
    Away,
    /// The answer did not arrive in time, or never. The question may have had its effect.
    Late,
    /// The server refused the question.
    Refused(String),
    /// The server refused the question, because it cannot work at present.
    Unable(String),
}

/// The link of one thread to one server.
pub struct ServerLink {
    place: Arc<StoreServers>,
    /// The server; `None` for the master that the sentinels name.
    server: Option<StoreServer>,
    wire: RefCell<Option<Rc<RedisConnection>>>,
    /// Whether the first attempt to connect has failed, or the last connection was lost.
    failed: Cell<bool>,
}

impl ServerLink {
    /// Makes a link without a connection.
    pub fn new(place: &Arc<StoreServers>, server: Option<StoreServer>) -> Rc<ServerLink> {
        let place = Arc::clone(place);
        Rc::new(ServerLink { place, server, wire: RefCell::new(None), failed: Cell::new(false) })
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
        let mut answer = Box::pin(send(Rc::clone(&wire), pipeline));
        match tokio::time::timeout_at(deadline, &mut answer).await {
            Ok(Ok(values)) => Ok(values),
            Ok(Err(why)) => {
                wire.break_off(wire.fault(why).to_string());
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

    /// Checks that the server still answers and can work, if the connection is good. Otherwise the
    /// connection is no longer good afterwards.
    pub async fn check(self: &Rc<Self>, lane: &StoreLane) {
        if !self.is_good() {
            return;
        }
        let deadline = Clock::deadline(lane.patience());
        // Without an answer, `ask` has marked the connection itself.
        let Ok(answers) = self.ask(proof(lane, self), deadline, |_| {}).await else { return };
        if let Some(why) = unable(&answers) {
            self.give_up(&why);
        }
    }

    /// Gives the connection up, because the server cannot work at present.
    pub fn give_up(&self, why: &str) {
        self.wire.borrow().iter().for_each(|wire| wire.break_off(why.to_owned()));
    }

    /// Ends the link, because it is no longer used. Pending questions may still be answered.
    pub fn end(&self, counts: &StoreCounts) {
        let wire = self.wire.borrow_mut().take();
        if wire.is_some() || self.failed.get() {
            counts.mark_closed(wire.is_some());
        }
    }

    /// Keeps the link good until the lane is dropped.
    pub async fn keep(self: Rc<Self>, lane: Weak<StoreLane>, within: Duration) {
        let mut wait = Duration::ZERO;
        loop {
            sleep(wait).await;
            wait = (wait * 2).clamp(RETRY_MIN, RETRY_MAX);
            let Some(lane) = lane.upgrade() else { return };
            match self.open(&lane, within).await {
                Ok(wire) => {
                    self.set_good(&lane, wire);
                    let (clock, opened) = (lane.clock(), lane.now());
                    let counts = Arc::clone(lane.counts());
                    drop(lane);
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
                Err(why) if self.failed.replace(true) => {
                    lane.counts().update_failure(&why.to_string())
                }
                Err(why) => lane.counts().mark_failed(false, &self.name(), &why.to_string()),
            }
        }
    }

    fn set_good(&self, lane: &StoreLane, wire: RedisConnection) {
        self.wire.replace(Some(Rc::new(wire)));
        lane.counts().mark_good(self.failed.replace(false));
    }

    /// Makes a connection and proves that it is usable.
    async fn open(
        self: &Rc<Self>,
        lane: &StoreLane,
        within: Duration,
    ) -> Result<RedisConnection, RedisConnectError> {
        let wire = match &self.server {
            Some(server) => connect::connect(&self.place, server, within).await?,
            None => connect::connect_to_master(&self.place, within).await?,
        };
        let mut proof = proof(lane, self);
        script::load(&mut proof);
        let answers = exchange(&wire, &proof, within).await?;
        let (cannot, scripts) = (unable(&answers), script::unable(answers.iter().skip(1)));
        if let Some(why) = cannot.or(scripts) {
            return Err(RedisConnectError::Unable(why));
        }
        if self.failed.get() {
            lane.note_server_returned();
        }
        let owed = lane.take_reports_for(self, PROOF_REPORTS_MAX);
        if owed.is_empty() {
            return Ok(wire);
        }
        let answers = exchange(&wire, &calls(&owed), within).await;
        let mut each = answers.iter().flatten();
        for ask in owed {
            lane.told(ask, each.next().map_or(Err(MissedAnswer::Late), read));
        }
        script::unable(answers?.iter()).map_or(Ok(wire), |why| Err(RedisConnectError::Unable(why)))
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

/// A command that shows whether the server of `link` can write, and that leaves no trace.
fn proof(lane: &StoreLane, link: &Rc<ServerLink>) -> Pipeline {
    let mut proof = Pipeline::new();
    proof.cmd("SET").arg(lane.proof(link)).arg(1).arg("XX");
    proof
}

/// Why the server cannot work, by its first answer, which is the one to [`proof`].
fn unable(answers: &[Value]) -> Option<String> {
    // The user may have the right to write its counters and no other key.
    script::unable(answers.iter().take(1)).filter(|why| !why.contains("NOPERM"))
}

/// Reads the answer to the report of one counter.
fn read(answer: &Value) -> Result<((u32, u32), Time), MissedAnswer> {
    match CounterAsk::read(answer, 1) {
        Ok((now, pairs)) => pairs.first().map(|pair| (*pair, now)).ok_or(MissedAnswer::Late),
        Err(ServerRefusal::Wrong(why)) => Err(MissedAnswer::Refused(why)),
        Err(_) => Err(MissedAnswer::Away),
    }
}

/// Runs commands on a connection that is not in use yet, and waits for the answers within a
/// timeout.
async fn exchange(
    wire: &RedisConnection,
    pipeline: &Pipeline,
    within: Duration,
) -> Result<Vec<Value>, RedisConnectError> {
    let mut redis = wire.redis();
    let asked = redis.send_packed_commands(pipeline, 0, pipeline.len());
    let answered = timeout(within, asked).await.map_err(|_| RedisConnectError::Late(within))?;
    answered.map_err(|why| wire.fault(why))
}

/// Sends the commands of a pipeline and waits for all answers.
async fn send(wire: Rc<RedisConnection>, pipeline: Pipeline) -> Result<Vec<Value>, RedisError> {
    let mut redis = wire.redis();
    let count = pipeline.len();
    redis.send_packed_commands(&pipeline, 0, count).await
}

/// The commands that report these counters, one call for each.
pub fn calls(asks: &[CounterAsk]) -> Pipeline {
    let mut pipeline = Pipeline::new();
    (0..asks.len()).for_each(|at| CounterAsk::call(&mut pipeline, asks, &[at], false));
    pipeline
}
