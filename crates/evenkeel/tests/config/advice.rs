//! Messages about faulty values say what to write, with the value of the file where that helps.

use super::{faults, good};

#[test]
fn advice_has_the_value_of_the_file() {
    let limit = |keys: &str| format!("proxy: {{limits: [{{name: a, by: all, {keys}}}]}}");
    for (text, what) in [
        ("proxy: {backend: h2://a}".to_owned(), "write it as http://a"),
        ("proxy: {backend: 127.0.0.1:8080}".to_owned(), "write it as http://127.0.0.1:8080"),
        ("proxy: {backend: '[::1]:8080/'}".to_owned(), "write it as http://[::1]:8080"),
        ("proxy: {backend: /run/app.sock}".to_owned(), "write it as unix:///run/app.sock"),
        ("proxy: {backend: 'ann:secret@h:80'}".to_owned(), "write it as http://127.0.0.1:80"),
        ("proxy: {listen: 9970}".to_owned(), "write 127.0.0.1:9970 or [::1]:9970"),
        ("proxy: {max_delay: 10}".to_owned(), "has no unit; write 10s, 10ms or 10m"),
        ("proxy: {trusted_proxies: fe80::/129}".to_owned(), "after `/` must be from 0 to 128"),
        (limit("rate: 5"), "not a rate; write 5/s, 5/m or 5/h"),
        (limit("rate: 0/m"), "must be above 0; a limit with `action: deny` and a `when` refuses"),
        (limit("share: 1%, action: rejct"), "delay, reject, deny; did you mean `reject`?"),
        (limit("share: 10"), "not a share; write 10%"),
    ] {
        let told = faults(&text);
        assert!(told.contains(what), "{text}\nwants: {what}\ntold: {told}");
    }
}

/// They are accepted; messages and the guide have one word for each.
#[test]
fn parts_of_keys_have_other_names() {
    for (word, same) in [("ip", "ip/32"), ("user_agent", "user-agent"), ("api_key", "api-key")] {
        let by = |word: &str| {
            let text = format!("proxy: {{limits: [{{name: a, by: {word}, share: 1%}}]}}");
            good(&text).settings.proxy.expect("open").limits[0].by.clone()
        };
        assert_eq!(by(word), by(same));
    }
}

#[test]
fn words_of_other_programs_are_understood() {
    for (text, meant) in [
        ("proxy: {action: deny}", "did you mean `reject`?"),
        ("proxy: {action: throttle}", "did you mean `delay`?"),
        ("proxy: {limits: {name: a, by: all, when: {path: /a}, action: block}}", "mean `deny`?"),
        ("proxy: {shadow: yes}", "did you mean `true`?"),
        ("proxy: {shadow: off}", "did you mean `false`?"),
        ("log: {level: warning}", "did you mean `warn`?"),
    ] {
        let told = faults(text);
        assert!(told.contains(meant), "{text}: {told}");
    }
    let told = faults("proxy:\n  cpus: 1\n listen: 127.0.0.1:1\n");
    let advice = "begin this line in the same column as the other keys of its section";
    assert!(told.contains(advice), "{told}");
}
