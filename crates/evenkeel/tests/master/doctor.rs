//! The report of `evenkeel clients` about a master and its gatekeepers, from either side.

use crate::gatekeeper::site::Keeper;
use crate::stage::{Gatekeeper, MasterServer, ahead, doctor};
use evenkeel_testing::wait::until;
use std::net::{SocketAddr, TcpListener};

const RULES: &str = "domains: {d: [{rate: 1/h, burst: 3}]}";

/// An address without a listener.
fn closed() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// The line that contains `what`.
fn line<'a>(text: &'a str, what: &str) -> &'a str {
    text.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what} in\n{text}"))
}

#[test]
fn either_end_says_that_the_other_is_there_and_what_went_to_and_fro() {
    let program = MasterServer::start(RULES);
    let text = doctor(program.admin);
    let MasterServer { accounting, control, .. } = &program;
    let ports = format!("master: accounting tcp://{accounting}, control tcp://{control}");
    assert!(text.contains(&ports) && text.contains("no gatekeeper has connected yet"), "{text}");

    let keeper = Keeper::start([program.accounting, program.control], "domain: d");
    until("it is connected", || keeper.is_connected());
    (0..3).for_each(|_| assert_eq!(keeper.get("c").status, 200));
    until("the order is there", || keeper.get("c").status == 503);
    until("the master has heard", || program.messages("rejected") >= 1);
    let text = doctor(program.admin);
    let gate: Vec<&str> = line(&text, " 127.0.0.1").split_whitespace().collect();
    let [telling, listening, messages, last, address] = gate[..] else { panic!("{text}") };
    assert_eq!((telling, listening, address), ("1", "1", "127.0.0.1"), "{text}");
    assert!(messages.parse::<u64>().is_ok_and(|n| n >= 4) && last != "-", "{text}");
    // A request between the refusal and its order also causes an order.
    let told = line(&text, "orders sent").trim();
    let orders = told.strip_suffix(" orders sent, 0 missed by slow readers").expect("orders");
    assert!(orders.parse::<u64>().is_ok_and(|n| n >= 1), "{text}");
    assert!(line(&text, "messages, ").ends_with(" 0 too late, 0 faulty"), "{text}");

    let text = doctor(keeper.admin);
    assert!(text.contains("\ngatekeeper of d:\n"), "{text}");
    let told = line(&text, "  accounting ");
    assert!(
        told.starts_with(&format!("  accounting tcp://{accounting}: connected for ")),
        "{told}"
    );
    assert!(told.ends_with(" requests reported, 0 not"), "{told}");
    let heard = line(&text, "  control ");
    assert!(heard.starts_with(&format!("  control    tcp://{control}: connected for ")), "{heard}");
    let taken = format!("; {orders} orders accepted, 0 faulty, the last ");
    until("they are taken", || line(&doctor(keeper.admin), "  control ").contains(&taken));
    until("it is counted", || doctor(keeper.admin).contains("1 clients must wait now, 0 req"));

    drop(keeper);
    until("it is gone", || doctor(program.admin).contains(" 127.0.0.1 (gone for "));
}

#[test]
fn a_gatekeeper_says_why_its_master_is_away() {
    let program = MasterServer::start(RULES);
    let keeper = Keeper::start([program.accounting, closed()], "domain: d");
    until("it is refused", || doctor(keeper.admin).contains("refused"));
    let text = doctor(keeper.admin);
    let control = line(&text, "  control ");
    assert!(
        control.contains(": unreachable for ") && control.contains("onnection refused"),
        "{control}"
    );
    until("one way is there", || {
        line(&doctor(keeper.admin), "  accounting ").contains(": connected for ")
    });
    let hint = "127.0.0.1 (receives no orders: can it reach control?)";
    until("the master sees it", || doctor(program.admin).contains(hint));
    let _away = program.killed();
    until("it is missed", || {
        line(&doctor(keeper.admin), "  accounting ").contains(": unreachable for ")
    });
    assert_eq!(keeper.get("c").status, 200);
    let text = doctor(keeper.admin);
    assert!(!line(&text, "  accounting ").ends_with(" 0 not"), "{text}");
}

#[test]
fn a_domain_that_is_not_configured_is_named() {
    let mut program = MasterServer::start(RULES);
    let mut gatekeeper = Gatekeeper::new(&program, &[]);
    gatekeeper.request("dd\x1b", "c", ahead());
    let told = program.told("messages for a domain that `master` does not configure");
    assert!(told.contains("domain=\"dd") && told.contains("peer=127.0.0.1"), "{told}");
    assert!(told.contains("WARN evenkeel::master: ") && !told.contains('\x1b'), "{told}");
    until("it is heard", || program.messages("unknown") == 1);
    let text = doctor(program.admin);
    let unknown = line(&text, "unknown domains");
    assert!(
        unknown.trim().starts_with("1 messages of unknown domains, the last of \"dd"),
        "{text}"
    );
    assert!(!text.contains('\x1b'));
    let json = program.get("/api/top");
    assert!(json.contains("\"unknown\":1,\"unknown_domain\":\"dd"), "{json}");
    assert!(json.contains("\"gatekeepers\":[]"), "{json}");
}
