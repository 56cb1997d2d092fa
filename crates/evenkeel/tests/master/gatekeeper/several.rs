//! Several domains in one program, each with the requests that its condition selects.

use super::site::{Keeper, Site};
use crate::stage::{MasterServer, doctor};
use evenkeel_testing::evenkeel;
use evenkeel_testing::wait::until;

const RULES: &str = "domains: {login: [{rate: 1/h, burst: 1}], d: [{rate: 1/h, burst: 3}]}";

#[test]
fn each_request_passes_the_first_gate_that_keeps_it() {
    let program = MasterServer::start(RULES);
    let MasterServer { accounting, control, .. } = &program;
    let site = Site::start();
    let gate = |domain: &str, when: &str| {
        format!(
            "  - {{master: 'tcp://{accounting}', control: 'tcp://{control}', domain: {domain}, \
             identifier: 'header:x-id', when: {when}}}\n"
        )
    };
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("list.txt");
    std::fs::write(&list, "127.0.0.0/8\n").expect("written");
    let sections = format!(
        "proxy: {{listen: '127.0.0.1:0', backend: 'http://{}', limits: []}}\ngatekeeper:\n{}{}",
        site.address,
        gate("login", "{path: /login}"),
        gate("d", &format!("{{path: [/login, /api], ip_file: {}}}", list.display())),
    );
    let command = evenkeel!();
    let keeper = Keeper::start_by(command, "127.0.0.1", site, &sections);
    let connected = |domain: &str| {
        let gates = keeper.admin("/metrics");
        ["accounting", "control"].iter().all(|socket| {
            let series = "evenkeel_gatekeeper_connected";
            gates.contains(&format!("{series}{{domain=\"{domain}\",socket=\"{socket}\"}} 1\n"))
        })
    };
    until("both are connected", || connected("login") && connected("d"));
    assert_eq!(keeper.get_at("/login", "c"), 200);
    until("the order of login is there", || keeper.get_at("/login", "c") == 503);
    (0..3).for_each(|n| assert_eq!(keeper.get_at("/api/x", "c"), 200, "{n}: a count of its own"));
    until("the order of d is there", || keeper.get_at("/api/x", "c") == 503);
    assert_eq!(keeper.get_at("/login", "another"), 200);
    (0..20).for_each(|_| assert_eq!(keeper.get_at("/page", "c"), 200, "it has no gate"));
    // A master gets no reports about requests without a domain, or of another domain.
    let accepted = |domain: &str| {
        let all = keeper.admin("/metrics");
        let series = format!(
            "evenkeel_gatekeeper_requests_total{{domain=\"{domain}\",status=\"accepted\"}} "
        );
        let line = all.lines().find_map(|line| line.strip_prefix(&series));
        line.expect("it is counted").parse::<u64>().expect("a number")
    };
    assert!(accepted("d") >= 3 && accepted("login") >= 2);
    let told = accepted("d") + accepted("login");
    until("the master has heard of all", || program.messages("accepted") == told);
    until("each knows who has to wait", || {
        let text = doctor(keeper.admin);
        let gates = ["gatekeeper of login:\n", "gatekeeper of d:\n"];
        let told = text.matches(" orders accepted, 0 faulty, the last ").count();
        gates.iter().all(|gate| text.contains(gate)) && told == 2
    });
    let top = keeper.admin("/api/top?limit=login");
    assert!(top.contains("\"door\":\"gatekeeper\"") && top.contains("\"key\":\"c\""), "{top}");
}
