//! A robot that its address proves: the identifier under which a store counts it.

use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::key::KeySeed;
use evenkeel_engine::Engine;
use evenkeel_identity::robots::LiveRobots;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::net::IpAddr;
use std::sync::Arc;

struct Client(u8);

impl RequestAttributes for Client {
    fn address(&self) -> IpAddr {
        IpAddr::from([192, 0, 2, self.0])
    }

    fn method(&self) -> &'static str {
        "GET"
    }

    fn path(&self) -> &'static str {
        "/"
    }

    fn vhost(&self) -> &'static str {
        ""
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == "user-agent").then_some(b"Examplebot/1.0")
    }
}

#[test]
fn a_store_counts_a_robot_by_its_name_whatever_its_address() {
    let list = std::env::temp_dir().join(format!("evenkeel-robot-{}", std::process::id()));
    std::fs::write(&list, "192.0.2.0/25\n").expect("written");
    let text = format!(
        "proxy: {{robots: [{{name: example, user_agent: '*Examplebot*', ip_file: {}}}], \
         limits: [{{name: a, by: [bot, impostor], rate: 1/s}}]}}",
        list.display()
    );
    let read = evenkeel_config::parse("t.yaml", text.as_bytes(), 4.0).expect("good");
    let proxy = read.settings.proxy.expect("open");
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    let engine = Engine::new(&proxy, 1, KeySeed([7; 16]), clock, Arc::clone(&watch));
    let live = LiveRobots::load(&proxy.robots, watch.registry(), None);
    engine.set_robots(Some(Arc::new(live.expect("good files").robots())));
    let lane = engine.lane(0);
    let identifier = |client: u8| {
        let Ok(begun) = lane.begin(&Client(client)) else { panic!("refused") };
        let all = begun.identifiers(&Client(client), clock.now(), |name, _| name.to_owned());
        String::from_utf8(all.concat()).expect("text")
    };
    assert_eq!(identifier(1), "example\0");
    assert_eq!(identifier(2), "example\0");
    assert_eq!(identifier(200), "\0example");
    std::fs::remove_file(&list).expect("removed");
}
