//! TLS for connections to a store: like other outgoing connections, but the name in the server's
//! certificate may be ignored.
//!
//! The connections themselves are made in `store::redis`.

use super::client;
use super::pem::{self, TlsFileError};
use super::{provider, verify};
use evenkeel_config::settings::store::StoreTls;
use evenkeel_config::settings::tls::ClientTls;
use evenkeel_config::source::files::WatchedFiles;
use rustls::client::ResolvesClientCert;
use rustls::sign::SingleCertAndKey;
use rustls::{ALL_VERSIONS, ClientConfig};
use std::sync::Arc;

/// Builds the configuration for a connection. The files are read again each time.
///
/// # Errors
/// [`TlsFileError`], with the file that caused it.
pub fn config(tls: &StoreTls) -> Result<Arc<ClientConfig>, TlsFileError> {
    let named = ClientTls { ca: tls.ca.clone(), identity: tls.identity.clone(), name: None };
    if !tls.any_name {
        return client::config(&named, &[]);
    }
    let verifier = verify::AnyNameVerifier::new(client::roots(&named)?, provider());
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(ALL_VERSIONS)
        .map_err(TlsFileError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let Some((cert, key)) = &tls.identity else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let files = WatchedFiles::new(vec![cert.clone(), key.clone()]).read()?;
    let identity = pem::identity(super::of(&files, 0)?, super::of(&files, 1)?)?;
    let key: Arc<dyn ResolvesClientCert> = Arc::new(SingleCertAndKey::from(identity.key));
    Ok(Arc::new(builder.with_client_cert_resolver(key)))
}
