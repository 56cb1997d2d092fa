//! What a reload changes, and what keeps its running value until a restart.
//!
//! Values are compared by their meaning, with passwords; the keys are those that the rows mark as
//! restart-only.

use super::good;

#[test]
fn a_reload_keeps_what_takes_a_restart() {
    let running = good("proxy: {listen: '127.0.0.1:1', cpus: 1}\nadmin: off");
    let wanted = "log: {format: json, level: debug}\nadmin: {listen: '[::1]:5'}\n\
                  proxy: {listen: '127.0.0.1:2', cpus: 2}";
    let (taken, kept) = good(wanted).reloaded(&running).expect("they go together");
    assert_eq!(kept, ["admin", "log.format", "proxy.listen"]);
    let expected = good("log: {level: debug}\nadmin: off\nproxy: {listen: '127.0.0.1:1', cpus: 2}");
    assert_eq!(taken, expected);
    let (same, kept) = running.reloaded(&taken).expect("they go together");
    assert_eq!((same.settings, kept.len()), (running.settings.clone(), 0));
    let keeping = good("state: {file: /s}\nproxy: {listen: '127.0.0.1:1', cpus: 1}\nadmin: off");
    let (taken, kept) = keeping.reloaded(&running).expect("they go together");
    assert_eq!((taken.settings, kept), (running.settings.clone(), vec!["state".to_owned()]));
    let (taken, kept) = running.reloaded(&keeping).expect("they go together");
    assert_eq!((taken.settings.state, kept.len()), (keeping.settings.state.clone(), 1));
    let circle = good("proxy: {listen: '127.0.0.1:2', backend: 'http://127.0.0.1:1'}");
    let told = circle.reloaded(&running).expect_err("a circle").to_string();
    assert!(told.contains("is the proxy itself"), "{told}");
}

#[test]
fn a_value_that_is_written_differently_has_not_changed() {
    let running = good(
        "proxy: {listen: ':8888'}\ncheck: {report_within: 60s}\nstate: {file: /s, every: 1000ms}",
    );
    let same = good(
        "proxy: {listen: ['0.0.0.0:8888']}\ncheck: {report_within: 1m}\n\
         state: {file: /s, every: 1s}",
    );
    let (taken, kept) = same.reloaded(&running).expect("they go together");
    assert_eq!(kept, Vec::<String>::new());
    assert_eq!(taken.settings, running.settings);
}

#[test]
fn a_changed_password_is_reported_and_the_running_one_is_kept() {
    for (old, new) in [
        ("redis: 'redis://:first-secret@h'", "redis: 'redis://:second-secret@h'"),
        ("redis: h, credentials: first-secret", "redis: h, credentials: second-secret"),
    ] {
        let config = |store: &str| good(&format!("line:\nstore: {{{store}}}"));
        let (running, wanted) = (config(old), config(new));
        let (taken, kept) = wanted.reloaded(&running).expect("they go together");
        assert_eq!(kept, ["store"], "{new}");
        assert_eq!(taken.settings.store, running.settings.store);
        assert!(!taken.native.contains("secret") && !format!("{taken:?}").contains("secret"));
        let (again, kept) = running.reloaded(&taken).expect("they go together");
        assert_eq!((again.settings.store, kept.len()), (running.settings.store.clone(), 0));
    }
}

#[test]
fn the_masters_addresses_and_bounds_take_a_restart_and_its_rules_do_not() {
    let master = |keys: &str, rate: &str| {
        good(&format!("master: {{{keys}domains: {{a: [{{rate: {rate}, burst: 1}}]}}}}"))
    };
    let running = master("", "1/s");
    let wanted = master("accounting: 'tcp://127.0.0.1:7', connections: 9, ", "2/s");
    let (taken, kept) = wanted.reloaded(&running).expect("they go together");
    assert_eq!(kept, ["master.accounting", "master.control", "master.connections"]);
    assert_eq!(taken, master("", "2/s"));
}
