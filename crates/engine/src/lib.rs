//! The decision engine of requests, as the doors share it: the limiter, the meter and the lists of
//! the heaviest clients. It reads the clock and counts the outcomes.
//!
//! It makes no decisions (the core does) and knows no protocol (the doors do). A door asks through
//! its [`EngineLane`] and gets a [`Charge`], the open account of one request. A charge settles
//! itself when it is dropped, however the request ended. The order in which locks are taken:
//! [`Engine`]. How requests wait for a slot: `charge/turn`.

mod admission;
mod ask;
mod backends;
mod charge;
mod client_network;
mod engine;
mod forecast;
mod host_names;
mod known_request;
mod lane;
mod lookups;
mod open_guard;
mod open_requests;
mod outcome;
mod pending;
mod robots;
mod rules;
mod shards;
mod swarm;

pub mod domains;
pub mod replicated;
pub mod tags;
pub mod turns;
pub mod view;
pub mod windows;

pub use admission::{AdmissionStats, VisitorStats, WaitingRoomCounts};
pub use ask::AskOutcome;
pub use backends::{
    BackendId, BackendOccupation, BackendReport, EngineReport, SharedBackend, SharedBackends,
    WatchedPages,
};
pub use charge::quotas::Quota;
pub use charge::served::{ServedReport, StartWait};
pub use charge::turn::{QueueAdmission, QueueTurn, TurnResult};
pub use charge::{Charge, CostCallback, TokenCosts};
pub use engine::{Engine, WatchedProcessors};
pub use lane::{EngineLane, PlaybackNote};
pub use open_requests::{OpenRequest, OpenRequestList, RequestStage};
pub use pending::PendingRequest;
pub use rules::RequestRefusal;
pub use swarm::BurningReport;
pub use view::HeavyClient;
