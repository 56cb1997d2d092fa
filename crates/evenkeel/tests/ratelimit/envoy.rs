//! A real Envoy in front of a real backend, with Evenkeel's rate limit service behind its filter.
//!
//! `ci/test` installs Envoy. Without it, the tests fail with a message.

use crate::program::Server;
use crate::server::tls::Authority;
use evenkeel_testing::envoy::envoy;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

const CONFIG: &str = include_str!("../../../../examples/envoy/envoy.yaml");

const RULES: &str = "
domain: edge
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
- {key: user, value: free, rate_limit: {unlimited: true}}
";

/// A backend that answers `hello` to every request.
pub fn backend() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut head = [0; 8_192];
                if stream.read(&mut head).is_ok_and(|length| length > 0) {
                    let answer =
                        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
        }
    });
    port
}

pub struct Envoy {
    _process: Program,
    port: u16,
}

impl Envoy {
    pub fn start(config: &str, folder: &Path, ports: [u16; 2], more: &str) -> Envoy {
        let [grpc, backend] = ports;
        let port = free_port();
        let path = folder.join("envoy.yaml");
        let text = config.replace("port_value: 10000", &format!("port_value: {port}"));
        let text = text.replace("port_value: 8081", &format!("port_value: {grpc}"));
        let text = text.replace("port_value: 8000", &format!("port_value: {backend}"));
        // The cluster of the service is the last one in the file.
        fs::write(&path, text.trim_end().to_owned() + "\n" + more).expect("written");
        Envoy { _process: Program::listening(envoy(&path), port), port }
    }

    /// The head of the answer, in lower case.
    pub fn get(&self, user: &str) -> String {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream = TcpStream::connect(address).expect("it listens");
        let head =
            format!("GET / HTTP/1.1\r\nhost: x\r\nx-user: {user}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.split("\r\n\r\n").next().expect("a head").to_lowercase()
    }
}

pub fn is(head: &str, status: u16) -> bool {
    head.starts_with(&format!("http/1.1 {status} "))
}

#[test]
fn limits_hold_behind_a_real_envoy_and_our_death_stops_nobody() {
    let port = free_port();
    let grpc = port.to_string();
    let variables = [("GRPC_PORT", grpc.as_str()), ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")];
    let server = Server::start(RULES, &variables);
    let folder = tempfile::tempdir().expect("a folder");
    let envoy = Envoy::start(CONFIG, folder.path(), [port, backend()], "");
    // Until Envoy has connected to the service, it lets requests pass without a limit.
    wait_for("Envoy's connection", || envoy.get("first").contains("ratelimit-limit").then_some(()));

    for left in (0..3).rev() {
        let head = envoy.get("alice");
        assert!(is(&head, 200), "{head}");
        assert!(head.contains(&format!("\r\nratelimit-remaining: {left}")), "{head}");
        assert!(head.contains("\r\nx-ratelimit-limit: 3, 3;w=31536000"), "{head}");
    }
    let head = envoy.get("alice");
    assert!(is(&head, 429) && head.contains("x-envoy-ratelimited: true"), "{head}");
    assert!(is(&envoy.get("bob"), 200), "others are counted apart");
    assert!((0..9).all(|_| is(&envoy.get("free"), 200)), "unlimited");

    drop(server);
    assert!((0..9).all(|_| is(&envoy.get("alice"), 200)), "our death stops nobody");

    let _server = Server::start(RULES, &variables);
    wait_for("limits again", || is(&envoy.get("carol"), 429).then_some(()));
}

/// The TLS settings for Envoy from the guide.
const TLS: &str = "    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: gate.example
        common_tls_context:
          alpn_protocols: [h2]
          tls_certificates:
          - certificate_chain: {filename: FOLDER/envoy.crt}
            private_key: {filename: FOLDER/envoy.key}
          validation_context:
            trusted_ca: {filename: FOLDER/ca.pem}
";

#[test]
fn a_real_envoy_asks_over_tls_and_shows_its_certificate() {
    let authority = Authority::new();
    authority.sign("server", "gate.example");
    authority.sign("envoy", "envoy.example");
    let [cert, key, ca] = ["server.crt", "server.key", "ca.pem"].map(|name| authority.path(name));
    let server = Server::start(
        RULES,
        &[
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", cert.as_str()),
            ("GRPC_SERVER_TLS_KEY", key.as_str()),
            ("GRPC_CLIENT_TLS_CACERT", ca.as_str()),
            ("GRPC_CLIENT_TLS_SAN", "envoy.example"),
        ],
    );
    let tls = TLS.replace("FOLDER", &authority.folder.path().display().to_string());
    let envoy = {
        let ports = [server.grpc.port(), backend()];
        Envoy::start(CONFIG, authority.folder.path(), ports, &tls)
    };
    wait_for("Envoy's connection", || envoy.get("first").contains("ratelimit-limit").then_some(()));
    assert!((0..3).all(|_| is(&envoy.get("alice"), 200)));
    let last = envoy.get("alice");
    assert!(is(&last, 429), "{last}");
}
