//! Clients by name: exempt clients, clients that are counted together, and clients with forged
//! names. The test has a name server of its own, and asks Evenkeel about clients of many addresses.

use crate::door::Door;
use evenkeel_testing::wait::wait_for;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const PTR: u16 = 12;
const A: u16 = 1;

/// The records of the name server: an address, its name, and the address of that name.
const ZONE: [(&str, &str, &str); 6] = [
    ("192.0.2.1", "x.googlebot.com", "192.0.2.1"),
    ("192.0.2.2", "Y.GoogleBot.com", "192.0.2.2"),
    ("192.0.2.3", "z.googlebot.com", "198.51.100.9"),
    ("192.0.2.4", "a.stonehenge.com", "192.0.2.4"),
    ("192.0.2.5", "stonehenge.com", "192.0.2.5"),
    ("192.0.2.6", "x.stonehenge.com", "198.51.100.9"),
];

/// A name server that answers queries unless it is mute, and counts them. It ends with the test
/// process.
struct NameServer {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl NameServer {
    fn start(mute: bool) -> NameServer {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = socket.local_addr().expect("bound").port();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut query) {
                counter.fetch_add(1, Ordering::Relaxed);
                if !mute {
                    let _ = socket.send_to(&answer(&query[..length]), from);
                }
            }
        });
        NameServer { port, asked }
    }
}

/// A DNS answer (RFC 1035, 4): the question, and one record or none.
fn answer(query: &[u8]) -> Vec<u8> {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] > 0 {
        let length = usize::from(query[at]);
        let label = String::from_utf8_lossy(&query[at + 1..=at + length]);
        labels.push(label.to_ascii_lowercase());
        at += length + 1;
    }
    let end = at + 5;
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    let data = data(&labels, kind);
    let (code, count) = if data.is_some() { (0x80, 1) } else { (0x83, 0) };
    let mut answer = [&query[..2], &[0x84, code, 0, 1, 0, count, 0, 0, 0, 0]].concat();
    answer.extend_from_slice(&query[12..end]);
    if let Some(data) = data {
        // A pointer to the name in the question, the type, the class, and a time to live of five
        // minutes.
        answer.extend_from_slice(&[0xc0, 12]);
        answer.extend_from_slice(&kind.to_be_bytes());
        answer.extend_from_slice(&[0, 1, 0, 0, 1, 44]);
        answer.extend_from_slice(&(data.len() as u16).to_be_bytes());
        answer.extend_from_slice(&data);
    }
    answer
}

fn data(labels: &[String], kind: u16) -> Option<Vec<u8>> {
    let reversed = |ip: &str| {
        let mut parts: Vec<&str> = ip.split('.').collect();
        parts.reverse();
        format!("{}.in-addr.arpa", parts.join("."))
    };
    let asked = labels.join(".");
    match kind {
        PTR => {
            let (_, name, _) = ZONE.iter().find(|(ip, ..)| reversed(ip) == asked)?;
            let labels =
                name.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
            Some(labels.chain([0]).collect())
        }
        A => {
            let (.., ip) = ZONE.iter().find(|(_, name, _)| name.eq_ignore_ascii_case(&asked))?;
            Some(ip.parse::<Ipv4Addr>().expect("an address").octets().to_vec())
        }
        _ => None,
    }
}

/// A limit that one request of a second exceeds.
fn throttle(server: &NameServer) -> Door {
    Door::start(&format!(
        "  exempt: [\"host:*.stonehenge.com\"]\n  \
         merge: [{{match: \"host:*.googlebot.com\", as: googlebot.com}}]\n  \
         resolver: 127.0.0.1:{}\n  limits:\n    \
         - {{name: host, by: host, window: 1h, max: 1s, action: reject}}\n",
        server.port
    ))
}

fn looked_up(door: &Door, result: &str, count: f64) {
    door.wait_for_metric("evenkeel_host_lookups_total", &[("result", result)], count);
}

/// Waits until the check door answers with this status: a name takes effect just after it is found.
fn comes_to(door: &Door, client: &str, status: u16) {
    wait_for(client, || (door.ask(client).status == status).then_some(()));
}

#[test]
fn p8_p14_names_count_only_if_they_lead_back() {
    let server = NameServer::start(false);
    let throttle = throttle(&server);
    // The first request counts by address; once the name is known, its debt moves to the name.
    throttle.spend("192.0.2.1", "2s");
    looked_up(&throttle, "confirmed", 1.0);
    comes_to(&throttle, "192.0.2.2", 403);
    comes_to(&throttle, "192.0.2.1", 403);
    // The name claims to be googlebot's but leads to another address, so the client counts by
    // address.
    assert_eq!(throttle.ask("192.0.2.3").status, 204);
    looked_up(&throttle, "forged", 1.0);
    throttle.spend("192.0.2.3", "500ms");
    assert_eq!(throttle.ask("192.0.2.3").status, 204);
    // Exempt as soon as the name is known, whatever its requests cost.
    assert_eq!(throttle.ask("192.0.2.4").status, 204);
    looked_up(&throttle, "confirmed", 3.0);
    throttle.spend("192.0.2.4", "5s");
    comes_to(&throttle, "192.0.2.4", 204);
    (0..3).for_each(|_| throttle.spend("192.0.2.4", "5s"));
    assert_eq!(throttle.ask("192.0.2.4").status, 204);
    // None of these is exempt: the domain itself without a label before it, a forged name, and no
    // name.
    for (index, client) in ["192.0.2.5", "192.0.2.6", "192.0.2.7"].into_iter().enumerate() {
        assert_eq!(throttle.ask(client).status, 204);
        looked_up(&throttle, ["other", "forged", "other"][index], [1.0, 2.0, 2.0][index]);
        throttle.spend(client, "2s");
        assert_eq!(throttle.ask(client).status, 403, "{client}");
    }
}

#[test]
fn a_name_server_that_does_not_answer_delays_nobody() {
    let server = NameServer::start(true);
    let throttle = throttle(&server);
    (0..20).for_each(|client| throttle.spend(&format!("192.0.2.{client}"), "1ms"));
    wait_for("a question", || (server.asked.load(Ordering::Relaxed) > 0).then_some(()));
    let failed = throttle.metric("evenkeel_host_lookups_total", &[("result", "failed")]);
    assert!(failed < 20.0, "who waits for names has heard of each that there is none: {failed}");
    throttle.spend("192.0.2.3", "2s");
    assert_eq!(throttle.ask("192.0.2.3").status, 403, "it counts by address");
}

#[test]
fn a_robot_is_proven_by_the_name_of_its_host_and_others_are_impostors() {
    let server = NameServer::start(false);
    let door = Door::start(&format!(
        "  robots:\n    \
         - {{name: googlebot, user_agent: \"*Googlebot*\", host: \"*.googlebot.com\"}}\n  \
         resolver: 127.0.0.1:{}\n",
        server.port
    ));
    let claim = |client: &str| {
        let answer = door.ask_with(client, "/check", "User-Agent: a Googlebot/2.1\r\n");
        assert_eq!(answer.status, 204);
    };
    let count = |proof| {
        let labels = [("robot", "googlebot"), ("proof", proof)];
        door.metric("evenkeel_robot_requests_total", &labels)
    };
    claim("192.0.2.1");
    assert_eq!((count("host"), count("none")), (0.0, 0.0), "its name is being looked up");
    looked_up(&door, "confirmed", 1.0);
    wait_for("a proven request", || {
        claim("192.0.2.1");
        (count("host") > 0.0).then_some(())
    });
    // Its name claims to be googlebot's, but leads to another address.
    claim("192.0.2.3");
    looked_up(&door, "forged", 1.0);
    wait_for("an impostor", || {
        claim("192.0.2.3");
        (count("none") > 0.0).then_some(())
    });
    // A client that claims nothing is not looked up, and is no robot whatever its name.
    let (asked, proven) = (server.asked.load(Ordering::Relaxed), count("host"));
    assert_eq!(door.ask("192.0.2.2").status, 204);
    assert_eq!(door.ask("192.0.2.1").status, 204);
    assert_eq!((server.asked.load(Ordering::Relaxed), count("host")), (asked, proven));
}
