//! One failure of the backend, as it is logged.
//!
//! Operators discover an outage by this line, so it says which backend, how it failed and the error
//! of the system. `Watch` and `sampler` decide which lines are written. Errors of a client are no
//! failures of the backend and are not logged here.

use super::counts::BackendFault;
use std::error::Error;
use std::fmt;
use std::net::IpAddr;

/// A request that the backend failed.
#[derive(Clone, Copy, Debug)]
pub struct BackendFailure<'a> {
    /// How the backend failed.
    pub fault: BackendFault,
    /// The authority of the backend, as configured.
    pub backend: &'a str,
    /// The client that made the request.
    pub client: IpAddr,
    /// The error of the system or of the parser, if there was one.
    pub error: Option<&'a (dyn Error + 'static)>,
}

impl BackendFailure<'_> {
    /// Writes the line as a warning.
    pub fn log(&self) {
        tracing::warn!(
            target: "evenkeel::backend",
            kind = self.fault.name(),
            backend = self.backend,
            client = %self.client,
            error = self.error.map(|error| ErrorChain(error).to_string()),
            "the backend failed a request"
        );
    }
}

/// An error with all its causes in one line. A cause is left out if the text already contains it.
struct ErrorChain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
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
