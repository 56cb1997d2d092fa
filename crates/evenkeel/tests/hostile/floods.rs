//! Floods of TLS handshakes, cut anywhere, while visitors are served.

use crate::client::pause;
use crate::plan::random::Random;
use crate::stage::{LONG, Stage};
use evenkeel_config::settings::BackendAddress;
use evenkeel_config::settings::tls::FrontTls;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, LocalSet};
use tokio_rustls::TlsConnector;

/// The number of handshakes that are begun, while `VISITORS` visitors come.
const HANDSHAKES: u64 = 600;
const VISITORS: usize = 30;

const NAME: &str = "site.example";

/// The end of a handshake in the flood.
#[derive(Debug)]
enum Then {
    Leaves,
    /// Sends nothing more for a while.
    Stalls,
    /// Sends bytes that are not TLS.
    Babbles,
}

/// A certificate with its files, and the configuration of a client that trusts it.
fn certificate(folder: &std::path::Path) -> (FrontTls, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
    let paths = (folder.join("site.crt"), folder.join("site.key"));
    fs::write(&paths.0, made.cert.pem()).expect("written");
    fs::write(&paths.1, made.signing_key.serialize_pem()).expect("written");
    PrivateKeyDer::from_pem_file(&paths.1).expect("a key");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&paths.0).expect("PEM")).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let client = builder.with_root_certificates(roots).with_no_client_auth();
    let front =
        FrontTls { plain: 0, certificates: vec![paths], acme: None, clients: None, tls12: true };
    (front, Arc::new(client))
}

/// The first bytes of a handshake.
fn hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from(NAME).expect("a name");
    let mut connection = ClientConnection::new(Arc::clone(config), name).expect("a connection");
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).expect("memory takes all");
    bytes
}

async fn handshake(to: SocketAddr, hello: Vec<u8>, mut random: Random) {
    let Ok(mut stream) = TcpStream::connect(to).await else { return };
    let cut = if random.one_in(3) { hello.len() } else { random.index(hello.len()) };
    for piece in random.cut(cut, 3) {
        let _ = stream.write_all(&hello[piece]).await;
    }
    match *random.pick(&[Then::Leaves, Then::Stalls, Then::Stalls, Then::Babbles]) {
        Then::Leaves => {}
        Then::Stalls => pause(Duration::from_millis(200 + random.below(300))).await,
        Then::Babbles => {
            let noise: Vec<u8> = (0..500).map(|_| random.below(256) as u8).collect();
            let _ = stream.write_all(&noise).await;
            // The proxy answers with an alert.
            let _ = tokio::time::timeout(LONG, stream.read(&mut [0; 100])).await;
        }
    }
}

/// Requests a page of its own over a new connection.
async fn visit(to: SocketAddr, config: Arc<ClientConfig>, number: usize) {
    let stream = TcpStream::connect(to).await.expect("it listens");
    let name = ServerName::try_from(NAME).expect("a name");
    let mut stream = TlsConnector::from(config).connect(name, stream).await.expect("TLS");
    let head = format!("GET /v{number}v HTTP/1.1\r\nhost: {NAME}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with(&format!("\r\n\r\n/v{number}v")), "{answer}");
}

/// A backend that answers with the path of the request.
async fn echo(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::task::spawn_local(async move {
            let mut head = Vec::new();
            while let Ok(1..) = stream.read_buf(&mut head).await {
                if head.ends_with(b"\r\n\r\n") {
                    let text = String::from_utf8(std::mem::take(&mut head)).expect("text");
                    let path = text.split(' ').nth(1).expect("a path");
                    let length = path.len();
                    let answer =
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{path}");
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        });
    }
}

#[test]
fn visitors_are_served_while_handshakes_are_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    let (front, config) = certificate(folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("bound");
        tokio::task::spawn_local(echo(listener));
        let stage = Stage::open(|proxy| {
            proxy.tls = Some(front);
            proxy.backends = vec![BackendAddress::http(at.to_string())];
        });
        let to = stage.door.addresses()[0];
        let (mut flood, mut visitors) = (JoinSet::new(), JoinSet::new());
        for seed in 0..HANDSHAKES {
            flood.spawn_local(handshake(to, hello(&config), Random(seed)));
        }
        // Each visitor comes after a further part of the flood has begun.
        let visited = Rc::new(Cell::new(0));
        for number in 0..VISITORS {
            let (config, visited) = (Arc::clone(&config), Rc::clone(&visited));
            visitors.spawn_local(async move {
                pause(Duration::from_millis(10 * number as u64)).await;
                visit(to, config, number).await;
                visited.set(visited.get() + 1);
            });
        }
        while let Some(visited) = visitors.join_next().await {
            visited.expect("a visitor is served");
        }
        assert_eq!(visited.get(), VISITORS);
        while flood.join_next().await.is_some() {}
        let end = tokio::time::Instant::now() + LONG;
        while stage.door.connections() > 0 {
            assert!(tokio::time::Instant::now() < end, "connections are left");
            pause(Duration::from_millis(1)).await;
        }
    });
}
