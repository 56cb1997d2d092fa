//! Configuration: as written, checked, as it runs.

pub mod settings;
