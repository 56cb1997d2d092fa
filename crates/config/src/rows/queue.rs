//! The keys of `proxy.queue`: how requests wait for capacity at the backend.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use super::super::keys::{ConfigKey, DefaultedKey, SectionTable, ValueSyntax};
use super::super::settings::ConcurrencySetting;
use super::super::values::{Read, count, within};
use evenkeel_core::units::Nanos;

/// Upper bound of `concurrency`, `reserve` and `known_max`.
const SLOTS_MAX: usize = 1_000_000;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "proxy.queue",
    keys: &[&CONCURRENCY, &RESERVE, &DEBT_MAX, &LEN_MAX, &WAIT_MAX, &KNOWN_MAX],
};

pub(crate) static CONCURRENCY: DefaultedKey<ConcurrencySetting> = ConfigKey::new(
    "concurrency",
    ValueSyntax::Whole(&["auto"]),
    concurrency,
    "Number of requests that the backend works on at once. `auto` finds it by measuring.",
)
.range_note("1 to 1 000 000, or `auto`")
.low("the backend is idle while requests wait")
.high("requests wait inside the backend, in no fair order")
.default(ConcurrencySetting::Auto);

pub(crate) static RESERVE: ConfigKey<usize> = ConfigKey::whole(
    "reserve",
    "Additional slots for clients in credit that have no request at the backend and ask for \
     little compared with the requests there. Never more than the backend accepts, which is \
     measured.",
)
.within(0, SLOTS_MAX)
.low("new clients wait for a running request to end, or for each other")
.high("a swarm of new clients overloads the backend")
.default_note("two per CPU, at least two");

pub(crate) static DEBT_MAX: ConfigKey<Nanos> = ConfigKey::duration(
    "debt_max",
    "Upper bound of the debt of a bucket, in CPU time. A limit may have its own.",
)
.within(Nanos::from_millis(1), Nanos::from_secs(86_400))
.low("a heavy client soon has full priority again")
.high("a heavy client pays for longer than any other client benefits")
.default_note("the burst of the bucket")
.example("30s");

pub(crate) static LEN_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "len_max",
    "Maximum number of requests that wait, some 500 bytes each. When the queue is full, the newest \
     request of the client or network with most waiting requests gets 503 with `Retry-After`.",
)
.within(1, 1_000_000)
.low("bursts are refused")
.high("memory, and waits that clients give up on")
.default(4_096);

pub(crate) static WAIT_MAX: DefaultedKey<Nanos> = ConfigKey::duration(
    "wait_max",
    "The longest time that a request waits in the queue. Then it gets 503 with `Retry-After`.",
)
.within(Nanos::from_millis(1), Nanos::from_secs(86_400))
.low("refusals instead of waits")
.high("connections stay open for long")
.default(Nanos::from_secs(30));

pub(crate) static KNOWN_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "known_max",
    "Number of clients that are remembered as established, 36 bytes each: clients whose first \
     request came at least two minutes ago and was followed by at least seven more. All others \
     share one turn, behind clients in credit, which protects against swarms with a new address \
     for each request. `0`: all clients are treated alike.",
)
.within(0, SLOTS_MAX)
.low("a client that comes seldom is new at each visit")
.high("memory")
.default(0);

fn concurrency(text: &str) -> Read<ConcurrencySetting> {
    if text == "auto" {
        return Ok(ConcurrencySetting::Auto);
    }
    let slots = within(count(text)?, 1..=SLOTS_MAX as u64).map(|n| n as usize);
    slots.map(ConcurrencySetting::Fixed).map_err(|why| format!("{why}, or auto"))
}
