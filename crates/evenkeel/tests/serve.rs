//! The real program from start to end: flags, files, reload, signals.

#[path = "serve/doctor.rs"]
mod doctor;
#[path = "serve/engines.rs"]
mod engines;
#[path = "serve/handover.rs"]
mod handover;
#[path = "serve/included.rs"]
mod included;
#[path = "serve/networks.rs"]
mod networks;
#[path = "serve/queues.rs"]
mod queues;
#[path = "serve/shared_queue.rs"]
mod shared_queue;
#[path = "serve/versions.rs"]
mod versions;
#[path = "serve/watchdog.rs"]
mod watchdog;

use evenkeel_testing::evenkeel;
use evenkeel_testing::program::{self, Program};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Longer than any step takes on the slowest machine; only a failing test waits that long.
const LONG: Duration = Duration::from_secs(30);

/// Starts the program with these arguments.
fn start(arguments: &[&str]) -> Program {
    Program::start(evenkeel!().args(arguments))
}

/// The addresses of the proxy and the admin door, from the first log line.
fn addresses(program: &mut Program) -> Vec<SocketAddr> {
    program::addresses(&program.told("proxy open"))
}

/// A backend that announces each request, and answers `hello` when the test asks for it.
fn backend() -> (SocketAddr, Receiver<Sender<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (arrived, requests) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let arrived = arrived.clone();
            thread::spawn(move || answer(stream, &arrived));
        }
    });
    (address, requests)
}

fn answer(mut stream: TcpStream, arrived: &Sender<Sender<()>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
        head.push(byte[0]);
    }
    let (go, told) = channel();
    if head.is_empty() || arrived.send(go).is_err() {
        return;
    }
    if told.recv().is_ok() {
        let text = "HTTP/1.1 200 OK\r\nx-cost: 500ms\r\ncontent-length: 5\r\n\
                    connection: close\r\n\r\nhello";
        let _ = stream.write_all(text.as_bytes());
    }
}

fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    read(ask(address, path))
}

#[test]
fn flags_are_enough_to_run_the_proxy() {
    let (address, requests) = backend();
    let url = format!("http://{address}");
    let mut program =
        start(&["proxy", "--backend", &url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let addresses = addresses(&mut program);
    let client = ask(addresses[0], "/");
    requests.recv().expect("it arrives").send(()).expect("answered");
    assert!(read(client).ends_with("hello"));
    assert!(get(addresses[1], "/readyz").starts_with("HTTP/1.1 200"));
    assert!(get(addresses[1], "/api/config").contains(&format!("backend: [{url}]")));
    let doctor = evenkeel!()
        .args(["clients", "--admin", &addresses[1].to_string(), "--limit", "ip"])
        .output()
        .expect("it runs");
    assert_eq!(doctor.status.code(), Some(0), "{}", String::from_utf8_lossy(&doctor.stderr));
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("127.0.0.1"));
    let doctor = evenkeel!()
        .args(["clients", "--admin", &addresses[1].to_string(), "--limit", "pi"])
        .output()
        .expect("it runs");
    assert_eq!(doctor.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&doctor.stdout).starts_with("Limit: pi\n"));
    assert!(String::from_utf8_lossy(&doctor.stderr).contains("known are: ip, net24, net16"));
    top_draws_and_leaves_the_terminal_as_it_was(addresses[1]);
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

/// Runs in a terminal of its own, which `script` provides.
fn top_draws_and_leaves_the_terminal_as_it_was(admin: SocketAddr) {
    let top = format!("{} top --admin {admin}", env!("CARGO_BIN_EXE_evenkeel"));
    let mut terminal = Command::new("script")
        .args(["-qfec", &format!("stty rows 24 cols 100; {top}"), "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs");
    let mut output = terminal.stdout.take().expect("piped");
    let mut drawn = String::new();
    let mut piece = [0; 4096];
    while !(drawn.contains("net24") && drawn.contains("CPUs") && drawn.contains("Client")) {
        let count = output.read(&mut piece).expect("it draws");
        assert!(count > 0, "it ended: {drawn}");
        drawn += &String::from_utf8_lossy(&piece[..count]);
    }
    terminal.stdin.as_mut().expect("piped").write_all(b"q").expect("a key");
    output.read_to_string(&mut drawn).expect("it ends");
    assert!(drawn.contains("\x1b[?1049h") && drawn.ends_with("\x1b[?25h"), "{drawn:?}");
    assert_eq!(terminal.wait().expect("its end").code(), Some(0));
    let piped = evenkeel!().arg("top").output().expect("it runs");
    assert_eq!(piped.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&piped.stderr).contains("for scripts and pipes"));
}

#[test]
fn a_request_that_runs_is_ended_before_the_program_is() {
    let (address, requests) = backend();
    let url = format!("http://{address}");
    let mut program =
        start(&["proxy", "--backend", &url, "--listen", "127.0.0.1:0", "--admin", "off"]);
    let addresses = addresses(&mut program);
    let client = ask(addresses[0], "/");
    let go = requests.recv().expect("it arrives");
    program.signal(Signal::TERM);
    program.told("draining");
    go.send(()).expect("answered");
    assert!(read(client).ends_with("hello"));
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_dead_backend_too_few_files_and_a_cut_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("evenkeel.yaml");
    let (address, requests) = backend();
    let text = "admin: off\nlog: {level: debug}\nproxy:\n  listen: 127.0.0.1:0\n  timeouts: \
                {drain: 50ms}\n  bounds: {connections: 1000}\n  backend: http://";
    fs::write(&path, format!("{text}127.0.0.1:1\n")).expect("saved");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 600; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_evenkeel")]);
    let mut program = Program::start(shell.args(["serve", "--config"]).arg(&path));
    let line = program.told("limit on open files is too low");
    assert!(line.contains("need 2256 files, and the limit is 600"), "{line}");
    let door = addresses(&mut program)[0];

    assert!(read(ask(door, "/")).starts_with("HTTP/1.1 502 "));
    let line = program.told("the backend failed a request");
    let told = "kind=\"connect\" backend=\"127.0.0.1:1\" client=127.0.0.1 error=";
    assert!(line.contains(told) && line.contains("refused"), "{line}");
    let mut bad = TcpStream::connect(door).expect("it listens");
    bad.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    assert!(read(bad).starts_with("HTTP/1.1 400 "));
    assert!(program.told("bad request").contains("status=400"));

    fs::write(&path, format!("{text}{address}\n")).expect("saved");
    program.signal(Signal::HUP);
    program.told("configuration reloaded");
    let _client = ask(door, "/");
    let _never = requests.recv().expect("it arrives");
    program.signal(Signal::TERM);
    program.told("stopped; 1 connections were cut off");
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn a_second_signal_stops_at_once() {
    let (address, requests) = backend();
    let url = format!("http://{address}");
    let mut program =
        start(&["proxy", "--backend", &url, "--listen", "127.0.0.1:0", "--admin", "off"]);
    let addresses = addresses(&mut program);
    let _client = ask(addresses[0], "/");
    let _never = requests.recv().expect("it arrives");
    program.signal(Signal::INT);
    program.told("draining");
    program.signal(Signal::TERM);
    program.told("stopped immediately");
    assert_eq!(program.end().code(), Some(0));
}

fn configuration(folder: &Path, backend: SocketAddr, cpus: &str) -> String {
    let path = folder.join("evenkeel.yaml");
    let text = format!(
        "admin: {{listen: '127.0.0.1:0'}}\nproxy:\n  listen: 127.0.0.1:0\n  \
         backend: http://{backend}\n  cpus: {cpus}\n"
    );
    fs::write(&path, text).expect("saved");
    path.display().to_string()
}

#[test]
fn t26_a_faulty_reload_is_refused_and_the_next_good_one_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, _requests) = backend();
    let path = configuration(folder.path(), address, "1");
    let mut program = start(&["serve", "--config", &path]);
    let admin = addresses(&mut program)[1];
    assert!(get(admin, "/api/config").contains("cpus: 1\n"));

    configuration(folder.path(), address, "many");
    program.signal(Signal::HUP);
    program.told("configuration refused");
    program.told("evenkeel.yaml:5:9: `cpus` is `many`");
    assert!(get(admin, "/api/config").contains("cpus: 1\n"));
    let top = get(admin, "/api/top");
    assert!(top.contains("evenkeel.yaml:5:9: `cpus` is `many`") && top.contains("\"faults\":1"));

    configuration(folder.path(), address, "2");
    program.signal(Signal::HUP);
    program.told("configuration reloaded");
    assert!(get(admin, "/api/config").contains("cpus: 2\n"));
    assert!(get(admin, "/api/top").contains("\"refused_config\":null"));

    // Without a signal: the file is checked once a second.
    configuration(folder.path(), address, "3");
    // The program may have noticed the previous change by itself, just before the signal.
    while !get(admin, "/api/config").contains("cpus: 3\n") {
        program.told("configuration reloaded");
    }
    let metrics = get(admin, "/metrics");
    assert!(metrics.contains("reload"), "{metrics}");
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

/// No limit has refused it, so the line names the setting of the queue, and the wait.
#[test]
fn a_refusal_after_a_wait_says_so_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, requests) = backend();
    let path = configuration(folder.path(), address, "1");
    let text = fs::read_to_string(&path).expect("there");
    let queue = "  queue: {concurrency: 1, reserve: 0, wait_max: 300ms, len_max: 1}\n";
    fs::write(&path, text + queue).expect("saved");
    let mut program = start(&["serve", "--config", &path]);
    let proxy = addresses(&mut program)[0];
    let first = ask(proxy, "/1");
    let first_request = requests.recv().expect("it arrives");
    let (second, third) = (ask(proxy, "/2"), ask(proxy, "/3"));
    let told = program.told("cause=\"len_max\"");
    assert!(told.contains("verdict=\"reject\"") && told.contains("waited_ms="), "{told}");
    let told = program.told("cause=\"wait_max\"");
    let waited = told.split("waited_ms=").nth(1).and_then(|rest| rest.split(' ').next());
    let waited: u64 = waited.expect("there").parse().expect("a number");
    assert!(told.contains("verdict=\"reject\"") && waited >= 300, "{told}");
    first_request.send(()).expect("answered");
    for (client, status) in [(first, " 200 "), (second, " 503 "), (third, " 503 ")] {
        let answer = read(client);
        assert!(answer.contains(status), "{answer}");
    }
}

/// The command finds the process by its admin address, and says what came of it.
#[test]
fn reload_says_whether_the_configuration_was_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("evenkeel.yaml");
    let write = |cpus: &str, port: u16| {
        let text = format!(
            "admin: {{listen: '127.0.0.1:0'}}\n\
             proxy: {{listen: '127.0.0.1:{port}', backend: 'http://127.0.0.1:1', cpus: {cpus}}}\n"
        );
        fs::write(&path, text).expect("saved");
    };
    write("1", 0);
    let mut program = start(&["serve", "--config", &path.display().to_string()]);
    let admin = addresses(&mut program)[1].to_string();
    let reload = |admin: &str| evenkeel!().args(["reload", "--admin", admin]).output();
    let output = reload(&admin).expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(told, format!("process {} has reloaded its configuration\n", program.id()));
    write("1", 2);
    let output = reload(&admin).expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.ends_with("; in force only after a restart: proxy.listen\n"), "{told}");
    write("many", 0);
    let output = reload(&admin).expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("configuration on disk refused for"), "{told}");
    assert!(told.contains(": `cpus` is `many`"), "{told}");
    // Another program that listens gets no signal.
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let output = reload(&other.local_addr().expect("bound").to_string()).expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no evenkeel that this user may see"));
}

/// Rules are files of their own, which may be refused while the configuration is accepted.
#[test]
fn reload_says_whether_the_rules_were_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, rules) = (folder.path().join("evenkeel.yaml"), folder.path().join("edge.yaml"));
    let text = format!(
        "admin: {{listen: '127.0.0.1:0'}}\n\
         proxy: {{listen: '127.0.0.1:0', backend: 'http://127.0.0.1:1'}}\n\
         ratelimit: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0', rules: '{}'}}\n",
        rules.display()
    );
    fs::write(&path, text).expect("saved");
    let mut program = start(&["serve", "--config", &path.display().to_string()]);
    let admin = addresses(&mut program)[1];
    let top = || get(admin, "/api/top");
    let reload = || {
        let output = evenkeel!().args(["reload", "--admin", &admin.to_string()]).output();
        let output = output.expect("it runs");
        let text = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let missing = format!("{}: it does not exist", rules.display());
    assert!(top().contains(&missing), "{}", top());
    let refused = reload();
    assert!(refused.0 == Some(1) && refused.1.contains(&missing), "{refused:?}");

    fs::write(&rules, "domain: edge\ndescriptors: [{key: user}]\n").expect("saved");
    let accepted = reload();
    assert_eq!(accepted.0, Some(0), "{accepted:?}");
    assert!(top().contains("\"refused_config\":null"), "{}", top());

    fs::write(&rules, "domain: edge\ndescriptors: [{keys: user}]\n").expect("saved");
    let refused = reload();
    assert!(refused.0 == Some(1) && refused.1.contains("edge.yaml:2:15: "), "{refused:?}");
    assert!(top().contains("edge.yaml:2:15: "), "{}", top());
    let metrics = get(admin, "/metrics");
    assert!(!metrics.contains("evenkeel_rule_loads_total{result=\"failed\"} 0"), "{metrics}");
}

/// Decisions show a wait; the list of clients shows the time that they really waited, which is
/// zero.
#[test]
fn in_shadow_nobody_waits_and_doctor_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, requests) = backend();
    let path = configuration(folder.path(), address, "1");
    let text = fs::read_to_string(&path).expect("there");
    let shadow = "  shadow: true\n  action: hold\n  cost: header:X-Cost\n  \
                  limits: [{name: ip, by: ip/32, share: 1%, burst: 1ms}]\n";
    fs::write(&path, text + shadow).expect("saved");
    let mut program = start(&["serve", "--config", &path]);
    let addresses = addresses(&mut program);
    let client = ask(addresses[0], "/");
    requests.recv().expect("it arrives").send(()).expect("answered");
    assert!(read(client).ends_with("hello"));
    program.told("verdict=\"hold\"");
    // The account is closed a moment after the answer.
    let charged = |top: &String| top.contains("\"cpu_total\":0.5");
    let top = (0..1_000).map(|_| get(addresses[1], "/api/top")).find(charged);
    let top = top.expect("it is charged");
    assert!(top.contains("\"wait_average\":0.0"), "{top}");
}

/// Otherwise a debt would grow in shadow mode that could not grow when the limit is enforced, and
/// would still be owed then.
#[test]
fn in_shadow_what_would_be_refused_is_told_once_and_owed_by_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, requests) = backend();
    let path = configuration(folder.path(), address, "1");
    let text = fs::read_to_string(&path).expect("there");
    let shadow = "  shadow: true\n  max_delay: 1s\n  action: hold\n  cost: header:X-Cost\n  \
                  limits: [{name: ip, by: ip/32, share: 1%, burst: 1ms}]\n";
    fs::write(&path, text + shadow).expect("saved");
    let mut program = start(&["serve", "--config", &path]);
    let addresses = addresses(&mut program);
    let charged = |seconds: &str| {
        let told = format!("\"cpu_total\":{seconds}");
        let mut tops = (0..1_000).map(|_| get(addresses[1], "/api/top"));
        tops.find(|top| top.contains(&told)).expect("it is charged")
    };
    for (verdict, seconds) in [("hold", "0.5"), ("reject", "1.0"), ("reject", "1.5")] {
        let client = ask(addresses[0], "/");
        requests.recv().expect("it arrives").send(()).expect("answered");
        assert!(read(client).ends_with("hello"));
        program.told(&format!("verdict=\"{verdict}\""));
        let top = charged(seconds);
        let level = top.split("\"level\":").nth(1).and_then(|rest| rest.split(',').next());
        let level: f64 = level.expect("there").parse().expect("a number");
        assert!(level > -0.6, "{top}");
    }
    let metrics = get(addresses[1], "/metrics");
    let decided = metrics.lines().filter(|line| line.starts_with("evenkeel_decisions_total{"));
    let all = decided.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
    assert!((all - 3.0).abs() < 0.1, "{metrics}");
}

#[test]
fn what_takes_a_restart_is_shown_as_it_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, _requests) = backend();
    let path = configuration(folder.path(), address, "1");
    let mut program = start(&["serve", "--config", &path]);
    let admin = addresses(&mut program)[1];
    let text = format!(
        "admin: off\nlog: {{format: json}}\nproxy:\n  listen: 127.0.0.1:1\n  \
         backend: http://{address}\n  cpus: 2\n"
    );
    fs::write(&path, text).expect("saved");
    program.signal(Signal::HUP);
    let told = program.told("take effect only after a restart");
    assert!(told.contains("admin, log.format, proxy.listen"), "{told}");
    program.told("configuration reloaded");
    let shown = get(admin, "/api/config");
    for runs in ["cpus: 2\n", "listen: [127.0.0.1:0]\n", "format: text\n"] {
        assert!(shown.contains(runs), "{runs} is not in\n{shown}");
    }
    assert!(!shown.contains("127.0.0.1:1]"), "{shown}");
}

#[test]
fn what_cannot_start_says_why() {
    for (arguments, code, why) in [
        (&["proxy", "--backend", "ftp://x"][..], 2, "write it as http://x"),
        (&["serve", "--config", "/nowhere.yaml"], 1, "/nowhere.yaml: cannot be read"),
        (&["serve", "--config", "/dev/null"], 1, "no door to open"),
    ] {
        let mut program = start(arguments);
        program.told(why);
        assert_eq!(program.end().code(), Some(code), "{arguments:?}");
    }
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = holder.local_addr().expect("bound").to_string();
    let mut program =
        start(&["proxy", "--backend", "http://127.0.0.1:1", "--admin", "off", "--listen", &taken]);
    program.told(&taken);
    assert_eq!(program.end().code(), Some(1));
}
