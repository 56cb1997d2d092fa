//! The `peers` section: its defaults, its forms and its errors.

use super::{faults, good};
use evenkeel_config::settings::peers::{PeerTarget, PeerTransport};
use evenkeel_config::{StartProblems, check};
use std::time::Duration;

#[test]
fn an_empty_section_is_a_mesh_on_loopback() {
    for text in ["peers:", "peers: {}", "peers: {via: mesh}"] {
        let peers = good(text).settings.peers.expect("there");
        let PeerTransport::Mesh { listen, join, mdns } = peers.via else { panic!("{text}") };
        assert_eq!(listen, "127.0.0.1:7946".parse().expect("an address"));
        assert!(join.is_empty() && !mdns);
        assert_eq!((&*peers.cluster, peers.period), ("default", Duration::from_secs(5)));
        assert_eq!((peers.secret_file, peers.tls, peers.cpus_shared), (None, None, false));
        assert_eq!(peers.nodes_max, 256);
    }
    assert!(good("proxy: {}").settings.peers.is_none(), "whoever says nothing counts alone");
}

#[test]
fn every_way_of_reaching_others_is_read() {
    let mesh = "peers: {listen: '0.0.0.0:7946', secret_file: /k, mdns: true, cpus_shared: true, \
                join: [a.example, '127.0.0.1:1', '[::1]:2', 'dns:b.example:3', 'dns:c.example']}";
    let peers = good(mesh).settings.peers.expect("there");
    let PeerTransport::Mesh { join, mdns: true, .. } = peers.via else { panic!("a mesh") };
    let one = |text: &str| PeerTarget::One(text.to_owned());
    let dns = |text: &str| PeerTarget::Dns(text.to_owned());
    let expected = [
        one("a.example:7946"),
        one("127.0.0.1:1"),
        one("[::1]:2"),
        dns("b.example:3"),
        dns("c.example:7946"),
    ];
    assert_eq!(join, expected);
    let multicast = "peers: {via: multicast, group: '239.1.2.3:4', secret_file: /k, hops: 3, \
                     interface: 192.0.2.7, period: 1s, cluster: blue_2}";
    let peers = good(multicast).settings.peers.expect("there");
    let PeerTransport::Multicast { group, interface, hops: 3 } = peers.via else {
        panic!("a group")
    };
    assert_eq!((group.to_string(), interface.is_some()), ("239.1.2.3:4".to_owned(), true));
    let nats = "peers: {via: nats, nats: ['tls://a.example', 'nats://b.example:5/'], \
                secret_file: /k, credentials_file: /c}";
    let peers = good(nats).settings.peers.expect("there");
    let PeerTransport::Nats { servers, credentials_file: Some(_) } = peers.via else {
        panic!("nats")
    };
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["tls://a.example:4222", "nats://b.example:5"]);
}

#[test]
fn what_is_shown_of_peers_runs_the_same() {
    for text in [
        "peers: {tls: {cert: a, key: b, ca: c}, listen: '[::]:1', join: 'dns:x', nodes_max: 2}",
        "peers: {via: multicast, interface: 127.0.0.1, period: 100ms}",
        "peers: {via: nats, cpus_shared: true}",
    ] {
        let config = good(text);
        let again = good(&config.native);
        assert_eq!((&again.settings, &again.native), (&config.settings, &config.native), "{text}");
    }
}

#[test]
fn each_of_these_is_faulty_in_peers() {
    for (text, what) in [
        ("{via: gossip}", "must be one of: mesh, multicast, nats"),
        ("{listen: '0.0.0.0:7946'}", "`peers` beyond loopback need a `secret_file` or `tls`"),
        ("{listen: '192.0.2.1:7946'}", "`peers` beyond loopback"),
        ("{mdns: true}", "`mdns` finds instances of other machines"),
        ("{via: multicast}", "a group needs a `secret_file`"),
        ("{via: multicast, interface: 192.0.2.1}", "a group needs a `secret_file`"),
        (
            "{via: multicast, secret_file: /k, tls: {cert: a, key: b, ca: c}}",
            "datagrams have no `tls`",
        ),
        ("{via: multicast, group: '192.0.2.1:1', secret_file: /k}", "not a group"),
        ("{via: multicast, group: '[ff15::1]:1', interface: 127.0.0.1}", "must both be IPv4"),
        ("{via: nats, nats: 'nats://a.example'}", "NATS beyond loopback needs a `secret_file`"),
        ("{via: nats, nats: 'http://a'}", "write nats://127.0.0.1:4222"),
        ("{via: nats, nats: 'nats://me:you@127.0.0.1'}", "put a user into `credentials_file`"),
        ("{via: nats, listen: '127.0.0.1:1'}", "`listen` belongs to `via: mesh`"),
        ("{group: '239.1.1.1:1'}", "`group` belongs to `via: multicast`"),
        ("{nats: 'nats://127.0.0.1:1'}", "`nats` belongs to `via: nats`"),
        ("{join: 'http://a'}", "dns:name:7946"),
        ("{join: 'a:0'}", "dns:name:7946"),
        ("{join: 'dns:'}", "dns:name:7946"),
        ("{cluster: ''}", "a name of 1 to 63 letters"),
        ("{cluster: a.b}", "a name of 1 to 63 letters"),
        ("{period: 10ms}", "must be from 100ms to 1m"),
        ("{period: 2m}", "must be from 100ms to 1m"),
        ("{nodes_max: 1}", "must be from 2 to 1024"),
        ("{tls: {cert: a, key: b}}", "`tls` of peers needs `ca`"),
        ("{tls: {cert: a, key: b, ca: c, verify: false}}", "unknown key `verify`"),
        ("{secret: abc}", "unknown key `secret`"),
    ] {
        let told = faults(&format!("peers: {text}"));
        assert!(told.contains(what), "{text}\nwants: {what}\ntold: {told}");
    }
    let taken = faults("peers: {listen: '127.0.0.1:9970'}");
    assert!(taken.contains("two listeners use 127.0.0.1:9970"), "{taken}");
}

#[test]
fn the_queue_is_shared_where_all_are_before_one_backend() {
    let shared = |text: &str| good(text).settings.proxy.expect("open").queue.shared;
    for (text, expected) in [
        ("proxy: {}", false),
        ("{proxy: {}, peers: {}}", false),
        ("{proxy: {}, peers: {cpus_shared: true}}", true),
        ("{proxy: {queue: {shared: false}}, peers: {cpus_shared: true}}", false),
        ("{proxy: {queue: {shared: true}}, peers: {}}", true),
        ("{proxy: {}, peers: {via: nats, cpus_shared: true}}", false),
        ("{check: {}, peers: {cpus_shared: true}}", true),
    ] {
        assert_eq!(shared(text), expected, "{text}");
    }
    let native = good("{proxy: {}, peers: {cpus_shared: true}}").native.to_string();
    assert!(native.contains("shared: true\n"), "{native}");
}

#[test]
fn a_queue_is_shared_over_a_mesh_only() {
    for text in [
        "proxy: {queue: {shared: true}}",
        "{proxy: {queue: {shared: true}}, peers: {via: nats}}",
        "{proxy: {queue: {shared: true}}, peers: {via: multicast, interface: 127.0.0.1}}",
    ] {
        let faults = faults(text);
        assert!(faults.contains("needs `peers` with `via: mesh`"), "{text}: {faults}");
    }
}

#[test]
fn beside_a_store_peers_share_the_queue_alone() {
    let store = "store: {redis: 'redis://127.0.0.1:6379'}";
    let text = |peers: &str| format!("{{proxy: {{}}, {store}, peers: {{{peers}}}}}");
    good(&text("cpus_shared: true"));
    let faults = faults(&text(""));
    assert!(faults.contains("two ways to count together"), "{faults}");
}

#[test]
fn check_warns_of_a_queue_that_cannot_be_shared() {
    let is_apart = |text: &str| {
        let warnings = check("t.yaml", text.as_bytes(), 4.0, |_| StartProblems::default());
        warnings.expect("good").iter().any(|warning| warning.contains("a queue of its own"))
    };
    assert!(is_apart("{proxy: {}, peers: {via: nats, cpus_shared: true}}"));
    assert!(!is_apart("{proxy: {}, peers: {via: nats}}"));
    for via in ["nats", "multicast, interface: 127.0.0.1"] {
        let peers = format!("peers: {{via: {via}, cpus_shared: true}}");
        assert!(!is_apart(&format!("{{proxy: {{queue: {{shared: false}}}}, {peers}}}")), "{via}");
    }
    assert!(!is_apart("{proxy: {}, peers: {cpus_shared: true}}"));
    assert!(!is_apart("{line: {rate: 1/s}, peers: {via: nats, cpus_shared: true}}"));
}
