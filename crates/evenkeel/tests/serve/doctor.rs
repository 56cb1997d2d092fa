//! `evenkeel doctor` before real programs, each with a fault that is really there, and `evenkeel
//! upgrade`.

use super::handover::{self, Last, configuration};
use super::{get, read, start};
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::until;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};

/// What the doctor says about the server at this admin address.
struct Diagnosis {
    json: Value,
    code: i32,
}

impl Diagnosis {
    fn of(admin: SocketAddr, flags: &[&str]) -> Diagnosis {
        let mut doctor = evenkeel!();
        doctor.args(["doctor", "--json", "--admin", &admin.to_string()]).args(flags);
        let output = doctor.env_remove("EVENKEEL_CONFIG").output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let json =
            serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text} {output:?}"));
        Diagnosis { json, code: output.status.code().expect("a code") }
    }

    /// The level of a check, what it found, and what it says to do.
    fn check(&self, name: &str) -> (String, String, String) {
        let findings = self.json["findings"].as_array().expect("findings");
        let found = findings.iter().find(|finding| finding["check"] == name);
        let found = found.unwrap_or_else(|| panic!("no {name}: {}", self.json));
        let text = |key: &str| found[key].as_str().expect("text").to_owned();
        let todo = found["do"].as_array().expect("a list").iter();
        let todo: Vec<&str> = todo.map(|line| line.as_str().expect("text")).collect();
        (text("level"), text("found"), todo.join("\n"))
    }

    /// All backends answer; how fast is no matter of this test.
    #[track_caller]
    fn answers(&self) {
        let (level, found, _) = self.check("backend");
        assert!(level != "problem" && found.contains("1 of 1 answer"), "{level} {found}");
    }

    #[track_caller]
    fn expect(&self, name: &str, level: &str, says: &str) {
        let (is, found, todo) = self.check(name);
        assert!(
            is == level && (found.contains(says) || todo.contains(says)),
            "{is} {found} {todo}"
        );
    }
}

/// Sends a request with a header that names another client.
fn forwarded(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = format!(
        "GET / HTTP/1.1\r\nhost: {address}\r\nx-forwarded-for: 192.0.2.7\r\n\
         connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    assert!(read(stream).ends_with("hello"));
}

/// The advice of the doctor is followed, and it is well again.
#[test]
fn a_front_that_is_not_trusted_is_found_and_the_advice_helps() {
    let folder = tempfile::tempdir().expect("a folder");
    let (listen, admin) = (free_port(), free_port());
    let yaml = format!(
        "admin: {{listen: '127.0.0.1:{admin}'}}\nproxy:\n  listen: 127.0.0.1:{listen}\n  \
         backend: http://{}\n",
        handover::backend()
    );
    let file = configuration(folder.path(), &yaml);
    let mut program = start(&["serve", "--config", &file.display().to_string()]);
    let addresses = super::addresses(&mut program);
    for _ in 0..40 {
        forwarded(addresses[0]);
    }
    let told = Diagnosis::of(addresses[1], &[]);
    told.expect(
        "trusted-proxies",
        "problem",
        "requests came with x-forwarded-for from addresses that",
    );
    let (_, _, todo) = told.check("trusted-proxies");
    let reload = format!("evenkeel reload --admin 127.0.0.1:{admin}");
    assert_eq!(todo, format!("proxy:\n  trusted_proxies: [127.0.0.1]\n{reload}"));
    assert_eq!((told.code, told.json["problems"].as_u64()), (1, Some(1)), "{}", told.json);
    for check in ["configuration", "server", "reload", "program", "shadow", "keep-alive"] {
        told.expect(check, "ok", "");
    }
    told.answers();
    // The members of /api/top.
    assert_eq!(told.json["known"][0], "ip");

    fs::write(&file, yaml + "  trusted_proxies: [127.0.0.1]\n").expect("saved");
    let reloaded =
        evenkeel!().args(["reload", "--admin", &addresses[1].to_string()]).output().expect("runs");
    assert!(reloaded.status.success(), "{reloaded:?}");
    for _ in 0..40 {
        forwarded(addresses[0]);
    }
    let told = Diagnosis::of(addresses[1], &[]);
    told.expect("forwarded-headers", "ok", "40 of 40 requests of trusted proxies");
    told.expect("trusted-proxies", "ok", "40 of 40 requests came from trusted proxies");
    let text = evenkeel!().args(["doctor", "--admin", &addresses[1].to_string()]).output();
    let text = String::from_utf8(text.expect("it runs").stdout).expect("text");
    assert!(text.contains("ok       reload            ") && !text.contains('\x1b'), "{text}");
}

#[test]
fn flags_that_do_not_fit_this_machine_are_found() {
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let url = format!("http://{gone}");
    let mut program = start(&[
        "proxy",
        "--backend",
        &url,
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--cpus",
        "4096",
        "--shadow",
    ]);
    let addresses = super::addresses(&mut program);
    let told = Diagnosis::of(addresses[1], &[]);
    told.expect("backend", "problem", "1 of 1 do not answer");
    told.expect("cpus", "problem", "cpus is 4096, and this machine has");
    told.expect("shadow", "warning", "all limits only watch");
    told.expect("configuration", "ok", "with flags");
    assert_eq!(told.code, 1);
    assert!(get(addresses[0], "/").starts_with("HTTP/1.1 502"));
    let failed = || Diagnosis::of(addresses[1], &["--no-probe"]).check("backend-failures").0;
    until("the history has it", || failed() == "problem");
    let told = Diagnosis::of(addresses[1], &["--no-probe"]);
    told.expect("backend", "unknown", "--no-probe");
    told.expect(
        "backend-failures",
        "problem",
        "1 of 1 requests since the start (connect 1); 1 of 1",
    );
}

#[test]
fn a_file_that_is_refused_is_found_and_one_that_is_not_in_force() {
    let folder = tempfile::tempdir().expect("a folder");
    let (listen, admin) = (free_port(), free_port());
    let yaml = format!(
        "admin: {{listen: '127.0.0.1:{admin}'}}\nproxy: {{listen: '127.0.0.1:{listen}', \
         backend: 'http://{}', cpus: 1}}\n",
        handover::backend()
    );
    let file = configuration(folder.path(), &yaml);
    let mut program = start(&["serve", "--config", &file.display().to_string()]);
    let addresses = super::addresses(&mut program);
    let other = folder.path().join("other.yaml");
    fs::write(&other, yaml.replace("cpus: 1", "cpus: 0.5")).expect("saved");
    let told = Diagnosis::of(addresses[1], &["-c", &other.display().to_string()]);
    told.expect("reload", "warning", "file has `cpus: 0.5`; ");
    assert_eq!(told.code, 0, "{}", told.json);
    let told = Diagnosis::of(addresses[1], &["--strict", "-c", &other.display().to_string()]);
    assert_eq!(told.code, 1);

    fs::write(&file, "proxy: {cups: 1}\n").expect("saved");
    let told = || Diagnosis::of(addresses[1], &[]);
    until("it is refused", || told().check("reload").0 == "problem");
    told().expect("reload", "problem", "unknown key `cups`");
    told().expect("configuration", "problem", "evenkeel check ");
    let moved = yaml.replace(&format!("127.0.0.1:{listen}"), "127.0.0.1:1");
    fs::write(&file, moved).expect("saved");
    until("it is read", || told().check("reload").0 == "warning");
    told().expect("reload", "warning", "only after a restart: proxy.listen");
}

/// Few files, and a disk without room, in a mount namespace of the server.
#[test]
fn too_few_files_and_a_full_disk_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).expect("made");
    let yaml = format!(
        "admin: {{listen: '127.0.0.1:0'}}\nstate: {{file: {}/state, every: 100ms}}\n\
         proxy: {{listen: '127.0.0.1:0', backend: 'http://{}', cpus: 1}}\n",
        disk.display(),
        handover::backend()
    );
    let file = configuration(folder.path(), &yaml);
    let serve = format!(
        "ulimit -n 300; exec {} serve --config {}",
        env!("CARGO_BIN_EXE_evenkeel"),
        file.display()
    );
    let mount = format!(
        "mount -t tmpfs -o size=16k none {0} && head -c 16384 /dev/zero > {0}/x",
        disk.display()
    );
    let may_mount = Command::new("unshare").args(["-m", "sh", "-c", &mount]).output();
    let may_mount = may_mount.is_ok_and(|output| disk.is_dir() && was_mounted(&output));
    let mut command = match may_mount {
        true => {
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", &format!("({mount}); {serve}")]);
            command
        }
        false => {
            let mut command = Command::new("sh");
            command.args(["-c", &serve]);
            command
        }
    };
    let mut program = Program::start(&mut command);
    let addresses = super::addresses(&mut program);
    let told = Diagnosis::of(addresses[1], &[]);
    told.expect("open-files", "warning", "the limit is 300");
    told.expect("open-files", "warning", "LimitNOFILE=");
    if may_mount {
        told.expect("state", "problem", "is full");
    } else {
        eprintln!("skipped: no mount namespace");
        fs::remove_dir_all(&disk).expect("removed");
        let told = || Diagnosis::of(addresses[1], &[]);
        told().expect("state", "problem", "cannot be written: No such file");
    }
}

/// Whether the command could mount; the disk is full then, which is no error.
fn was_mounted(output: &Output) -> bool {
    !String::from_utf8_lossy(&output.stderr).contains("mount")
        && !String::from_utf8_lossy(&output.stderr).contains("unshare")
}

#[test]
fn without_a_server_the_file_and_the_backend_are_examined() {
    let folder = tempfile::tempdir().expect("a folder");
    let yaml = format!(
        "proxy: {{listen: '127.0.0.1:0', backend: 'http://{}', queue: {{wait_max: 50ms}}}}\n",
        handover::backend()
    );
    let file = configuration(folder.path(), &yaml);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let told = Diagnosis::of(nowhere, &["-c", &file.display().to_string()]);
    told.expect("server", "problem", "no server answers at 127.0.0.1:1");
    told.answers();
    told.expect("queue", "warning", "queue.wait_max is 50 ms");
    told.expect("trusted-proxies", "unknown", "needs the running server");
    assert_eq!(told.code, 1);
    let none = Diagnosis::of(nowhere, &["-c", "/nonexistent/evenkeel.yaml"]);
    none.expect("configuration", "problem", "/nonexistent/evenkeel.yaml: cannot be read");
}

/// The former `doctor` showed clients: its flags still do, with a note.
#[test]
fn flags_of_the_former_doctor_show_clients() {
    let url = format!("http://{}", handover::backend());
    let mut program =
        start(&["proxy", "--backend", &url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let addresses = super::addresses(&mut program);
    assert!(get(addresses[0], "/").starts_with("HTTP/1.1 200"));
    let admin = addresses[1].to_string();
    let old = evenkeel!().args(["doctor", "--limit", "ip", "--admin", &admin]).output();
    let old = old.expect("it runs");
    assert!(String::from_utf8_lossy(&old.stdout).starts_with("Limit: ip\n"), "{old:?}");
    assert!(String::from_utf8_lossy(&old.stderr).contains("`evenkeel clients` shows clients"));
    assert_eq!(old.status.code(), Some(0));
}

fn upgrade(admin: u16) -> Output {
    let admin = format!("127.0.0.1:{admin}");
    evenkeel!().args(["upgrade", "--admin", &admin]).output().expect("it runs")
}

#[test]
fn upgrade_waits_for_the_successor_and_says_why_there_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let (listen, admin) = (free_port(), free_port());
    let yaml = format!(
        "admin: {{listen: '127.0.0.1:{admin}'}}\nproxy: {{listen: '127.0.0.1:{listen}', \
         backend: 'http://{}', cpus: 1}}\n",
        handover::backend()
    );
    let file = configuration(folder.path(), &yaml);
    let mut program = start(&["serve", "--config", &file.display().to_string()]);
    program.told("proxy open");

    fs::write(&file, "proxy: {cups: 1}\n").expect("saved");
    let failed = upgrade(admin);
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{why}");
    let says =
        format!("process {} was not replaced and continues to serve: it ended", program.id());
    assert!(why.contains(&says) && why.contains(&format!("check {}", file.display())), "{why}");
    let told = Diagnosis::of(SocketAddr::from(([127, 0, 0, 1], admin)), &[]);
    told.expect("program", "problem", "the last upgrade failed");

    fs::write(&file, &yaml).expect("saved");
    let done = upgrade(admin);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{done:?}");
    let successor = text.split("by process ").nth(1).and_then(|rest| rest.split(' ').next());
    let successor = successor.and_then(|pid| pid.parse().ok()).expect("a process");
    let _last = Last(successor);
    assert_ne!(successor, program.id());
    let proxy = SocketAddr::from(([127, 0, 0, 1], listen));
    assert!(get(proxy, "/").ends_with("hello"));
    until("the old process has ended", || program.ended().is_some());
}

#[test]
fn upgrade_says_that_there_is_no_server() {
    let failed = upgrade(1);
    assert_eq!(failed.status.code(), Some(1));
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(why.contains("no evenkeel that this user may see listens at 127.0.0.1:1"), "{why}");
}
