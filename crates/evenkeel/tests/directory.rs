//! A robot whose keys are in a directory: fetched over HTTPS, from a host that the operator lists.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use evenkeel_testing::authority::{Authority, Wish};
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// A server for key directories. It answers with what the test wants, and passes each request on.
struct DirectoryServer {
    port: u16,
    answer: Arc<Mutex<String>>,
    asked: Receiver<String>,
}

impl DirectoryServer {
    fn start(authority: &Authority) -> DirectoryServer {
        let wish = Wish { names: vec!["localhost"], ..Wish::default() };
        let [cert, key] = authority.sign("directory", &wish);
        let cert = CertificateDer::from_pem_file(cert).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(key).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .expect("usable");
        let config = Arc::new(config);
        // `localhost` may be an address of either family.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let answer = Arc::new(Mutex::new(String::new()));
        let (tell, asked) = mpsc::channel();
        let said = Arc::clone(&answer);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
                let mut stream = StreamOwned::new(connection, stream);
                let Some(request) = read_head(&mut stream) else { continue };
                let answer = said.lock().expect("whole").clone();
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
                let _ = tell.send(request);
            }
        });
        DirectoryServer { port, answer, asked }
    }

    /// Answers with this from now on.
    fn says(&self, status: &str, more: &str, body: &str) {
        let length = body.len();
        let text = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n{body}"
        );
        *self.answer.lock().expect("whole") = text;
    }

    /// The next request, if one comes within a few seconds.
    fn asked(&self) -> Option<String> {
        self.asked.recv_timeout(Duration::from_secs(5)).ok()
    }
}

fn read_head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// A site that says yes to everything.
fn site() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                while read_head(&mut stream).is_some() {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    address
}

/// Evenkeel with a robot whose keys are at this directory.
struct Gate {
    process: Program,
    port: u16,
    admin: SocketAddr,
    _folder: TempDir,
}

impl Gate {
    fn start(authority: &Authority, directory: u16) -> Gate {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("evenkeel.yaml");
        let [port, admin] = [(); 2].map(|()| free_port());
        let text = format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\nproxy:\n  listen: 127.0.0.1:{port}\n  \
             backend: http://{}\n  signed_for: site.test\n  robots:\n    \
             - {{name: reader, user_agent: \"*Reader*\", directory: \"localhost:{directory}\"}}\n",
            site()
        );
        fs::write(&config, text).expect("written");
        let mut command = evenkeel!();
        command.env("SSL_CERT_FILE", authority.ca()).env_remove("SSL_CERT_DIR");
        command.arg("serve").arg("--config").arg(&config);
        let process = Program::listening(command, port);
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
        Gate { process, port, admin, _folder: folder }
    }

    /// Sends a request as the robot, with these header lines.
    fn ask(&self, lines: &str) {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("connected");
        let head =
            format!("GET / HTTP/1.1\r\nHost: site.test\r\nUser-Agent: Reader\r\n{lines}\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let answer = read_head(&mut stream).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// The number of requests of the robot with this proof.
    fn count(&self, proof: &str) -> u64 {
        let labels = format!("{{robot=\"reader\",proof=\"{proof}\"}}");
        let series = format!("evenkeel_robot_requests_total{labels}");
        evenkeel_testing::admin::metric(self.admin, &series)
    }
}

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[9; 32]).expect("a key")
}

fn key_set() -> String {
    let x = URL_SAFE_NO_PAD.encode(pair().public_key().as_ref());
    format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#)
}

/// The header lines of a signature that names the directory of `agent`.
fn signed(agent: &str) -> String {
    let x = URL_SAFE_NO_PAD.encode(pair().public_key().as_ref());
    let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    let print = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, members.as_bytes());
    let print = URL_SAFE_NO_PAD.encode(print);
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    let input = format!(
        "(\"@authority\" \"signature-agent\";key=\"s\");created={now};expires={};\
         keyid=\"{print}\";tag=\"web-bot-auth\"",
        now + 60
    );
    let base = format!(
        "\"@authority\": site.test\n\"signature-agent\";key=\"s\": \"{agent}\"\n\
         \"@signature-params\": {input}"
    );
    let value = STANDARD.encode(pair().sign(base.as_bytes()));
    format!(
        "Signature-Agent: s=\"{agent}\"\r\nSignature-Input: s={input}\r\nSignature: s=:{value}:\r\n"
    )
}

#[test]
fn the_keys_of_a_directory_prove_its_robot() {
    let authority = Authority::new();
    let server = DirectoryServer::start(&authority);
    server.says("200 OK", "Cache-Control: max-age=3600\r\n", &key_set());
    let gate = Gate::start(&authority, server.port);
    let asked = server.asked().expect("the directory is fetched at the start");
    let path = "/.well-known/http-message-signatures-directory";
    assert!(asked.starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{asked}");
    assert!(asked.contains(&format!("host: localhost:{}\r\n", server.port)), "{asked}");
    let agent = format!("https://localhost:{}", server.port);
    wait_for("a proven request", || {
        gate.ask(&signed(&agent));
        (gate.count("signature") > 0).then_some(())
    });
    gate.ask("");
    assert_eq!(gate.count("none"), 1, "without a signature it is an impostor");
    gate.ask(&signed("https://other.test"));
    assert_eq!(gate.count("none"), 2, "the keys are not those of the directory that it names");
    assert!(server.asked.try_recv().is_err(), "it is fetched once while it is fresh");
}

#[test]
fn a_directory_that_cannot_be_fetched_makes_nobody_an_impostor() {
    let authority = Authority::new();
    let server = DirectoryServer::start(&authority);
    let elsewhere = format!("Location: https://localhost:{}/\r\n", server.port);
    server.says("302 Found", &elsewhere, &key_set());
    let gate = Gate::start(&authority, server.port);
    server.asked().expect("the directory is fetched at the start");
    wait_for("a warning", || {
        gate.process.log().contains("cannot fetch a key directory").then_some(())
    });
    assert!(gate.process.log().contains("status 302 Found; a directory answers with 200"));
    gate.ask(&signed(&format!("https://localhost:{}", server.port)));
    gate.ask("");
    assert_eq!((gate.count("signature"), gate.count("none")), (0, 0), "its keys are not known");
    assert!(server.asked.try_recv().is_err(), "no redirect is followed");
}

#[test]
fn a_directory_behind_an_unknown_certificate_is_refused() {
    let server = DirectoryServer::start(&Authority::new());
    server.says("200 OK", "", &key_set());
    let gate = Gate::start(&Authority::new(), server.port);
    wait_for("a warning", || {
        gate.process.log().contains("cannot fetch a key directory").then_some(())
    });
    assert!(server.asked.try_recv().is_err(), "nothing is asked");
}
