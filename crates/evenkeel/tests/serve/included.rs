//! Files that are read with the configuration: parts, groups and pages. The running program
//! follows them, and a faulty or missing one changes nothing.

use super::{LONG, backend, read, start};
use evenkeel_testing::examples;
use evenkeel_testing::program;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;

/// The answer to a browser with this name.
fn answer(door: SocketAddr, agent: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&door, LONG).expect("it listens");
    let head = format!(
        "GET / HTTP/1.1\r\nhost: {door}\r\nuser-agent: {agent}\r\naccept: text/html\r\n\
         connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    read(stream)
}

fn status(door: SocketAddr, agent: &str) -> String {
    answer(door, agent).split(' ').nth(1).expect("a status").to_owned()
}

/// Writes a configuration that denies the groups of these files.
fn configure(folder: &Path, backend: SocketAddr, files: &[&str], denied: &str) {
    let files: Vec<_> = files.iter().map(|file| folder.join(file).display().to_string()).collect();
    let text = format!(
        "admin: off\ngroup_files: [{}]\nproxy:\n  listen: 127.0.0.1:0\n  backend: \
         http://{backend}\n  pages: {{'403': {}}}\n  limits: [{{name: no, action: deny, when: \
         {denied}}}]\n",
        files.join(", "),
        folder.join("403.html").display(),
    );
    fs::write(folder.join("evenkeel.yaml"), text).expect("written");
}

#[test]
fn groups_and_pages_are_followed_and_a_faulty_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
    fs::copy(examples::path("groups/ai-crawlers.yaml"), folder.join("ai.yaml")).expect("copied");
    fs::copy(examples::path("pages/403.html"), folder.join("403.html")).expect("copied");
    write("more.yaml", "more: {user_agent: '*OneBot*'}\n");
    let (backend, requests) = backend();
    thread::spawn(move || requests.iter().for_each(|go| _ = go.send(())));
    configure(folder, backend, &["ai.yaml", "more.yaml"], "{group: [ai_crawlers, more]}");
    let path = folder.join("evenkeel.yaml").display().to_string();
    let mut program = start(&["serve", "--config", &path]);
    let opened = program.told("proxy open");
    assert!(opened.contains("limits=\"no\""), "{opened}");
    let door = program::addresses(&opened)[0];
    assert!(answer(door, "x (compatible; gptbot/1)").contains("<h1>Not allowed</h1>"));
    let line = program.told("verdict=\"deny\"");
    let request = "path=\"/\" agent=\"x (compatible; gptbot/1)\" shadow=false";
    assert!(line.contains(request), "{line}");
    assert_eq!((&*status(door, "OneBot"), &*status(door, "Two-Bot")), ("403", "200"));

    write("more.yaml", "more: {user_agent: '*Two-Bot*'}\n");
    let reloaded = program.told("configuration reloaded");
    assert!(reloaded.contains("limits=1"), "{reloaded}");
    assert_eq!((&*status(door, "OneBot"), &*status(door, "Two-Bot")), ("200", "403"));

    write("more.yaml", "more: {useragent: '*OneBot*'}\n");
    program.told("configuration refused");
    program.told("more.yaml:1:8: unknown key `useragent` in `groups`; did you mean `user_agent`?");
    assert_eq!((&*status(door, "OneBot"), &*status(door, "Two-Bot")), ("200", "403"));

    write("more.yaml", "more: {user_agent: '*Two-Bot*'}\n");
    program.told("configuration reloaded");
    write("403.html", "<h1>{{who}}</h1>");
    program.told("configuration refused");
    program.told("the page for 403: line 1: unknown placeholder {{who}}");
    assert!(answer(door, "GPTBot").contains("<h1>Not allowed</h1>"));

    write("403.html", "<h1>Closed</h1>");
    program.told("configuration reloaded");
    assert!(answer(door, "GPTBot").contains("<h1>Closed</h1>"));
    fs::remove_file(folder.join("more.yaml")).expect("removed");
    configure(folder, backend, &["ai.yaml"], "{group: ai_crawlers}");
    program.told("configuration reloaded");
    assert_eq!((&*status(door, "GPTBot"), &*status(door, "Two-Bot")), ("403", "200"));
}

/// A new, a faulty and a removed part of a configuration, without a signal.
#[test]
fn parts_in_a_folder_are_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let part = folder.join("conf.d/bots.yaml");
    fs::create_dir(folder.join("conf.d")).expect("created");
    let (backend, requests) = backend();
    thread::spawn(move || requests.iter().for_each(|go| _ = go.send(())));
    let text = format!(
        "include: conf.d/*.yaml\nadmin: off\nproxy:\n  listen: 127.0.0.1:0\n  backend: \
         http://{backend}\n  limits: [default]\n"
    );
    fs::write(folder.join("evenkeel.yaml"), text).expect("written");
    let path = folder.join("evenkeel.yaml").display().to_string();
    let mut program = start(&["serve", "--config", &path]);
    let door = program::addresses(&program.told("proxy open"))[0];
    assert_eq!(status(door, "OneBot"), "200");

    let deny = "proxy:\n  limits:\n    - {name: no, action: deny, when: {user_agent: OneBot}}\n";
    fs::write(&part, deny).expect("written");
    program.told("configuration reloaded");
    assert_eq!((&*status(door, "OneBot"), &*status(door, "Two")), ("403", "200"));

    fs::write(&part, "proxy:\n  actoin: deny\n").expect("written");
    program.told("configuration refused");
    program.told("conf.d/bots.yaml:2:3: unknown key `actoin` in `proxy`; did you mean `action`?");
    assert_eq!(status(door, "OneBot"), "403");

    fs::remove_file(&part).expect("removed");
    program.told("configuration reloaded");
    assert_eq!(status(door, "OneBot"), "200");
}
