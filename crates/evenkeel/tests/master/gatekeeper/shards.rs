//! Several masters, each with domains of its own, behind one address: the ZeroMQ proxy of the
//! guide.

use super::site::Keeper;
use crate::stage::MasterServer;
use evenkeel_testing::wait::until;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};

/// The ZeroMQ proxy; killed when dropped.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the code block of the guide, with these addresses in place of its own.
fn proxy(masters: [&MasterServer; 2]) -> (Proxy, [SocketAddr; 2]) {
    let guide = include_str!("../../../../../docs/guide/gatekeeper.md");
    let block = guide.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
    let block = block.expect("a block of Python");
    let ports = [(); 2].map(|()| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    });
    let all = |address: fn(&MasterServer) -> SocketAddr| {
        let each = masters.map(|master| format!("'tcp://{}'", address(master)));
        format!("[{}]", each.join(", "))
    };
    let code = block
        .replace("tcp://*:10004", &format!("tcp://{}", ports[0]))
        .replace("tcp://*:10005", &format!("tcp://{}", ports[1]))
        .replace("[master + \":10004\" for master in masters]", &all(|master| master.accounting))
        .replace("[master + \":10005\" for master in masters]", &all(|master| master.control));
    assert!(!code.contains("1000"), "{code}");
    let child = Command::new("/usr/bin/python3").args(["-c", &code]).spawn().expect("python3 runs");
    let proxy = Proxy(child);
    until("the proxy listens", || ports.iter().all(|port| TcpStream::connect(port).is_ok()));
    (proxy, ports)
}

#[test]
fn masters_share_the_domains_and_gatekeepers_know_one_address() {
    let one = MasterServer::start("domains: {d: [{rate: 1/h, burst: 3}]}");
    let two = MasterServer::start("domains: {e: [{rate: 1/h, burst: 1}]}");
    let (_proxy, addresses) = proxy([&one, &two]);
    for (domain, burst) in [("d", 3), ("e", 1)] {
        let keeper = Keeper::start(addresses, &format!("domain: {domain}"));
        until("it is connected", || keeper.is_connected());
        // Until the subscription has arrived, reports of requests are lost.
        until("it is held", || keeper.get("c").status == 503);
        assert!(keeper.requests("accepted") >= burst, "{domain}");
    }
    // Each master receives reports of both domains, and skips those of the other.
    for master in [&one, &two] {
        until("both are heard", || master.messages("unknown") >= 1);
        assert!(master.messages("accepted") >= 1);
    }
}
