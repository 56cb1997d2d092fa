//! TLS: the certificates that Evenkeel shows, the ones that it trusts, and their renewal at
//! runtime.
//!
//! All of them come from PEM files (`pem`). The TLS configurations are built here and kept up to
//! date by `reload`, so a renewed certificate needs no restart. The users select how peers are
//! verified (`verify`), and whether there is one certificate for all names or several to choose
//! from (`names`). No connection is opened here.

pub mod challenges;
pub mod client;
mod names;
pub mod pem;
mod provider;
pub mod reload;
pub mod store;
mod verify;

use challenges::OpenChallenges;
use evenkeel_config::settings::otlp::CollectorSettings;
use evenkeel_config::settings::sockets::KeyPath;
use evenkeel_config::settings::store::{StoreAddress, StoreServer, StoreServers, StoreTls};
use evenkeel_config::settings::tls::{AcmeChallenge, AcmeSettings, ClientTls, FrontTls, ServerTls};
use evenkeel_config::settings::{BackendAddress, ProxySettings, Settings};
use evenkeel_config::source::files::{WatchedFile, WatchedFiles};
use evenkeel_config::{StartProblem, StartProblems};
use pem::TlsFileError;
pub use provider::install;
use provider::provider;
use rustls::pki_types::ServerName;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ALL_VERSIONS, ClientConfig, RootCertStore, ServerConfig};
use std::path::PathBuf;
use std::sync::Arc;

/// Problems of a start with the TLS files of all sections.
#[must_use]
pub fn start_problems(settings: &Settings) -> StartProblems {
    let mut found: Vec<StartProblem> = Vec::new();
    let read = |paths: Vec<PathBuf>| WatchedFiles::new(paths).read().map_err(TlsFileError::from);
    if let Some(tls) = settings.peers.as_ref().and_then(|peers| peers.tls.as_ref()) {
        let files = read(vec![tls.cert.clone(), tls.key.clone(), tls.ca.clone()]);
        let made = files.and_then(|files| peers(&files));
        found.extend(made.err().map(|fault| (&["peers", "tls"][..], fault.to_string())));
    }
    if let Some(tls) = settings.proxy.as_ref().and_then(|proxy| proxy.tls.as_ref()) {
        let tls = &without_missing(tls);
        let is_empty = tls.certificates.is_empty();
        let made = read(front_files(tls)).and_then(|files| match is_empty {
            true => Ok(()),
            false => front(&files, tls, true, &Arc::default()).map(|_| ()),
        });
        found.extend(made.err().map(|fault| (&["proxy", "tls"][..], fault.to_string())));
    }
    let secured = |proxy: &&ProxySettings| proxy.backends.iter().any(BackendAddress::is_secured);
    if let Some(proxy) = settings.proxy.as_ref().filter(secured) {
        let made = client::backend(&proxy.backend_tls).err();
        found.extend(made.map(|fault| (&["proxy", "backend_tls"][..], fault.to_string())));
    }
    if let Some(tls) = settings.ratelimit.as_ref().and_then(|door| door.tls.as_ref()) {
        let files = read(server_files(tls));
        let made = files.and_then(|files| server(&files, client_name(tls), &[]));
        found.extend(made.err().map(|fault| (&["ratelimit", "tls"][..], fault.to_string())));
    }
    let made = |way, made: Result<_, TlsFileError>| {
        made.err().map(|fault| -> StartProblem { (way, fault.to_string()) })
    };
    found.extend(
        outgoing_tls(settings)
            .into_iter()
            .filter_map(|(way, tls)| made(way, client::config(tls, &[]))),
    );
    found.extend(
        store_tls(settings).into_iter().filter_map(|(way, tls)| made(way, store::config(tls))),
    );
    StartProblems { faults: found, ..StartProblems::default() }
}

/// The settings without the certificate of an authority if it has not been issued yet.
fn without_missing(tls: &FrontTls) -> FrontTls {
    let mut tls = tls.clone();
    if tls.acme.as_ref().is_some_and(|acme| !acme.certificate().exists()) {
        tls.certificates.pop();
    }
    tls
}

/// The TLS settings of outgoing connections that use TLS, each with its key.
fn outgoing_tls(settings: &Settings) -> Vec<(KeyPath, &ClientTls)> {
    let xds = settings.ratelimit.as_ref().and_then(|door| door.xds.as_ref());
    let xds = xds.and_then(|xds| xds.tls.as_ref());
    let secured = |collector: &CollectorSettings| collector.endpoint.tls;
    let traces = settings.traces.as_ref().map(|traces| &traces.collector);
    let traces = traces.filter(|one| secured(one)).map(|one| &one.tls);
    let metrics = settings.metrics.otlp.as_ref().map(|otlp| &otlp.collector);
    let metrics = metrics.filter(|one| secured(one)).map(|one| &one.tls);
    let all: [(KeyPath, Option<&ClientTls>); 3] = [
        (&["ratelimit", "xds", "tls"], xds),
        (&["traces", "tls"], traces),
        (&["metrics", "otlp", "tls"], metrics),
    ];
    all.into_iter().filter_map(|(way, tls)| Some(way).zip(tls)).collect()
}

/// The TLS settings of stores with a server of `rediss://`, each with its key.
fn store_tls(settings: &Settings) -> Vec<(KeyPath, &StoreTls)> {
    let Some(store) = &settings.store else { return Vec::new() };
    let all: [(KeyPath, Option<&StoreServers>); 2] = [
        (&["store", "tls"], Some(&store.place)),
        (&["store", "per_second", "tls"], store.per_second.as_ref()),
    ];
    let tls = |server: &StoreServer| matches!(server.end, StoreAddress::Tcp { tls: true, .. });
    let used = all.into_iter().filter_map(|(way, servers)| Some((way, servers?)));
    let secured = used.filter(|(_, servers)| servers.servers.iter().any(tls));
    secured.map(|(way, servers)| (way, &servers.tls)).collect()
}

/// The name that clients' certificates must be valid for.
#[must_use]
pub fn client_name(tls: &ServerTls) -> Option<&str> {
    tls.clients.as_ref().and_then(|clients| clients.name.as_deref())
}

/// Both ends of connections between peers. Each end shows the same certificate and trusts the same.
#[derive(Clone, Debug)]
pub struct PeerTlsConfigs {
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
/// [`TlsFileError`], with the file that caused it.
pub fn server(
    files: &[WatchedFile],
    name: Option<&str>,
    protocols: &[&[u8]],
) -> Result<reload::BuiltFromFiles<Arc<ServerConfig>>, TlsFileError> {
    let identity = pem::identity(of(files, 0)?, of(files, 1)?)?;
    let clients = match files.get(2) {
        None => Arc::new(NoClientAuth) as Arc<dyn ClientCertVerifier>,
        Some(ca) => clients(ca, name)?,
    };
    let key = SingleCertAndKey::from(identity.key);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(ALL_VERSIONS)
        .map_err(TlsFileError::Library)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(key));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(reload::BuiltFromFiles { value: Arc::new(config), validity: identity.validity })
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
/// `http2` is set. `files` are those of [`front_files`], `challenges` is what an authority may ask
/// for.
///
/// # Errors
/// [`TlsFileError`], with the file that caused it.
pub fn front(
    files: &[WatchedFile],
    tls: &FrontTls,
    http2: bool,
    challenges: &Arc<OpenChallenges>,
) -> Result<reload::BuiltFromFiles<Arc<ServerConfig>>, TlsFileError> {
    let pairs = files.chunks_exact(2).take(tls.certificates.len());
    let identities = pairs.map(|pair| pem::identity(of(pair, 0)?, of(pair, 1)?));
    let identities = identities.collect::<Result<Vec<_>, TlsFileError>>()?;
    let validity = identities.iter().map(|identity| identity.validity);
    let validity = validity.reduce(pem::CertificateValidity::both).ok_or(TlsFileError::Missing)?;
    let clients = match (&tls.clients, files.last()) {
        (Some(wanted), Some(ca)) => clients(ca, wanted.name.as_deref())?,
        _ => Arc::new(NoClientAuth) as Arc<dyn ClientCertVerifier>,
    };
    let versions: &[_] = if tls.tls12 { ALL_VERSIONS } else { &[&TLS13] };
    let keys = identities.into_iter().map(|identity| identity.key);
    let names = names::CertificatesByName::new(keys, Arc::clone(challenges));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(TlsFileError::Library)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(names));
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().map_err(TlsFileError::Library)?;
    let protocols: &[&[u8]] = if http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
    let by_tls = |acme: &AcmeSettings| acme.challenge == AcmeChallenge::TlsAlpn01;
    let check = tls.acme.as_ref().filter(|acme| by_tls(acme)).map(|_| challenges::PROTOCOL);
    let protocols = protocols.iter().copied().chain(check);
    config.alpn_protocols = protocols.map(<[u8]>::to_vec).collect();
    Ok(reload::BuiltFromFiles { value: Arc::new(config), validity })
}

/// Builds the configuration of peers with certificates of one authority. `files` are the
/// certificate, its key and the authority's certificate.
///
/// # Errors
/// [`TlsFileError`], with the file that caused it.
pub fn peers(
    files: &[WatchedFile],
) -> Result<reload::BuiltFromFiles<PeerTlsConfigs>, TlsFileError> {
    let ca = of(files, 2)?;
    let identity = pem::identity(of(files, 0)?, of(files, 1)?)?;
    let server = verify::AnyNameVerifier::new(pem::authorities(ca)?, provider());
    pem::usable_by_peers(&identity, of(files, 0)?, ca)?;
    let clients = clients(ca, None)?;
    let value = ends(identity.key, clients, Arc::new(server))?;
    Ok(reload::BuiltFromFiles { value, validity: identity.validity })
}

/// Builds the configuration of peers with a shared secret. The key is derived from the secret and
/// the cluster's name, and it is the only key that is trusted.
///
/// # Errors
/// [`TlsFileError`] if the library refuses the key.
pub fn peers_by_secret(secret: &[u8], cluster: &str) -> Result<PeerTlsConfigs, TlsFileError> {
    let identity = verify::key_of(secret, cluster)?;
    let only = Arc::new(verify::SingleKeyVerifier::new(&identity, provider()));
    let key = CertifiedKey::new(vec![identity.as_certificate()], identity.key);
    raw_ends(Arc::new(key), only)
}

fn of(files: &[WatchedFile], index: usize) -> Result<&WatchedFile, TlsFileError> {
    files.get(index).ok_or(TlsFileError::Missing)
}

fn clients(
    ca: &WatchedFile,
    name: Option<&str>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsFileError> {
    let roots: RootCertStore = pem::authorities(ca)?;
    let believed = |why: rustls::server::VerifierBuilderError| TlsFileError::Authority {
        path: ca.path.clone(),
        why: why.to_string(),
    };
    let any = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let any = any.build().map_err(believed)?;
    let Some(name) = name else { return Ok(any) };
    let parsed = ServerName::try_from(name.to_owned());
    let name = parsed.map_err(|_| TlsFileError::Name(name.to_owned()))?;
    Ok(Arc::new(verify::NamedClientVerifier { any, name }))
}

fn ends(
    key: CertifiedKey,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<verify::AnyNameVerifier>,
) -> Result<PeerTlsConfigs, TlsFileError> {
    let key = Arc::new(SingleCertAndKey::from(key));
    let server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsFileError::Library)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::clone(&key) as _);
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsFileError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(servers)
        .with_client_cert_resolver(key);
    Ok(between_equals(server, client))
}

fn raw_ends(
    key: Arc<CertifiedKey>,
    only: Arc<verify::SingleKeyVerifier>,
) -> Result<PeerTlsConfigs, TlsFileError> {
    use rustls::client::AlwaysResolvesClientRawPublicKeys;
    use rustls::server::AlwaysResolvesServerRawPublicKeys;
    let server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsFileError::Library)?
        .with_client_cert_verifier(Arc::clone(&only) as _)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&key))));
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsFileError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(only)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)));
    Ok(between_equals(server, client))
}

/// Connections between peers are rare and long-lived. Sessions are not resumed, so each connection
/// authenticates both ends again.
fn between_equals(mut server: ServerConfig, mut client: ClientConfig) -> PeerTlsConfigs {
    server.send_tls13_tickets = 0;
    client.resumption = rustls::client::Resumption::disabled();
    client.enable_sni = false;
    PeerTlsConfigs { server: Arc::new(server), client: Arc::new(client) }
}

/// Placeholder for the server name of peers, which are authenticated by key or authority, not by
/// name or address.
#[must_use]
pub fn any_peer_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

#[cfg(test)]
mod tests;
