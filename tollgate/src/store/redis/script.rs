//! The script that counts: what it is told of a counter, and what it answers.
//!
//! `count.lua` says what each argument means. The server keeps it under the hash of its text; one
//! that was started anew does not know it, says so, and is told it again with the question. What a
//! server answers is read here and nowhere else, and believed only as far as it can be.

use redis::{Pipeline, ServerError, ServerErrorKind, Value};
use std::sync::LazyLock;
use std::time::Duration;
use tollgate_core::units::{SECOND, Time};
use tollgate_core::windows::{Algorithm, Hit, Length};

/// The script.
const TEXT: &str = include_str!("count.lua");

static HASH: LazyLock<String> = LazyLock::new(|| {
    let hash =
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, TEXT.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
});

/// One counter that the store is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What it is called there.
    pub name: String,
    /// What is counted, and then what became of it.
    pub hit: Hit,
    /// How long its windows are.
    pub length: Length,
    /// The window is part of the name, which is kept for so long beyond it.
    pub compatible: Option<Duration>,
    /// It is in the store for counters of one second, if there is such.
    pub per_second: bool,
    /// What was counted when it was last seen here.
    pub known: u32,
    /// It has happened, and is counted whatever the limit.
    pub force: bool,
}

impl Ask {
    fn kind(&self) -> &'static str {
        match (self.hit.algorithm, self.length) {
            (Algorithm::Fixed, _) if self.compatible.is_some() => "c",
            (Algorithm::Fixed, Length::Seconds(_)) => "f",
            (Algorithm::Fixed, Length::Months(_)) => "m",
            (Algorithm::Sliding, Length::Seconds(_)) => "s",
            (Algorithm::Sliding, Length::Months(_)) => "n",
            (Algorithm::Bucket, _) => "b",
        }
    }

    fn length(&self) -> u64 {
        let seconds = u64::from(self.hit.window.seconds);
        match (self.hit.algorithm, self.compatible, self.length) {
            (Algorithm::Fixed, Some(jitter), _) => seconds + jitter.as_secs(),
            (Algorithm::Bucket, ..) => seconds,
            (_, _, Length::Seconds(count) | Length::Months(count)) => count.max(1).into(),
        }
    }

    fn end(&self) -> u32 {
        let windowless = self.hit.algorithm == Algorithm::Bucket || self.kind() == "c";
        if windowless { 0 } else { self.hit.window.end }
    }

    /// Takes over what the store says: the hits before and after, and its clock.
    pub fn answered(&mut self, before: u32, after: u32, now: Time) {
        (self.hit.before, self.hit.after) = (before, after);
        if self.kind() != "c" {
            self.hit.window = self.length.window(now);
        }
    }
}

/// Adds one call that counts all of `asks`. With `stop`, those within their limits are not counted
/// if another would go over.
pub fn call<'a>(
    pipeline: &mut Pipeline,
    asks: impl ExactSizeIterator<Item = &'a Ask> + Clone,
    stop: bool,
) {
    let call = pipeline.cmd("EVALSHA").arg(HASH.as_str()).arg(asks.len());
    for ask in asks.clone() {
        call.arg(ask.name.as_str());
    }
    call.arg(u8::from(stop));
    for ask in asks {
        let hits = i64::from(ask.hit.hits);
        call.arg(ask.kind())
            .arg(if ask.hit.give_back { -hits } else { hits })
            .arg(ask.hit.limit)
            .arg(ask.length())
            .arg(ask.known)
            .arg(ask.end())
            .arg(u8::from(ask.force));
    }
}

/// Adds a call that makes the script known.
pub fn load(pipeline: &mut Pipeline) {
    pipeline.cmd("SCRIPT").arg("LOAD").arg(TEXT);
}

/// Why a server did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not know the script.
    NoScript,
    /// Another node has this: `host:port`.
    Moved(String),
    /// Another node is about to have it, and is to be asked this once.
    Asking(String),
    /// It can do nothing for anybody at present.
    Unable(String),
    /// It will not do this.
    Wrong(String),
}

/// What a call counted: the server's clock, and the hits of each counter before and after.
///
/// # Errors
/// [`Refusal`].
pub fn read(answer: &Value, counters: usize) -> Result<(Time, Vec<(u32, u32)>), Refusal> {
    let wrong = || Refusal::Wrong("an answer that the script does not give".to_owned());
    let numbers = match answer {
        Value::Array(values) => values.as_slice(),
        Value::ServerError(error) => return Err(refusal(error)),
        _ => return Err(wrong()),
    };
    let mut numbers = numbers.iter().map(|value| match value {
        Value::Int(number) => Some(*number),
        _ => None,
    });
    let mut number = || numbers.next().flatten().ok_or_else(wrong);
    let (second, micro) = (number()?, number()?);
    let unsigned = |n: i64| u64::try_from(n).map_err(|_| wrong());
    let nanos = unsigned(micro)?.saturating_mul(1_000);
    let now = unsigned(second)?.saturating_mul(SECOND).saturating_add(nanos);
    let bounded = |n: i64| u32::try_from(n.max(0)).unwrap_or(u32::MAX);
    let mut pairs = Vec::with_capacity(counters);
    for _ in 0..counters {
        pairs.push((bounded(number()?), bounded(number()?)));
    }
    Ok((Time(now), pairs))
}

/// Whether a server took a call that answers with nothing to be read.
///
/// # Errors
/// [`Refusal`].
pub fn taken(answer: &Value) -> Result<(), Refusal> {
    match answer {
        Value::ServerError(error) => Err(refusal(error)),
        _ => Ok(()),
    }
}

/// Codes of servers that can do nothing at present, for whatever they are asked.
const UNABLE: [&str; 12] = [
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

fn refusal(error: &ServerError) -> Refusal {
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    let node = || {
        let at = error.details().and_then(|details| details.split(' ').nth(1));
        at.unwrap_or_default().to_owned()
    };
    match error.kind() {
        Some(ServerErrorKind::NoScript) => Refusal::NoScript,
        Some(ServerErrorKind::Moved) => Refusal::Moved(node()),
        Some(ServerErrorKind::Ask) => Refusal::Asking(node()),
        _ if UNABLE.contains(&error.code()) => Refusal::Unable(text),
        _ => Refusal::Wrong(text),
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
        let read = |counters| super::read(&numbers(&[7, 5, 1, 2, 3, 4]), counters);
        assert_eq!(read(2), Ok((Time(7 * SECOND + 5_000), vec![(1, 2), (3, 4)])));
        assert_eq!(read(0).map(|(_, pairs)| pairs), Ok(Vec::new()));
    }

    /// Whatever somebody who speaks for the store says, a request is decided.
    #[test]
    fn what_the_script_does_not_answer_is_refused_or_bounded() {
        let most = numbers(&[i64::MAX, i64::MAX, i64::MAX, i64::MIN]);
        assert_eq!(read(&most, 1), Ok((Time(u64::MAX), vec![(u32::MAX, 0)])));
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
            assert!(matches!(read(&wrong, 1), Err(Refusal::Wrong(_))), "{wrong:?}");
        }
    }
}
