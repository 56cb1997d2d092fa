//! Limits by AS number and country: clients of one network share a bucket, at all doors, and the
//! files are followed while the program runs. The addresses of loopback are the networks.

use super::{LONG, backend, get, read, start};
use evenkeel_testing::evenkeel;
use evenkeel_testing::program;
use evenkeel_testing::wait::until;
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

const TABLE: &str = "127.1.0.0\t127.1.255.255\t64500\tDE\tONE\n\
                     127.2.0.0\t127.2.255.255\t64501\tFR\tTWO\n";

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("written");
    path
}

/// The status of a request from this address of loopback.
fn status(door: SocketAddr, from: &str) -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from: IpAddr = from.parse().expect("an address");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("loopback has all of them");
    socket.connect_timeout(&door.into(), LONG).expect("it listens");
    let mut stream = TcpStream::from(socket);
    let head = format!("GET / HTTP/1.1\r\nhost: {door}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    read(stream).split(' ').nth(1).expect("a status").to_owned()
}

/// The status of the answer of the check door for a client.
fn checked(door: SocketAddr, client: &str) -> String {
    checked_with(door, &format!("x-real-ip: {client}"))
}

fn checked_with(door: SocketAddr, fields: &str) -> String {
    let mut stream = TcpStream::connect(door).expect("it listens");
    let head = format!("GET /check HTTP/1.1\r\nhost: x\r\n{fields}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    read(stream).split(' ').nth(1).expect("a status").to_owned()
}

fn configuration(folder: &Path, backend: SocketAddr, databases: &str, by: &str) -> String {
    let text = format!(
        "admin: {{listen: 127.0.0.1:0}}\ncheck: {{listen: 127.0.0.1:0}}\nproxy:\n  \
         listen: 127.0.0.1:0\n  backend: http://{backend}\n  databases: {databases}\n  \
         limits: [{{name: networks, by: {by}, rate: 2/h, burst: 2}}]\n"
    );
    write(folder, "evenkeel.yaml", &text).display().to_string()
}

/// A backend that answers all requests at once.
fn willing_backend() -> SocketAddr {
    let (address, requests) = backend();
    thread::spawn(move || requests.iter().for_each(|go| _ = go.send(())));
    address
}

#[test]
fn clients_of_one_network_share_a_bucket_and_the_file_is_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let file = write(folder, "asn.tsv", TABLE);
    let databases = format!("{{asn: {}}}", file.display());
    let path = configuration(folder, willing_backend(), &databases, "asn");
    let mut program = start(&["serve", "--config", &path]);
    let check = program::addresses(&program.told("check open"))[0];
    let addresses = program::addresses(&program.told("proxy open"));
    let (door, admin) = (addresses[0], addresses[1]);

    assert_eq!(status(door, "127.1.0.1"), "200");
    assert_eq!(status(door, "127.1.9.9"), "200");
    assert_eq!(status(door, "127.1.7.7"), "429", "the third of the network");
    assert_eq!(checked(check, "127.1.8.8"), "403", "both doors count together");
    assert_eq!(checked(check, "127.2.0.1"), "204");
    assert_eq!(status(door, "127.2.0.1"), "200", "another network");
    assert_eq!(status(door, "127.2.0.2"), "429");
    // Addresses that the file does not know count together.
    let unknown = ["127.3.0.1", "127.4.0.1", "127.5.0.1"].map(|from| status(door, from));
    assert_eq!(unknown, ["200", "200", "429"]);
    let doctor = evenkeel!()
        .args(["clients", "--admin", &admin.to_string(), "--limit", "networks"])
        .output()
        .expect("it runs");
    let shown = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(shown.contains("AS64500") && shown.contains("AS64501"), "{shown}");
    let metric = |line: &str| get(admin, "/metrics").contains(line);
    assert!(metric("evenkeel_network_file_entries{of=\"asn\"} 2\n"));

    write(folder, "asn.tsv", &format!("{TABLE}127.1.7.0\t127.1.7.255\t64509\tDE\tNEW\n"));
    program.told("file about networks reloaded");
    assert_eq!(status(door, "127.1.7.7"), "200", "it has moved to another network");
    assert_eq!(status(door, "127.1.6.6"), "429");

    write(folder, "asn.tsv", &format!("{TABLE}127.1.7.0\t127.1.7\n"));
    let line = program.told("file about networks refused; the previous one stays in use");
    assert!(line.contains("asn.tsv:3: "), "{line}");
    assert_eq!(status(door, "127.1.7.7"), "200", "as before");
    until("the failure is counted", || {
        metric("evenkeel_network_file_reloads_total{of=\"asn\",result=\"failed\"} 1\n")
    });
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn networks_of_both_families_are_counted_in_one_list() {
    let folder = tempfile::tempdir().expect("a folder");
    let unused = SocketAddr::from(([127, 0, 0, 1], 9));
    let path = configuration(folder.path(), unused, "{}", "[ip/24, ip6/56]");
    let wide = "    - {name: wide, by: ip6/48, when: {method: POST}, rate: 1/h}\n";
    let text = fs::read_to_string(&path).expect("the configuration");
    let text = text.replace("limits: [", "limits:\n    - ").replace("burst: 2}]\n", "burst: 2}\n");
    fs::write(&path, text + wide).expect("written");
    let mut program = start(&["serve", "--config", &path]);
    let check = program::addresses(&program.told("check open"))[0];
    for (client, expected) in [
        ("2001:db8:0:0::1", "204"),
        ("2001:db8:0:ff::2", "204"),
        ("2001:db8:0:80::3", "403"),
        ("2001:db8:0:100::1", "204"),
        ("192.0.2.1", "204"),
        ("192.0.2.255", "204"),
        ("192.0.2.7", "403"),
        ("192.0.3.7", "204"),
    ] {
        assert_eq!(checked(check, client), expected, "{client}");
    }
    // The wider network counts beside the other one.
    let posted = ["2001:db8:1:1::1", "2001:db8:1:ffff::1", "2001:db8:2::1"].map(|client| {
        let head = format!("x-original-method: POST\r\nx-real-ip: {client}");
        checked_with(check, &head)
    });
    assert_eq!(posted, ["204", "403", "204"]);
}

#[test]
fn an_old_list_of_a_robot_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let published = r#"{"creationTime": "2020-01-01T00:00:00Z", "prefixes": ["192.0.2.0/24"]}"#;
    let list = write(folder, "robots.json", published);
    let text = format!(
        "admin: {{listen: 127.0.0.1:0}}\nproxy:\n  listen: 127.0.0.1:0\n  \
         robots: [{{name: robot, user_agent: '*robot*', ip_file: {}}}]\n",
        list.display()
    );
    let path = write(folder, "evenkeel.yaml", &text).display().to_string();
    let check = || {
        let output = evenkeel!().args(["check", &path]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let told = check();
    assert!(told.contains("note: `proxy.robots`: 1 network in "), "{told}");
    assert!(!told.contains("days old"), "{told}");
    // What the publisher states is far in the past, so the time of the file counts.
    let then = SystemTime::now() - Duration::from_secs(31 * 86_400 + 60);
    fs::File::options().append(true).open(&list).expect("it").set_modified(then).expect("set");
    let told = check();
    assert!(told.contains("robots.json is ") && told.contains("days old"), "{told}");
    let mut program = start(&["serve", "--config", &path]);
    let admin = program::addresses(&program.told("proxy open"))[1];
    let line = program.told("file about networks is old; download it again");
    assert!(line.contains("robots.json") && line.contains("days="), "{line}");
    let series = format!("evenkeel_network_file_entries{{of=\"{}\"}} 1\n", list.display());
    assert!(get(admin, "/metrics").contains(&series));
}

#[test]
fn a_reload_brings_another_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let backend = willing_backend();
    let path = configuration(folder, backend, "{}", "ip/32");
    let mut program = start(&["serve", "--config", &path]);
    let door = program::addresses(&program.told("proxy open"))[0];
    for _ in 0..2 {
        assert_eq!(status(door, "127.1.0.1"), "200");
    }
    assert_eq!(status(door, "127.1.0.1"), "429");
    let file = write(folder, "country.tsv", TABLE);
    configuration(folder, backend, &format!("{{country: {}}}", file.display()), "country");
    program.signal(Signal::HUP);
    program.told("configuration reloaded");
    // Until the file is read, its clients count with those of no country.
    until("the country is known", || {
        status(door, "127.9.0.1");
        status(door, "127.1.0.1") == "200"
    });
    assert_eq!(status(door, "127.2.0.1"), "200", "another country");
    configuration(folder, backend, "{country: /nowhere.tsv}", "country");
    program.signal(Signal::HUP);
    program.told("configuration refused; the current one stays in force");
    let line = program.told("/nowhere.tsv");
    assert!(line.contains("cannot read /nowhere.tsv"), "{line}");
    assert_eq!(status(door, "127.2.0.1"), "200", "as before");
    assert_eq!(status(door, "127.2.0.1"), "429");
}

#[test]
fn a_reload_with_a_faulty_list_is_refused_as_a_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let list = write(folder, "list.txt", "127.1.0.0/16\n").display().to_string();
    let configure = |proxy: &str| {
        let text = format!(
            "check: {{listen: 127.0.0.1:0}}\nadmin: {{listen: 127.0.0.1:0}}\n\
             proxy:\n  listen: off\n{proxy}"
        );
        write(folder, "evenkeel.yaml", &text).display().to_string()
    };
    let rule = |when: &str| format!("  limits: [{{name: a, action: deny, when: {{{when}}}}}]\n");
    let path = configure(&rule(&format!("ip_file: {list}")));
    let mut program = start(&["serve", "--config", &path]);
    let check = program::addresses(&program.told("check open"))[0];
    let both = || ["127.1.0.1", "127.2.0.1"].map(|client| checked(check, client));
    assert_eq!(both(), ["403", "204"]);
    write(folder, "bad.txt", "nonsense\n");
    let bad = folder.join("bad.txt").display().to_string();
    let robot = format!("  robots: [{{name: a, user_agent: x, ip_file: {bad}}}]\n");
    for faulty in [
        rule(&format!("not: {{ip_file: [{list}, {bad}]}}")),
        format!("{robot}{}", rule("ip: 127.2.0.0/16")),
    ] {
        configure(&faulty);
        program.signal(Signal::HUP);
        program.told("configuration refused; the current one stays in force");
        let line = program.told("bad.txt");
        assert!(line.contains("bad.txt:1: `nonsense` is not a network"), "{line}");
        assert_eq!(both(), ["403", "204"], "{faulty}");
    }
    write(folder, "bad.txt", "127.3.0.0/16\n");
    configure(&rule(&format!("not: {{ip_file: [{list}, {bad}]}}")));
    program.signal(Signal::HUP);
    program.told("configuration reloaded");
    assert_eq!(both(), ["204", "403"], "the lists are read before the rules need them");
}

#[test]
fn conditions_name_files_with_addresses_at_all_doors() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let json = r#"{"prefixes": [{"ipv4Prefix": "127.1.0.0/16"}]}"#;
    let cloud = write(folder, "cloud.json", json).display().to_string();
    let office = write(folder, "office.txt", "127.2.0.0/16\n").display().to_string();
    let text = format!(
        "admin: {{listen: 127.0.0.1:0}}\ncheck: {{listen: 127.0.0.1:0}}\n\
         groups: {{clouds: {{ip_file: [{cloud}, {office}], not: {{ip_file: {office}}}}}}}\n\
         proxy:\n  listen: 127.0.0.1:0\n  backend: http://{}\n  \
         exempt: [{{ip_file: {office}}}]\n  limits:\n    \
         - {{name: clouds, action: deny, when: {{group: clouds}}}}\n    \
         - {{name: all, by: ip/32, rate: 1/h}}\n",
        willing_backend()
    );
    let path = write(folder, "evenkeel.yaml", &text).display().to_string();
    let output = evenkeel!().args(["check", &path]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("1 network in "), "{told}");
    let mut program = start(&["serve", "--config", &path]);
    let check = program::addresses(&program.told("check open"))[0];
    let addresses = program::addresses(&program.told("proxy open"));
    let (door, admin) = (addresses[0], addresses[1]);
    for (client, at_proxy, at_check) in [
        ("127.1.0.1", "403", "403"),
        ("127.2.0.1", "200", "204"),
        ("127.2.0.1", "200", "204"),
        ("127.9.0.1", "200", "403"),
    ] {
        assert_eq!(status(door, client), at_proxy, "{client}");
        assert_eq!(checked(check, client), at_check, "{client}");
    }
    let series = format!("evenkeel_network_file_entries{{of=\"{cloud}\"}} 1\n");
    assert!(get(admin, "/metrics").contains(&series));

    write(folder, "cloud.json", r#"["127.3.0.0/16"]"#);
    program.told("file about networks reloaded");
    assert_eq!(status(door, "127.3.0.1"), "403");
    assert_eq!(checked(check, "127.1.0.2"), "204");
    write(folder, "cloud.json", r#"["127.3.0.0/33"]"#);
    let line = program.told("file about networks refused; the previous one stays in use");
    assert!(line.contains("cloud.json:1: "), "{line}");
    assert_eq!(status(door, "127.3.0.2"), "403", "as before");
    std::fs::remove_file(folder.join("cloud.json")).expect("removed");
    let output = evenkeel!().args(["check", &path]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("cloud.json: No such file"), "{told}");
    let mut second = start(&["serve", "--config", &path]);
    second.told("cloud.json: No such file");
    assert_eq!(second.end().code(), Some(1));
}

#[test]
fn a_faulty_file_prevents_a_start_and_check_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let unused = SocketAddr::from(([127, 0, 0, 1], 9));
    let good = write(folder, "good.tsv", TABLE);
    let faulty = write(folder, "faulty.tsv", &format!("{TABLE}nonsense\n"));
    let check = |path: &str| {
        let output = evenkeel!().args(["check", path]).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (file, why) in [
        (&faulty, "faulty.tsv:3: `nonsense` is not a range"),
        (&folder.join("none"), "none: No such file"),
    ] {
        let databases = format!("{{asn: {}}}", file.display());
        let path = configuration(folder, unused, &databases, "asn");
        let (code, told) = check(&path);
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("evenkeel.yaml:6:") && told.contains(why), "{told}");
        let mut program = start(&["serve", "--config", &path]);
        program.told(why);
        assert_eq!(program.end().code(), Some(1));
    }
    let path = configuration(folder, unused, &format!("{{asn: {}}}", good.display()), "asn");
    let (code, told) = check(&path);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("note: `proxy.databases.asn`: 2 networks in "), "{told}");
    assert!(!told.contains("days old"), "{told}");
    let then = SystemTime::now() - Duration::from_secs(40 * 86_400 + 60);
    fs::File::options().append(true).open(&good).expect("it").set_modified(then).expect("set");
    let (code, told) = check(&path);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("good.tsv is 40 days old; download it again"), "{told}");
}

/// Each place that names a fact needs the file that has it.
#[test]
fn a_fact_without_its_file_is_an_error() {
    let gate = "gatekeeper: {domain: api, identifier: ";
    let proxy = "proxy: {listen: off, ";
    for (text, fix) in [
        (format!("{proxy}limits: [{{name: a, by: asn, rate: 1/s}}]}}"), "{asn: FILE}"),
        (format!("{proxy}exempt: [{{country: DE}}]}}"), "{country: FILE}"),
        (
            format!("{proxy}limits: [{{name: a, by: all, when: {{asn: 64500}}, rate: 1/s}}]}}"),
            "{asn: FILE}",
        ),
        (format!("{proxy}limits: []}}\n{gate}[ip/32, asn]}}"), "{asn: FILE}"),
        (format!("{proxy}limits: []}}\n{gate}ip/32, when: {{country: DE}}}}"), "{country: FILE}"),
    ] {
        let text = format!("check: {{listen: 127.0.0.1:0}}\n{text}");
        let faults = evenkeel_config::parse("t", text.as_bytes(), 1.0).expect_err(&text);
        let (told, fix) = (faults.to_string(), format!("add `databases: {fix}` to `proxy`"));
        assert!(told.contains(&fix), "{text}\n{told}");
    }
}

#[test]
fn conditions_compare_networks() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let file = write(folder, "networks.tsv", TABLE).display().to_string();
    let text = format!(
        "admin: {{listen: 127.0.0.1:0}}\ncheck: {{listen: 127.0.0.1:0}}\nproxy:\n  listen: off\n  \
         databases: {{asn: {file}, country: {file}}}\n  exempt: [{{country: fr}}]\n  limits:\n    \
         - {{name: one, by: ip/32, when: {{asn: 64500}}, rate: 1/h}}\n    \
         - {{name: none, by: ip/32, when: {{asn: absent}}, rate: 2/h, burst: 2}}\n    \
         - {{name: all, by: all, rate: 4/h, burst: 4}}\n"
    );
    let path = write(folder, "evenkeel.yaml", &text).display().to_string();
    let mut program = start(&["serve", "--config", &path]);
    let check = program::addresses(&program.told("check open"))[0];
    for (client, expected) in [
        ("127.1.0.1", ["204", "403", "403"]),
        ("127.9.0.1", ["204", "204", "403"]),
        ("127.2.0.1", ["204", "204", "204"]),
    ] {
        assert_eq!([(); 3].map(|()| checked(check, client)), expected, "{client}");
    }
    // Of the fourth allowed one, so those of the exempt country did not count.
    assert_eq!(checked(check, "127.1.0.2"), "204");
    assert_eq!(checked(check, "127.1.0.3"), "403");
}
