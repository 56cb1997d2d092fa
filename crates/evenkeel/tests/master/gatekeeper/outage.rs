//! Requests while the master, the network or a gatekeeper fails: all clients without an order pass,
//! no client is refused without a reason, and limits apply again afterwards.

use super::site::{Keeper, Site};
use super::{RULES, keeper};
use crate::stage::MasterServer;
use evenkeel_testing::wait::until;
use std::process::Command;

fn signal(id: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &id.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

#[test]
fn s17_a_master_that_is_killed_holds_nobody_and_holds_again_when_it_is_back() {
    let program = MasterServer::start(RULES);
    let keeper = keeper(&program, "domain: d");
    (0..3).for_each(|_| assert_eq!(keeper.get("c").status, 200));
    until("the order is there", || keeper.get("c").status == 503);
    let told = program.messages("accepted");
    let away = program.killed();
    until("it is missed", || !keeper.is_connected());
    // Known orders stay in force, and all other clients pass.
    assert_eq!(keeper.get("c").status, 503);
    let passed = (0..20).filter(|_| keeper.get("new").status == 200).count();
    assert_eq!(passed, 20);
    assert!(keeper.messages("away") >= 20 && told >= 3);
    let program = away.back(RULES);
    until("it is there again", || keeper.is_connected());
    // The twenty requests of the outage are not reported, so three more are free.
    let mut free = 0;
    until("the burst is used up", || {
        free += u64::from(keeper.get("new").status == 200);
        keeper.get("new").status == 503
    });
    assert!(free >= 1 && program.messages("accepted") >= 3, "{free}");
    assert_eq!(keeper.messages("full"), 0);
}

#[test]
fn a_master_that_hangs_costs_messages_and_no_requests() {
    let program = MasterServer::start(RULES);
    let keeper = keeper(&program, "domain: d");
    (0..3).for_each(|_| assert_eq!(keeper.get("c").status, 200));
    until("the order is there", || keeper.get("c").status == 503);
    signal(program.id(), "STOP");
    // 50 kB each, each from another client: more than the system and the gatekeeper buffer.
    let filler = "x".repeat(50_000);
    let mut count = 0;
    until("messages are dropped", || {
        assert_eq!(keeper.get(&format!("{count}-{filler}")).status, 200);
        count += 1;
        keeper.messages("full") + keeper.messages("away") > 0
    });
    assert_eq!(keeper.get("c").status, 503, "what is known is kept");
    signal(program.id(), "CONT");
    until("limits apply again", || keeper.get("fresh").status == 503);
    // No other client was refused: all other requests reached the site.
    assert_eq!(keeper.site.requests(), keeper.requests("accepted") + keeper.requests("delayed"));
}

/// A master and a gatekeeper with a cable between them that can be pulled. It needs root and `ip`;
/// without them the test prints a note and tests nothing.
struct Cable(String);

impl Cable {
    fn new() -> Option<Cable> {
        let cable = Cable(format!("evenkeel-gate-{}", std::process::id()));
        let (one, two) = (cable.end("1"), cable.end("2"));
        let made = ip(&["netns", "add", &one])
            && ip(&["netns", "add", &two])
            && ip(&["-n", &one, "link", "add", "eth0", "type", "veth", "peer", "name", "far"])
            && ip(&["-n", &one, "link", "set", "far", "netns", &two, "name", "eth0"])
            && [(&one, "10.78.0.1/24"), (&two, "10.78.0.2/24")].iter().all(|(end, address)| {
                ip(&["-n", end, "address", "add", address, "dev", "eth0"])
                    && ip(&["-n", end, "link", "set", "lo", "up"])
                    && ip(&["-n", end, "link", "set", "eth0", "up"])
            });
        made.then_some(cable)
    }

    fn end(&self, number: &str) -> String {
        format!("{}-{number}", self.0)
    }

    fn set(&self, state: &str) {
        assert!(ip(&["-n", &self.end("1"), "link", "set", "eth0", state]));
    }

    fn run(&self, number: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.end(number), program]);
        command
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for number in ["1", "2"] {
            let _ = Command::new("ip").args(["netns", "del", &self.end(number)]).output();
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|done| done.status.success())
}

/// Sends `count` requests of one client within the gatekeeper's namespace. Returns the number that
/// passed.
fn ask(cable: &Cable, count: u32, identifier: &str) -> u32 {
    let ask = format!(
        "for n in $(seq {count}); do exec 3<>/dev/tcp/127.0.0.1/8888; \
         printf 'GET / HTTP/1.1\\r\\nhost: site\\r\\nconnection: close\\r\\n' >&3; \
         printf 'x-id: {identifier}\\r\\n\\r\\n' >&3; head -n 1 <&3; exec 3<&-; done"
    );
    let done = cable.run("2", "bash").args(["-c", &ask]).output().expect("bash runs");
    let said = String::from_utf8_lossy(&done.stdout);
    let status = |code: &str| said.matches(&format!("HTTP/1.1 {code}")).count() as u32;
    // The site is in another namespace, so a request that passes gets 502.
    assert_eq!(status("502") + status("503"), count, "{said}");
    status("502")
}

#[test]
fn a_cut_network_holds_nobody_and_a_healed_one_holds_again() {
    let Some(cable) = Cable::new() else {
        eprintln!("not tested: this needs root and `ip netns`");
        return;
    };
    let master = MasterServer::start_by(
        cable.run("1", env!("CARGO_BIN_EXE_evenkeel")),
        &format!(
            "master: {{accounting: 'tcp://10.78.0.1:10004', allow: [10.78.0.0/24], {RULES}}}\n"
        ),
    );
    let keeper = Keeper::start_by(
        cable.run("2", env!("CARGO_BIN_EXE_evenkeel")),
        "127.0.0.1",
        Site::start(),
        "proxy: {listen: '127.0.0.1:8888', backend: 'http://127.0.0.1:1', \
         limits: [{name: plenty, by: all, rate: 1000000/s, burst: 1000000}]}\n\
         gatekeeper: {master: 'tcp://10.78.0.1', domain: d, identifier: 'header:x-id'}\n",
    );
    let held = |identifier: &str| until(identifier, || ask(&cable, 1, identifier) == 0);
    held("before");
    cable.set("down");
    assert_eq!(ask(&cable, 10, "cut"), 10, "nobody is known to have to wait");
    assert_eq!(ask(&cable, 2, "before"), 0, "what is known is kept");
    cable.set("up");
    held("after");
    drop((master, keeper));
}
