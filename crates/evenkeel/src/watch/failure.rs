//! One failure of the backend, as it is logged.
//!
//! A site that is down is found out by this line, so it says which backend, how it failed and what
//! the system says of it. Which lines are written: `watch` and `sampler`; what a client did wrong
//! is no failure of the backend and is not told here.

use super::counts::BackendFault;
use std::error::Error;
use std::fmt;
use std::net::IpAddr;

/// How the backend failed whom.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a> {
    /// In which way.
    pub fault: BackendFault,
    /// The backend's authority, as the settings have it.
    pub backend: &'a str,
    /// Whose request it was.
    pub client: IpAddr,
    /// What the system or the parser says, if that is how it was noticed.
    pub error: Option<&'a (dyn Error + 'static)>,
}

impl Failure<'_> {
    /// Writes the line.
    pub fn log(&self) {
        tracing::warn!(
            target: "evenkeel::backend",
            kind = self.fault.name(),
            backend = self.backend,
            client = %self.client,
            error = self.error.map(|error| Causes(error).to_string()),
            "the backend failed a request"
        );
    }
}

/// An error with all its causes, in one line; one whose words are there already is not repeated.
struct Causes<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !said.contains(&more) {
                said.push_str(": ");
                said.push_str(&more);
            }
            cause = error.source();
        }
        f.write_str(&said)
    }
}
