//! The `store` section, and the reference server's variables that are converted to it.

use super::{faults, good};
use evenkeel_config::check;
use evenkeel_config::environment::from_environment;
use evenkeel_config::settings::StoreSettings;
use evenkeel_config::settings::store::{StoreAddress, StoreFail, StoreLayout, StoreMode};
use std::time::Duration;

fn store(text: &str) -> StoreSettings {
    good(text).settings.store.expect("there")
}

#[test]
fn one_address_is_enough() {
    let store = store("store: {redis: a.example}");
    let StoreAddress::Tcp { host, port: 6379, tls: false } = &store.place.servers[0].end else {
        panic!("a port")
    };
    assert_eq!((&**host, &store.place.layout), ("a.example", &StoreLayout::Single));
    assert_eq!(
        (store.deadline, store.period),
        (Duration::from_millis(20), Duration::from_millis(100))
    );
    assert_eq!((store.mode, store.fail), (StoreMode::Exact, StoreFail::Local));
    assert_eq!(
        (&*store.prefix, store.compatible_keys, store.owed_max),
        ("evenkeel:", false, 100_000)
    );
    assert!(good("proxy: {}").settings.store.is_none());
}

#[test]
fn every_form_of_a_store_is_read() {
    let several = store("store: {redis: ['a:1', 'b:2'], deadline: 5ms, mode: batched, period: 1s}");
    assert_eq!((several.place.layout, several.mode), (StoreLayout::Cluster, StoreMode::Batched));
    let sentinel = store(
        "store: {layout: sentinel, master: gate, redis: ['a:26379'], credentials: 'u:p', \
         compatible_keys: true, per_second: {redis: 'unix:///run/r.sock'}}",
    );
    assert_eq!(sentinel.place.layout, StoreLayout::Sentinel("gate".to_owned()));
    assert_eq!(sentinel.place.login.expect("one").password, "p");
    assert_eq!(sentinel.prefix, "");
    let other = sentinel.per_second.expect("there").servers.remove(0);
    assert_eq!(other.end, StoreAddress::Unix("/run/r.sock".into()));
}

#[test]
fn passwords_are_not_shown() {
    let config = good("store: {redis: 'redis://ann:secret@h', credentials: 'bob:hidden'}");
    assert!(config.native.contains("redis://ann:***@h:6379"), "{}", config.native);
    assert!(!config.native.contains("secret") && !config.native.contains("hidden"));
    assert!(!format!("{:?}", config.settings).contains("secret"));
    assert_eq!(good(&config.native).native, config.native);
}

#[test]
fn each_of_these_is_faulty_in_store() {
    for (text, fault) in [
        ("store: {}", "a store needs `redis`"),
        ("store: {redis: 'http://h'}", "write redis://127.0.0.1:6379"),
        ("store: {redis: [a, b], layout: single}", "several servers are a `cluster`"),
        ("store: {redis: a, layout: sentinel}", "needs `master`"),
        ("store: {redis: a, master: m}", "belongs to `layout: sentinel`"),
        ("store: {redis: [a/1, b], layout: cluster}", "a cluster has only database 0"),
        ("store: {redis: ['unix:///r', b]}", "have a host and a port"),
        ("store: {redis: a, deadline: 0s}", "must be from 1ms to 10s"),
        ("store: {redis: a, mode: batched, fail: error}", "needs `mode: exact`"),
        ("store: {redis: a, prefix: 'a{b}'}", "without braces"),
        ("store: {redis: a, tls: {cert: /c}}", "`cert` and `key` go together"),
        ("store: {redis: a, credentials: [a]}", "`user:password`"),
        ("store: {redis: a, dedline: 1s}", "did you mean `deadline`?"),
        ("store: {redis: a}\npeers: {}", "two ways to count together"),
    ] {
        let told = faults(text);
        assert!(told.contains(fault), "{text}\n{told}");
    }
}

/// The section made from variables, or the errors in them.
fn by_variables(variables: &[(&str, &str)]) -> Result<Option<StoreSettings>, String> {
    let of = |name: &str| {
        let found = variables.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| (*value).to_owned()).or((name == "RUNTIME_ROOT").then(|| "/".into()))
    };
    let config = from_environment(of, 1.0).map_err(|faults| faults.to_string())?;
    Ok(config.settings.store)
}

#[test]
fn the_reference_s_variables_are_read() {
    assert_eq!(by_variables(&[]), Ok(None));
    let read = |variables| by_variables(variables).expect("sound").expect("a store");
    let socket = read(&[("BACKEND_TYPE", "redis")]);
    assert_eq!(
        socket.place.servers[0].end,
        StoreAddress::Unix("/var/run/nutcracker/ratelimit.sock".into())
    );
    assert!(socket.compatible_keys && socket.prefix.is_empty());
    let one = read(&[
        ("REDIS_URL", "redis.example:6380"),
        ("REDIS_AUTH", "ann:p@ss:w%rd"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "1"),
        ("REDIS_TIMEOUT", "2s"),
        ("REDIS_POOL_SIZE", "10"),
        ("REDIS_PIPELINE_WINDOW", "150us"),
        ("CACHE_KEY_PREFIX", "rl:"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
        ("EVENKEEL_STORE_DEADLINE", "1.5ms"),
        ("EVENKEEL_STORE_FAIL", "error"),
        ("EVENKEEL_COMPATIBLE_KEYS", "false"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", "/run/second.sock"),
    ]);
    let server = &one.place.servers[0];
    let end = StoreAddress::Tcp { host: "redis.example".to_owned(), port: 6380, tls: true };
    assert_eq!(server.end, end);
    assert_eq!(server.login.as_ref().map(|login| &*login.password), Some("p@ss:w%rd"));
    assert!(one.place.tls.any_name && !one.compatible_keys);
    assert_eq!((one.connect, one.deadline), (Duration::from_secs(2), Duration::from_micros(1_500)));
    assert_eq!((&*one.prefix, one.jitter, one.fail), ("rl:", Duration::ZERO, StoreFail::Error));
    let second = &one.per_second.as_ref().expect("another").servers[0];
    assert_eq!(second.end, StoreAddress::Unix("/run/second.sock".into()));
    let sentinels = read(&[
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", "gate,a:26379,b:26379"),
        ("REDIS_AUTH", "master"),
        ("REDIS_SENTINEL_AUTH", "sentinel"),
    ]);
    assert_eq!(sentinels.place.layout, StoreLayout::Sentinel("gate".to_owned()));
    assert_eq!(sentinels.place.servers.len(), 2);
    let password = |login: &Option<_>| {
        login
            .as_ref()
            .map(|login: &evenkeel_config::settings::store::StoreLogin| login.password.clone())
    };
    assert_eq!(password(&sentinels.place.login).as_deref(), Some("master"));
    assert_eq!(password(&sentinels.place.servers[0].login).as_deref(), Some("sentinel"));
    for (variables, fault) in [
        (&[("BACKEND_TYPE", "memcache")][..], "BACKEND_TYPE=memcache: memcache is not supported"),
        (&[("BACKEND_TYPE", "x")], "must be redis, or unset"),
        (&[("REDIS_URL", "a:1"), ("REDIS_TYPE", "ring")], "REDIS_TYPE=ring: must be SINGLE"),
        (&[("REDIS_URL", "a:1"), ("REDIS_TLS", "maybe")], "REDIS_TLS=maybe: must be true or false"),
        (&[("REDIS_URL", "a:x")], "write redis://127.0.0.1:6379"),
    ] {
        let told = by_variables(variables).expect_err("refused");
        assert!(told.contains(fault), "{variables:?}\n{told}");
    }
}

#[test]
fn check_reads_the_tls_files_of_a_store_and_of_a_collector() {
    let checked = |text: &str| {
        let found = check("t.yaml", text.as_bytes(), 4.0, evenkeel_tls::start_problems);
        found.map_or_else(|faults| faults.to_string(), |_| "good".to_owned())
    };
    for (text, place) in [
        ("line:\nstore: {redis: 'rediss://h', tls: {ca: /none}}", "2:35"),
        ("line:\nstore: {redis: h, per_second: {redis: 'rediss://h', tls: {ca: /none}}}", "2:58"),
        ("line:\nmetrics: {otlp: {endpoint: 'https://h', tls: {ca: /none}}}", "2:46"),
    ] {
        let told = checked(text);
        assert!(told.starts_with(&format!("t.yaml:{place}: cannot read /none")), "{text}: {told}");
    }
    let plain = "line:\nstore: {redis: 'redis://h', tls: {ca: /none}}";
    assert_eq!(checked(plain), "good", "no connection uses the file");
}
