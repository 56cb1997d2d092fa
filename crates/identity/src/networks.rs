//! Facts about networks from files: AS number and country of an address, and lists of addresses.
//!
//! `address_table` holds ranges of addresses in memory. `database` reads files with an AS number or
//! a country for each range (`tsv`, `mmdb`), `address_list` the addresses that operators of robots
//! publish. `live` follows the changes of all files, `file_status` shows them, `trial` tests them
//! before a start. No file is fetched: the operator of the site has them.

pub mod address_list;
pub mod address_table;
pub mod database;
pub mod file_status;
pub mod live;
mod mmdb;
pub mod network_field;
mod network_file;
mod trial;
mod tsv;

pub use network_file::{DATABASE_BYTES_MAX, LIST_BYTES_MAX, NetworkFileError};
pub use trial::{notes, start_problems};
