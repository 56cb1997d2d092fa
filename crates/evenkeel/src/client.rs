//! Who the client of a request is, as far as headers and name servers tell.
//!
//! Doors ask `address` who asks, behind whatever proxies are trusted. The engine asks `hosts` what
//! a client counts as by its name, and `lookup` finds that out beside everything else. `form`
//! has what a client is told, as it likes it. What is counted, and by what, the engine knows;
//! nothing is decided here.

pub mod address;
pub mod form;
pub mod hosts;
pub mod lookup;
