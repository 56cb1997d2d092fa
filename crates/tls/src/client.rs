//! TLS for outgoing connections: trusted authorities and the own certificate.
//!
//! The files are read again for each new connection, which is rare. So a renewed certificate is
//! used by the next connection, and no other component has to check for changes. A faulty file
//! fails only that attempt, which is logged.

use super::pem;
use super::provider::provider;
use super::verify::AnyServerVerifier;
use evenkeel_config::settings::tls::ClientTls;
use evenkeel_config::settings::{BackendProtocol, BackendTls};
use evenkeel_config::source::files::WatchedFiles;
use pem::TlsFileError;
use rustls::client::WantsClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ALL_VERSIONS, ClientConfig, ConfigBuilder, RootCertStore};
use std::path::PathBuf;
use std::sync::Arc;

/// Builds the configuration for connections to a server with one of `protocols` (ALPN).
///
/// # Errors
/// [`TlsFileError`], with the file that caused it.
pub fn config(tls: &ClientTls, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsFileError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(ALL_VERSIONS)
        .map_err(TlsFileError::Library)?
        .with_root_certificates(roots(tls)?);
    finished(builder, tls, protocols)
}

fn finished(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    tls: &ClientTls,
    protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsFileError> {
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let files = read(vec![cert.clone(), key.clone()])?;
            let identity = pem::identity(super::of(&files, 0)?, super::of(&files, 1)?)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.key)))
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

/// Builds the configuration for the proxy's connections to its backends.
///
/// # Errors
/// [`TlsFileError`], with the file that caused it.
pub fn backend(tls: &BackendTls) -> Result<Arc<ClientConfig>, TlsFileError> {
    let protocols: &[&[u8]] = match tls.protocol {
        BackendProtocol::Auto => &[b"h2", b"http/1.1"],
        BackendProtocol::Http1 => &[b"http/1.1"],
        BackendProtocol::Http2 => &[b"h2"],
    };
    if tls.verify {
        return config(&tls.client, protocols);
    }
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(ALL_VERSIONS)
        .map_err(TlsFileError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServerVerifier::new(provider())));
    finished(builder, &tls.client, protocols)
}

/// The name that the server's certificate must be valid for, which is also sent as SNI.
///
/// # Errors
/// [`TlsFileError::Name`] if no certificate can contain it.
pub fn name(tls: &ClientTls, host: &str) -> Result<ServerName<'static>, TlsFileError> {
    let name = tls.name.as_deref().unwrap_or(host);
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    ServerName::try_from(bare.to_owned()).map_err(|_| TlsFileError::Name(name.to_owned()))
}

/// The trusted authorities.
pub(super) fn roots(tls: &ClientTls) -> Result<RootCertStore, TlsFileError> {
    if let Some(ca) = &tls.ca {
        return pem::authorities(super::of(&read(vec![ca.clone()])?, 0)?);
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TlsFileError::NoAuthorities) } else { Ok(roots) }
}

fn read(
    paths: Vec<PathBuf>,
) -> Result<Vec<evenkeel_config::source::files::WatchedFile>, TlsFileError> {
    Ok(WatchedFiles::new(paths).read()?)
}
