//! TLS towards clients: the certificate presented, the protocol agreed on, renewed certificates,
//! and clients without TLS.

use super::http2::Http2;
use crate::stage::Stage;
use evenkeel_config::settings::ProxySettings;
use evenkeel_config::settings::tls::{FrontTls, TlsClients};
use evenkeel_core::units::Time;
use evenkeel_serve::service::Service as _;
use evenkeel_telemetry::counts::ConnectionRefusal;
use evenkeel_testing::wait::until;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A certificate authority, with a folder for the certificates that it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let folder = tempfile::tempdir().expect("a folder");
        let ca = params.self_signed(&key).expect("signed");
        fs::write(folder.path().join("ca.pem"), ca.pem()).expect("written");
        Authority { issuer: Issuer::new(params, key), folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a certificate for `dns` and its key, and returns their paths.
    pub fn sign(&self, dns: &str) -> (PathBuf, PathBuf) {
        let params = CertificateParams::new([dns.to_owned()]).expect("names");
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        let paths = (self.path(&format!("{dns}.crt")), self.path(&format!("{dns}.key")));
        fs::write(&paths.1, key.serialize_pem()).expect("written");
        fs::write(&paths.0, cert.pem()).expect("written");
        paths
    }

    /// A client that trusts this authority, offers these protocols, and presents that certificate.
    pub fn client(&self, protocols: &[&str], shows: Option<&str>) -> Arc<ClientConfig> {
        let pem = |name: &str| fs::read(self.path(name)).expect("a file");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem("ca.pem")).expect("PEM")).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let builder = builder.with_root_certificates(roots);
        let mut config = match shows {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let cert = CertificateDer::from_pem_slice(&pem(&format!("{name}.crt")));
                let key = PrivateKeyDer::from_pem_slice(&pem(&format!("{name}.key")));
                let chain = vec![cert.expect("PEM")];
                builder.with_client_auth_cert(chain, key.expect("PEM")).expect("usable")
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

pub fn under(tls: FrontTls) -> impl FnOnce(&mut ProxySettings) {
    move |settings| settings.tls = Some(tls)
}

pub fn front(certificates: Vec<(PathBuf, PathBuf)>) -> FrontTls {
    FrontTls { plain: 0, certificates, acme: None, clients: None, tls12: true }
}

/// Connects, does a TLS handshake for a name, and returns the certificate that the server showed.
pub fn connect(
    to: SocketAddr,
    config: &Arc<ClientConfig>,
    name: &'static str,
) -> std::io::Result<(StreamOwned<ClientConnection, TcpStream>, Vec<u8>)> {
    handshake(TcpStream::connect(to)?, config, name)
}

/// The same on a connection that is open.
pub fn handshake(
    socket: TcpStream,
    config: &Arc<ClientConfig>,
    name: &'static str,
) -> std::io::Result<(StreamOwned<ClientConnection, TcpStream>, Vec<u8>)> {
    let name = ServerName::try_from(name).expect("a name");
    let connection = ClientConnection::new(Arc::clone(config), name).expect("a connection");
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    let shown = stream.conn.peer_certificates().expect("one")[0].to_vec();
    Ok((stream, shown))
}

fn der(path: &PathBuf) -> Vec<u8> {
    CertificateDer::from_pem_slice(&fs::read(path).expect("there")).expect("PEM").to_vec()
}

#[test]
fn http1_under_tls_passes_and_says_so() {
    let authority = Authority::new();
    let stage = Stage::open(under(front(vec![authority.sign("a.example")])));
    let client = authority.client(&["http/1.1"], None);
    let (mut stream, _) = connect(stage.door.addresses()[0], &client, "a.example").expect("tls");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").expect("taken");
    let mut backend = stage.backend();
    let request = backend.message();
    assert_eq!(request.header("x-forwarded-proto"), Some("https"));
    backend.answer("under TLS");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1");
}

#[test]
fn http2_is_agreed_on_unless_it_is_off() {
    let authority = Authority::new();
    let certificates = vec![authority.sign("a.example")];
    let stage = Stage::open(under(front(certificates.clone())));
    let both = authority.client(&["h2", "http/1.1"], None);
    let client = Http2::connect_tls(stage.door.addresses()[0], Arc::clone(&both), "a.example");
    let exchange = client.get("/");
    let mut backend = stage.backend();
    assert_eq!(backend.message().header("x-forwarded-proto"), Some("https"));
    backend.answer("h2");
    assert_eq!(exchange.whole().1, "h2");

    let stage = Stage::open(|settings| {
        settings.tls = Some(front(certificates));
        settings.http2 = false;
    });
    let (stream, _) = connect(stage.door.addresses()[0], &both, "a.example").expect("tls");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[test]
fn the_name_chooses_the_certificate() {
    let authority = Authority::new();
    let certificates: Vec<_> = ["a.example", "b.example"].map(|dns| authority.sign(dns)).into();
    let stage = Stage::open(under(front(certificates.clone())));
    let client = authority.client(&[], None);
    for (name, index) in [("a.example", 0), ("b.example", 1)] {
        let (_, shown) = connect(stage.door.addresses()[0], &client, name).expect("tls");
        assert!(shown == der(&certificates[index].0), "{name}");
    }
    let stranger = connect(stage.door.addresses()[0], &client, "c.example");
    assert!(stranger.is_err(), "it was shown the first, which is not for it");
}

#[test]
fn a_renewed_certificate_is_shown_and_a_broken_one_is_not() {
    let authority = Authority::new();
    let certificate = authority.sign("a.example");
    let stage = Stage::open(under(front(vec![certificate.clone()])));
    let client = authority.client(&[], None);
    let shown = || connect(stage.door.addresses()[0], &client, "a.example").expect("tls").1;
    let first = shown();
    // While the files differ between two checks, they are still being written.
    let look = || (0..3).for_each(|second| stage.door.look(Time(second)));
    fs::write(&certificate.0, "rubbish").expect("written");
    look();
    assert!(shown() == first, "what runs stays");
    authority.sign("a.example");
    look();
    let renewed = shown();
    assert!(renewed != first && renewed == der(&certificate.0));
}

#[test]
fn clients_may_have_to_show_a_certificate() {
    let authority = Authority::new();
    authority.sign("client.example");
    let tls = FrontTls {
        clients: Some(TlsClients { ca: authority.path("ca.pem"), name: None }),
        ..front(vec![authority.sign("a.example")])
    };
    let stage = Stage::open(under(tls));
    for (shows, in_) in [(Some("client.example"), true), (None, false)] {
        let client = authority.client(&["http/1.1"], shows);
        let spoken = connect(stage.door.addresses()[0], &client, "a.example").and_then(|made| {
            let mut stream = made.0;
            stream.write_all(b"BAD\r\n\r\n")?;
            stream.read(&mut [0; 8])
        });
        assert_eq!(spoken.is_ok_and(|count| count > 0), in_, "{shows:?}");
    }
    until("it is counted", || {
        stage.watch.proxy.refused_connections(ConnectionRefusal::Tls).get() == 1
    });
}

#[test]
fn who_speaks_no_tls_is_told_and_who_says_nothing_is_closed() {
    let authority = Authority::new();
    let certificates = vec![authority.sign("a.example")];
    let stage = Stage::open(|settings| {
        settings.tls = Some(front(certificates));
        // Longer than a busy machine may delay the first bytes of a client.
        settings.timeouts.header = Duration::from_secs(2);
    });
    let mut plain = stage.client();
    plain.get("/");
    let answer = plain.message();
    assert_eq!(answer.status(), 400);
    assert!(answer.text().contains("HTTPS"), "{}", answer.text());
    plain.ends();
    let silent = [&b""[..], b"\x16\x03\x01"].map(|said| {
        let mut silent = stage.client();
        silent.send(said);
        silent
    });
    silent.into_iter().for_each(|mut silent| silent.ends());
    stage.backend_is_left_alone();
}

#[test]
fn plain_and_tls_stand_side_by_side() {
    let authority = Authority::new();
    let tls = FrontTls { plain: 1, ..front(vec![authority.sign("a.example")]) };
    let stage = Stage::open(|settings| {
        settings.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)); 2];
        settings.tls = Some(tls);
    });
    let mut plain = stage.client();
    plain.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("plain");
    assert_eq!(plain.message().text(), "plain");
    let client = authority.client(&[], None);
    connect(stage.door.addresses()[1], &client, "a.example").expect("tls");
}
