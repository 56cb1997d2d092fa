//! The reports on a queue that several programs share: the same owner at each of them, the
//! next one when it is killed, and why a peer does not share the queue.

use super::start;
use evenkeel_testing::admin::{get, metric};
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::{self, Program};
use evenkeel_testing::wait::{until, wait_for};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use tempfile::TempDir;

struct Instance {
    program: Program,
    admin: SocketAddr,
    /// The address that others connect to.
    peers: String,
    _folder: TempDir,
}

impl Instance {
    /// Starts an instance before the same backend, with these keys of `proxy`.
    fn start(proxy: &str, join: &[&Instance]) -> Instance {
        let folder = tempfile::tempdir().expect("a folder");
        let join: Vec<&str> = join.iter().map(|one| &*one.peers).collect();
        // The port is in the name.
        let peers = format!("127.0.0.1:{}", free_port());
        let text = format!(
            "admin: {{listen: '127.0.0.1:0'}}\n\
             proxy: {{listen: '127.0.0.1:0', backend: 'http://127.0.0.1:9', {proxy}}}\n\
             peers: {{listen: '{peers}', period: 200ms, cpus_shared: true, join: {join:?}}}\n"
        );
        let path = folder.path().join("evenkeel.yaml");
        fs::write(&path, text).expect("saved");
        let mut program = start(&["serve", "--config", &path.display().to_string()]);
        let admin = program::addresses(&program.told("proxy open"))[1];
        program.told("mesh open");
        Instance { program, admin, peers, _folder: folder }
    }

    fn json(&self, path: &str) -> Value {
        let answer = get(self.admin, path);
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
        serde_json::from_str(body).unwrap_or(Value::Null)
    }

    fn name(&self) -> String {
        wait_for("a status", || Some(self.json("/api/peers")["name"].as_str()?.to_owned()))
    }

    /// The owner of the queue and the names of those that take part, in order.
    fn queue(&self) -> (String, Vec<String>) {
        let queue = &self.json("/api/top")["load"][0]["shared_queue"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = queue["instances"].as_array().cloned().unwrap_or_default();
        let there = rows.iter().filter(|row| row["silent"] == false);
        let mut names: Vec<String> = there.map(|row| text(&row["name"])).collect();
        names.sort();
        (text(&queue["owner"]), names)
    }

    fn doctor(&self) -> String {
        let output = evenkeel!().args(["clients", "--admin", &self.admin.to_string()]).output();
        String::from_utf8(output.expect("it runs").stdout).expect("text")
    }

    fn owns(&self) -> bool {
        metric(self.admin, "evenkeel_queue_owner{door=\"proxy\"}") == 1
    }
}

/// Waits until all agree on the owner and on those that take part. Returns its index.
fn agree(all: &[Instance]) -> usize {
    let mut names: Vec<String> = all.iter().map(Instance::name).collect();
    let unsorted = names.clone();
    names.sort();
    let owner = wait_for("they agree", || {
        let (owner, _) = all[0].queue();
        let expected = (owner.clone(), names.clone());
        all.iter().all(|one| one.queue() == expected).then_some(owner)
    });
    unsorted.iter().position(|name| *name == owner).expect("it takes part")
}

#[test]
fn each_instance_names_the_owner_and_the_next_one_when_it_is_killed() {
    let mut all = vec![Instance::start("", &[])];
    for _ in 0..2 {
        let next = Instance::start("", &all.iter().collect::<Vec<_>>());
        all.push(next);
    }
    // On a busy machine an owner may fall silent, and another one takes over.
    until("one owns it", || {
        let owner = agree(&all);
        (0..3).all(|index| all[index].owns() == (index == owner))
    });
    until("its peers know that it owns the queue", || {
        let lists = all.iter().map(|one| one.json("/api/peers")["peers"].clone());
        let owners = |list: Value| {
            let peers = list.as_array().cloned().unwrap_or_default();
            peers.iter().filter(|peer| peer["queue"]["owns"] == true).count()
        };
        lists.map(owners).sum::<usize>() == 2
    });
    let mut killed = all.remove(agree(&all));
    killed.program.kill();
    let next = agree(&all);
    all[next].program.told("this instance has taken over the queue");
    let takeovers = metric(all[next].admin, "evenkeel_queue_takeovers_total{door=\"proxy\"}");
    assert!(takeovers >= 1, "{takeovers}");
    let (other, owner) = (1 - next, all[next].name());
    let line = all[other].program.told(&format!("owner=\"{owner}\""));
    assert!(line.contains("joined the queue of another one"), "{line}");
    until("doctor names the owner", || {
        let report = all[other].doctor();
        let line = format!("Queue of proxy: one queue for 2 instances; {owner} owns it for ");
        report.contains(&line) && report.contains(&format!("  {owner} (owns the queue)"))
    });
}

#[test]
fn the_log_says_that_a_queue_is_not_shared_over_a_transport_that_loses_messages() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("evenkeel.yaml");
    let text = "admin: off\n\
                proxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:9'}\n\
                peers: {via: nats, nats: 'nats://127.0.0.1:9', cpus_shared: true}\n";
    fs::write(&path, text).expect("saved");
    let mut program = start(&["serve", "--config", &path.display().to_string()]);
    let line = program.told("over this transport each has a queue of its own");
    assert!(line.contains("WARN") && line.contains("evenkeel.yaml:3:14: "), "{line}");
}

#[test]
fn doctor_says_why_a_peer_does_not_share_the_queue() {
    let a = Instance::start("", &[]);
    let b = Instance::start("queue: {shared: false}", &[&a]);
    let limit = "limits: [{name: ip, by: ip/24, share: 10%, burst: 30s}]";
    let c = Instance::start(limit, &[&a]);
    let lines = [
        format!("{} does not share the queue: it shares no queue", b.name()),
        format!("{} does not share the queue: its queue is another one", c.name()),
    ];
    until("doctor has both", || {
        let report = a.doctor();
        lines.iter().all(|line| report.contains(line))
    });
    let report = a.doctor();
    let alone = "Queue of proxy: this instance shares its queue, and no other one takes part\n";
    assert!(report.contains(alone), "{report}");
    // An instance that shares no queue misses none.
    assert!(!b.doctor().contains("the queue"), "{}", b.doctor());
    assert!(b.json("/api/top")["load"][0]["shared_queue"].is_null());
}
