//! Cookies of the waiting room that are forged, damaged, old, copied or from another instance.
//!
//! Whether a cookie counts shows on the waiting page: a visitor without a valid cookie gets a new
//! one, and a visitor with a valid one keeps it. The signatures themselves are tested in
//! `identity::visit`.

use super::{NAVIGATE, answer, ask, busy, cookie, next, stage, waits};
use crate::stage::{Message, Stage, Wire};
use evenkeel_config::settings::WaitingRoomSettings;
use evenkeel_core::queue::standing::{VisitPass, VisitTicket};
use evenkeel_core::units::Nanos;
use evenkeel_identity::visit::{PassProof, VisitKeys};
use evenkeel_serve::service::Service as _;
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use rustix::process::Signal;
use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use tempfile::TempDir;

const SECRET: &str = "a-secret-of-these-tests";
const OTHER_SECRET: &str = "another-secret-of-these-tests";
const CLIENT: &str = "192.0.2.3";
const MINUTE: Nanos = Nanos::from_secs(60);

/// A folder with a file of secrets and a page.
struct RoomFiles(TempDir);

impl RoomFiles {
    fn new(secrets: &[&str]) -> RoomFiles {
        let files = RoomFiles(tempfile::tempdir().expect("a folder"));
        files.write("secrets", &secrets.join("\n"));
        files.write("page", "<p>first page</p>");
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path("aside"), text).expect("a file");
        fs::rename(self.path("aside"), self.path(name)).expect("a file");
    }

    fn settings(&self) -> WaitingRoomSettings {
        let [secret_file, page] = ["secrets", "page"].map(|name| Some(self.path(name)));
        WaitingRoomSettings { secret_file, page }
    }

    fn stage(&self) -> Stage {
        stage(|settings| settings.queue.waiting_room = Some(self.settings()))
    }
}

/// The text of a cookie, signed with `secret`, for a ticket of a visitor that came `age` ago.
fn ticket(stage: &Stage, secret: &str, id: u64, age: Nanos) -> String {
    let first_came = stage.engine.clock().now().minus(age);
    let keys = VisitKeys::new(secret.as_bytes(), &[]);
    format!("evenkeel={}", keys.ticket(VisitTicket { id, first_came }))
}

/// The text of a cookie for a pass that was issued to `client` so long ago.
fn pass(stage: &Stage, client: &str, age: Nanos) -> String {
    let stamp = stage.engine.clock().now().minus(age);
    let client: IpAddr = client.parse().expect("an address");
    let proof = PassProof::new(VisitPass { id: 7, stamp }, client, stamp);
    format!("evenkeel={}", VisitKeys::new(SECRET.as_bytes(), &[]).pass(proof))
}

/// The answers to visitors with these cookies, which come at the same time, each from an address of
/// its own.
fn pages(stage: &Stage, cookies: &[String]) -> Vec<Message> {
    let visit = |(index, cookie): (usize, &String)| {
        let mut visitor = stage.client();
        let client = format!("192.0.{index}.9");
        ask(&mut visitor, &client, &format!("{NAVIGATE}cookie: {cookie}\r\n"));
        visitor
    };
    let mut visitors: Vec<Wire> = cookies.iter().enumerate().map(visit).collect();
    visitors.iter_mut().map(Wire::message).collect()
}

/// Whether a visitor with this cookie keeps it.
fn keeps(stage: &Stage, cookie: &str) -> bool {
    let page = pages(stage, &[cookie.to_owned()]).remove(0);
    assert_eq!(page.status(), 503);
    page.header("set-cookie").is_none()
}

#[test]
fn a_cookie_that_is_forged_damaged_or_too_old_is_none() {
    let files = RoomFiles::new(&[SECRET]);
    let stage = files.stage();
    let (mut backend, _first) = busy(&stage);
    let good = ticket(&stage, SECRET, 1, MINUTE);
    let (head, last) = good.split_at(good.len() - 1);
    let mut bad: Vec<String> = [
        "",
        "evenkeel",
        "evenkeel=",
        "evenkeel==",
        "evenkeel=\"AQEA\"",
        "evenkeel=\u{e9}",
        "evenkeel; evenkeel=; =; ;;",
        "Evenkeel=AQEA",
    ]
    .map(str::to_owned)
    .into();
    bad.push(format!("evenkeel={}", "A".repeat(8_000)));
    bad.push("evenkeel=A; ".repeat(200));
    bad.push(format!("{}{good}", "evenkeel=A; ".repeat(3)));
    bad.push(head.to_owned());
    bad.push(format!("{head}{}", if last == "A" { "B" } else { "A" }));
    bad.push(format!("{good}A"));
    bad.push(good.replace("evenkeel=", "evenkeel=\""));
    bad.push(good.to_uppercase().replace("EVENKEEL", "evenkeel"));
    bad.push(ticket(&stage, OTHER_SECRET, 1, MINUTE));
    bad.push(ticket(&stage, SECRET, 1, Nanos::from_secs(601)));
    bad.push(pass(&stage, CLIENT, Nanos::from_secs(13 * 3_600)));
    let late = stage.engine.clock().now().plus(MINUTE);
    let ahead =
        VisitKeys::new(SECRET.as_bytes(), &[]).ticket(VisitTicket { id: 1, first_came: late });
    bad.push(format!("evenkeel={ahead}"));
    for (page, cookie) in pages(&stage, &bad).iter().zip(&bad) {
        assert_eq!((page.status(), page.text()), (503, "<p>first page</p>"), "{cookie}");
        assert!(page.header("set-cookie").is_some(), "{cookie}");
    }
    for good in [&good, &format!("a=b; evenkeel=A;{good}"), &pass(&stage, CLIENT, MINUTE)] {
        assert!(keeps(&stage, good), "{good}");
    }
    // A pass from another network becomes one that names this network too.
    let moved = pages(&stage, &[pass(&stage, "198.51.100.7", MINUTE)]).remove(0);
    let moved = cookie(&moved).expect("a pass").to_owned();
    assert!(keeps(&stage, &moved));
    // The backend gets none of them.
    let mut visitor = stage.client();
    ask(&mut visitor, CLIENT, &format!("cookie: x=1; {}; y=2\r\n", bad[9]));
    waits(&stage, 1);
    answer(&mut backend, "");
    let (_, head) = next(&stage, backend);
    assert!(head.contains("cookie: x=1; y=2\r\n"), "{head}");
}

/// One ticket is one page at a time: its second request waits as a stranger, behind a visitor that
/// came later.
#[test]
fn a_ticket_that_is_used_twice_at_the_same_time_counts_once() {
    let files = RoomFiles::new(&[SECRET]);
    let stage = files.stage();
    let (mut backend, _first) = busy(&stage);
    let [early, late] =
        [(1, 120), (2, 60)].map(|(id, age)| ticket(&stage, SECRET, id, Nanos::from_secs(age)));
    let requests = [("a", &early), ("b", &early), ("c", &late)];
    let mut visitors = Vec::new();
    for (count, (name, ticket)) in requests.into_iter().enumerate() {
        let mut visitor = stage.client();
        let address = format!("192.0.2.{}", 10 + count);
        ask(&mut visitor, &address, &format!("{NAVIGATE}cookie: {ticket}\r\nx-name: {name}\r\n"));
        waits(&stage, count + 1);
        visitors.push(visitor);
    }
    answer(&mut backend, "");
    let mut order = String::new();
    for _ in requests {
        let head;
        (backend, head) = next(&stage, backend);
        order += head.lines().find_map(|line| line.strip_prefix("x-name: ")).expect("a name");
        answer(&mut backend, "");
    }
    assert_eq!(order, "acb");
    visitors.iter_mut().for_each(|visitor| assert_eq!(visitor.message().status(), 200));
}

#[test]
fn a_reload_keeps_tickets() {
    let files = RoomFiles::new(&[SECRET]);
    let stage = files.stage();
    let (_backend, _first) = busy(&stage);
    let ticket = ticket(&stage, SECRET, 1, MINUTE);
    // A change counts once it has been seen twice.
    let look = || (0..2).for_each(|_| stage.door.look(stage.engine.clock().now()));
    // The page, and a second secret.
    files.write("page", "<p>second page</p>");
    files.write("secrets", &format!("{OTHER_SECRET}\n{SECRET}"));
    look();
    let page = pages(&stage, &[ticket.clone(), String::new()]);
    assert_eq!(page[0].text(), "<p>second page</p>");
    assert_eq!(page[0].header("set-cookie"), None);
    let new = cookie(&page[1]).expect("a ticket").to_owned();
    // What is faulty is not applied.
    files.write("secrets", "short");
    look();
    assert!(keeps(&stage, &ticket) && keeps(&stage, &new));
    files.write("secrets", OTHER_SECRET);
    look();
    assert!(!keeps(&stage, &ticket) && keeps(&stage, &new));
    // Without files, and then with them again.
    let mut settings = stage.settings.clone();
    settings.queue.waiting_room = Some(WaitingRoomSettings::default());
    stage.door.reload(&settings);
    until_page(&stage, "<h1>Please wait</h1>");
    assert!(!keeps(&stage, &new));
    stage.door.reload(&stage.settings);
    until_page(&stage, "<p>second page</p>");
    assert!(keeps(&stage, &new));
}

/// Waits until new visitors get a page with this text.
fn until_page(stage: &Stage, text: &str) {
    evenkeel_testing::wait::until("the page", || {
        pages(stage, &[String::new()])[0].text().contains(text)
    });
}

#[test]
fn instances_with_one_secret_accept_the_tickets_of_each_other() {
    let files = RoomFiles::new(&[SECRET]);
    let stages = [files.stage(), files.stage(), stage(|_| {}), stage(|_| {})];
    let busy: Vec<_> = stages.iter().map(busy).collect();
    let ticket = cookie(&pages(&stages[0], &[String::new()])[0]).expect("a ticket").to_owned();
    assert!(keeps(&stages[1], &ticket));
    assert!(!keeps(&stages[2], &ticket));
    // Without a file, each instance has a key of its own.
    let ticket = cookie(&pages(&stages[2], &[String::new()])[0]).expect("a ticket").to_owned();
    assert!(keeps(&stages[2], &ticket) && !keeps(&stages[3], &ticket));
    drop(busy);
}

/// The program with a snapshot, in front of a backend that does not answer.
fn program(folder: &TempDir, backend: u16, port: u16) -> Program {
    let config = folder.path().join("evenkeel.yaml");
    let text = format!(
        "admin: off\nstate: {{file: {}/state}}\nproxy:\n  listen: 127.0.0.1:{port}\n  \
         backend: http://127.0.0.1:{backend}\n  cost: wall\n  cpus: 1\n  \
         trusted_proxies: [127.0.0.1]\n  \
         timeouts: {{drain: 1ms}}\n  queue: {{concurrency: 1, reserve: 0, known: always}}\n",
        folder.path().display()
    );
    fs::write(&config, text).expect("a configuration");
    let mut command = evenkeel!();
    command.args(["serve", "--config"]).arg(config);
    Program::listening(command, port)
}

/// The waiting page of the program for a visitor with this cookie, while another request is with
/// the backend.
fn page_of_program(port: u16, backend: &TcpListener, cookie: &str) -> Message {
    let connect = || Wire::new(TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
    let (mut first, mut visitor) = (connect(), connect());
    ask(&mut first, "192.0.2.1", "");
    let _busy = backend.accept().expect("a connection");
    ask(&mut visitor, CLIENT, &format!("{NAVIGATE}cookie: {cookie}\r\n"));
    visitor.message()
}

#[test]
fn a_restart_keeps_tickets_if_there_is_a_snapshot() {
    let folder = tempfile::tempdir().expect("a folder");
    let backend = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (backend_port, port) = (backend.local_addr().expect("bound").port(), free_port());
    let mut program = self::program(&folder, backend_port, port);
    let page = page_of_program(port, &backend, "");
    let ticket = cookie(&page).expect("a ticket").to_owned();
    program.signal(Signal::TERM);
    assert!(program.end().success());
    let again = self::program(&folder, backend_port, port);
    assert_eq!(page_of_program(port, &backend, &ticket).header("set-cookie"), None);
    drop(again);
    fs::remove_file(folder.path().join("state")).expect("it was written");
    let _anew = self::program(&folder, backend_port, port);
    let page = page_of_program(port, &backend, &ticket);
    assert!(page.header("set-cookie").is_some());
}
