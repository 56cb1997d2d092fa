//! Who the client of a request is, as far as headers and name servers tell.
//!
//! Doors ask `address` who asks, behind whatever proxies are trusted. What is counted, and by what,
//! the engine knows; nothing is decided here.

pub mod address;
