//! The scripts, the arguments of `count.lua`, and the answers of servers.
//!
//! The scripts document their arguments. Those of `account.lua` are built in `account`. A server
//! stores scripts under the hashes of their texts. After a restart it does not know them, answers
//! with an error, and gets them again together with the question. Answers are read here, and
//! implausible values are refused or bounded. Which server is asked: `servers`.

use evenkeel_core::units::{SECOND, Time};
use evenkeel_core::windows::{Hit, WindowAlgorithm, WindowLength};
use redis::{Pipeline, ServerError, ServerErrorKind, Value};
use std::sync::LazyLock;
use std::time::Duration;

/// A script that servers store under the hash of its text.
pub struct Script {
    text: &'static str,
    hash: LazyLock<String>,
}

/// The script that counts windows and buckets of the rate limit service.
pub static COUNT: Script = Script { text: COUNT_TEXT, hash: LazyLock::new(|| hash(COUNT_TEXT)) };
/// The script that charges buckets of the other doors.
pub static ACCOUNT: Script =
    Script { text: ACCOUNT_TEXT, hash: LazyLock::new(|| hash(ACCOUNT_TEXT)) };

const COUNT_TEXT: &str = include_str!("script/count.lua");
const ACCOUNT_TEXT: &str = include_str!("script/account.lua");

fn hash(text: &str) -> String {
    let hash =
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Script {
    /// Adds a call with these keys. Returns the pipeline, to which the caller adds the arguments.
    pub fn call<'p, 'a>(
        &self,
        pipeline: &'p mut Pipeline,
        keys: impl ExactSizeIterator<Item = &'a str>,
    ) -> &'p mut Pipeline {
        let call = pipeline.cmd("EVALSHA").arg(self.hash.as_str()).arg(keys.len());
        keys.for_each(|key| _ = call.arg(key));
        call
    }
}

/// A question to a script about one key.
pub trait ScriptQuestion: Clone + 'static {
    /// The answer for one key.
    type Answer;
    /// The options that apply to all keys of a call.
    type How: Copy + 'static;

    /// The key in the store.
    fn name(&self) -> &str;

    /// Whether the key is in the store for counters of one second, if that is separate.
    fn per_second(&self) -> bool {
        false
    }

    /// Whether the question has a call of its own, so that its refusal affects no other question.
    fn alone(&self) -> bool {
        false
    }

    /// Adds one call with the questions at these places.
    fn call(pipeline: &mut Pipeline, asks: &[Self], places: &[usize], how: Self::How);

    /// Reads the answer to a call with `count` keys. Returns the server's time and the answers.
    ///
    /// # Errors
    /// [`ServerRefusal`].
    fn read(value: &Value, count: usize) -> Result<(Time, Vec<Self::Answer>), ServerRefusal>;
}

/// The answer to a question with the server's time, or why there is none.
pub type TimedAnswer<A> = Result<(A, Time), MissedAnswer>;

/// A question about one counter, and its answer.
#[derive(Clone, Debug)]
pub struct CounterAsk {
    /// The counter's key in the store.
    pub name: String,
    /// The hits to count, and then the result.
    pub hit: Hit,
    /// The length of the counter's windows.
    pub length: WindowLength,
    /// Set for a compatible key, which has the window in its name: the time for which the key is
    /// kept beyond its window.
    pub compatible: Option<Duration>,
    /// Whether the key is in the store for counters of one second, if that is separate.
    pub per_second: bool,
    /// The latest count that the store is known to have had.
    pub known: u32,
    /// Whether the hits have happened already and are counted whatever the limit.
    pub force: bool,
    /// Whether the store was unreachable recently, and may have lost a part of `known`.
    pub returned: bool,
}

impl CounterAsk {
    fn kind(&self) -> &'static str {
        match (self.hit.algorithm, self.length) {
            (WindowAlgorithm::Fixed, _) if self.compatible.is_some() => "c",
            (WindowAlgorithm::Fixed, WindowLength::Seconds(_)) => "f",
            (WindowAlgorithm::Fixed, WindowLength::Months(_)) => "m",
            (WindowAlgorithm::Sliding, WindowLength::Seconds(_)) => "s",
            (WindowAlgorithm::Sliding, WindowLength::Months(_)) => "n",
            (WindowAlgorithm::Bucket, _) => "b",
        }
    }

    fn length(&self) -> u64 {
        let seconds = u64::from(self.hit.window.seconds);
        match (self.hit.algorithm, self.compatible, self.length) {
            (WindowAlgorithm::Fixed, Some(jitter), _) => seconds + jitter.as_secs(),
            (WindowAlgorithm::Bucket, ..) => seconds,
            (_, _, WindowLength::Seconds(count) | WindowLength::Months(count)) => {
                count.max(1).into()
            }
        }
    }

    fn end(&self) -> u32 {
        let windowless = self.hit.algorithm == WindowAlgorithm::Bucket || self.kind() == "c";
        if windowless { 0 } else { self.hit.window.end }
    }

    /// Applies the store's answer: the hits before and after, and its time.
    pub fn apply(&mut self, answer: (u32, u32), now: Time) {
        (self.hit.before, self.hit.after) = answer;
        if self.kind() != "c" {
            self.hit.window = self.length.window(now);
        }
    }
}

impl ScriptQuestion for CounterAsk {
    type Answer = (u32, u32);
    /// Whether counters within their limits are not counted if another one would go over its limit.
    type How = bool;

    fn name(&self) -> &str {
        &self.name
    }

    fn per_second(&self) -> bool {
        self.per_second
    }

    fn call(pipeline: &mut Pipeline, asks: &[CounterAsk], places: &[usize], stop: bool) {
        let call = COUNT.call(pipeline, places.iter().map(|at| asks[*at].name.as_str()));
        call.arg(u8::from(stop));
        for ask in places.iter().map(|at| &asks[*at]) {
            let hits = i64::from(ask.hit.hits);
            call.arg(ask.kind())
                .arg(if ask.hit.give_back { -hits } else { hits })
                .arg(ask.hit.limit)
                .arg(ask.length())
                .arg(ask.known)
                .arg(ask.end())
                .arg(u8::from(ask.force) + 2 * u8::from(ask.returned));
        }
    }

    fn read(value: &Value, count: usize) -> Result<(Time, Vec<(u32, u32)>), ServerRefusal> {
        let (now, numbers) = numbers(value, 2 * count)?;
        let bounded = |n: i64| u32::try_from(n.max(0)).unwrap_or(u32::MAX);
        let (pairs, _) = numbers.as_chunks::<2>();
        let pairs = pairs.iter().map(|[before, after]| (bounded(*before), bounded(*after)));
        Ok((now, pairs.collect()))
    }

    fn alone(&self) -> bool {
        self.force
    }
}

/// Adds the commands that make the scripts known to a server.
pub fn load(pipeline: &mut Pipeline) {
    for script in [&COUNT, &ACCOUNT] {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text);
    }
}

/// Why a server did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerRefusal {
    /// The server does not know the script.
    NoScript,
    /// The node at `host:port` has the slot.
    Moved(String),
    /// The slot is being moved to the node at `host:port`, which must be asked for this call.
    Asking(String),
    /// The server cannot work at present, whatever the command.
    Unable(String),
    /// The server refuses this command, or the answer is malformed.
    Wrong(String),
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissedAnswer {
    /// There is no good connection. The question was not sent, or had no effect.
    Away,
    /// The answer did not arrive in time, or never. The question may have had its effect.
    Late,
    /// The server refused the question.
    Refused(String),
    /// The server refused the question, because it cannot work at present.
    Unable(String),
}

impl MissedAnswer {
    /// Whether the question certainly had no effect, and may have one later.
    pub const fn may_be_repeated(&self) -> bool {
        matches!(self, MissedAnswer::Away | MissedAnswer::Unable(_))
    }
}

impl From<ServerRefusal> for MissedAnswer {
    fn from(refusal: ServerRefusal) -> MissedAnswer {
        match refusal {
            ServerRefusal::Unable(why) => MissedAnswer::Unable(why),
            ServerRefusal::Wrong(why) => MissedAnswer::Refused(why),
            _ => MissedAnswer::Away,
        }
    }
}

/// Reads the answer of a script: the server's time, and `count` numbers.
///
/// # Errors
/// [`ServerRefusal`].
pub fn numbers(answer: &Value, count: usize) -> Result<(Time, Vec<i64>), ServerRefusal> {
    let wrong = || ServerRefusal::Wrong("an answer that the script does not give".to_owned());
    let values = match answer {
        Value::Array(values) => values.as_slice(),
        Value::ServerError(error) => return Err(refusal(error)),
        _ => return Err(wrong()),
    };
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let numbers = values.iter().take(2 + count).map(number).collect::<Option<Vec<i64>>>();
    let mut numbers = numbers.filter(|all| all.len() == 2 + count).ok_or_else(wrong)?;
    let rest = numbers.split_off(2);
    let [second, micro] = numbers[..] else { return Err(wrong()) };
    let unsigned = |n: i64| u64::try_from(n).map_err(|_| wrong());
    let nanos = unsigned(micro)?.saturating_mul(1_000);
    Ok((Time(unsigned(second)?.saturating_mul(SECOND).saturating_add(nanos)), rest))
}

/// The reason why a server cannot work at present, if one of the answers gives one.
pub fn unable<'a>(mut answers: impl Iterator<Item = &'a Value>) -> Option<String> {
    answers.find_map(|answer| match answer {
        Value::ServerError(error) => match refusal(error) {
            ServerRefusal::Unable(why) => Some(why),
            _ => None,
        },
        _ => None,
    })
}

/// Why the server cannot write, by the first answer.
pub fn unable_to_write(answers: &[Value]) -> Option<String> {
    // The user may have the right to write its counters and no other key.
    unable(answers.iter().take(1)).filter(|why| !why.contains("NOPERM"))
}

/// The error codes of a server that cannot work at present, whatever the command.
const UNABLE_CODES: [&str; 12] = [
    "OOM",
    "READONLY",
    "LOADING",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "TRYAGAIN",
];

/// The longest reason that is kept of a refusal, in bytes. Errors of Redis have some hundred.
const WHY_BYTES_MAX: usize = 512;

fn refusal(error: &ServerError) -> ServerRefusal {
    let mut text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    text.truncate(text.floor_char_boundary(WHY_BYTES_MAX));
    let node = || {
        let at = error.details().and_then(|details| details.split(' ').nth(1));
        at.unwrap_or_default().to_owned()
    };
    match error.kind() {
        Some(ServerErrorKind::NoScript) => ServerRefusal::NoScript,
        Some(ServerErrorKind::Moved) => ServerRefusal::Moved(node()),
        Some(ServerErrorKind::Ask) => ServerRefusal::Asking(node()),
        _ if UNABLE_CODES.contains(&error.code()) => ServerRefusal::Unable(text),
        _ => ServerRefusal::Wrong(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().map(|number| Value::Int(*number)).collect())
    }

    #[test]
    fn answers_are_read() {
        let read = |counters| CounterAsk::read(&numbers(&[7, 5, 1, 2, 3, 4]), counters);
        assert_eq!(read(2), Ok((Time(7 * SECOND + 5_000), vec![(1, 2), (3, 4)])));
        assert_eq!(read(0).map(|(_, pairs)| pairs), Ok(Vec::new()));
    }

    #[test]
    fn of_what_a_server_says_why_the_beginning_is_kept() {
        for (code, unable) in [("ERR", false), ("OOM", true)] {
            let answer = format!("-{code} {}\r\n", "\u{e9}".repeat(300_000));
            let answer = redis::parse_redis_value(answer.as_bytes()).expect("an answer");
            let Err(refusal) = CounterAsk::read(&answer, 1) else { panic!("{code}") };
            let (is_unable, why) = match refusal {
                ServerRefusal::Wrong(why) => (false, why),
                ServerRefusal::Unable(why) => (true, why),
                other => panic!("{other:?}"),
            };
            assert_eq!(is_unable, unable);
            assert!(why.starts_with(&format!("{code} \u{e9}\u{e9}")), "{why}");
            assert!((500..=WHY_BYTES_MAX).contains(&why.len()), "{}", why.len());
        }
    }

    /// A malformed answer, even from an impostor, never prevents a decision on a request.
    #[test]
    fn what_the_script_does_not_answer_is_refused_or_bounded() {
        let most = numbers(&[i64::MAX, i64::MAX, i64::MAX, i64::MIN]);
        assert_eq!(CounterAsk::read(&most, 1), Ok((Time(u64::MAX), vec![(u32::MAX, 0)])));
        let long = |value: Value| Value::Array(vec![value; 4]);
        for wrong in [
            Value::Nil,
            Value::Okay,
            Value::Int(1),
            numbers(&[]),
            numbers(&[1, 2, 3]),
            numbers(&[-1, 2, 3, 4]),
            numbers(&[1, -2, 3, 4]),
            long(Value::Nil),
            long(Value::BulkString(b"1".to_vec())),
            long(Value::Array(Vec::new())),
        ] {
            assert!(
                matches!(CounterAsk::read(&wrong, 1), Err(ServerRefusal::Wrong(_))),
                "{wrong:?}"
            );
        }
    }
}
