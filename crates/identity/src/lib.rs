//! The client of a request, as far as headers and name servers identify it.
//!
//! Doors use `address` to find the client's address behind trusted proxies. The engine uses `hosts`
//! to find the rules for a client's host name, which `lookup` resolves in the background. `visit`
//! knows visitors again by what they have waited. `prints` are fingerprints of the program that a
//! client uses. `answer` writes short answers in the format that a client accepts, `waiting_page`
//! the page for visitors that have to wait; `waiting_room` reads what both need from files.
//! Decisions and counts are made in the engine, not here.

pub mod address;
pub mod answer;
pub mod hosts;
pub mod lookup;
pub mod networks;
pub mod prints;
pub mod refusal_pages;
pub mod robots;
pub mod signature;
pub mod visit;
pub mod waiting_page;
pub mod waiting_room;
