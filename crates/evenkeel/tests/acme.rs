//! Certificates from a real authority: Let's Encrypt's test server Pebble asks the program over
//! HTTP, with its own DNS server, and issues what the program then shows.

use evenkeel_testing::authority::{Authority, Wish};
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use rustix::process::Signal;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    StreamOwned,
};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

/// The authority, its DNS server, and the folder of the program.
struct Stage {
    pebble: Program,
    _dns: Program,
    /// Signs the certificate of the authority's own server.
    server: Authority,
    directory: u16,
    management: u16,
    /// Where the authority asks for challenges.
    http: u16,
    https: u16,
}

impl Stage {
    /// An authority whose certificates are valid for this many seconds.
    fn open(seconds: u32) -> Stage {
        let server = Authority::new();
        let [cert, key] =
            server.sign("pebble", &Wish { names: vec!["localhost"], ..Wish::default() });
        let [directory, management, http, https, dns, control] = [(); 6].map(|()| free_port());
        let config = format!(
            "{{\"pebble\": {{\"listenAddress\": \"127.0.0.1:{directory}\", \
             \"managementListenAddress\": \"127.0.0.1:{management}\", \"certificate\": {cert:?}, \
             \"privateKey\": {key:?}, \"httpPort\": {http}, \"tlsPort\": {https}, \
             \"ocspResponderURL\": \"\", \"certificateValidityPeriod\": {seconds}}}}}"
        );
        fs::write(server.path("pebble.json"), config).expect("written");
        let mut command = Command::new("pebble-challtestsrv");
        command.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-http01", "", "-https01"]);
        command.args(["", "-tlsalpn01", "", "-dns01", &format!("127.0.0.1:{dns}"), "-management"]);
        let names = Program::listening(command.arg(format!("127.0.0.1:{control}")), control);
        let mut command = Command::new("pebble");
        command.arg("-config").arg(server.path("pebble.json")).args(["-strict", "-dnsserver"]);
        command.arg(format!("127.0.0.1:{dns}")).env("PEBBLE_VA_NOSLEEP", "1");
        let pebble = Program::listening(command, directory);
        Stage { pebble, _dns: names, server, directory, management, http, https }
    }

    /// Starts the program, which listens for challenges on `http`.
    fn program(&self, http: u16) -> Program {
        self.program_by(evenkeel!(), http)
    }

    /// Starts the program by a command that gets its arguments.
    fn program_by(&self, command: Command, http: u16) -> Program {
        let front = format!(
            "listen: 127.0.0.1:{http}\n  redirect_to_https: 443\n  tls:\n    listen: 127.0.0.1:{}",
            self.https
        );
        self.program_with(command, &front, "http-01")
    }

    /// Starts the program, whose only listener, with TLS, is at a port.
    fn program_with_tls_only(&self, https: u16) -> Program {
        let front = format!("listen: 127.0.0.1:{https}\n  tls:");
        self.program_with(evenkeel!(), &front, "tls-alpn-01")
    }

    fn program_with(&self, mut command: Command, front: &str, challenge: &str) -> Program {
        let text = format!(
            "admin: off\nproxy:\n  backend: http://127.0.0.1:9\n  {front}\n    acme:\n      \
             domains: [a.test, b.a.test]\n      email: admin@a.test\n      \
             terms_agreed: true\n      challenge: {challenge}\n      \
             directory: https://localhost:{directory}/dir\n      \
             ca: {ca}\n      folder: {folder}\n",
            directory = self.directory,
            ca = self.server.ca().display(),
            folder = self.server.path("acme").display(),
        );
        let path = self.server.path("evenkeel.yaml");
        fs::write(&path, text).expect("written");
        Program::start(command.args(["serve", "--config"]).arg(path))
    }

    /// The certificate that the program shows for a name.
    fn shown(&self, name: &'static str) -> Vec<u8> {
        handshake(self.https, name, &trusting(None)).expect("TLS").1
    }

    /// The certificates that clients of this authority trust.
    fn root(&self) -> RootCertStore {
        let own = trusting(Some(roots(&fs::read(self.server.ca()).expect("there"))));
        let (mut stream, _) = handshake(self.management, "localhost", &own).expect("TLS");
        stream.write_all(b"GET /roots/0 HTTP/1.0\r\n\r\n").expect("sent");
        let mut answer = Vec::new();
        // The server may end without a `close_notify`.
        let _ = stream.read_to_end(&mut answer);
        roots(&answer)
    }
}

fn roots(pem: &[u8]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem).expect("PEM")).expect("a root");
    roots
}

/// A client that trusts these authorities, or any certificate.
fn trusting(roots: Option<RootCertStore>) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    Arc::new(match roots {
        Some(roots) => builder.with_root_certificates(roots).with_no_client_auth(),
        None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Any))
            .with_no_client_auth(),
    })
}

/// Accepts any certificate, so that a test can look at it.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.signature_verification_algorithms.supported_schemes()
    }
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn handshake(
    port: u16,
    name: &'static str,
    config: &Arc<ClientConfig>,
) -> std::io::Result<(Stream, Vec<u8>)> {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let name = ServerName::try_from(name).expect("a name");
    let connection = ClientConnection::new(Arc::clone(config), name).expect("a connection");
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    let shown = stream.conn.peer_certificates().expect("one")[0].to_vec();
    Ok((stream, shown))
}

fn stop(program: &mut Program) {
    program.signal(Signal::TERM);
    program.end();
}

#[test]
fn a_certificate_is_issued_and_kept_over_a_restart() {
    let stage = Stage::open(86_400);
    let mut program = stage.program(stage.http);
    program.told("no certificate yet; a self-signed one is shown");
    let issued = program.told("certificate issued");
    assert!(issued.contains("names=\"a.test,b.a.test\"") && issued.contains("until="), "{issued}");
    program.told("certificate reloaded");
    let trusted = trusting(Some(stage.root()));
    for name in ["a.test", "b.a.test"] {
        handshake(stage.https, name, &trusted).expect("a certificate of the authority");
    }
    assert!(handshake(stage.https, "c.test", &trusted).is_err());
    for file in ["a.test.pem", "account.json"] {
        let path = stage.server.path("acme").join(file);
        let mode = path.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    // The account and its certificate are found again, and nothing is ordered.
    let before = stage.shown("a.test");
    stop(&mut program);
    let mut program = stage.program(stage.http);
    program.told("proxy open");
    assert_eq!(stage.shown("a.test"), before);
    stop(&mut program);
    assert!(!program.log().contains("certificate issued"), "{}", program.log());
}

#[test]
fn a_certificate_is_renewed_and_stays_when_that_fails() {
    let mut stage = Stage::open(12);
    let mut program = stage.program(stage.http);
    program.told("certificate issued");
    program.told("certificate reloaded");
    let first = stage.shown("a.test");
    program.told("certificate issued");
    program.told("certificate reloaded");
    let second = stage.shown("a.test");
    assert_ne!(first, second);
    stop(&mut stage.pebble);
    let failed = program.told("certificate not issued; the previous one stays in use");
    assert!(failed.contains("cannot connect to localhost:"), "{failed}");
    assert!(failed.contains("again_in="), "{failed}");
    assert_eq!(stage.shown("a.test"), second);
}

#[test]
fn a_certificate_is_issued_where_only_tls_can_be_reached() {
    let stage = Stage::open(86_400);
    let mut program = stage.program_with_tls_only(stage.https);
    program.told("certificate issued");
    program.told("certificate reloaded");
    let trusted = trusting(Some(stage.root()));
    for name in ["a.test", "b.a.test"] {
        handshake(stage.https, name, &trusted).expect("a certificate of the authority");
    }
    // Without an order there is nothing to check. Beside other protocols this one means nothing.
    let mut checking = ClientConfig::clone(&trusted);
    checking.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    assert!(handshake(stage.https, "a.test", &Arc::new(checking.clone())).is_err());
    checking.alpn_protocols.push(b"http/1.1".to_vec());
    let (stream, _) = handshake(stage.https, "a.test", &Arc::new(checking)).expect("TLS");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    stop(&mut program);

    // No server has the port that the authority connects to.
    let stage = Stage::open(86_400);
    let mut program = stage.program_with_tls_only(free_port());
    let failed = program.told("certificate not issued");
    assert!(failed.contains("could not check") && failed.contains("port 443"), "{failed}");
}

#[test]
fn what_the_authority_cannot_check_is_explained() {
    // Another server has the port that the authority asks.
    let stage = Stage::open(86_400);
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, stage.http)).expect("free");
    thread::spawn(move || {
        for mut stream in other.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let mut program = stage.program(free_port());
    let failed = program.told("certificate not issued");
    assert!(failed.contains("could not check") && failed.contains("a.test"), "{failed}");
    assert!(failed.contains("another server answers for"), "{failed}");
    // A process that ends and starts again and again does not ask each time.
    program.kill();
    let mut program = stage.program(free_port());
    let waits = program.told("the last order before this start failed or was not saved");
    assert!(waits.contains("again_in="), "{waits}");
    stop(&mut program);
    assert!(!program.log().contains("certificate not issued"), "{}", program.log());

    // No server has it.
    let stage = Stage::open(86_400);
    let mut program = stage.program(free_port());
    let failed = program.told("certificate not issued");
    assert!(failed.contains("the authority connects to port 80 of"), "{failed}");
}

/// A mount namespace in which the folder is a disk of four pages, one of which is `filler`. `None`
/// where mounting is not allowed.
fn small_disk(folder: &Path) -> Option<Program> {
    let disk = "mount -t tmpfs -o size=16k none \"$0\" && head -c 4096 /dev/zero >\"$0/filler\" \
                && echo mounted >&2 && exec tail -f /dev/null";
    fs::create_dir(folder).expect("made");
    let mut allowed = Command::new("unshare");
    allowed.args(["--mount", "mount", "-t", "tmpfs", "none"]).arg(folder);
    if !allowed.status().is_ok_and(|status| status.success()) {
        return None;
    }
    let mut command = Command::new("unshare");
    let mut holder = Program::start(command.args(["--mount", "sh", "-c", disk]).arg(folder));
    holder.told("mounted");
    Some(holder)
}

/// The first start with a disk that is full when the certificate arrives.
#[test]
fn a_certificate_that_cannot_be_saved_is_used_and_saved_later() {
    let stage = Stage::open(86_400);
    let folder = stage.server.path("acme");
    let Some(disk) = small_disk(&folder) else { return };
    let inside = PathBuf::from(format!("/proc/{}/root{}", disk.id(), folder.display()));
    let program = || {
        let mut command = Command::new("nsenter");
        command.args(["--target", &disk.id().to_string(), "--mount"]);
        command.arg(evenkeel!().get_program());
        stage.program_by(command, stage.http)
    };
    let mut first = program();
    let unsaved = first.told("cannot be written");
    assert!(unsaved.contains(&folder.display().to_string()), "{unsaved}");
    assert!(unsaved.contains("No space left on device"), "{unsaved}");
    first.told("certificate issued");
    first.told("certificate reloaded");
    let trusted = trusting(Some(stage.root()));
    handshake(stage.https, "a.test", &trusted).expect("a certificate of the authority");
    // A process that ends and starts again and again does not order each time.
    first.kill();
    let mut second = program();
    second.told("the last order before this start failed or was not saved");
    handshake(stage.https, "a.test", &trusted).expect_err("a self-signed one");
    stop(&mut second);
    assert!(!second.log().contains("certificate issued"), "{}", second.log());

    fs::remove_file(inside.join("attempt.json")).expect("removed");
    let mut third = program();
    third.told("cannot be written");
    third.told("certificate reloaded");
    let shown = stage.shown("a.test");
    fs::remove_file(inside.join("filler")).expect("room is made");
    third.told("can be written again");
    stop(&mut third);
    assert!(!inside.join("attempt.json").exists(), "the order has succeeded");
    let mut fourth = program();
    fourth.told("proxy open");
    assert_eq!(stage.shown("a.test"), shown);
    stop(&mut fourth);
    assert!(!fourth.log().contains("certificate issued"), "{}", fourth.log());
}

/// A folder that cannot be made, so it is not known whether the last process has ordered.
#[test]
fn without_a_folder_the_proxy_serves_and_orders_later() {
    let stage = Stage::open(86_400);
    fs::write(stage.server.path("acme"), "a file").expect("written");
    let mut program = stage.program(stage.http);
    let unsaved = program.told("cannot be written");
    assert!(unsaved.contains(&stage.server.path("acme").display().to_string()), "{unsaved}");
    // The thread that says so is started after the listeners.
    program.told("the next one waits");
    stage.shown("a.test");
    stop(&mut program);
    assert!(!program.log().contains("certificate issued"), "{}", program.log());
}
