//! Certificates that are valid, invalid, unusual or renewed, and connections between peers with
//! them.

use super::reload::LiveValue;
use super::{PeerTlsConfigs, any_peer_name, peers, peers_by_secret, provider, server};
use evenkeel_config::source::files::{WatchedFile, WatchedFiles};
use evenkeel_core::units::{SECOND, Time};
use evenkeel_telemetry::metrics::TLS_RELOADS;
use evenkeel_telemetry::registry::Registry;
use evenkeel_testing::authority::{Authority, Wish};
use rustls::{ClientConfig, NamedGroup, RootCertStore, ServerConfig};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn read(paths: &[PathBuf]) -> Vec<WatchedFile> {
    WatchedFiles::new(paths.to_vec()).read().expect("readable")
}

fn peer(authority: &Authority, name: &str) -> PeerTlsConfigs {
    peers(&read(&authority.peer(name))).expect("usable").value
}

/// Results of both ends after a handshake and one message in each direction.
fn meet(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> [Result<(), String>; 2] {
    let (near, far) = tokio::io::duplex(16 * 1024);
    let accept = async {
        let mut stream = TlsAcceptor::from(server).accept(near).await.map_err(|e| e.to_string())?;
        stream.write_all(b"a").await.and(stream.flush().await).map_err(|e| e.to_string())?;
        stream.read_u8().await.map(|_| ()).map_err(|e| e.to_string())
    };
    let connect = async {
        let connector = TlsConnector::from(client);
        let connected = connector.connect(any_peer_name(), far).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        stream.write_all(b"b").await.and(stream.flush().await).map_err(|e| e.to_string())?;
        stream.read_u8().await.map(|_| ()).map_err(|e| e.to_string())
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { tokio::join!(accept, connect) }).into()
}

#[test]
fn connections_between_two_of_ours_are_safe_from_recordings_and_a_quantum_computer() {
    let authority = Authority::new();
    let (server, client) = (peer(&authority, "a").server, peer(&authority, "b").client);
    let (near, far) = tokio::io::duplex(16 * 1024);
    let name = any_peer_name();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (served, connected) = runtime.block_on(async {
        let connect = TlsConnector::from(client).connect(name, far);
        tokio::join!(TlsAcceptor::from(server).accept(near), connect)
    });
    let (served, connected) = (served.expect("served"), connected.expect("connected"));
    for group in [
        served.get_ref().1.negotiated_key_exchange_group(),
        connected.get_ref().1.negotiated_key_exchange_group(),
    ] {
        assert_eq!(group.map(|group| group.name()), Some(NamedGroup::X25519MLKEM768));
    }
    // What backends, stores, collectors and brokers are offered first.
    assert_eq!(provider().kx_groups[0].name(), NamedGroup::X25519MLKEM768);
}

#[test]
fn peers_of_one_authority_believe_each_other_and_no_stranger() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (a, b, stranger) = (peer(&ours, "a"), peer(&ours, "b"), peer(&theirs, "c"));
    assert_eq!(meet(a.server.clone(), b.client.clone()), [Ok(()), Ok(())]);
    for (server, client) in [(&a, &stranger), (&stranger, &a)] {
        let [served, connected] = meet(server.server.clone(), client.client.clone());
        assert!(served.is_err() && connected.is_err(), "{served:?} {connected:?}");
    }
}

#[test]
fn a_secret_and_a_cluster_make_one_key_and_others_another() {
    let secret = b"0123456789abcdef".as_slice();
    let ends = |secret: &[u8], cluster| peers_by_secret(secret, cluster).expect("a key");
    let (a, b) = (ends(secret, "default"), ends(secret, "default"));
    assert_eq!(meet(a.server.clone(), b.client.clone()), [Ok(()), Ok(())]);
    let certified = peer(&Authority::new(), "a");
    for other in [ends(b"0123456789abcdeF", "default"), ends(secret, "other"), certified] {
        for (server, client) in [(&a, &other), (&other, &a)] {
            let [served, connected] = meet(server.server.clone(), client.client.clone());
            assert!(served.is_err() && connected.is_err(), "{served:?} {connected:?}");
        }
    }
}

/// The bytes were computed from docs/protocol/peers.md by an independent implementation.
#[test]
fn the_key_of_a_secret_is_as_documented() {
    let key = super::verify::key_of(b"0123456789abcdef", "default").expect("a key");
    let shown = key.as_certificate();
    let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    let (kind, public) = ("302a300506032b6570032100", "c03fc6b4b4191a188e42d71cac027dbd");
    assert_eq!(hex, format!("{kind}{public}a276e8d49bafe5105fdc4e159bba756d"));
}

#[test]
fn a_server_lets_in_clients_of_its_authority_by_name() {
    let authority = Authority::new();
    let [cert, key] = authority.sign("server", &Wish::default());
    let with = |ca: bool, name: Option<&str>| {
        let mut files = vec![cert.clone(), key.clone()];
        files.extend(ca.then(|| authority.ca()));
        server(&read(&files), name, &[b"h2"]).expect("usable").value
    };
    let named = |name| {
        let [cert, key] = authority.sign("client", &Wish { names: vec![name], ..Wish::default() });
        peers(&read(&[cert, key, authority.ca()])).expect("usable").value.client
    };
    let nobody = {
        let mut roots = RootCertStore::empty();
        let pem = read(&[authority.ca()]);
        for root in super::pem::authorities(&pem[0]).expect("a root").roots {
            roots.roots.push(root);
        }
        let builder = ClientConfig::builder_with_provider(super::provider());
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    };
    let good = |served: [Result<(), String>; 2]| served.iter().all(Result::is_ok);
    let envoy = named("envoy.example");
    assert!(good(meet(with(false, None), envoy.clone())));
    assert!(good(meet(with(true, None), envoy.clone())));
    assert!(good(meet(with(true, Some("envoy.example")), envoy)));
    assert!(!good(meet(with(true, Some("envoy.example")), named("other.example"))));
    assert!(!good(meet(with(true, None), nobody)));
}

#[test]
fn every_fault_names_its_file() {
    let authority = Authority::new();
    let [cert, key] = authority.sign("a", &Wish::default());
    let [_, other_key] = authority.sign("b", &Wish::default());
    let [old, old_key] = authority.sign("c", &Wish { server_only: true, ..Wish::default() });
    let write = |name: &str, text: &str| {
        fs::write(authority.path(name), text).expect("written");
        authority.path(name)
    };
    let text = |path: &PathBuf| fs::read_to_string(path).expect("text");
    let empty = write("empty.pem", "");
    let half = write("half.pem", &text(&cert)[..200]);
    let broken = write("broken.pem", &text(&cert).replacen("MII", "M!!", 1));
    let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let junk = write("junk.pem", junk);
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let locked = write("locked.key", locked);
    let ca = authority.ca();
    for (files, told) in [
        ([&empty, &key, &ca], "empty.pem contains no certificate"),
        (
            [&key, &cert, &ca],
            "a.key contains no certificate: it needs a block BEGIN CERTIFICATE; it",
        ),
        (
            [&cert, &cert, &ca],
            "a.crt contains no private key: it needs a block BEGIN PRIVATE KEY; it",
        ),
        ([&half, &key, &ca], "half.pem is not a PEM file: the line -----END CERTIFICATE-----"),
        ([&broken, &key, &ca], "broken.pem is not a PEM file"),
        ([&junk, &key, &ca], "certificate 1 in"),
        ([&cert, &locked, &ca], "locked.key is encrypted; to remove the password: openssl pkey"),
        ([&cert, &other_key, &ca], "b.key does not belong to the first certificate in"),
        ([&cert, &key, &key], "a.key contains no certificate"),
        ([&cert, &key, &junk], "certificate 1 in"),
        ([&old, &old_key, &ca], "c.crt with the authorities in"),
    ] {
        let files: Vec<PathBuf> = files.into_iter().cloned().collect();
        let error = peers(&read(&files)).map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains(told), "{error}\nlacks {told}");
    }
    let stranger = Authority::new();
    let error = peers(&read(&[cert, key, stranger.ca()])).map(|_| ()).expect_err("refused");
    assert!(error.to_string().contains("peers would refuse the certificate"), "{error}");
}

#[test]
fn certificates_are_taken_over_when_their_files_change_and_are_good() {
    let authority = Authority::new();
    let paths = authority.peer("a");
    let (registry, now) = (Registry::default(), Time(1_800_000_000 * SECOND));
    let counted = |result| registry.counter(&TLS_RELOADS, &["peers", result]).get();
    let mut live = LiveValue::load("peers", paths.clone(), peers, now, &registry).expect("usable");
    let running = live.running();
    let first = running.load_full();
    let mut look = |times: usize| (0..times).for_each(|_| live.look(now));
    look(3);
    assert!(Arc::ptr_eq(&first, &running.load_full()));
    // A new certificate with the previous key, which cannot be used.
    let key = fs::read(&paths[1]).expect("a key");
    authority.peer("a");
    let renewed = fs::read(&paths[1]).expect("a key");
    fs::write(&paths[1], &key).expect("written");
    look(3);
    assert!(Arc::ptr_eq(&first, &running.load_full()));
    assert_eq!((counted("ok"), counted("failed")), (0, 1));
    fs::write(&paths[1], &renewed).expect("written");
    look(3);
    let second = running.load_full();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!((counted("ok"), counted("failed")), (1, 1));
    // The files from before the last renewal, restored by mistake, and missing files.
    authority.sign("a", &Wish { last_year: Some(2001), ..Wish::default() });
    look(3);
    fs::remove_file(&paths[0]).expect("removed");
    look(3);
    assert!(Arc::ptr_eq(&second, &running.load_full()));
    assert_eq!((counted("ok"), counted("failed")), (1, 2));
    let beside = peer(&authority, "b");
    assert_eq!(meet(second.server.clone(), beside.client), [Ok(()), Ok(())]);
}

#[test]
fn an_expired_certificate_is_used_when_it_is_all_there_is() {
    let authority = Authority::new();
    let [cert, key] = authority.sign("a", &Wish { last_year: Some(2020), ..Wish::default() });
    let (registry, now) = (Registry::default(), Time(1_800_000_000 * SECOND));
    let paths = vec![cert, key, authority.ca()];
    let live = LiveValue::load("peers", paths, peers, now, &registry).expect("usable");
    let until = registry.gauge(&evenkeel_telemetry::metrics::TLS_UNTIL, &["peers"]).get();
    assert_eq!(super::pem::date(until as u64), "Thu, 31 Dec 2020 00:00:00 GMT");
    let others = peer(&authority, "b");
    let [_, connected] = meet(live.running().load().server.clone(), others.client);
    assert!(connected.expect_err("refused").contains("expired"));
}

#[test]
fn fuzz_pem() {
    evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
        let file =
            |name: &str| WatchedFile { path: name.into(), bytes: bytes.to_vec(), modified: 0 };
        let files = [file("cert"), file("key"), file("ca")];
        let error = peers(&files).map(|_| ()).expect_err("no certificate by chance").to_string();
        assert!(["cert", "key", "ca"].iter().any(|name| error.contains(name)), "{error}");
    });
}
