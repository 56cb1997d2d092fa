use super::*;
use crate::Watch;
use crate::counts::master::MasterCounts;
use crate::counts::{BackendFault, ConnectionRefusal};
use crate::decision::{Decision, DeniedRequest, QueueRefusal};
use crate::failure::BackendFailure;
use crate::untrusted_proxy::{ForwardingHeaders, PeerRequest};
use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos, Time};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

/// Collects the log lines of one test.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that `act` logs.
fn logged(format: LogFormat, level: LogLevel, act: impl FnOnce(&LevelHandle)) -> Vec<String> {
    logged_to(false, format, level, act)
}

/// The lines that `act` logs. `journal`: they are for the journal of systemd.
fn logged_to(
    journal: bool,
    format: LogFormat,
    level: LogLevel,
    act: impl FnOnce(&LevelHandle),
) -> Vec<String> {
    let paper = Paper::default();
    let made = paper.clone();
    let log = LogSettings { level, format };
    let (subscriber, handle) = subscriber(log, journal, move || made.clone());
    tracing::subscriber::with_default(subscriber, || act(&handle));
    let text = String::from_utf8(paper.0.lock().clone()).expect("UTF-8");
    text.lines().map(String::from).collect()
}

#[test]
fn frames_that_h2_complains_about_do_not_fill_the_log() {
    let lines = logged(LogFormat::Text, LogLevel::Info, |_| {
        tracing::warn!(target: "h2::proto::ping_pong", "recv PING ack that we never sent");
        tracing::warn!(target: "evenkeel::grpc", "ours");
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("ours"), "{lines:?}");
}

#[test]
fn the_journal_gets_the_priority_of_each_line_of_text() {
    let lines = |journal, format| {
        logged_to(journal, format, LogLevel::Debug, |_| {
            tracing::error!("a");
            tracing::warn!("b\n<3> forged");
            tracing::info!("c");
            tracing::debug!("d");
        })
    };
    let begins = |line: String| line.chars().take(3).collect::<String>();
    let priorities: Vec<String> = lines(true, LogFormat::Text).into_iter().map(begins).collect();
    assert_eq!(priorities, ["<3>", "<4>", "<6>", "<7>"]);
    let plain = [lines(false, LogFormat::Text), lines(true, LogFormat::Json)].concat();
    assert!(!plain.iter().any(|line| line.starts_with('<')), "{plain:?}");
}

#[test]
fn the_journal_is_known_by_device_and_inode() {
    let file = std::fs::File::open(env!("CARGO_MANIFEST_DIR")).expect("a folder");
    let stat = rustix::fs::fstat(&file).expect("its state");
    let own = format!("{}:{}", stat.st_dev, stat.st_ino);
    assert!(is_journal(Some(&own), &file));
    assert!(!is_journal(None, &file));
    for other in ["", ":", "8", "8:x", &format!("{}:{}", stat.st_dev, stat.st_ino + 1)] {
        assert!(!is_journal(Some(other), &file), "{other}");
    }
}

fn decision(key: &str) -> Decision<'_> {
    Decision {
        verdict: "hold",
        limit: "ip",
        key,
        client: Some(IpAddr::from([192, 0, 2, 1])),
        level: Some(-1_500_000_000),
        wait: Nanos::from_secs(3),
        cost: Some((Cost(250_000_000), Measure::Shared)),
        refused: None,
        denied: None,
        shadow: false,
    }
}

#[test]
fn a_decision_says_why_in_text_and_in_json() {
    let act = |_: &LevelHandle| {
        Watch::new(Time::ZERO).record_decision(&decision("192.0.2.1"), Time::ZERO)
    };
    let text = logged(LogFormat::Text, LogLevel::Info, act);
    let fields = "evenkeel::decision: answer held verdict=\"hold\" limit=\"ip\" key=\"192.0.2.1\" \
                  client=192.0.2.1 level=-1.5 wait=3.0 cost=0.25 measured=\"shared\" shadow=false";
    assert!(text.len() == 1 && text[0].ends_with(fields), "{text:?}");

    let json = logged(LogFormat::Json, LogLevel::Info, act);
    let line: serde_json::Value = serde_json::from_str(&json[0]).expect("JSON");
    assert_eq!(line["level"], "INFO", "the severity, not the client's level");
    assert_eq!(line["fields"]["message"], "answer held");
    for (field, value) in [("level", -1.5), ("wait", 3.0), ("cost", 0.25)] {
        assert_eq!(line["fields"][field].as_f64(), Some(value), "{field}");
    }
}

#[test]
fn a_refusal_by_the_queue_says_why_and_after_which_wait() {
    let refused = Some(QueueRefusal { cause: "wait_max", waited: Nanos::from_millis(30_012) });
    let decision = Decision { verdict: "reject", cost: None, refused, ..decision("192.0.2.1") };
    let lines = logged(LogFormat::Text, LogLevel::Info, |_| decision.log());
    let fields = "request refused verdict=\"reject\" limit=\"ip\" key=\"192.0.2.1\" \
                  client=192.0.2.1 level=-1.5 wait=3.0 cause=\"wait_max\" waited_ms=30012 \
                  shadow=false";
    assert!(lines[0].ends_with(fields), "{lines:?}");
}

#[test]
fn a_denial_says_which_request_it_was() {
    let denied = Some(DeniedRequest { path: "/wp-login.php", agent: "Crawler/1.0 \"x\"" });
    let (cost, level) = (None, None);
    let decision = Decision { verdict: "deny", cost, level, denied, ..decision("192.0.2.1") };
    let lines = logged(LogFormat::Text, LogLevel::Info, |_| decision.log());
    let fields = "request refused verdict=\"deny\" limit=\"ip\" key=\"192.0.2.1\" \
                  client=192.0.2.1 wait=3.0 path=\"/wp-login.php\" \
                  agent=\"Crawler/1.0 \\\"x\\\"\" shadow=false";
    assert!(lines[0].ends_with(fields), "{lines:?}");
}

#[test]
fn a_decision_in_shadow_says_what_would_happen() {
    for (verdict, said) in [
        ("hold", "answer would be held"),
        ("delay", "request would be delayed"),
        ("queue", "request would wait for room"),
        ("reject", "request would be refused"),
        ("deny", "request would be refused"),
    ] {
        let decision = Decision { verdict, shadow: true, ..decision("192.0.2.1") };
        let lines = logged(LogFormat::Text, LogLevel::Info, |_| decision.log());
        let said = format!("{said} verdict=\"{verdict}\"");
        assert!(lines[0].contains(&said) && lines[0].ends_with("shadow=true"), "{lines:?}");
    }
}

#[test]
fn a_flood_is_thinned_out_and_what_is_left_out_is_told() {
    let watch = Watch::new(Time::ZERO);
    let lines = logged(LogFormat::Text, LogLevel::Info, |_| {
        for n in 0..5_000 {
            let now = Time::ZERO.plus(Nanos::from_secs(10)).plus(Nanos::from_millis(n / 5));
            watch.record_decision(&decision("192.0.2.1"), now);
        }
        watch.tick(Time::ZERO.plus(Nanos::from_secs(11)));
        watch.tick(Time::ZERO.plus(Nanos::from_secs(12)));
    });
    assert_eq!(lines.len(), 11);
    assert!(lines[10].contains("verdict=\"hold\" left_out=4990"), "{}", lines[10]);
}

#[test]
fn a_failure_of_the_backend_says_which_how_and_why() {
    let error = io::Error::from_raw_os_error(111);
    let failure = BackendFailure {
        fault: BackendFault::Connect,
        backend: "127.0.0.1:80",
        client: IpAddr::from([192, 0, 2, 1]),
        error: Some(&error),
    };
    let watch = Watch::new(Time::ZERO);
    let lines = logged(LogFormat::Text, LogLevel::Warn, |_| {
        for _ in 0..50 {
            watch.failed(&failure, Time::ZERO);
        }
        watch.tick(Time::ZERO.plus(Nanos::from_secs(1)));
    });
    let fields = "WARN evenkeel::backend: the backend failed a request kind=\"connect\" \
                  backend=\"127.0.0.1:80\" client=192.0.2.1 \
                  error=\"Connection refused (os error 111)\"";
    assert!(lines.len() == 11 && lines[0].ends_with(fields), "{lines:?}");
    assert!(lines[10].contains("left_out=40"), "{}", lines[10]);
}

#[test]
fn a_full_house_and_a_proxy_in_front_are_told() {
    let watch = Watch::new(Time::ZERO);
    let at = |seconds: u64| Time::ZERO.plus(Nanos::from_secs(100 + seconds));
    let lines = logged(LogFormat::Text, LogLevel::Warn, |_| {
        for second in 0..61 {
            watch.warn_connections_full(7, at(second));
        }
        for _ in 0..100 {
            let headers = ForwardingHeaders::of(|name| name == "x-forwarded-for");
            watch.record_peer(IpAddr::from([192, 0, 2, 9]), PeerRequest::Other(headers), at(0));
        }
        watch.tick(at(59));
        watch.tick(at(60));
        watch.tick(at(120));
    });
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("`bounds.connections`") && lines[0].contains("bound=7"));
    assert!(lines[2].contains("`trusted_proxies` peer=192.0.2.9"), "{}", lines[2]);
}

#[test]
fn what_makes_a_site_or_a_domain_dead_is_told_once_a_minute() {
    let watch = Watch::new(Time::ZERO);
    let master = MasterCounts::new(watch.registry(), [([127, 0, 0, 1], 0).into(); 2]);
    let peer = IpAddr::from([192, 0, 2, 9]);
    let domain = [b"ap\x1b".as_slice(), &[b'x'; 1_000]].concat();
    let lines = logged(LogFormat::Text, LogLevel::Warn, |_| {
        for second in 100..161 {
            let now = Time::ZERO.plus(Nanos::from_secs(second));
            watch.record_missing_preface(peer, now);
            master.record_unknown_domain(&domain, peer, now);
        }
    });
    assert_eq!(watch.proxy.refused_connections(ConnectionRefusal::Preface).get(), 61);
    let [front, stray, later @ ..] = &lines[..] else { panic!("{lines:?}") };
    assert!(front.contains("`client_address` peer=192.0.2.9"), "{front}");
    assert!(stray.contains(" domain=\"ap") && stray.ends_with(" peer=192.0.2.9"), "{stray}");
    assert!(!stray.contains('\x1b') && stray.len() < 600, "{stray}");
    assert_eq!(later.len(), 2, "{later:?}");
}

#[test]
fn an_error_that_says_what_its_cause_does_is_told_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("no answer: {0}; what then?")]
    struct Outer(#[from] io::Error);
    let error = Outer(io::Error::other(Outer(io::Error::other("gone"))));
    let failure = BackendFailure {
        fault: BackendFault::Protocol,
        backend: "127.0.0.1:80",
        client: IpAddr::from([192, 0, 2, 1]),
        error: Some(&error),
    };
    let lines = logged(LogFormat::Text, LogLevel::Warn, |_| failure.log());
    let said = "error=\"no answer: no answer: gone; what then?; what then?\"";
    assert!(lines[0].ends_with(said), "{lines:?}");
}

#[test]
fn nothing_a_client_sends_makes_a_line_of_its_own() {
    let evil = "x\n2026-11-01 INFO forged\r\x1b[2J\u{9b}31m\u{202e}\u{7f}";
    for format in [LogFormat::Text, LogFormat::Json] {
        let lines = logged(format, LogLevel::Info, |_| {
            Watch::new(Time::ZERO).record_decision(&decision(evil), Time::ZERO);
            tracing::info!(error = %evil, "{evil}");
            tracing::info!(error = evil, other = ?evil);
        });
        assert_eq!(lines.len(), 3, "{lines:?}");
        for line in lines {
            assert!(matches!(printable(&line), std::borrow::Cow::Borrowed(_)), "{line:?}");
            if format == LogFormat::Json {
                serde_json::from_str::<serde_json::Value>(&line).expect("still JSON");
            }
        }
    }
}

#[test]
fn the_level_can_be_changed_while_it_runs() {
    let lines = logged(LogFormat::Text, LogLevel::Warn, |handle| {
        tracing::info!("not yet");
        handle.reload(level(LogLevel::Info)).expect("a running log");
        tracing::info!("now");
    });
    assert!(lines.len() == 1 && lines[0].ends_with("now"), "{lines:?}");
}
