//! One server, as one thread is connected to it: makes the connection, and again when it is lost.
//!
//! A link is good or it is not, and while it is not, nobody waits for it. It ceases to be good when
//! the connection ends, when the server says that it can do nothing at present, or when an answer
//! is overdue: then it is good again as soon as that answer has come, and if it has not come after
//! a second, the connection is made anew. So a server that is slow costs each request that is with
//! it the deadline once, and those behind nothing. Before a link is good, the server has to know
//! the script, and to have been told some of what it is owed.

mod bounded;
mod connect;

use super::lane::Lane;
use super::lane::asking::Question;
use super::script::{self, Ask, Refusal};
use crate::config::settings::store::{Server, StorePlace};
use crate::watch::counts::store::StoreCounts;
use connect::{Fault, Wire};
use evenkeel_core::units::Time;
use redis::{Pipeline, RedisError, Value};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Before the first attempt to connect again, twice as long before each further one,
const RETRY_MIN: Duration = Duration::from_millis(20);
/// up to this.
const RETRY_MAX: Duration = Duration::from_millis(500);
/// A connection on which an answer is overdue for so long is given up.
const STALLED: Duration = Duration::from_secs(1);
/// What has not been answered by then never will be.
const FORGOTTEN: Duration = Duration::from_secs(2);
const _: () = assert!(FORGOTTEN.as_nanos() > STALLED.as_nanos() + LOOK.as_nanos());
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Counters that a server is told of before it is asked for any.
const PROOF: usize = 64;

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missed {
    /// There is no good connection; the question was not sent.
    Away,
    /// The answer did not come in time, or never. The question may have had its effect.
    Late,
    /// The server refused it.
    Refused(String),
    /// The server refused it, and can do nothing at present.
    Unable(String),
}

/// One server of one thread.
pub struct Link {
    place: Arc<StorePlace>,
    /// `None`: the master that the sentinels name.
    server: Option<Server>,
    wire: RefCell<Option<Rc<Wire>>>,
    /// Whether the first attempt to connect has failed, or a connection was lost.
    failed: Cell<bool>,
}

impl Link {
    /// A link that is not connected.
    pub fn new(place: &Arc<StorePlace>, server: Option<Server>) -> Rc<Link> {
        let place = Arc::clone(place);
        Rc::new(Link { place, server, wire: RefCell::new(None), failed: Cell::new(false) })
    }

    /// Where it leads.
    pub fn name(&self) -> String {
        let first = self.server.as_ref().or(self.place.servers.first());
        first.map(|server| server.end.to_string()).unwrap_or_default()
    }

    /// The server, where it is a certain one.
    pub fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// The connection, if it may be asked on.
    fn good_wire(&self) -> Option<Rc<Wire>> {
        let wire = self.wire.borrow();
        wire.as_ref().filter(|wire| wire.may_be_asked()).cloned()
    }

    /// Whether questions are answered.
    pub fn is_good(&self) -> bool {
        self.good_wire().is_some()
    }

    /// Asks, and waits until `deadline`. An answer that comes later makes the link good again, and
    /// is given to `late`.
    pub async fn ask(
        &self,
        pipeline: Pipeline,
        deadline: Instant,
        late: impl FnOnce(Vec<Value>) + 'static,
    ) -> Result<Vec<Value>, Missed> {
        let wire = self.good_wire().ok_or(Missed::Away)?;
        let mut answer = Box::pin(send(Rc::clone(&wire), pipeline));
        match tokio::time::timeout_at(deadline, &mut answer).await {
            Ok(Ok(values)) => Ok(values),
            Ok(Err(why)) => {
                wire.break_off(wire.fault(why).to_string());
                Err(Missed::Late)
            }
            Err(_) => {
                wire.overdue.set(wire.overdue.get() + 1);
                tokio::task::spawn_local(async move {
                    let answer = timeout(FORGOTTEN, answer).await;
                    wire.overdue.set(wire.overdue.get().saturating_sub(1));
                    if let Ok(Ok(values)) = answer {
                        late(values);
                    }
                });
                Err(Missed::Late)
            }
        }
    }

    /// Gives the connection up: the server can do nothing at present.
    pub fn give_up(&self, why: &str) {
        self.wire.borrow().iter().for_each(|wire| wire.break_off(why.to_owned()));
    }

    /// Nobody wants it any more. What is with the server may still be answered.
    pub fn end(&self, counts: &StoreCounts) {
        let wire = self.wire.borrow_mut().take();
        if wire.is_some() || self.failed.get() {
            counts.gone(wire.is_some());
        }
    }

    /// Keeps the link good, for as long as there is somebody to ask.
    pub async fn keep(self: Rc<Self>, lane: Weak<Lane>, within: Duration) {
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
                    // A server that can do nothing says so to all who have asked: the connection is
                    // closed when the last of them has heard.
                    self.wire.borrow_mut().take();
                    self.failed.set(true);
                    counts.failed(true, &self.name(), &why);
                    // One that fails at once is not a good one.
                    if Duration::from_nanos(clock.now().since(opened).0) >= RETRY_MAX {
                        wait = Duration::ZERO;
                    }
                }
                Err(why) if self.failed.replace(true) => lane.counts().still(&why.to_string()),
                Err(why) => lane.counts().failed(false, &self.name(), &why.to_string()),
            }
        }
    }

    fn set_good(&self, lane: &Lane, wire: Wire) {
        self.wire.replace(Some(Rc::new(wire)));
        lane.counts().good(self.failed.replace(false));
    }

    /// A connection that has shown that it can be used.
    async fn open(self: &Rc<Self>, lane: &Lane, within: Duration) -> Result<Wire, Fault> {
        let wire = match &self.server {
            Some(server) => connect::connect(&self.place, server, within).await?,
            None => connect::connect_to_master(&self.place, within).await?,
        };
        let mut proof = Pipeline::new();
        proof.cmd("SET").arg(lane.proof(self)).arg(1).arg("XX");
        script::load(&mut proof);
        let answers = exchange(&wire, &proof, within).await?;
        let unable = script::unable(answers.iter().skip(1));
        // Who may write its counters may write no other key.
        let cannot = script::unable(answers.iter().take(1)).filter(|why| !why.contains("NOPERM"));
        if let Some(why) = cannot.or(unable) {
            return Err(Fault::Unable(why));
        }
        if self.failed.get() {
            lane.has_returned();
        }
        let owed = lane.owed_to(self, PROOF);
        if owed.is_empty() {
            return Ok(wire);
        }
        let answers = exchange(&wire, &calls(&owed), within).await;
        let mut each = answers.iter().flatten();
        for ask in owed {
            lane.told(ask, each.next().map_or(Err(Missed::Late), read));
        }
        script::unable(answers?.iter()).map_or(Ok(wire), |why| Err(Fault::Unable(why)))
    }

    /// Until the connection is lost or given up.
    async fn until_broken(&self) -> String {
        let Some(wire) = self.wire.borrow().clone() else { return String::new() };
        let mut stalled = Duration::ZERO;
        loop {
            tokio::select! {
                () = wire.news.notified() => return wire.end(),
                () = sleep(LOOK) => {}
            }
            stalled = if wire.overdue.get() > 0 { stalled + LOOK } else { Duration::ZERO };
            if stalled >= STALLED {
                wire.close();
                return format!("no answer for {STALLED:?}");
            }
        }
    }
}

/// What is answered for one counter that a server was told of.
fn read(answer: &Value) -> Result<((u32, u32), Time), Missed> {
    match Ask::read(answer, 1) {
        Ok((now, pairs)) => pairs.first().map(|pair| (*pair, now)).ok_or(Missed::Late),
        Err(Refusal::Wrong(why)) => Err(Missed::Refused(why)),
        Err(_) => Err(Missed::Away),
    }
}

/// What a connection that nobody else asks on yet answers in time.
async fn exchange(wire: &Wire, pipeline: &Pipeline, within: Duration) -> Result<Vec<Value>, Fault> {
    let mut redis = wire.redis();
    let asked = redis.send_packed_commands(pipeline, 0, pipeline.len());
    let answered = timeout(within, asked).await.map_err(|_| Fault::Late(within))?;
    answered.map_err(|why| wire.fault(why))
}

/// Sends what was put together and waits for all answers.
async fn send(wire: Rc<Wire>, pipeline: Pipeline) -> Result<Vec<Value>, RedisError> {
    let mut redis = wire.redis();
    let count = pipeline.len();
    redis.send_packed_commands(&pipeline, 0, count).await
}

/// What the store is told of these.
pub fn calls(asks: &[Ask]) -> Pipeline {
    let mut pipeline = Pipeline::new();
    (0..asks.len()).for_each(|at| Ask::call(&mut pipeline, asks, &[at], false));
    pipeline
}
