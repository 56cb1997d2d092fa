//! Robots by address at the check door: lists that change, and lists that are faulty.

use crate::door::Door;
use evenkeel_testing::evenkeel;
use evenkeel_testing::wait::wait_for;
use std::fs;

const ROBOTS: &str = "  robots: [{name: listed, user_agent: \"*ListedBot*\", ip_file: LIST}]\n";

/// A list in the form in which search engines publish theirs.
fn list(network: &str) -> String {
    format!(r#"{{"creationTime": "2026-11-01T00:00:00.000000", "prefixes": [{network}]}}"#)
}

#[test]
fn an_address_proves_a_robot_and_a_changed_list_is_followed() {
    let door = Door::start_with("", |folder| {
        let path = folder.join("list.json");
        let networks = r#"{"ipv4Prefix": "192.0.2.0/28"}, {"ipv6Prefix": "2001:db8::/64"}"#;
        fs::write(&path, list(networks)).expect("written");
        ROBOTS.replace("LIST", &path.display().to_string())
    });
    let claim = |client: &str| {
        door.ask_with(client, "/check", "User-Agent: x ListedBot/1\r\n");
    };
    let count = |proof| {
        let labels = [("robot", "listed"), ("proof", proof)];
        door.metric("evenkeel_robot_requests_total", &labels)
    };
    claim("192.0.2.7");
    claim("2001:db8::9");
    claim("192.0.2.99");
    door.ask("192.0.2.7");
    assert_eq!((count("address"), count("none")), (2.0, 1.0));
    let path = door.folder.path().join("list.json");
    fs::write(&path, "<html>").expect("written");
    wait_for("a refused list", || door.log().contains("file of a robot refused").then_some(()));
    claim("192.0.2.7");
    assert_eq!(count("address"), 3.0, "the previous list stays in use");
    fs::write(&path, list(r#"{"ipv4Prefix": "192.0.2.96/28"}"#)).expect("written");
    wait_for("the new list", || {
        claim("192.0.2.99");
        (count("address") > 3.0).then_some(())
    });
    let impostors = count("none");
    claim("192.0.2.7");
    assert_eq!(count("none"), impostors + 1.0);
}

#[test]
fn check_names_a_faulty_list() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, config] = ["list", "evenkeel.yaml"].map(|name| folder.path().join(name));
    fs::write(&path, "192.0.2.0/24\nnothing\n").expect("written");
    let robots = ROBOTS.replace("LIST", &path.display().to_string());
    fs::write(&config, format!("admin: off\nproxy:\n  listen: 127.0.0.1:0\n{robots}"))
        .expect("written");
    let checked = evenkeel!().arg("check").arg(&config).output().expect("the binary");
    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(!checked.status.success() && told.contains("/list:2: "), "{told}");
}
