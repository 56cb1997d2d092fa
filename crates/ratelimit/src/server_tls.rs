//! The server certificate, as a TLS configuration for each of the two protocols.
//!
//! Both configurations come from the same files and differ in the protocol that ALPN offers: HTTP/2
//! for gRPC, HTTP/1.1 for JSON and health checks. How the files are read and reloaded: `tls`.

use arc_swap::ArcSwap;
use evenkeel_config::settings::tls::ServerTls;
use evenkeel_core::units::Time;
use evenkeel_telemetry::registry::Registry;
use evenkeel_tls::pem::TlsFileError;
use evenkeel_tls::reload::{BuiltFromFiles, LiveValue};
use evenkeel_tls::{client_name, server, server_files};
use rustls::ServerConfig;
use std::sync::Arc;

/// The current TLS configurations, which a reload replaces.
pub type LiveTls = Arc<ArcSwap<RatelimitTls>>;

/// The TLS configurations of the service.
pub struct RatelimitTls {
    /// The configuration for gRPC ports.
    pub grpc: Arc<ServerConfig>,
    /// The configuration for the port that serves HTTP/1.1.
    pub http: Arc<ServerConfig>,
}

impl RatelimitTls {
    /// Reads the files and returns a value that can be reloaded when they change.
    pub fn load(
        tls: ServerTls,
        now: Time,
        registry: &Registry,
    ) -> Result<LiveValue<RatelimitTls>, TlsFileError> {
        let paths = server_files(&tls);
        let make = move |files: &[_]| {
            let BuiltFromFiles { value: grpc, validity } =
                server(files, client_name(&tls), &[b"h2"])?;
            let mut http = ServerConfig::clone(&grpc);
            http.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok(BuiltFromFiles { value: RatelimitTls { grpc, http: Arc::new(http) }, validity })
        };
        LiveValue::load("ratelimit", paths, make, now, registry)
    }
}
