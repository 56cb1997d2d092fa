//! The certificate that the service shows, for each of its two protocols.
//!
//! Both come from the same files and differ in what is agreed on to be spoken (ALPN): HTTP/2 for
//! gRPC, HTTP/1.1 for JSON and health. How files become what is shown, and are looked after: `tls`.

use crate::config::settings::tls::ServerTls;
use crate::tls::live::{Live, Made};
use crate::tls::pem::Fault;
use crate::tls::{client_name, server, server_files};
use crate::watch::registry::Registry;
use evenkeel_core::units::Time;
use rustls::ServerConfig;
use std::sync::Arc;

/// What is shown to those who connect.
pub struct Shown {
    /// Where gRPC is spoken.
    pub grpc: Arc<ServerConfig>,
    /// Where HTTP/1.1 is.
    pub http: Arc<ServerConfig>,
}

impl Shown {
    /// Reads the files, and keeps what they hold.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn load(tls: ServerTls, now: Time, registry: &Registry) -> Result<Live<Shown>, Fault> {
        let paths = server_files(&tls);
        let make = move |files: &[_]| {
            let Made { value: grpc, validity } = server(files, client_name(&tls), &[b"h2"])?;
            let mut http = ServerConfig::clone(&grpc);
            http.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok(Made { value: Shown { grpc, http: Arc::new(http) }, validity })
        };
        Live::load("ratelimit", paths, make, now, registry)
    }
}
