//! Checks of the backends: whether they answer, how, and how often they fail.
//!
//! Each was sent one request, `HEAD /`; how that is done: `probe`.

use super::{Examined, fine, percent, problem, unknown, warning};
use crate::doctor::facts::{BackendAnswer, BackendFacts, SetupFacts, label};
use evenkeel_telemetry::metrics::{BACKEND_FAILURES, REQUESTS};
use std::time::Duration;

/// A connection that takes longer than this delays each request that needs a new one.
const CONNECT_MAX: Duration = Duration::from_millis(100);
/// An answer to `HEAD /` that takes longer than this is slow.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The answers of the backends that gave one.
fn answers(facts: &SetupFacts) -> impl Iterator<Item = (&BackendFacts, &BackendAnswer)> {
    let answered = |one: &'_ BackendFacts| one.answer.as_ref()?.as_ref().ok().map(|_| ());
    let with = facts.backends.iter().filter(move |one| answered(one).is_some());
    with.filter_map(|one| Some((one, one.answer.as_ref()?.as_ref().ok()?)))
}

pub fn reachable(facts: &SetupFacts) -> Option<Examined> {
    let all = facts.backends.len();
    if all == 0 {
        return None;
    }
    if let Some((one, to)) = facts.backends.iter().find_map(|one| Some((one, one.loops_to?))) {
        return problem(
            format!("{} is the proxy itself, which listens on {to}", one.name),
            ["proxy:", "  backend: http://HOST:PORT      # of the site"],
        );
    }
    let errors =
        facts.backends.iter().filter_map(|one| Some((one, one.answer.as_ref()?.as_ref().err()?)));
    let errors: Vec<_> = errors.collect();
    if let Some((one, why)) = errors.first() {
        let found = format!("{} of {all} do not answer: {}: {why}", errors.len(), one.name);
        let todo = [
            format!("curl -I {}          # from this machine", one.name),
            "start the site, or correct proxy.backend".to_owned(),
        ];
        return problem(found, todo);
    }
    let slowest = answers(facts).max_by_key(|(_, answer)| answer.connect + answer.took);
    let Some((one, answer)) = slowest else { return unknown("not asked (--no-probe)") };
    let (connect, took) = (answer.connect.as_millis(), answer.took.as_millis());
    let found = format!(
        "{all} of {all} answer; slowest {}: connected in {connect} ms, status {} in {took} ms",
        one.name, answer.status
    );
    let failing = answers(facts).find(|(_, answer)| answer.status >= 500 && !refuses_head(answer));
    if let Some((one, answer)) = failing {
        let found = format!("{} answers with status {}", one.name, answer.status);
        return warning(found, [format!("curl -I {}", one.name)]);
    }
    if answer.connect > CONNECT_MAX {
        return warning(found, ["a long way, or a full queue there: ss -ltn on the backend"]);
    }
    if answer.took > ANSWER_MAX {
        return warning(found, ["the site is slow or full: evenkeel clients"]);
    }
    fine(found)
}

/// Whether a backend does not know the method of the check. That says nothing about others.
fn refuses_head(answer: &BackendAnswer) -> bool {
    matches!(answer.status, 405 | 501)
}

pub fn keep_alive(facts: &SetupFacts) -> Option<Examined> {
    let (first, answer) = answers(facts).next()?;
    if let Some((one, answer)) = answers(facts).find(|(_, answer)| refuses_head(answer)) {
        return unknown(format!("{} answers HEAD with status {}", one.name, answer.status));
    }
    if let Some((one, _)) = answers(facts).find(|(_, answer)| !answer.keeps_alive) {
        return warning(
            format!("{} closes the connection after each answer", one.name),
            [
                "let the backend keep connections open:",
                "  nginx keepalive_timeout 75s; Apache KeepAlive On; gunicorn -k gthread \
                 --keep-alive 75",
            ],
        );
    }
    fine(format!("{} speaks {} and keeps connections open", first.name, answer.version))
}

pub fn failures(facts: &SetupFacts) -> Option<Examined> {
    facts.proxy()?;
    let server = facts.server()?;
    let metrics = &server.metrics;
    let requests = metrics.with(REQUESTS.name, "door", "proxy").sum::<f64>();
    let mut kinds: Vec<(&str, f64)> = metrics
        .of(BACKEND_FAILURES.name)
        .filter(|(_, count)| *count > 0.0)
        .map(|(labels, count)| (label(labels, "kind"), count))
        .collect();
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    let all = metrics.sum(BACKEND_FAILURES.name);
    let shown: Vec<String> =
        kinds.iter().map(|(kind, count)| format!("{kind} {count:.0}")).collect();
    let found = format!("{all:.0} of {requests:.0} requests since the start");
    if all == 0.0 {
        return fine(found);
    }
    let recent = server.recent;
    let minutes = (recent.seconds / 60.0).ceil();
    let found = format!(
        "{found} ({}); {:.0} of {:.0} in the last {minutes:.0} min",
        shown.join(", "),
        recent.failed,
        recent.requests.max(recent.failed)
    );
    let todo = [
        "journalctl -u evenkeel | grep 'the backend failed'      # which requests, and why",
        "see docs/guide/messages.md",
    ];
    match percent(recent.failed, recent.requests.max(recent.failed)) {
        ..0.1 => fine(found),
        ..5.0 => warning(found, todo),
        _ => problem(found, todo),
    }
}
