//! Sections about observability: `traces` and `metrics`, renamed metrics; and errors in `state`.

use super::{faults, good};
use evenkeel_config::settings::otlp::OtlpProtocol;
use std::time::Duration;

#[test]
fn traces_have_a_collector_and_a_bounded_queue() {
    assert_eq!(good("proxy:").settings.traces, None);
    let traces = good("traces:").settings.traces.expect("there");
    let to = traces.collector;
    assert_eq!(to.endpoint.to_string(), "http://127.0.0.1:4318");
    assert_eq!((to.protocol, to.gzip), (OtlpProtocol::Http, false));
    assert_eq!((to.timeout, traces.every), (Duration::from_secs(10), Duration::from_secs(5)));
    assert_eq!((traces.queue_max, traces.batch_max, traces.sampling), (2_048, 512, 1.0));
    let text = "traces: {endpoint: 'https://c.example/x', protocol: grpc, headers: ['a: b'], \
                compression: gzip, tls: {server_name: d.example}, attributes: ['zone:a'], \
                service: me, sampling: 0.5, queue: 1, batch: 1}";
    let config = good(text);
    assert_eq!(good(&config.native).settings, config.settings, "{}", config.native);
    let to = config.settings.traces.expect("there").collector;
    assert_eq!(to.endpoint.to_string(), "https://c.example:4317/x");
    assert_eq!(to.headers, [("a".to_owned(), "b".to_owned())]);
    assert_eq!(to.tls.name.as_deref(), Some("d.example"));
}

#[test]
fn each_of_these_is_faulty() {
    let statsd = |rename: &str| format!("ratelimit: {{rules: off, statsd: {{rename: {rename}}}}}");
    for (text, told) in [
        ("traces: {endpoint: 'c.example:4318'}".to_owned(), "write http://host:port"),
        ("traces: {endpoint: 'http://me:secret@c.example'}".into(), "use `headers` for a secret"),
        ("traces: {protocol: udp}".into(), "must be one of: http, grpc"),
        ("traces: {sampling: 1.5}".into(), "must be from 0 to 1"),
        ("traces: {headers: [no]}".into(), "a header is name:value"),
        ("traces: {queue: 0}".into(), "must be from 1 to 1000000"),
        ("traces: {tls: {cert: /a}}".into(), "`cert` needs `key`"),
        ("traces: {endpiont: x}".into(), "did you mean `endpoint`?"),
        (statsd("x"), "`rename` must be a list of sections"),
        (statsd("[{match: x}]"), "`rename` needs `name`"),
        (statsd("[{match: '(', name: x}]"), "found open group without closing ')'"),
        (statsd("[{match: a, name: $1}]"), "`a` has no group 1; the last is 0"),
        (statsd("[{match: a, name: b, tags: [c]}]"), "write key:value"),
    ] {
        let all = faults(&text);
        assert!(all.contains(told), "{told}\n{all}");
    }
}

#[test]
fn renamed_figures_are_shown_as_they_were_written() {
    let text = "ratelimit: {rules: off, statsd: {rename: [{match: 'a(.)', name: b, \
                tags: ['c:$1']}]}, prometheus: {mapper: /m.yaml}}";
    let config = good(text);
    assert_eq!(good(&config.native).settings, config.settings, "{}", config.native);
    let door = config.settings.ratelimit.expect("there");
    assert_eq!(door.prometheus.expect("there").mapper, Some("/m.yaml".into()));
    assert_eq!(door.statsd.expect("there").rename.len(), 1);
}

#[test]
fn each_of_these_is_faulty_in_state_and_metrics() {
    for (text, what) in [
        ("state: {every: 5s}", "`every` needs a `file`"),
        ("state: {file: ''}", "name a file"),
        ("state: {file: /s, every: 0s}", "must be from 100ms to 1d"),
        ("state: {keys_max: 0}", "must be from 1 to"),
        ("metrics: {graphite: g}", "write tcp://host:port, or host:port"),
        ("metrics: {statsd: 'http://s:1'}", "write udp://host:port, tcp://host:port, or host:port"),
        ("metrics: {statsd: 's:1', statsd_labels: x}", "must be one of: name, tags"),
        ("metrics: {statsd_labels: tags}", "`statsd_labels` needs `statsd`"),
        ("metrics: {graphite_prefix: a}", "`graphite_prefix` needs `graphite`"),
        ("metrics: {graphite: 'g:1', graphite_prefix: 'a b'}", "no spaces"),
        ("metrics: {graphite: 'g:1', graphite_lines: some}", "must be one of: all, limits"),
    ] {
        let told = faults(text);
        assert!(told.contains(what), "{text}\nwants: {what}\ntold: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}
