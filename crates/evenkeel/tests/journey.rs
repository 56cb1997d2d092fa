//! Journeys: the real binary in front of a real site (nginx and PHP-FPM), with real clients.
//!
//! The tests check Evenkeel's own accounting (its decision log and metrics), compared with itself
//! and with the answers that clients get, so that a slow machine does not change any result.
//! Journeys run one at a time. They need nginx and PHP-FPM, which `ci/test` installs; without them
//! a journey fails with a message.

#[path = "journey/front/abuse.rs"]
mod abuse;
#[path = "journey/actions.rs"]
mod actions;
#[path = "journey/front/check.rs"]
mod check;
#[path = "journey/client.rs"]
mod client;
#[path = "journey/conservation.rs"]
mod conservation;
#[path = "journey/state/crash.rs"]
mod crash;
#[path = "journey/front/door.rs"]
mod door;
#[path = "journey/front/ext_proc.rs"]
mod ext_proc;
#[path = "journey/front/ext_proc_endpoint.rs"]
mod ext_proc_endpoint;
#[path = "journey/front/ext_proc_models.rs"]
mod ext_proc_models;
#[path = "journey/front/ext_proc_streams.rs"]
mod ext_proc_streams;
#[path = "journey/front/facts.rs"]
mod facts;
#[path = "journey/front.rs"]
mod front;
#[path = "journey/gate.rs"]
mod gate;
#[path = "journey/front/hand.rs"]
mod hand;
#[path = "journey/front/keeper.rs"]
mod keeper;
#[path = "journey/life.rs"]
mod life;
#[path = "journey/model_server.rs"]
mod model_server;
#[path = "journey/front/names.rs"]
mod names;
#[path = "journey/front/readings.rs"]
mod readings;
#[path = "journey/front/robots.rs"]
mod robots;
#[path = "journey/site.rs"]
mod site;
#[path = "journey/state.rs"]
mod state;
#[path = "journey/swarm.rs"]
mod swarm;
#[path = "journey/table.rs"]
mod table;
#[path = "journey/tempomat.rs"]
mod tempomat;
#[path = "journey/turns.rs"]
mod turns;
