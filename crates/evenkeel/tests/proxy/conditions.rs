//! Conditions on real sockets: requests that are denied, limited or exempt by what they say.

use crate::stage::{Message, Stage};
use evenkeel_config::parse;
use evenkeel_telemetry::prometheus;
use evenkeel_testing::wait::until;

/// A proxy with the limits, groups and exemptions of this text.
fn stage(text: &str) -> Stage {
    let read = parse("t.yaml", text.as_bytes(), 4.0).expect("good").settings;
    let read = read.proxy.expect("open");
    Stage::open(move |settings| {
        settings.limits = read.limits;
        settings.denials = read.denials;
        settings.exempt_when = read.exempt_when;
        settings.pages = read.pages;
    })
}

/// Sends a request, which the backend answers if it gets it.
fn ask(stage: &Stage, target: &str, headers: &str) -> Message {
    let mut client = stage.client();
    client.send(format!("GET {target} HTTP/1.1\r\nhost: www.site.example:80\r\n{headers}\r\n"));
    if let Some(mut backend) = stage.backend_or_client(&mut client) {
        backend.head();
        backend.answer("ok");
    }
    client.message()
}

fn status(stage: &Stage, target: &str, headers: &str) -> u16 {
    ask(stage, target, headers).status()
}

/// `action: deny` with this condition.
fn denying(when: &str) -> Stage {
    stage(&format!("proxy: {{limits: [{{name: no, action: deny, when: {when}}}]}}"))
}

#[test]
fn what_operators_ask_for_most_is_denied_and_all_else_passes() {
    for (when, denied, passed) in [
        ("{user_agent: '*gptbot*'}", ("/", "user-agent: x GPTBot/1\r\n"), ("/", "")),
        ("{user_agent: absent}", ("/", ""), ("/", "user-agent: x\r\n")),
        ("{path: '/*.php'}", ("/a/wp-login.php?x=1", ""), ("/a.phpx", "")),
        ("{path: '/*.php'}", ("/x/..%2fb.php", ""), ("/x/b.html", "")),
        ("{path: /wp-json}", ("/WP-JSON/x", ""), ("/wp-jsonx", "")),
        ("{query: diff}", ("/w?a=b&%64iff=1", ""), ("/w?a=diff", "")),
        ("{query: {action: edit}}", ("/w?action=EDIT", ""), ("/w?action=view", "")),
        ("{header: {accept-language: absent}}", ("/", ""), ("/", "accept-language: de\r\n")),
        ("{header: {accept: '*json*'}}", ("/", "accept: a/json\r\n"), ("/", "accept: a/b\r\n")),
        (
            "{cookie: {lang: xx}}",
            ("/", "cookie: a=b\r\ncookie: lang=xx\r\n"),
            ("/", "cookie: lang=de\r\n"),
        ),
        ("{not: {cookie: session}}", ("/", "cookie: a=b\r\n"), ("/", "cookie: session=1\r\n")),
        ("{vhost: '*.site.example', path: 're:^/[0-9]+$'}", ("/17", ""), ("/17a", "")),
        ("{ip: 127.0.0.0/8, path: /a}", ("/a", ""), ("/b", "")),
        ("{not: {ip: 127.0.0.0/8}}", ("/never", "x: y\r\n"), ("/", "")),
    ] {
        let stage = denying(when);
        if denied.0 != "/never" {
            let answer = ask(&stage, denied.0, denied.1);
            assert_eq!(answer.status(), 403, "{when}: {denied:?}");
            assert_eq!(answer.header("retry-after"), None);
            assert_eq!(answer.text(), "denied by the rule \"no\"\n");
        }
        assert_eq!(status(&stage, passed.0, passed.1), 200, "{when}: {passed:?}");
    }
}

#[test]
fn a_browser_gets_the_page_of_the_operator_and_a_program_a_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (no, slow) = (page("no", "<h1>No</h1>"), page("slow", "<h1>{{seconds}}</h1>"));
    let stage = stage(&format!(
        "proxy: {{pages: {{'403': {no}, '429': {slow}}}, limits: [{{name: no, action: deny, when: \
         {{path: /no}}}}, {{name: slow, by: all, rate: 1/h, burst: 1, when: {{path: /slow}}}}]}}"
    ));
    let html = "accept: text/html\r\n";
    let denied = ask(&stage, "/no", html);
    assert_eq!((denied.status(), denied.text()), (403, "<h1>No</h1>"));
    assert_eq!(denied.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(ask(&stage, "/no", "").text(), "denied by the rule \"no\"\n");
    assert_eq!(status(&stage, "/slow", html), 200);
    let late = ask(&stage, "/slow", html);
    assert_eq!(late.status(), 429);
    let seconds = late.header("retry-after").expect("a time");
    assert_eq!(late.text(), format!("<h1>{seconds}</h1>"));
}

#[test]
fn a_rule_in_shadow_lets_requests_pass_and_counts_them() {
    let stage = stage(
        "proxy: {limits: [{name: no, action: deny, shadow: true, when: {path: /no}}, \
         {name: never, action: deny, when: {path: /never}}]}",
    );
    assert_eq!(status(&stage, "/no", ""), 200);
    assert_eq!(status(&stage, "/never", ""), 403);
    until("both are counted", || {
        let page = prometheus::text(stage.watch.registry(), &[]);
        let counted = |limit: &str, shadow: bool| {
            let labels = format!("verdict=\"deny\",limit=\"{limit}\",shadow=\"{shadow}\"");
            page.contains(&format!("evenkeel_decisions_total{{{labels}}} 1"))
        };
        counted("no", true) && counted("never", false)
    });
}

#[test]
fn exempt_requests_are_not_denied_and_only_certain_ones_are_exempt() {
    let stage = stage(
        "groups: {friends: {cookie: {key: s3cret}}}\n\
         proxy: {exempt: [{group: friends}], limits: [{name: no, action: deny, when: {path: /}}]}",
    );
    assert_eq!(status(&stage, "/", "cookie: key=s3cret\r\n"), 200);
    assert_eq!(status(&stage, "/", "cookie: key=x\r\n"), 403);
    // Backends differ in which of two cookies they use.
    assert_eq!(status(&stage, "/", "cookie: key=s3cret; key=x\r\n"), 403);
    assert_eq!(status(&stage, "/", "cookie: key=x; key=s3cret\r\n"), 403);
}
