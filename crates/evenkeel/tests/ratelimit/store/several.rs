//! Several servers: a ring; sentinels with a master that dies; a cluster of six nodes, in which
//! slots move and one master dies; and a server with TLS.

use super::redis::{Redis, text};
use super::{all, good, threads};
use crate::ask::YEARLY;
use crate::program::Server;
use crate::server::tls::Authority;
use crate::server::{V3, asked};
use evenkeel_store::redis::StoreLane;
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::until_async;
use evenkeel_testing::wait::wait_for;
use redis::{ConnectionLike, Value};
use std::cell::Cell;
use std::fs;

const RULES: &str = "domain: t\ndescriptors:\n- {key: h, rate_limit: {unit: year, \
                     requests_per_unit: 1000000}}\n";

fn service(store: &str, rules: &str) -> Server {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.yaml");
    fs::write(&path, rules).expect("written");
    let admin = format!("127.0.0.1:{}", free_port());
    // A machine that is busy with other tests answers late.
    let mut server = Server::from_file(&format!(
        "admin: {{listen: '{admin}'}}\nratelimit: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, debug: \
         127.0.0.1:0, rules: {}}}\nstore: {{deadline: 5s, connect_timeout: 60s, {store}}}\n",
        path.display()
    ));
    server.admin = Some(admin);
    // The service has read the rules by now.
    drop(folder);
    server
}

/// The number of hits that all of these servers have counted.
pub fn counted(servers: &[&Redis]) -> u64 {
    let sum = servers.iter().filter_map(|redis| {
        let keys = text(&redis.try_ask(&["KEYS", "evenkeel:*"])?);
        let one = |key: &str| {
            // A cluster node answers with a redirection for a key in a slot that it is about to
            // give away.
            redis.try_ask(&["GET", key]).and_then(|value| text(&value).parse::<u64>().ok())
        };
        Some(keys.lines().filter_map(one).sum::<u64>())
    });
    sum.sum()
}

#[test]
fn servers_of_a_ring_share_the_counters() {
    let servers = [(); 3].map(|()| Redis::start(&[]));
    let urls: Vec<String> = servers.iter().map(Redis::url).collect();
    let server = service(&format!("layout: ring, redis: [{}]", urls.join(", ")), RULES);
    let thirty: Vec<String> = (0..30).map(|n| format!("h=v{n}")).collect();
    let thirty = format!("t: {}", thirty.join(" | "));
    // Hits that are counted before all threads are connected reach the servers by another thread,
    // and what this process knows may lag behind what the servers know.
    wait_for("connections", || (good(&server) >= 3 * threads()).then_some(()));
    all(&server, &[&thirty, &thirty]);
    wait_for("all of them", || (counted(&servers.each_ref()) == 60).then_some(()));
    for redis in &servers {
        let keys = redis.text(&["KEYS", "evenkeel:*"]).lines().count();
        assert!(keys > 0 && keys < 30, "{keys}");
    }
    // One server dies: the others keep their counters.
    servers[1].kill();
    let said = all(&server, &[&thirty]);
    assert!(said[0].starts_with("OK [1000000/YEAR 999997, "), "{said:?}");
    servers[1].restart();
    wait_for("all of them", || (counted(&servers.each_ref()) == 90).then_some(()));
}

#[test]
fn the_master_that_sentinels_choose_next_has_the_count() {
    let master = Redis::start(&[]);
    let port = master.port.to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]);
    let folder = tempfile::tempdir().expect("a folder");
    let sentinels: Vec<Redis> = (0..3)
        .map(|number| {
            let file = folder.path().join(format!("{number}.conf"));
            let text = format!(
                "sentinel monitor gate 127.0.0.1 {port} 2\nsentinel down-after-milliseconds gate \
                 3000\nsentinel failover-timeout gate 3000\n"
            );
            fs::write(&file, text).expect("written");
            Redis::sentinel(&file)
        })
        .collect();
    for sentinel in &sentinels {
        wait_for("sentinels that know each other", || {
            let known = sentinel.text(&["SENTINEL", "MASTER", "gate"]);
            let of = |word: &str| known.lines().skip_while(|line| *line != word).nth(1);
            let others = of("num-other-sentinels") == Some("2");
            (others && of("num-slaves") == Some("1")).then_some(())
        });
    }
    let urls: Vec<String> = sentinels.iter().map(Redis::url).collect();
    let server =
        service(&format!("layout: sentinel, master: gate, redis: [{}]", urls.join(", ")), RULES);
    assert!(all(&server, &["t: h=v +5"])[0].starts_with("OK"));
    wait_for("the replica to know", || (counted(&[&replica]) == 5).then_some(()));
    master.kill();
    // A hit that was in flight when the master died may or may not be counted.
    assert_eq!(all(&server, &["t: h=v"]), ["OK [1000000/YEAR 999994]"]);
    assert_eq!(all(&server, &["t: h=v +2"]), ["OK [1000000/YEAR 999992]"]);
    wait_for("the next master to be told", || (counted(&[&replica]) >= 7).then_some(()));
    let told = counted(&[&replica]);
    assert!(told <= 8, "{told}");
    // The former master returns as a replica, and no count is lost.
    master.restart();
    assert!(all(&server, &["t: h=v"])[0].starts_with("OK [1000000/YEAR 99999"));
}

/// A cluster of three masters with one replica each. `timeout` is the time in milliseconds after
/// which a silent node counts as dead.
pub fn cluster(timeout: &str) -> Vec<Redis> {
    let nodes: Vec<Redis> = (0..6)
        .map(|_| {
            let bus = free_port().to_string();
            Redis::start(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                timeout,
                "--cluster-replica-validity-factor",
                "0",
            ])
        })
        .collect();
    let urls: Vec<String> = nodes.iter().map(Redis::url).collect();
    let mut command = std::process::Command::new("redis-cli");
    command.args(["--cluster", "create"]).args(&urls);
    command.args(["--cluster-replicas", "1", "--cluster-yes"]);
    let made = command.output().expect("redis-cli is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
    for node in &nodes {
        wait_for("the cluster", || {
            node.text(&["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(())
        });
    }
    nodes
}

pub fn masters(nodes: &[Redis]) -> Vec<&Redis> {
    let is_master = |node: &&Redis| {
        node.try_ask(&["ROLE"]).is_some_and(|role| text(&role).starts_with("master"))
    };
    nodes.iter().filter(is_master).collect()
}

/// Moves one slot with a key to another node, key by key, and calls `ask` after each step.
pub fn move_a_slot(nodes: &[Redis], ask: impl Fn()) {
    let masters = masters(nodes);
    let (from, to) = (masters[0], masters[1]);
    let key = from.text(&["KEYS", "evenkeel:*"]).lines().next().expect("a key").to_owned();
    let slot = from.text(&["CLUSTER", "KEYSLOT", &key]);
    let id = |node: &Redis| node.text(&["CLUSTER", "MYID"]);
    let (from_id, to_id) = (id(from), id(to));
    to.text(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.text(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    ask();
    let port = to.port.to_string();
    from.text(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
    // A node that gets a request by redirection may not have the script yet.
    to.text(&["SCRIPT", "FLUSH"]);
    ask();
    for node in [to, from] {
        node.text(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
    ask();
}

/// Kills a master after its replica has received everything.
pub fn kill_a_master(dead: &Redis) {
    wait_for("its replica to know", || {
        let told = dead.text(&["INFO", "replication"]);
        let field = |name: &str| told.split(name).nth(1)?.split(['\r', '\n', ',']).next();
        (field("master_repl_offset:")? == field(",offset=")?).then_some(())
    });
    dead.kill();
}

/// Waits until a lane is connected to all servers. In a cluster, it learns at once which node has
/// which slots.
pub async fn all_good(lane: &StoreLane) {
    let mapped = || lane.servers.routes().all(|route| route.link("any").is_some());
    until_async("a map of the slots", mapped).await;
    until_async("good connections", || lane.servers.links().all(|link| link.is_good())).await;
}

#[test]
fn a_cluster_whose_slots_move_and_whose_masters_die_has_one_count() {
    let nodes = cluster("4000");
    let seeds = format!("[{}, {}]", nodes[0].url(), nodes[5].url());
    let server = service(&format!("layout: cluster, redis: {seeds}"), RULES);
    let grpc = server.grpc();
    let thirty: Vec<String> = (0..30).map(|n| format!("h=v{n}")).collect();
    let thirty = format!("t: {}", thirty.join(" | "));
    let questions = Cell::new(0);
    let ask = || {
        questions.set(questions.get() + 1);
        let said = asked(&grpc, V3, &thirty);
        assert_eq!(said.matches("1000000/YEAR").count(), 30, "{said}");
    };
    let all_masters = || counted(&masters(&nodes));
    let calls = |node: &Redis| {
        let stats = node.text(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
        let calls =
            line.and_then(|line| line.split("calls=").nth(1)?.split(',').next()?.parse().ok());
        calls.unwrap_or(0_u64)
    };
    // Another thread may report hits that this one counted before it was connected.
    wait_for("this thread's connections", || {
        nodes.iter().for_each(|node| _ = node.text(&["CONFIG", "RESETSTAT"]));
        ask();
        let asked_of: Vec<u64> = masters(&nodes).iter().map(|node| calls(node)).collect();
        wait_for("all to be counted", || (all_masters() == 30 * questions.get()).then_some(()));
        (asked_of.iter().sum::<u64>() == 30).then_some(())
    });
    move_a_slot(&nodes, ask);
    let before = 30 * questions.get();
    wait_for("all to be counted", || (all_masters() == before).then_some(()));
    // A replica that has received everything takes the place of its master.
    let dead = masters(&nodes)[2];
    wait_for("the replicas to know", || {
        let done = dead.try_ask(&["WAIT", "1", "1000"]);
        (done == Some(Value::Int(1)) || done == Some(Value::Int(0))).then_some(())
    });
    let replicas: Vec<&Redis> =
        nodes.iter().filter(|node| !masters(&nodes).iter().any(|m| m.port == node.port)).collect();
    wait_for("the replicas to know", || (counted_readonly(&replicas) == before).then_some(()));
    dead.kill();
    // Hits in flight to the dead master may or may not be counted; all others are.
    ask();
    ask();
    wait_for("another master", || (masters(&nodes).len() == 3).then_some(()));
    wait_for("all to be counted", || (all_masters() >= before + 30).then_some(()));
    assert!(all_masters() <= before + 60, "{} after {before}", all_masters());
}

/// The number of hits that replicas have; they answer only clients that send READONLY.
fn counted_readonly(replicas: &[&Redis]) -> u64 {
    let one = |redis: &&Redis| {
        let mut connection = redis.connection()?;
        connection.req_command(&redis::cmd("READONLY")).ok()?;
        let keys = connection.req_command(redis::cmd("KEYS").arg("evenkeel:*")).ok()?;
        let keys = text(&keys);
        let mut get = |key: &str| {
            let value = connection.req_command(redis::cmd("GET").arg(key)).ok()?;
            text(&value).parse::<u64>().ok()
        };
        Some(keys.lines().filter_map(&mut get).sum::<u64>())
    };
    replicas.iter().filter_map(one).sum()
}

#[test]
fn over_tls_with_a_user_and_a_certificate_of_our_own() {
    let authority = Authority::new();
    authority.sign("server", "127.0.0.1");
    authority.sign("client", "client");
    let path = |name: &str| authority.path(name);
    let port = free_port();
    let redis = Redis::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("server.crt"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "yes",
    ]);
    redis.text(&["ACL", "SETUSER", "gate", "on", ">secret", "~evenkeel:*", "+@all"]);
    let server = service(
        &format!(
            "redis: \"rediss://gate:secret@127.0.0.1:{port}\", tls: {{ca: {}, cert: {}, key: {}}}",
            path("ca.pem"),
            path("client.crt"),
            path("client.key")
        ),
        YEARLY,
    );
    assert_eq!(all(&server, &["t: k=v"]), ["OK [5/YEAR 4]"]);
    wait_for("the count", || (counted(&[&redis]) == 1).then_some(()));
    // A client without a certificate is refused by the store, but its requests still pass.
    let stranger = service(
        &format!(
            "redis: \"rediss://gate:secret@127.0.0.1:{port}\", tls: {{ca: {}}}",
            path("ca.pem")
        ),
        YEARLY,
    );
    assert_eq!(all(&stranger, &["t: k=w"]), ["OK [5/YEAR 4]"]);
    assert_eq!(counted(&[&redis]), 1);
}
