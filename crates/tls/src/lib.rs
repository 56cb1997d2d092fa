//! TLS: the certificates that Evenkeel shows, the ones that it trusts, and their renewal at
//! runtime.
//!
//! All of them come from PEM files (`pem`). The TLS configurations are built here and kept up to
//! date by `live`, so a renewed certificate needs no restart. The users select how peers are
//! verified (`verify`), and whether there is one certificate for all names or several to choose
//! from (`names`). No connection is opened here.

pub mod client;
pub mod live;
mod names;
pub mod pem;
pub mod store;
mod verify;

use evenkeel_config::settings::tls::{FrontTls, ServerTls};
use evenkeel_config::settings::{Backend, Proxy, Settings};
use evenkeel_config::source::files::{File, Files};
use evenkeel_config::{Found, Stumble};
use pem::Fault;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ALL_VERSIONS, ClientConfig, RootCertStore, ServerConfig};
use std::path::PathBuf;
use std::sync::Arc;

/// Makes aws-lc the default cryptography for crates that do not select one. An earlier choice in
/// this process is kept.
pub fn install() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Problems of a start with the TLS files of `peers`, `proxy`, `ratelimit` and `traces`.
#[must_use]
pub fn stumbles(settings: &Settings) -> Found {
    let mut found: Vec<Stumble> = Vec::new();
    let read = |paths: Vec<PathBuf>| Files::new(paths).read().map_err(Fault::from);
    if let Some(tls) = settings.peers.as_ref().and_then(|peers| peers.tls.as_ref()) {
        let files = read(vec![tls.cert.clone(), tls.key.clone(), tls.ca.clone()]);
        let made = files.and_then(|files| peers(&files));
        found.extend(made.err().map(|fault| (&["peers", "tls"][..], fault.to_string())));
    }
    if let Some(tls) = settings.proxy.as_ref().and_then(|proxy| proxy.tls.as_ref()) {
        let made = read(front_files(tls)).and_then(|files| front(&files, tls, true));
        found.extend(made.err().map(|fault| (&["proxy", "tls"][..], fault.to_string())));
    }
    let secured = |proxy: &&Proxy| proxy.backends.iter().any(Backend::is_secured);
    if let Some(proxy) = settings.proxy.as_ref().filter(secured) {
        let made = client::backend(&proxy.backend_tls).err();
        found.extend(made.map(|fault| (&["proxy", "backend_tls"][..], fault.to_string())));
    }
    if let Some(tls) = settings.ratelimit.as_ref().and_then(|door| door.tls.as_ref()) {
        let files = read(server_files(tls));
        let made = files.and_then(|files| server(&files, client_name(tls), &[]));
        found.extend(made.err().map(|fault| (&["ratelimit", "tls"][..], fault.to_string())));
    }
    let xds = settings.ratelimit.as_ref().and_then(|door| door.xds.as_ref());
    if let Some(tls) = xds.and_then(|xds| xds.tls.as_ref()) {
        let made = client::config(tls, &[]).err();
        found.extend(made.map(|fault| (&["ratelimit", "xds", "tls"][..], fault.to_string())));
    }
    if let Some(traces) = settings.traces.as_ref().filter(|one| one.collector.endpoint.tls) {
        let made = client::config(&traces.collector.tls, &[]).err();
        found.extend(made.map(|fault| (&["traces", "tls"][..], fault.to_string())));
    }
    Found { faults: found, ..Found::default() }
}

/// The name that clients' certificates must be valid for.
#[must_use]
pub fn client_name(tls: &ServerTls) -> Option<&str> {
    tls.clients.as_ref().and_then(|clients| clients.name.as_deref())
}

/// Both ends of connections between peers. Each end shows the same certificate and trusts the same.
#[derive(Clone, Debug)]
pub struct Ends {
    /// Configuration for accepted connections.
    pub server: Arc<ServerConfig>,
    /// Configuration for outgoing connections.
    pub client: Arc<ClientConfig>,
}

/// Paths of a server's files, in the order that [`server`] expects.
#[must_use]
pub fn server_files(tls: &ServerTls) -> Vec<PathBuf> {
    let ca = tls.clients.iter().map(|clients| clients.ca.clone());
    [tls.cert.clone(), tls.key.clone()].into_iter().chain(ca).collect()
}

/// Builds the TLS configuration of a server that accepts `protocols` (ALPN). `files` are those of
/// [`server_files`]. If `name` is given, clients' certificates must be valid for it.
///
/// # Errors
/// [`Fault`], with the file that caused it.
pub fn server(
    files: &[File],
    name: Option<&str>,
    protocols: &[&[u8]],
) -> Result<live::Made<Arc<ServerConfig>>, Fault> {
    let identity = pem::identity(of(files, 0)?, of(files, 1)?)?;
    let clients = match files.get(2) {
        None => Arc::new(NoClientAuth) as Arc<dyn ClientCertVerifier>,
        Some(ca) => clients(ca, name)?,
    };
    let key = SingleCertAndKey::from(identity.key);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(ALL_VERSIONS)
        .map_err(Fault::Library)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(key));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(live::Made { value: Arc::new(config), validity: identity.validity })
}

/// Paths of the proxy's files, in the order that [`front`] expects.
#[must_use]
pub fn front_files(tls: &FrontTls) -> Vec<PathBuf> {
    let certificates = tls.certificates.iter().flat_map(|(cert, key)| [cert, key]);
    let ca = tls.clients.iter().map(|clients| &clients.ca);
    certificates.chain(ca).cloned().collect()
}

/// Builds the TLS configuration of the proxy: it selects the certificate by the requested name, and
/// sends session tickets that make the next handshake cheaper. It offers HTTP/1.1, and HTTP/2 if
/// `http2` is set. `files` are those of [`front_files`].
///
/// # Errors
/// [`Fault`], with the file that caused it.
pub fn front(
    files: &[File],
    tls: &FrontTls,
    http2: bool,
) -> Result<live::Made<Arc<ServerConfig>>, Fault> {
    let pairs = files.chunks_exact(2).take(tls.certificates.len());
    let identities = pairs.map(|pair| pem::identity(of(pair, 0)?, of(pair, 1)?));
    let identities = identities.collect::<Result<Vec<_>, Fault>>()?;
    let validity = identities.iter().map(|identity| identity.validity);
    let validity = validity.reduce(pem::Validity::both).ok_or(Fault::Missing)?;
    let clients = match (&tls.clients, files.last()) {
        (Some(wanted), Some(ca)) => clients(ca, wanted.name.as_deref())?,
        _ => Arc::new(NoClientAuth) as Arc<dyn ClientCertVerifier>,
    };
    let versions: &[_] = if tls.tls12 { ALL_VERSIONS } else { &[&TLS13] };
    let names = names::ByName::new(identities.into_iter().map(|identity| identity.key));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(Fault::Library)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(names));
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().map_err(Fault::Library)?;
    let protocols: &[&[u8]] = if http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(live::Made { value: Arc::new(config), validity })
}

/// Builds the configuration of peers with certificates of one authority. `files` are the
/// certificate, its key and the authority's certificate.
///
/// # Errors
/// [`Fault`], with the file that caused it.
pub fn peers(files: &[File]) -> Result<live::Made<Ends>, Fault> {
    let ca = of(files, 2)?;
    let identity = pem::identity(of(files, 0)?, of(files, 1)?)?;
    let server = verify::AnyName::new(pem::authorities(ca)?, provider());
    pem::usable_by_peers(&identity, of(files, 0)?, ca)?;
    let clients = clients(ca, None)?;
    let value = ends(identity.key, clients, Arc::new(server))?;
    Ok(live::Made { value, validity: identity.validity })
}

/// Builds the configuration of peers with a shared secret. The key is derived from the secret and
/// the cluster's name, and it is the only key that is trusted.
///
/// # Errors
/// [`Fault`] if the library refuses the key.
pub fn peers_by_secret(secret: &[u8], cluster: &str) -> Result<Ends, Fault> {
    let identity = verify::key_of(secret, cluster)?;
    let only = Arc::new(verify::OnlyKey::new(&identity, provider()));
    let key = CertifiedKey::new(vec![identity.as_certificate()], identity.key);
    raw_ends(Arc::new(key), only)
}

fn of(files: &[File], index: usize) -> Result<&File, Fault> {
    files.get(index).ok_or(Fault::Missing)
}

fn clients(ca: &File, name: Option<&str>) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
    let roots: RootCertStore = pem::authorities(ca)?;
    let believed = |why: rustls::server::VerifierBuilderError| Fault::Authority {
        path: ca.path.clone(),
        why: why.to_string(),
    };
    let any = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let any = any.build().map_err(believed)?;
    let Some(name) = name else { return Ok(any) };
    let parsed = ServerName::try_from(name.to_owned());
    let name = parsed.map_err(|_| Fault::Name(name.to_owned()))?;
    Ok(Arc::new(verify::Named { any, name }))
}

fn ends(
    key: CertifiedKey,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<verify::AnyName>,
) -> Result<Ends, Fault> {
    let key = Arc::new(SingleCertAndKey::from(key));
    let server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(Fault::Library)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::clone(&key) as _);
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(Fault::Library)?
        .dangerous()
        .with_custom_certificate_verifier(servers)
        .with_client_cert_resolver(key);
    Ok(between_equals(server, client))
}

fn raw_ends(key: Arc<CertifiedKey>, only: Arc<verify::OnlyKey>) -> Result<Ends, Fault> {
    use rustls::client::AlwaysResolvesClientRawPublicKeys;
    use rustls::server::AlwaysResolvesServerRawPublicKeys;
    let server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(Fault::Library)?
        .with_client_cert_verifier(Arc::clone(&only) as _)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&key))));
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(Fault::Library)?
        .dangerous()
        .with_custom_certificate_verifier(only)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)));
    Ok(between_equals(server, client))
}

/// Connections between peers are rare and long-lived. Sessions are not resumed, so each connection
/// authenticates both ends again.
fn between_equals(mut server: ServerConfig, mut client: ClientConfig) -> Ends {
    server.send_tls13_tickets = 0;
    client.resumption = rustls::client::Resumption::disabled();
    client.enable_sni = false;
    Ends { server: Arc::new(server), client: Arc::new(client) }
}

/// Placeholder for the server name of peers, which are authenticated by key or authority, not by
/// name or address.
#[must_use]
pub fn nobody_in_particular() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

#[cfg(test)]
mod tests;
