//! The files of `examples/two-instances` as they are, but for addresses: HAProxy distributes
//! connections between two instances, which end and start again while clients send requests.

use super::{Backend, LIMITS, alone, get, served};
use crate::ask;
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::until;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::iter;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::MutexGuard;
use std::sync::mpsc::Sender;
use tempfile::TempDir;

const EVENKEEL: &str = include_str!("../../../../../examples/two-instances/evenkeel.yaml");
const HAPROXY: &str = include_str!("../../../../../examples/two-instances/haproxy.cfg");

/// The ports of an instance.
#[derive(Clone, Copy)]
struct Ports {
    proxy: u16,
    admin: u16,
    peers: u16,
}

impl Ports {
    fn free() -> Ports {
        Ports { proxy: free_port(), admin: free_port(), peers: free_port() }
    }

    fn admin(self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.admin))
    }

    fn figure(self, name: &str) -> Option<usize> {
        // It may not have started, or have ended.
        TcpStream::connect(self.admin()).ok()?;
        let all = get(self.admin(), "/metrics");
        let series = format!("evenkeel_queue_{name}{{door=\"proxy\"}} ");
        all.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
    }
}

/// Two instances behind HAProxy.
struct Example {
    folder: TempDir,
    backend: Backend,
    ports: [Ports; 2],
    instances: [Program; 2],
    front: SocketAddr,
    _haproxy: Program,
    _alone: MutexGuard<'static, ()>,
}

/// Replaces each of these. The text must contain all of them.
fn replaced(text: &str, pairs: &[(&str, String)]) -> String {
    pairs.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "no {from} in\n{text}");
        text.replace(from, to)
    })
}

fn start(folder: &Path, ports: [Ports; 2], own: usize, backend: SocketAddr) -> Program {
    let text = replaced(
        EVENKEEL,
        &[
            ("0.0.0.0:8080", format!("127.0.0.1:{}", ports[own].proxy)),
            (
                "http://site.internal:80",
                format!("http://{backend}\n  queue: {{concurrency: 1}}\n{LIMITS}"),
            ),
            ("192.0.2.10", "127.0.0.1".to_owned()),
            ("0.0.0.0:7946", format!("127.0.0.1:{}", ports[own].peers)),
            ("evenkeel-a.internal:7946", format!("127.0.0.1:{}", ports[0].peers)),
            ("evenkeel-b.internal:7946", format!("127.0.0.1:{}", ports[1].peers)),
            ("0.0.0.0:9970", format!("127.0.0.1:{}", ports[own].admin)),
            ("/etc/evenkeel", folder.display().to_string()),
        ],
    );
    let path = folder.join(format!("{own}.yaml"));
    fs::write(&path, text).expect("saved");
    let mut command = evenkeel!();
    Program::listening(command.arg("serve").arg("--config").arg(path), ports[own].proxy)
}

impl Example {
    fn start() -> Example {
        let _alone = alone();
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["peers.key", "admin.key"] {
            let path = folder.path().join(name);
            fs::write(&path, "5".repeat(64)).expect("saved");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permissions");
        }
        let (backend, ports) = (Backend::start(), [Ports::free(), Ports::free()]);
        let first = start(folder.path(), ports, 0, backend.address);
        until("it owns a queue", || ports[0].figure("owner") == Some(1));
        let second = start(folder.path(), ports, 1, backend.address);
        let (front, _haproxy) = haproxy(folder.path(), ports);
        let instances = [first, second];
        let example = Example { folder, backend, ports, instances, front, _haproxy, _alone };
        example.is_shared(0);
        example
    }

    fn is_shared(&self, owner: usize) {
        until("they share a queue", || {
            self.ports.iter().all(|one| one.figure("instances") == Some(2))
                && self.ports[owner].figure("owner") == Some(1)
                && self.ports[1 - owner].figure("owner") == Some(0)
        });
    }
}

impl Example {
    fn waiting(&self, owner: usize) -> Option<usize> {
        self.ports[owner].figure("waiting_requests")
    }

    /// Waits until this number of requests wait at the owner or run beside the one that has the
    /// slot. Both instances connect to each other. If one of the connections replaces the other
    /// while a request runs, the queue has one slot more for that time.
    fn there_are(&self, count: usize, owner: usize, beside: &mut Vec<(String, Sender<()>)>) {
        until("they wait", || {
            beside.extend(self.backend.requests.try_recv());
            self.waiting(owner) == Some(count - beside.len())
        });
    }
}

fn haproxy(folder: &Path, ports: [Ports; 2]) -> (SocketAddr, Program) {
    let front = free_port();
    let server = |of: Ports| [format!("127.0.0.1:{}", of.proxy), format!("port {}", of.admin)];
    let ([a, at_a], [b, at_b]) = (server(ports[0]), server(ports[1]));
    let text = replaced(
        HAPROXY,
        &[
            ("bind :80", format!("bind 127.0.0.1:{front}")),
            (
                "evenkeel-a.internal:8080 send-proxy-v2 check port 9970",
                format!("{a} send-proxy-v2 check {at_a}"),
            ),
            (
                "evenkeel-b.internal:8080 send-proxy-v2 check port 9970",
                format!("{b} send-proxy-v2 check {at_b}"),
            ),
        ],
    );
    let path = folder.join("haproxy.cfg");
    fs::write(&path, text).expect("saved");
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(path);
    command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
    (SocketAddr::from(([127, 0, 0, 1], front)), Program::listening(command, front))
}

/// HAProxy sends two connections to different instances, as each has one then.
#[test]
fn the_example_with_haproxy_has_one_queue_and_loses_nothing_when_one_ends() {
    let mut example = Example::start();
    for ends in [0, 1] {
        let (front, backend) = (example.front, &example.backend);
        let (first, mut beside) = (ask(front, "/first"), Vec::new());
        let running = backend.gets("/first");
        let second = ask(front, "/second");
        example.there_are(1, ends, &mut beside);
        let third = ask(front, "/third");
        example.there_are(2, ends, &mut beside);
        for each in example.ports {
            assert!(get(each.admin(), "/metrics").contains("evenkeel_queue_owner"));
        }
        example.instances[ends].signal(Signal::TERM);
        // Where it drains, HAProxy asks the other one.
        let fourth = ask(front, "/fourth");
        example.there_are(3, 1 - ends, &mut beside);
        running.send(()).expect("answered");
        let one_more = || backend.requests.recv_timeout(crate::LONG).expect("a request");
        let mut asked = BTreeSet::new();
        for (path, go) in beside.into_iter().chain(iter::repeat_with(one_more)).take(3) {
            go.send(()).expect("answered");
            asked.insert(path);
        }
        assert_eq!(asked, ["/fourth", "/second", "/third"].map(String::from).into());
        [first, second, third, fourth].into_iter().for_each(served);
        assert_eq!(example.instances[ends].end().code(), Some(0));
        let folder = example.folder.path();
        example.instances[ends] = start(folder, example.ports, ends, backend.address);
        example.is_shared(1 - ends);
        until("HAProxy has seen it", || {
            let mut client = ask(front, "/probe");
            let Ok((_, go)) = example
                .backend
                .requests
                .try_recv()
                .or_else(|_| example.backend.requests.recv_timeout(crate::LONG))
            else {
                return false;
            };
            go.send(()).expect("answered");
            let mut answer = String::new();
            client.read_to_string(&mut answer).is_ok_and(|_| answer.ends_with("hello"))
        });
    }
}
