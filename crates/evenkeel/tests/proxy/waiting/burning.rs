//! A swarm whose requests have something in common waits behind all other strangers, and an
//! operator sees what it is. A swarm that is like people does not.
//!
//! Each client has a loopback address and a TLS connection of its own.

use super::{NAVIGATE, next, stage, waits};
use crate::front::Authority;
use crate::front::tls::{front, handshake};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::{DatabaseSettings, KnownSetting};
use evenkeel_core::fact::ClientFact;
use evenkeel_identity::networks::live::LiveNetworks;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

/// The returning clients, each in a network of its own and with one of five browsers.
const RETURNING: u8 = 60;
/// The requests of the swarm, before it is known what they have in common.
const SWARM: u8 = 60;
/// The networks of people, and those of a data centre.
const ASNS: &str = "127.1.0.0\t127.99.255.255\t64500\tDE\tACCESS\n\
                    127.100.0.0\t127.199.255.255\t64501\tDE\tHOSTING\n";

/// What the requests of a swarm have in common that those of people do not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Common {
    UserAgent,
    Network,
    Asn,
    Ja4,
    Nothing,
}

/// A client with a connection.
struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    address: Ipv4Addr,
    headers: String,
}

impl Client {
    fn ask(&mut self, path: &str, more: &str) {
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\n{}{more}\r\n", self.headers);
        self.stream.write_all(head.as_bytes()).expect("the door takes it");
    }

    /// The next answer, whose body ends with `end`.
    fn answer(&mut self, end: &str) -> String {
        let mut answer = String::new();
        while !answer.ends_with(end) {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("an answer");
            answer.push(byte[0].into());
        }
        answer
    }
}

/// A door with one slot that distinguishes clients under pressure.
struct Scene {
    stage: Stage,
    common: Common,
    people: Arc<ClientConfig>,
    swarm: Arc<ClientConfig>,
    _networks: LiveNetworks,
}

impl Scene {
    fn open(common: Common) -> Scene {
        let authority = Authority::new();
        let asns = authority.path("asn.tsv");
        fs::write(&asns, ASNS).expect("written");
        let stage = stage(|settings| {
            settings.queue.known = KnownSetting::Auto;
            settings.trusted_proxies = Vec::new();
            settings.tls = Some(front(vec![authority.sign("a.example")]));
            settings.facts.insert(ClientFact::Ja4);
            settings.databases = DatabaseSettings { asn: Some(asns), country: None };
        });
        let (files, tables) = (stage.settings.network_files(), stage.engine.networks());
        let networks = LiveNetworks::load(&files, tables, &stage.watch).expect("a database");
        let people = authority.client(&["http/1.1"], None);
        // A handshake without ALPN.
        let swarm = authority.client(&[], None);
        Scene { stage, common, people, swarm, _networks: networks }
    }

    fn client(&self, address: [u8; 4], headers: String, tls: &Arc<ClientConfig>) -> Client {
        let address = Ipv4Addr::from(address);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((address, 0)).into()).expect("loopback has all of them");
        socket.connect(&self.stage.door.addresses()[0].into()).expect("the door takes us in");
        let (stream, _) = handshake(socket.into(), tls, "a.example").expect("TLS");
        Client { stream, address, headers }
    }

    fn person(&self, number: u8) -> Client {
        self.client([127, 1 + number, 0, 1], browser(number), &self.people)
    }

    /// A client like those of the swarm, and otherwise like people.
    fn member(&self, number: u8) -> Client {
        let address = match self.common {
            Common::Network => [127, 100, number, 1],
            Common::Asn => [127, 100 + number, 1, 1],
            _ => [127, 1 + number, 1, 1],
        };
        let headers = match self.common {
            Common::UserAgent => "user-agent: swarm/1\r\n".to_owned(),
            _ => browser(number),
        };
        let tls = if self.common == Common::Ja4 { &self.swarm } else { &self.people };
        self.client(address, headers, tls)
    }

    /// Serves each returning client three times, so that it is counted once. The last one is like
    /// the swarm. Returns that one and the connection to the backend.
    fn serve_returning(&self) -> (Client, Wire) {
        let mut returning: Vec<Client> = (1..RETURNING).map(|one| self.person(one)).collect();
        returning.push(self.member(SWARM));
        let mut backend = None;
        for _ in 0..3 {
            for client in &mut returning {
                client.ask("/light", "");
                let mut working = self.stage.backend_for("/light", backend.take());
                working.send("HTTP/1.1 200 OK\r\nx-cost: 1ms\r\ncontent-length: 2\r\n\r\nok");
                client.answer("\r\n\r\nok");
                backend = Some(working);
            }
        }
        (returning.pop().expect("one"), backend.expect("served"))
    }

    /// A page that is known to take 9 s is with the backend, so all that ask for it have to wait.
    /// Returns the connection to the backend, and the client that it works for.
    fn busy(&self, backend: Wire) -> (Wire, Client) {
        let mut client = self.person(90);
        client.ask("/page", "");
        let mut backend = self.stage.backend_for("/page", backend);
        answer(&mut backend);
        client.answer("\r\n\r\nok");
        client.ask("/page", "");
        (self.stage.backend_for("/page", backend), client)
    }

    /// Lets a client ask for the page, beside `waiting` requests that wait.
    fn asks(&self, client: &mut Client, more: &str, waiting: usize) {
        client.ask("/page", more);
        waits(&self.stage, waiting + 1);
    }

    /// The addresses of the next `count` clients whose requests get to the backend.
    fn order(&self, mut backend: Wire, count: usize) -> Vec<Ipv4Addr> {
        let served = |_| {
            answer(&mut backend);
            let (again, head) = next(&self.stage, backend.again());
            backend = again;
            let named = head.split("x-forwarded-for: ").nth(1).and_then(|rest| rest.lines().next());
            named.and_then(|client| client.parse().ok()).expect("the address of a client")
        };
        (0..count).map(served).collect()
    }

    fn burning(&self) -> Vec<String> {
        self.stage.engine.burning().into_iter().map(|one| one.name).collect()
    }
}

fn browser(number: u8) -> String {
    format!("user-agent: browser/{}\r\naccept-language: de\r\n", number % 5)
}

fn answer(backend: &mut Wire) {
    backend.send("HTTP/1.1 200 OK\r\nx-cost: 9s\r\ncontent-length: 2\r\n\r\nok");
}

/// The swarm waits, a newcomer that is not like it goes before it, and a returning client that is
/// like it goes first. `name`: a part of the name of the group that burns.
fn burns(common: Common, name: &str) {
    let scene = Scene::open(common);
    let (mut returning, backend) = scene.serve_returning();
    let (backend, _first) = scene.busy(backend);
    // The first of the swarm are strangers like others, and go away.
    let mut gone = Vec::new();
    for number in 0..SWARM {
        let mut member = scene.member(number);
        scene.asks(&mut member, "", gone.len());
        gone.push(member);
    }
    drop(gone);
    waits(&scene.stage, 0);
    let names = scene.burning();
    assert!(names.iter().any(|one| one.contains(name)), "{common:?}: {names:?}");
    let burning = scene.stage.engine.burning();
    assert!(burning[0].cost_part > 0.9 && burning[0].clients_part < 0.1, "{burning:?}");

    let (mut newcomer, mut swarm) = (scene.person(80), [61, 62].map(|one| scene.member(one)));
    scene.asks(&mut swarm[0], "", 0);
    scene.asks(&mut swarm[1], "", 1);
    scene.asks(&mut newcomer, "", 2);
    scene.asks(&mut returning, "", 3);
    let expected = [returning.address, newcomer.address, swarm[0].address, swarm[1].address];
    assert_eq!(scene.order(backend, 4), expected, "{common:?}");
}

#[test]
fn a_swarm_with_something_in_common_waits_behind_other_strangers() {
    burns(Common::UserAgent, "User-Agent 'swarm/1'");
    burns(Common::Network, "127.100.0.0/16");
    burns(Common::Asn, "AS64501");
    burns(Common::Ja4, "ja4 t13d");
}

#[test]
fn a_swarm_that_is_like_people_does_not_burn_and_a_newcomer_gets_in() {
    let scene = Scene::open(Common::Nothing);
    let (mut returning, backend) = scene.serve_returning();
    let (backend, _first) = scene.busy(backend);
    let mut swarm = Vec::new();
    for number in 0..SWARM {
        let mut member = scene.member(number);
        scene.asks(&mut member, "", swarm.len());
        swarm.push(member);
    }
    assert_eq!(scene.burning(), [""; 0]);
    let mut newcomer = scene.person(80);
    newcomer.ask("/page", NAVIGATE);
    let page = newcomer.answer("</html>\n");
    assert!(page.starts_with("HTTP/1.1 503 ") && page.contains("<h1>Please wait</h1>"), "{page}");
    let ticket = page.split("set-cookie: ").nth(1).and_then(|rest| rest.split(';').next());
    let ticket = format!("{NAVIGATE}cookie: {}\r\n", ticket.expect("a ticket"));
    scene.asks(&mut newcomer, &ticket, swarm.len());
    scene.asks(&mut returning, "", swarm.len() + 1);
    assert_eq!(scene.order(backend, 2), [returning.address, newcomer.address]);
}
