//! The program as a gatekeeper: in front of a test site, with a master that is Evenkeel too, or
//! libzmq.
//!
//! The tests check which requests pass, which are refused, the reports to the master, and that
//! nothing happens too early. They do not check how long anything takes.

mod layer;
mod orders;
mod outage;
mod several;
mod shards;
pub mod site;

use crate::stage::MasterServer;
use evenkeel_testing::wait::until;
use site::Keeper;

const RULES: &str =
    "domains: {d: [{rate: 1/h, burst: 3}], k: [{rate: 1/h, burst: 3, algorithm: gcra}]}";

fn keeper(program: &MasterServer, keys: &str) -> Keeper {
    let keeper = Keeper::start([program.accounting, program.control], keys);
    until("it is connected", || keeper.is_connected());
    keeper
}

#[test]
fn s1_the_burst_is_free_and_then_the_proxy_refuses_with_a_true_retry_after() {
    let program = MasterServer::start(RULES);
    let keeper = keeper(&program, "domain: d");
    (0..3).for_each(|n| assert_eq!(keeper.get("c").status, 200, "{n}"));
    until("the order is there", || keeper.orders() >= 1);
    let refused = keeper.get("c");
    assert_eq!(refused.status, 503);
    let after: u64 = refused.header("retry-after").expect("it says when").parse().expect("seconds");
    // Two clocks may differ by a little, and seconds are rounded.
    assert!((3_000..=3_601).contains(&after), "{after}");
    assert_eq!(refused.text, format!("over the limit \"d\"; try again in {after} s\n"));
    assert_eq!(keeper.get("another").status, 200);
    assert_eq!(keeper.site.requests(), 4, "the site never heard of the one that was refused");
    until("the master has heard of the last", || program.messages("accepted") == 4);
    assert_eq!(program.messages("rejected"), 1);
    let requests = |status: &str| keeper.requests(status);
    assert_eq!((requests("accepted"), requests("rejected"), requests("delayed")), (4, 1, 0));
    until("it is counted", || keeper.metric("evenkeel_gatekeeper_identifiers") == 1);
    let top = keeper.admin("/api/top?limit=d");
    assert!(top.contains("\"door\":\"gatekeeper\"") && top.contains("\"key\":\"c\""), "{top}");
}

#[test]
fn s2_one_more_is_free_under_gcra() {
    let program = MasterServer::start(RULES);
    let keeper = keeper(&program, "domain: k");
    (0..4).for_each(|n| {
        assert_eq!(keeper.get("c").status, 200, "{n}");
        until("the master has heard", || program.messages("accepted") == n + 1);
    });
    until("the order is there", || keeper.orders() >= 1);
    assert_eq!(keeper.get("c").status, 503);
}

#[test]
fn s18_s19_two_gatekeepers_know_the_same_and_so_does_one_that_comes_late() {
    let program = MasterServer::start(RULES);
    let (one, two) = (keeper(&program, "domain: d"), keeper(&program, "domain: d"));
    assert_eq!([one.get("c").status, two.get("c").status, one.get("c").status], [200; 3]);
    for keeper in [&one, &two] {
        until("the order is there", || keeper.get("c").status == 503);
    }
    let late = keeper(&program, "domain: d");
    until("it is told what is in force", || late.orders() >= 1);
    assert_eq!(late.get("c").status, 503);
    // The death of one gatekeeper does not affect the others.
    drop(one);
    assert_eq!(two.get("c").status, 503);
    assert_eq!(two.get("another").status, 200);
}
