//! One count for all instances, in Redis or Valkey.
//!
//! One script counts all counters of a request in one round trip, on the server's own clock, so
//! several instances together never grant more than the limit (`script`, `count.lua`). Each thread
//! has a `lane` of its own, with connections that never leave the thread (`link`), a map of the
//! servers' keys (`route`), and access to the hits and charges that still have to be reported to
//! the store (`pending`). A request waits for the store no longer than the deadline. After that,
//! and while the store is unreachable, this process decides by its own counts and reports to the
//! store later. Other instances' counts are learned from each answer (`store`), so that these
//! decisions include them.

mod account;
mod lane;
mod link;
mod name;
mod pending;
mod route;
mod script;
mod servers;
mod store;

pub use account::StoreAccount;
pub use lane::{StoreLane, StoreUnansweredError};
pub use name::KeyNaming;
pub use script::CounterAsk;
pub use store::RedisStore;
