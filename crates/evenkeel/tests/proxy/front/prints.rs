//! Fingerprints on real connections: of curl, Python and Node, which are told apart and found again
//! from other addresses; and connections that have none.

use super::frames::{fields, frame};
use super::tls::{Authority, front};
use crate::stage::{Stage, hit_limit};
use evenkeel_config::settings::{ClientAddress, ProxySettings};
use evenkeel_core::fact::ClientFact;
use evenkeel_core::limit::{KeyPart, LimitAction};
use evenkeel_engine::view::EngineView as _;
use evenkeel_testing::wait::until;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The time that a relay needs in each direction.
const DELAY: Duration = Duration::from_millis(30);

/// A limit that each request passes, which counts by a fact.
fn count_by(settings: &mut ProxySettings, fact: ClientFact) {
    let mut limit = hit_limit(60_000, 60_000);
    limit.name = fact.name().into();
    limit.by = vec![KeyPart::Fact(fact)];
    settings.limits.push(limit);
    settings.facts.insert(fact);
}

/// What the limit at `index` has counted by.
fn names(stage: &Stage, index: usize) -> Vec<String> {
    let mut names: Vec<_> =
        stage.engine.top(index).into_iter().map(|client| client.row.name).collect();
    names.sort();
    names
}

/// Answers all requests while `body` runs.
fn answering(stage: &Stage, body: impl FnOnce()) {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            until("all is asked for", || {
                if let Some(mut wire) = stage.backend_if_any() {
                    wire.message();
                    wire.send(ANSWER);
                }
                ended.load(Ordering::Relaxed)
            });
        });
        // Set even if `body` panics, which would wait for the thread forever.
        let result = catch_unwind(AssertUnwindSafe(body));
        ended.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// The programs that fetch a page from a local address: each prints the status. None looks at the
/// certificate, which changes nothing in what it sends.
struct Programs {
    port: u16,
}

impl Programs {
    fn run(&self, command: &mut Command) -> u16 {
        let output = command.output().expect("the program runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        text.trim().parse().unwrap_or_else(|_| panic!("{command:?}: {text} {said}"))
    }

    fn curl(&self, from: &str) -> u16 {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--interface", from]);
        curl.args(["--insecure", "--resolve", &format!("a.example:{}:127.0.0.1", self.port)]);
        self.run(curl.arg(format!("https://a.example:{}/", self.port)))
    }

    fn python(&self, from: &str) -> u16 {
        let script = "import socket, ssl, sys, http.client\n\
            context = ssl.create_default_context()\n\
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n\
            raw = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20, (sys.argv[2], 0))\n\
            client = http.client.HTTPSConnection('a.example')\n\
            client.sock = context.wrap_socket(raw, server_hostname='a.example')\n\
            client.request('GET', '/')\n\
            print(client.getresponse().status)\n";
        let mut python = Command::new("python3");
        self.run(python.args(["-c", script]).args([&self.port.to_string(), from]))
    }

    fn node(&self, from: &str) -> u16 {
        let script = "const [port, localAddress] = process.argv.slice(1);\n\
            const host = '127.0.0.1', servername = 'a.example';\n\
            const options = {host, port, localAddress, servername, agent: false, \
            rejectUnauthorized: false};\n\
            require('https').get(options, (answer) => {\n\
            console.log(answer.statusCode); answer.resume(); });\n";
        let mut node = Command::new("node");
        self.run(node.args(["-e", script]).args([&self.port.to_string(), from]))
    }
}

#[test]
fn programs_are_told_apart_and_found_again_from_another_address() {
    let authority = Authority::new();
    let stage = Stage::open(|settings| {
        settings.tls = Some(front(vec![authority.sign("a.example")]));
        for fact in [ClientFact::Ja4, ClientFact::H2, ClientFact::Rtt, ClientFact::Fetch] {
            count_by(settings, fact);
        }
    });
    let programs = Programs { port: stage.door.addresses()[0].port() };
    answering(&stage, || {
        for from in ["127.0.0.2", "127.0.0.3"] {
            for run in [Programs::curl, Programs::python, Programs::node] {
                assert_eq!(run(&programs, from), 200);
            }
        }
    });
    let ja4 = names(&stage, 0);
    assert_eq!(ja4.len(), 3, "{ja4:?}");
    assert!(ja4.iter().all(|name| name.starts_with("t13d") && name.len() == 36), "{ja4:?}");
    let h2 = names(&stage, 1);
    assert_eq!(h2.len(), 2, "curl, and clients without HTTP/2: {h2:?}");
    assert!(
        h2.contains(&"-".to_owned()) && h2.iter().any(|name| name.ends_with("|m,p,s,a")),
        "{h2:?}"
    );
    assert_eq!(names(&stage, 3), ["other"]);
}

#[test]
fn a_limit_by_ja4_counts_two_addresses_with_one_program_as_one() {
    let authority = Authority::new();
    let stage = Stage::open(|settings| {
        settings.tls = Some(front(vec![authority.sign("a.example")]));
        let mut limit = hit_limit(1, 1);
        limit.by = vec![KeyPart::Fact(ClientFact::Ja4)];
        limit.action = Some(LimitAction::Reject);
        settings.limits.push(limit);
        settings.facts.insert(ClientFact::Ja4);
    });
    let programs = Programs { port: stage.door.addresses()[0].port() };
    answering(&stage, || {
        assert_eq!(programs.curl("127.0.0.2"), 200);
        assert_eq!(programs.python("127.0.0.2"), 200);
        for from in ["127.0.0.2", "127.0.0.3"] {
            assert_eq!(programs.curl(from), 429);
            assert_eq!(programs.python(from), 429);
        }
    });
}

/// A request over HTTP/2 without TLS.
fn plain_http2() -> Vec<u8> {
    let request = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
    let settings = frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]);
    let headers = frame(1, 5, 1, &fields(&request));
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &headers].concat()
}

#[test]
fn frames_are_read_without_tls_and_in_pieces_but_not_of_a_trusted_proxy() {
    let open = |change: fn(&mut ProxySettings)| {
        Stage::open(|settings| {
            count_by(settings, ClientFact::H2);
            count_by(settings, ClientFact::Ja4);
            change(settings);
        })
    };
    let trusting = |settings: &mut ProxySettings| {
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    };
    let introduced = |settings: &mut ProxySettings| {
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
        settings.client_address = ClientAddress::ProxyProtocol;
    };
    let known = "3:100|00|0|m,s,a,p";
    for (stage, preface, expected) in [
        (open(|_| {}), "", known),
        (open(trusting), "", "-"),
        (open(introduced), "PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\n", known),
    ] {
        let mut wire = stage.client();
        wire.send(preface);
        let request = plain_http2();
        let (begin, end) = request.split_at(request.len() - 20);
        wire.send(begin);
        assert_eq!(wire.take(9)[3], 4, "settings come back before the request is complete");
        wire.send(end);
        stage.backend().message();
        assert_eq!(names(&stage, 0), [expected]);
        assert_eq!(names(&stage, 1), ["-"], "no TLS");
    }
}

/// Ends TCP and passes bytes on to `to`, each after `DELAY`. Returns its port.
fn relay(to: SocketAddr) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let server = TcpStream::connect(to).expect("the door takes us in");
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (from, to) = (from.try_clone().expect("a copy"), to.try_clone().expect("one"));
                thread::spawn(move || pass_on(from, to));
            }
        }
    });
    port
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    let (_keeps_open, delay) = mpsc::channel::<()>();
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        assert!(delay.recv_timeout(DELAY).is_err(), "nothing is sent on it");
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn a_relay_that_ends_tcp_is_found_over_both_versions_of_http() {
    let authority = Authority::new();
    let certificates = vec![authority.sign("a.example")];
    let open = || {
        Stage::open(|settings| {
            settings.tls = Some(front(certificates.clone()));
            count_by(settings, ClientFact::Rtt);
        })
    };
    let runs: [fn(&Programs, &str) -> u16; 2] = [Programs::curl, Programs::python];
    for run in runs {
        let stage = open();
        let far = Programs { port: relay(stage.door.addresses()[0]) };
        answering(&stage, || assert_eq!(run(&far, "127.0.0.1"), 200));
        assert_eq!(names(&stage, 0), ["relayed"]);
        // On a busy machine a direct client may be slow.
        let near = Programs { port: stage.door.addresses()[0].port() };
        answering(&stage, || {
            until("a direct client is found", || {
                assert_eq!(run(&near, "127.0.0.1"), 200);
                names(&stage, 0).contains(&"direct".to_owned())
            });
        });
    }
}
