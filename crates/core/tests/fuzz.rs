//! Fuzz tests for everything in this crate that parses untrusted bytes. Under `cargo test` each
//! test runs for a second; `fuzz/run` runs one for the time that it is given.

use evenkeel_core::bucket::{Algorithm, debt::DebtBucket};
use evenkeel_core::classify::prefix::{PREFIX_BYTES_MAX, PrefixTable};
use evenkeel_core::classify::{self, RequestAttributes, normal_path};
use evenkeel_core::condition::Clause;
use evenkeel_core::condition::patterns::PathPatterns;
use evenkeel_core::key::{KeyHash, KeySeed, NAME_BYTES_MAX};
use evenkeel_core::limit::{KeyPart, Limit, LimitUnit};
use evenkeel_core::meter::estimate::{RouteHash, fold};
use evenkeel_core::meter::header_cost;
use evenkeel_core::queue::admission::Admission;
use evenkeel_core::queue::shared::{GrantedVisit, InstanceBeat, QueueMessage, RequestCounts};
use evenkeel_core::queue::standing::{KnownClients, Visit, VisitPass, VisitTicket};
use evenkeel_core::queue::{Arrival, DebtFlow, QueuePlace, QueueSettings, WorkUnit};
use evenkeel_core::replica::{
    Replica, ReplicaEvent, ReplicaSettings, ReplicaUpdate, ReplicatedLimit,
};
use evenkeel_core::units::{Cost, CpuShare, Nanos, Rate, Time, Weight};
use evenkeel_fuzz::fuzz;
use std::net::{IpAddr, Ipv4Addr};

const HOUR: Nanos = Nanos::from_secs(3_600);

struct Request<'a> {
    path: &'a str,
    value: &'a [u8],
}

impl RequestAttributes for Request<'_> {
    fn address(&self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    }
    fn method(&self) -> &str {
        "GET"
    }
    fn path(&self) -> &str {
        self.path
    }
    fn vhost(&self) -> &str {
        self.path
    }
    fn header(&self, _name: &str) -> Option<&[u8]> {
        Some(self.value)
    }
}

fn limit(by: Vec<KeyPart>) -> Limit {
    let rate = "1/s".parse().expect("a rate");
    Limit {
        name: "fuzzed".into(),
        by,
        when: Clause::has_cookie("session").into(),
        unit: LimitUnit::Hits,
        algorithm: Algorithm::Debt(DebtBucket::new(rate, Cost::hits(1))),
        action: None,
        weight: Weight::ONE,
        keys_max: 1,
        shadow: false,
    }
}

#[test]
fn fuzz_units() {
    fuzz().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(length) = text.parse::<Nanos>() {
            let written = length.to_string();
            assert!(written.parse::<Nanos>().is_ok(), "{written} of {text}");
        }
        if let Ok(share) = text.parse::<CpuShare>() {
            assert!(share.fraction() > 0.0 && share.fraction() <= 1.0, "{text}");
        }
        if let Ok(weight) = text.parse::<Weight>() {
            assert_eq!(weight.to_string().parse(), Ok(weight), "{text}");
        }
        if let Ok(rate) = text.parse::<Rate>() {
            assert!(rate.per_second() > 0.0 && rate.per_second().is_finite(), "{text}");
        }
    });
}

/// Builds text from tokens that the parsers accept, which random bytes hardly ever contain.
#[test]
fn fuzz_units_of_likely_pieces() {
    const PIECES: [&str; 16] = [
        "0",
        "7",
        "99999999999999999999",
        ".",
        "%",
        "/",
        " per ",
        " ",
        "ns",
        "us",
        "ms",
        "s",
        "m",
        "h",
        "d",
        "-",
    ];
    fuzz().for_each(|bytes: &[u8]| {
        let text: String = bytes.iter().map(|b| PIECES[usize::from(*b) % 16]).collect();
        let _ = text.parse::<Nanos>();
        let _ = text.parse::<CpuShare>();
        if let Ok(weight) = text.parse::<Weight>() {
            assert_eq!(weight.to_string().parse(), Ok(weight), "{text}");
        }
        if let Ok(rate) = text.parse::<Rate>() {
            assert!(rate.per_second() > 0.0 && rate.per_second().is_finite(), "{text}");
        }
    });
}

#[test]
fn fuzz_header_cost() {
    fuzz().for_each(|bytes: &[u8]| {
        if let Ok(Some(cost)) = header_cost(bytes) {
            assert!(cost <= HOUR);
        }
    });
}

#[test]
fn fuzz_header_cost_of_likely_pieces() {
    const PIECES: [&str; 24] = [
        "cpu",
        ";dur=",
        "dur",
        "=",
        ";",
        ",",
        "\"",
        "\\",
        "12.5",
        "-",
        "nan",
        "1e9",
        "ms",
        "us",
        "s",
        " ",
        "TEXT ",
        "JSON ",
        "request_cost",
        ".cpu=",
        "{",
        "}",
        ":",
        "\"cpu\":",
    ];
    fuzz().for_each(|bytes: &[u8]| {
        let text: String = bytes.iter().map(|b| PIECES[usize::from(*b) % 24]).collect();
        if let Ok(Some(cost)) = header_cost(text.as_bytes()) {
            assert!(cost <= HOUR, "{text}");
        }
    });
}

fn path_is_normal(path: &str) {
    let normal = normal_path(path);
    assert_eq!(normal_path(&normal), normal, "of {path:?}");
    assert!(normal.starts_with('/') && normal.is_ascii(), "{normal:?} of {path:?}");
    let mut segments = normal[1..].split('/');
    let empty = normal != "/" && segments.any(|segment| segment.is_empty() || segment == ".");
    assert!(!empty && !normal.contains([';', '\\', '?', '#']), "{normal:?} of {path:?}");
    assert!(!normal.contains("..") || !normal.split('/').any(|s| s == "..") || normal == "/..");
}

/// Whatever a backend makes of a path, in any order of these steps, a limit on the result applies
/// to the original path.
fn path_is_caught(path: &str, order: &[u8]) {
    let mut seen = path.to_owned();
    for step in order.iter().take(8) {
        seen = match step % 6 {
            0 => decode(&seen),
            1 => seen
                .split('/')
                .map(|s| s.split(';').next().unwrap_or_default())
                .collect::<Vec<_>>()
                .join("/"),
            2 => resolve(&seen),
            3 => seen.replace('\\', "/"),
            4 => seen.to_ascii_uppercase(),
            _ => seen.replace("//", "/"),
        };
        // A backend decodes at most once.
        if order.iter().filter(|step| *step % 6 == 0).count() > 1 {
            return;
        }
    }
    let prefix = normal_path(&seen);
    if *prefix == *"/.." {
        return;
    }
    let when = Clause::Path(PathPatterns::new([&*prefix]).expect("a path")).into();
    let request = Request { path, value: b"" };
    assert!(classify::applies(&when, &request), "{path:?} read as {seen:?}, {order:?}");
}

/// Decodes all codes except those of a percent sign or a semicolon.
fn decode(path: &str) -> String {
    let mut decoded = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|two| str::from_utf8(two).ok());
        let digits = digits.filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        match code.filter(|code| *first == b'%' && *code != b'%' && *code != b';') {
            Some(code) => {
                decoded.push(code);
                rest = &behind[2..];
            }
            None => {
                decoded.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| path.to_owned())
}

/// Resolves dot segments as RFC 3986 does, with empty segments counted as segments.
fn resolve(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            ".." => _ = kept.pop(),
            "." => {}
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[test]
fn fuzz_paths() {
    fuzz().for_each(|bytes: &[u8]| {
        path_is_normal(&format!("/{}", String::from_utf8_lossy(bytes)));
        path_is_normal(&String::from_utf8_lossy(bytes));
    });
}

#[test]
fn fuzz_paths_of_likely_pieces() {
    const PIECES: [&str; 16] = [
        "/", "//", ".", "..", "%2e", "%5c", "%2f", "%", "%25", ";", "login", "%6C", "%zz", "ß",
        "\\", "/../",
    ];
    fuzz().for_each(|bytes: &[u8]| {
        let path: String = bytes.iter().map(|b| PIECES[usize::from(*b) % 16]).collect();
        path_is_normal(&path);
        path_is_normal(&format!("/{path}"));
        let (order, path) = bytes.split_at(bytes.len().min(6));
        let path: String = path.iter().map(|b| PIECES[usize::from(*b) % 16]).collect();
        path_is_caught(&format!("/{path}"), order);
    });
}

#[test]
fn fuzz_keys_and_names() {
    let parts = vec![
        KeyPart::Ip { v4: 24, v6: 48 },
        KeyPart::UserAgent,
        KeyPart::Cookie("session".into()),
        KeyPart::Header("x".into()),
        KeyPart::Path(Some(2)),
        KeyPart::Vhost,
    ];
    let (limit, seed) = (limit(parts), KeySeed([3; 16]));
    fuzz().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let request = Request { path: &text, value: bytes };
        assert_eq!(
            classify::hash(&limit, &seed, &request),
            classify::hash(&limit, &seed, &request)
        );
        let name = classify::name(&limit.by, &request, KeyHash::from_bits(1));
        assert!(name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control));
        let _ = classify::applies(&limit.when, &request);
    });
}

/// A cookie is found and counted, whatever other cookies surround it.
#[test]
fn fuzz_cookies() {
    let (limit, seed) = (limit(vec![KeyPart::Cookie("session".into())]), KeySeed([3; 16]));
    let hash = |value: &[u8]| classify::hash(&limit, &seed, &Request { path: "/", value });
    let plain = hash(b"session=abc");
    fuzz().for_each(|bytes: &[u8]| {
        let after = [b"session=abc; ", bytes].concat();
        assert_eq!(hash(&after), plain);
        let named = bytes.windows(7).any(|window| window == b"session");
        if !named {
            assert_eq!(hash(&[bytes, b"; session=abc"].concat()), plain);
        }
    });
}

fn route_is_folded(path: &str) {
    let folded = fold(path);
    assert_eq!(fold(&folded), folded, "of {path:?}");
    assert!(folded.len() <= path.len(), "{folded:?} of {path:?}");
    let number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    let numbers = folded.split(|c: char| !c.is_ascii_alphanumeric()).any(number);
    assert!(!numbers, "{folded:?} of {path:?}");
}

#[test]
fn fuzz_routes() {
    fuzz().for_each(|bytes: &[u8]| route_is_folded(&String::from_utf8_lossy(bytes)));
}

#[test]
fn fuzz_routes_of_likely_pieces() {
    const PIECES: [&str; 16] = [
        "/",
        "?",
        "&",
        "=",
        "-",
        "*",
        "12",
        "a1b2",
        "deadbee",
        "123e4567",
        "426614174000",
        "user",
        ".",
        "%20",
        "\u{df}",
        "123e4567-e89b-12d3-a456-426614174000",
    ];
    fuzz().for_each(|bytes: &[u8]| {
        let path: String = bytes.iter().map(|b| PIECES[usize::from(*b) % 16]).collect();
        route_is_folded(&path);
    });
}

/// The time of all simulated exchanges between peers.
const START: Time = Time(1_700_000_000_000_000_000);

fn replica(node: u64, reliable: bool) -> Replica {
    let settings = ReplicaSettings {
        node,
        life: 1,
        name: "fuzzed".into(),
        period: Nanos::from_secs(5),
        frame_max: 300,
        reliable,
        cpus_milli: 1,
        nodes_max: 4,
    };
    let shared = |fingerprint| ReplicatedLimit {
        fingerprint,
        name: "a".into(),
        numbers: "b".into(),
        unit: 1,
        per_second: Cost::ZERO,
    };
    let mut replica = Replica::new(settings, (1..=2).map(shared).collect(), START);
    replica.set_queues(vec![QUEUE]);
    replica
}

/// The fingerprint of the queue that all simulated instances share.
const QUEUE: u64 = 9;

/// Messages about a queue, of the kinds with the most fields.
fn queue_messages(now: Time) -> [QueueMessage; 5] {
    let settings = QueueSettings {
        concurrency: 1,
        reserve: 0,
        len_max: 9,
        wait_max: HOUR,
        known: KnownClients::Off,
        cpus_milli: 1,
        unit: WorkUnit::CpuTime,
        workers: None,
    };
    let id = Admission::new(settings, None).next_id();
    let hash = KeyHash::from_bits(3);
    let arrival = Arrival {
        client: hash,
        place: QueuePlace::Debt(DebtFlow { limit: 1, hash }),
        estimate: Cost(7),
        is_guess: true,
        route: Some(RouteHash::UNKNOWN),
        own: None,
        weight: Weight::ONE,
        visit: Visit::Ticket(VisitTicket { id: 5, first_came: now }),
        accepts_waiting_page: true,
        burns: false,
    };
    let pass = Some(VisitPass { id: 5, stamp: now });
    let visit = GrantedVisit { pass, newcomer_since: Some(now) };
    let worked = Some((RouteHash::UNKNOWN, HOUR));
    let counts = RequestCounts { waiting: 300, running: 2 };
    let beat = InstanceBeat {
        term: 3,
        is_owner: true,
        slots: 2,
        has_joined: true,
        pressure: Some(HOUR),
        own: counts,
        all: counts,
    };
    [
        QueueMessage::Beat(beat),
        QueueMessage::Ask { id, arrival },
        QueueMessage::Grant { id, visit },
        QueueMessage::Progress { id, cost: Cost(1) },
        QueueMessage::Done { id, cost: Cost(1), worked, keeps: true },
    ]
}

/// Frames of every kind as instances really send them, in the order of sending.
fn frames(reliable: bool) -> Vec<Vec<u8>> {
    let (mut a, mut b) = (replica(1, reliable), replica(2, reliable));
    let mut frames = Vec::new();
    a.handle_up(0, START);
    b.handle_up(0, START);
    for step in 0..6 {
        let now = START.plus(Nanos::from_secs(5 * step));
        for key in 1..40 {
            a.charge(0, u128::from(key / 30), KeyHash::from_bits(key << 32), Cost(key), now);
        }
        a.send_names([(1, KeyHash::from_bits(7), "name")], now);
        a.send_clients(None, [(3, KeyHash::from_bits(8), step << 20)], now);
        a.queue_frame(2, QUEUE, &queue_messages(now), now);
        a.handle_timeout(now);
        b.handle_timeout(now);
        for _ in 0..20 {
            while let Some((_, frame)) = b.poll_transmit() {
                let _ = a.handle_frame(0, &frame, now, &mut |_| {});
            }
            while let Some(event) = a.poll_event() {
                if let ReplicaEvent::Wanted { node } = event {
                    a.give_state(node, [(0, KeyHash::from_bits(9), Cost(5))], now);
                }
            }
            while let Some((_, frame)) = a.poll_transmit().or_else(|| a.poll_queue_transmit()) {
                let _ = b.handle_frame(0, &frame, now, &mut |_| {});
                frames.push(frame.to_vec());
            }
        }
    }
    frames
}

/// For arbitrary frames, and for mutations of real frames: no charge goes to a limit that does not
/// exist, and memory stays bounded.
#[test]
fn fuzz_what_peers_say() {
    let said = [frames(true), frames(false)];
    let kinds = |frames: &[Vec<u8>]| (1..=9).filter(|k| frames.iter().any(|f| f[1] == *k)).count();
    assert_eq!(
        (kinds(&said[0]), kinds(&said[1])),
        (9, 7),
        "a group acknowledges nothing, and shares no queue"
    );
    fuzz().with_type::<(bool, Vec<u8>, Vec<(u8, u8, u8)>)>().for_each(|(reliable, raw, edits)| {
        let mut hearer = replica(2, *reliable);
        hearer.handle_up(0, START);
        let mut hear = |bytes: &[u8]| {
            let mut told = |told: ReplicaUpdate<'_>| match told {
                ReplicaUpdate::Charge { limit, .. } | ReplicaUpdate::Short { limit, .. } => {
                    assert!(limit < 2)
                }
                ReplicaUpdate::Name { limit, name, .. } => assert!(limit < 2 && name.len() <= 120),
                ReplicaUpdate::Client { .. } => {}
                ReplicaUpdate::Queue { queue, messages, .. } => {
                    assert!(queue == QUEUE && messages.len() <= bytes.len())
                }
            };
            let _ = hearer.handle_frame(0, bytes, START, &mut told);
        };
        hear(raw);
        let frames = &said[usize::from(!*reliable)];
        for (index, frame) in frames.iter().enumerate() {
            let mut frame = frame.clone();
            for (which, place, value) in edits {
                if usize::from(*which) % frames.len() == index {
                    let place = usize::from(*place) % frame.len();
                    frame[place] = *value;
                    frame.truncate(frame.len() - usize::from(*value == 0));
                }
            }
            hear(&frame);
        }
        hearer.handle_timeout(START.plus(Nanos::from_secs(5)));
        while hearer.poll_event().is_some() {}
        assert!(std::iter::from_fn(|| hearer.poll_transmit()).count() < 100);
        assert!(hearer.peers(START).len() <= 3);
    });
}

#[test]
fn fuzz_a_prefix_table_finds_what_looking_at_all_prefixes_finds() {
    fuzz().with_type::<(Vec<Vec<u8>>, Vec<Vec<u8>>)>().for_each(|(all, tags)| {
        // Only three byte values, so that some strings are prefixes of others.
        let few = |text: &Vec<u8>| text.iter().map(|byte| byte % 3).collect::<Vec<u8>>();
        let all: Vec<Vec<u8>> = all.iter().map(few).collect();
        let found = PrefixTable::new(all.iter().zip(0..).map(|(text, at)| (&**text, at)));
        for tag in tags.iter().map(few).chain(all.iter().cloned()) {
            let fits = all.iter().enumerate().filter(|(_, prefix)| tag.starts_with(prefix));
            // The first of the longest.
            let longest = fits.rev().max_by_key(|(_, prefix)| prefix.len());
            let short = longest.filter(|(_, prefix)| prefix.len() <= PREFIX_BYTES_MAX);
            if longest.is_some() == short.is_some() {
                assert_eq!(found.find(&tag), longest.map(|(at, _)| at as u32));
            }
        }
    });
}
