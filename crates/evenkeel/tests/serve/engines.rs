//! An inference engine behind the program reports that requests wait inside. The program fetches
//! the report, bounds its slots, and shows the figures.

use super::{get, start};
use evenkeel_testing::evenkeel;
use evenkeel_testing::program::{self, Program};
use evenkeel_testing::wait::until;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

/// An engine that answers each request with the same page.
#[derive(Clone)]
struct FakeEngine {
    address: SocketAddr,
    /// The status and the body of each answer.
    page: Arc<Mutex<(u16, String)>>,
    /// The paths that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl FakeEngine {
    fn start(running: usize, waiting: usize) -> FakeEngine {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let engine = FakeEngine { address, page: Arc::default(), asked: Arc::default() };
        engine.reports(running, waiting);
        let served = engine.clone();
        thread::spawn(move || listener.incoming().flatten().for_each(|one| served.answer(one)));
        engine
    }

    fn reports(&self, running: usize, waiting: usize) {
        let text = format!(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{{engine=\"0\"}} {running}.0\n\
             vllm:num_requests_waiting{{engine=\"0\"}} {waiting}.0\n\
             vllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\n"
        );
        self.answers(200, &text);
    }

    fn answers(&self, status: u16, body: &str) {
        *self.page.lock().expect("unpoisoned") = (status, body.to_owned());
    }

    fn answer(&self, mut stream: TcpStream) {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        self.asked.lock().expect("unpoisoned").push(path);
        let (status, body) = self.page.lock().expect("unpoisoned").clone();
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n");
        let _ = stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes());
    }
}

/// Starts the program before these backends. Returns it with the address of its admin listener.
fn open(folder: &Path, engines: &[&FakeEngine], proxy: &str) -> (Program, SocketAddr) {
    let (program, line) = opened(folder, engines, proxy);
    (program, program::addresses(&line)[1])
}

/// Starts the program before these backends. Returns it with the line of its log about the proxy.
fn opened(folder: &Path, engines: &[&FakeEngine], proxy: &str) -> (Program, String) {
    let backends: Vec<_> =
        engines.iter().map(|engine| format!("http://{}", engine.address)).collect();
    let text = format!(
        "admin: {{listen: 127.0.0.1:0}}\nproxy:\n  listen: 127.0.0.1:0\n  \
         backend: [{}]\n  preset: openai\n  {proxy}\n",
        backends.join(", ")
    );
    let path = folder.join("evenkeel.yaml");
    fs::write(&path, text).expect("written");
    let mut program = start(&["serve", "--config", &path.display().to_string()]);
    let line = program.told("proxy open");
    (program, line)
}

fn figure(admin: SocketAddr, series: &str) -> Option<f64> {
    let all = get(admin, "/metrics");
    all.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

const SLOTS: &str = "evenkeel_slots{door=\"proxy\"}";

#[test]
fn the_log_of_a_start_names_tokens_in_place_of_processors() {
    let (engine, folder) = (FakeEngine::start(0, 0), tempfile::tempdir().expect("a folder"));
    for (proxy, told) in [
        ("queue: {concurrency: 4}", "tokens_per_second=measured"),
        ("tokens: {per_second: 20000}", "tokens_per_second=20000"),
    ] {
        let line = opened(folder.path(), &[&engine], proxy).1;
        assert!(line.contains(told) && !line.contains("cpus="), "{proxy}: {line}");
    }
}

#[test]
fn slots_are_bounded_to_what_an_engine_runs_while_others_wait_inside() {
    let engine = FakeEngine::start(3, 5);
    let folder = tempfile::tempdir().expect("a folder");
    let (_program, admin) = open(folder.path(), &[&engine], "queue: {concurrency: 8}");
    until("the slots are bounded", || figure(admin, SLOTS) == Some(3.0));
    let backend = engine.address;
    let series = |name: &str, labels: &str| {
        figure(admin, &format!("evenkeel_backend_engine_{name}{{backend=\"{backend}\"{labels}}}"))
    };
    assert_eq!(series("up", ""), Some(1.0));
    assert_eq!(series("requests", ",state=\"running\""), Some(3.0));
    assert_eq!(series("requests", ",state=\"waiting\""), Some(5.0));
    assert_eq!(series("cache_used", ""), Some(0.5));
    assert_eq!(series("room", ""), Some(3.0));
    let top = get(admin, "/api/top");
    let row = format!(
        "{{\"backend\":\"{backend}\",\"running\":3,\"waiting\":5,\"cache_used\":0.5,\"room\":3}}"
    );
    assert!(top.contains(&row), "{top}");
    let doctor = evenkeel!().args(["clients", "--admin", &admin.to_string()]).output();
    let doctor = String::from_utf8(doctor.expect("it runs").stdout).expect("text");
    let line = format!("{backend} runs 3, 5 wait inside, cache 50 % full; is sent at most 3\n");
    assert!(doctor.contains(&line), "{doctor}");

    engine.reports(3, 0);
    until("the bound rises", || figure(admin, SLOTS).is_some_and(|slots| slots > 3.0));
    until("the bound ends", || figure(admin, SLOTS) == Some(8.0));
    assert_eq!(series("room", ""), None);
    assert!(engine.asked.lock().expect("unpoisoned").iter().all(|path| path == "/metrics"));
}

#[test]
fn the_slots_of_several_engines_are_added_up() {
    let (one, other) = (FakeEngine::start(2, 4), FakeEngine::start(5, 4));
    let folder = tempfile::tempdir().expect("a folder");
    let (_program, admin) = open(folder.path(), &[&one, &other], "queue: {concurrency: 20}");
    until("the slots are bounded", || figure(admin, SLOTS) == Some(7.0));
    one.answers(404, "");
    until("an engine that reports no more has no bound", || figure(admin, SLOTS) == Some(20.0));
}

#[test]
fn a_backend_without_a_page_is_told_once_and_bounds_nothing() {
    let engine = FakeEngine::start(3, 5);
    engine.answers(404, "not found");
    let folder = tempfile::tempdir().expect("a folder");
    let (mut program, admin) = open(folder.path(), &[&engine], "queue: {concurrency: 8}");
    let line = program.told("cannot read how many requests wait inside the backend");
    assert!(line.contains("status 404"), "{line}");
    let asked = || engine.asked.lock().expect("unpoisoned").len();
    until("it is asked again", || asked() >= 2);
    engine.answers(200, "<html></html>");
    let before = asked();
    until("it is asked again", || asked() > before);
    assert_eq!(figure(admin, SLOTS), Some(8.0));
    let up = format!("evenkeel_backend_engine_up{{backend=\"{}\"}}", engine.address);
    assert_eq!(figure(admin, &up), Some(0.0));
    assert_eq!(program.log().matches("cannot read how many requests wait inside").count(), 1);
    engine.reports(4, 4);
    until("a page that appears counts", || figure(admin, SLOTS) == Some(4.0));
}

#[test]
fn the_page_may_have_another_path_or_not_be_asked_for() {
    let (asked, left) = (FakeEngine::start(3, 5), FakeEngine::start(3, 5));
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let queue = "queue: {concurrency: 8, engine_metrics: /prometheus/metrics}";
    let (_program, admin) = open(folders[0].path(), &[&asked], queue);
    until("the slots are bounded", || figure(admin, SLOTS) == Some(3.0));
    let paths = asked.asked.lock().expect("unpoisoned").clone();
    assert!(paths.iter().all(|path| path == "/prometheus/metrics"), "{paths:?}");
    // The one with `off` runs until the other backend has been asked at least once more.
    let queue = "queue: {concurrency: 8, engine_metrics: off}";
    let (_program, admin) = open(folders[1].path(), &[&left], queue);
    until("the other is asked again", || {
        asked.asked.lock().expect("unpoisoned").len() > paths.len() + 1
    });
    assert_eq!(figure(admin, SLOTS), Some(8.0));
    assert!(left.asked.lock().expect("unpoisoned").is_empty());
}
