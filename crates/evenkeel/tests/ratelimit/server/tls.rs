//! TLS on the ports of the service: accepted and refused clients, renewed certificates, and silent
//! connections. Case 68 and following of the reference server's integration tests, with TLS, mTLS
//! and a renewed certificate.

use crate::ask::{YEARLY, request};
use crate::program::{Grpc, Server, http};
use crate::server::traces::http_as;
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::wait_for;
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

const V3: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A certificate authority, with a folder for the certificates that it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub folder: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().expect("a key");
        let folder = tempfile::tempdir().expect("a folder");
        let ca = params.self_signed(&key).expect("signed");
        fs::write(folder.path().join("ca.pem"), ca.pem()).expect("written");
        Authority { issuer: Issuer::new(params, key), folder }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes `name.crt` and `name.key`, for the DNS name `dns`.
    pub fn sign(&self, name: &str, dns: &str) {
        let mut params = CertificateParams::new([dns.to_owned()]).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        fs::write(self.path(&format!("{name}.crt")), cert.pem()).expect("written");
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("written");
    }

    /// A client that trusts this authority and presents the certificate `name`, if any.
    pub fn client(&self, name: Option<&str>, protocol: &str) -> Arc<ClientConfig> {
        let pem = |name: &str| fs::read(Path::new(&self.path(name))).expect("a file");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem("ca.pem")).expect("PEM")).expect("a root");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let builder = builder.with_root_certificates(roots);
        let mut config = match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let cert = CertificateDer::from_pem_slice(&pem(&format!("{name}.crt")));
                let key = PrivateKeyDer::from_pem_slice(&pem(&format!("{name}.key")));
                let chain = vec![cert.expect("PEM")];
                builder.with_client_auth_cert(chain, key.expect("PEM")).expect("usable")
            }
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Arc::new(config)
    }
}

impl Authority {
    /// A server with the certificate `name` that accepts clients with a certificate of this
    /// authority.
    pub fn acceptor(&self, name: &str) -> tokio_rustls::TlsAcceptor {
        let pem = |name: &str| fs::read(Path::new(&self.path(name))).expect("a file");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem("ca.pem")).expect("PEM")).expect("a root");
        let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&provider),
        );
        let clients = clients.build().expect("usable");
        let builder = rustls::ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let cert = CertificateDer::from_pem_slice(&pem(&format!("{name}.crt"))).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(&pem(&format!("{name}.key"))).expect("PEM");
        let config = builder.with_client_cert_verifier(clients);
        let mut config = config.with_single_cert(vec![cert], key).expect("usable");
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config).into()
    }
}

/// The answer to `GET /healthcheck` over TLS.
fn healthy(address: SocketAddr, client: Arc<ClientConfig>) -> std::io::Result<bool> {
    let name = ServerName::try_from("gate.example").expect("a name");
    let connection = ClientConnection::new(client, name).expect("a connection");
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    stream.write_all(b"GET /healthcheck HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        // The connection may end without a `close_notify`.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(error),
    }
    Ok(answer.starts_with(b"HTTP/1.1 200"))
}

/// The end-entity certificate that a server presents.
fn shown(address: SocketAddr, client: Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("gate.example").expect("a name");
    let connection = ClientConnection::new(client, name).expect("a connection");
    let socket = TcpStream::connect(address).expect("it listens");
    let mut stream = StreamOwned::new(connection, socket);
    stream.conn.complete_io(&mut stream.sock).expect("a handshake");
    stream.conn.peer_certificates().expect("one")[0].to_vec()
}

fn decides(grpc: &Grpc) -> bool {
    grpc.call(V3, &request("t: k=v").encode_to_vec()).is_ok()
}

#[test]
fn grpc_over_tls_as_the_references_variables_ask_for_it() {
    let authority = Authority::new();
    authority.sign("server", "gate.example");
    let (cert, key) = (authority.path("server.crt"), authority.path("server.key"));
    let variables = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", cert.as_str()),
        ("GRPC_SERVER_TLS_KEY", key.as_str()),
    ];
    let server = Server::start(YEARLY, &variables);
    let grpc = Grpc::tls(server.grpc, authority.client(None, "h2")).expect("let in");
    assert!(decides(&grpc));
    // Health checks use plain HTTP, as with the reference server.
    assert_eq!(http(server.http, "GET", "/healthcheck", "").0, 200);
    // Plain HTTP/2 is refused and does no harm.
    let mut plain = TcpStream::connect(server.grpc).expect("it listens");
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
    let _ = plain.read_to_end(&mut Vec::new());
    assert!(Grpc::tls(server.grpc, Authority::new().client(None, "h2")).is_err(), "not its own");
    assert!(decides(&grpc));
}

#[test]
fn clients_show_a_certificate_of_the_authority_for_the_name() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.sign("server", "gate.example");
    authority.sign("envoy", "envoy.example");
    authority.sign("other", "other.example");
    let [cert, key, ca] = ["server.crt", "server.key", "ca.pem"].map(|name| authority.path(name));
    let mut variables = vec![
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", cert.as_str()),
        ("GRPC_SERVER_TLS_KEY", key.as_str()),
        ("GRPC_CLIENT_TLS_CACERT", ca.as_str()),
    ];
    stranger.sign("envoy", "envoy.example");
    // This client trusts the server, but presents a certificate of another authority.
    fs::copy(&ca, stranger.path("ca.pem")).expect("copied");
    for name in [None, Some("envoy.example")] {
        variables.extend(name.map(|name| ("GRPC_CLIENT_TLS_SAN", name)));
        let server = Server::start(YEARLY, &variables);
        let let_in = |client| Grpc::tls(server.grpc, client).is_ok_and(|grpc| decides(&grpc));
        assert!(let_in(authority.client(Some("envoy"), "h2")));
        assert_eq!(let_in(authority.client(Some("other"), "h2")), name.is_none());
        assert!(!let_in(authority.client(None, "h2")));
        assert!(!let_in(stranger.client(Some("envoy"), "h2")));
        assert!(let_in(authority.client(Some("envoy"), "h2")));
    }
}

#[test]
fn a_renewed_certificate_is_shown_and_a_faulty_one_is_not() {
    let authority = Authority::new();
    authority.sign("server", "gate.example");
    let [cert, key] = ["server.crt", "server.key"].map(|name| authority.path(name));
    let variables = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", cert.as_str()),
        ("GRPC_SERVER_TLS_KEY", key.as_str()),
    ];
    let server = Server::start(YEARLY, &variables);
    let before = shown(server.grpc, authority.client(None, "h2"));
    let grpc = Grpc::tls(server.grpc, authority.client(None, "h2")).expect("let in");
    fs::write(&cert, "-----BEGIN CERTIFICATE-----\n").expect("written");
    authority.sign("next", "gate.example");
    assert_eq!(shown(server.grpc, authority.client(None, "h2")), before);
    fs::rename(authority.path("next.key"), &key).expect("renamed");
    fs::rename(authority.path("next.crt"), &cert).expect("renamed");
    wait_for("the other certificate", || {
        (shown(server.grpc, authority.client(None, "h2")) != before).then_some(())
    });
    assert!(decides(&grpc), "what was open stays");
}

#[test]
fn a_file_can_ask_for_tls_on_the_http_port_too() {
    let authority = Authority::new();
    authority.sign("server", "gate.example");
    fs::write(authority.path("rules.yaml"), YEARLY).expect("written");
    let [cert, key, rules] = ["server.crt", "server.key", "rules.yaml"].map(|n| authority.path(n));
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let server = Server::from_file(&format!(
        "admin: {{listen: '{admin}'}}\nratelimit:\n  grpc: 127.0.0.1:0\n  http: 127.0.0.1:0\n  \
         debug: 127.0.0.1:0\n  rules: {rules}\n  tls: {{cert: {cert}, key: {key}, http: true}}\n"
    ));
    assert!(healthy(server.http, authority.client(None, "http/1.1")).expect("an answer"));
    let mut plain = TcpStream::connect(server.http).expect("it listens");
    plain.write_all(b"GET /healthcheck HTTP/1.1\r\nhost: x\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    let counted = "evenkeel_bad_requests_total{door=\"ratelimit\"} 1";
    wait_for("the failure to be counted", || {
        http_as(admin, "/metrics").1.lines().any(|line| line == counted).then_some(())
    });
    assert_eq!(http(server.debug, "GET", "/", "").0, 200, "the debug port has none");
    assert!(decides(&Grpc::tls(server.grpc, authority.client(None, "h2")).expect("let in")));
}

#[test]
fn a_start_with_a_faulty_certificate_says_which_file() {
    let authority = Authority::new();
    authority.sign("server", "gate.example");
    authority.sign("other", "gate.example");
    let [cert, key] = ["server.crt", "other.key"].map(|name| authority.path(name));
    let output = Server::command(&[
        ("RUNTIME_ROOT", "/tmp/current"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", cert.as_str()),
        ("GRPC_SERVER_TLS_KEY", key.as_str()),
    ]);
    let output = { output }.output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("other.key does not belong to the first certificate in"), "{told}");
    // `check` reports the same error, with its position.
    let file = authority.path("evenkeel.yaml");
    let text = format!(
        "ratelimit:\n  rules: off\n  tls:\n    cert: {cert}\n    key: {key}\n    ca: /none.pem\n"
    );
    fs::write(&file, text).expect("written");
    let program = env!("CARGO_BIN_EXE_evenkeel");
    let output = std::process::Command::new(program).args(["check", &file]).output();
    let output = output.expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(":4:5: cannot read /none.pem"), "{told}");
}

#[test]
fn who_says_nothing_loses_the_connection_and_who_has_spoken_keeps_it() {
    let authority = Authority::new();
    authority.sign("server", "gate.example");
    let [cert, key] = ["server.crt", "server.key"].map(|name| authority.path(name));
    for tls in ["false", "true"] {
        let server = Server::start(
            YEARLY,
            &[
                ("EVENKEEL_HANDSHAKE_TIMEOUT", "4s"),
                ("GRPC_SERVER_USE_TLS", tls),
                ("GRPC_SERVER_TLS_CERT", cert.as_str()),
                ("GRPC_SERVER_TLS_KEY", key.as_str()),
            ],
        );
        let grpc = match tls {
            "true" => Grpc::tls(server.grpc, authority.client(None, "h2")).expect("let in"),
            _ => server.grpc(),
        };
        let mut silent: Vec<TcpStream> = Vec::new();
        for beginning in [&b""[..], b"PRI * HTTP/2.0", b"\x16\x03\x01"] {
            let mut stream = TcpStream::connect(server.grpc).expect("it listens");
            stream.write_all(beginning).expect("sent");
            silent.push(stream);
        }
        for stream in &mut silent {
            // Returns when the connection is closed; otherwise it would stay open for a day.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        assert!(decides(&grpc));
    }
}
