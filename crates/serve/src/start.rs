//! Why a server could not start: one error for all doors, with advice for the operator.
//!
//! A message names the door, the address or the file, the system's error, and what to do. Errors of
//! a server that runs belong to each door.

use evenkeel_config::fault::ConfigFaults;
use std::error::Error;
use std::fmt::Display;
use std::io;

/// Why a server could not start. If there is an error, no part of it runs.
#[derive(Debug, thiserror::Error)]
pub enum ServerStartError {
    /// The server cannot listen on an address.
    #[error("{door}: cannot listen on {address}: {error}; {advice}")]
    Listen {
        /// The name of the door.
        door: &'static str,
        /// The address from the settings, or the path of a socket file.
        address: String,
        /// The error that the system returned.
        error: io::Error,
        /// The remedy for the operator.
        advice: &'static str,
    },
    /// The system refuses a thread or an event queue.
    #[error("{door}: cannot start a thread: {error}; raise the limits on threads and open files")]
    Thread {
        /// The name of the door.
        door: &'static str,
        /// The error that the system returned.
        error: io::Error,
    },
    /// Something that the settings name cannot be used, such as a certificate.
    #[error("{door}: {error}")]
    Settings {
        /// The name of the door.
        door: &'static str,
        /// What cannot be used, and why.
        error: Box<dyn Error + Send + Sync>,
    },
    /// Another file that the settings name has faults.
    #[error(transparent)]
    File(#[from] ConfigFaults),
}

impl ServerStartError {
    /// Returns a function that turns the system's error on `address` into a start error.
    pub fn listen(
        door: &'static str,
        address: impl Display,
    ) -> impl Fn(io::Error) -> ServerStartError {
        let address = address.to_string();
        move |error| {
            let advice = advice(&error);
            ServerStartError::Listen { door, address: address.clone(), error, advice }
        }
    }

    /// Returns a function that turns an error about the settings of `door` into a start error.
    pub fn settings<E: Into<Box<dyn Error + Send + Sync>>>(
        door: &'static str,
    ) -> impl Fn(E) -> ServerStartError {
        move |error| ServerStartError::Settings { door, error: error.into() }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse if error.get_ref().is_some() => {
            "write the address exactly as it was inherited"
        }
        io::ErrorKind::AddrInUse => {
            "another program uses it: stop that program, or name another address"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have this address: name one of its own, or 0.0.0.0"
        }
        io::ErrorKind::AlreadyExists => {
            "a file that is not a socket exists there: name another path"
        }
        io::ErrorKind::NotFound => "create its folder first",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE, and a socket file needs a folder that \
             this user may write to"
        }
        _ => "name another address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_which_door_which_address_and_what_to_do() {
        let error = |kind: io::ErrorKind| {
            ServerStartError::listen("line", &"127.0.0.1:80")(kind.into()).to_string()
        };
        for (kind, advice) in [
            (io::ErrorKind::AddrInUse, "another program uses it"),
            (io::ErrorKind::AddrNotAvailable, "this machine does not have this address"),
            (io::ErrorKind::PermissionDenied, "CAP_NET_BIND_SERVICE"),
            (io::ErrorKind::OutOfMemory, "name another address"),
        ] {
            let text = error(kind);
            assert!(text.starts_with("line: cannot listen on 127.0.0.1:80: "), "{text}");
            assert!(text.contains(advice), "{text}");
        }
        let near = io::Error::new(io::ErrorKind::AddrInUse, "inherited: [::]:80");
        let text = ServerStartError::listen("line", &"0.0.0.0:80")(near).to_string();
        assert!(text.ends_with("[::]:80; write the address exactly as it was inherited"), "{text}");
    }
}
