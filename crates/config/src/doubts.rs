//! Warnings about conditions that are valid but do not do what they seem to.
//!
//! They are shown by `check` with the place of the section. What a condition means:
//! `settings::conditions`.

use crate::StartProblem;
use crate::settings::Settings;
use evenkeel_core::condition::{Clause, Condition};
use evenkeel_core::fact::ClientFact;

/// Warns of conditions that do not do what they seem to.
pub(crate) fn of_conditions(settings: &Settings) -> Vec<StartProblem> {
    let mut doubts: Vec<StartProblem> = Vec::new();
    let Some(proxy) = &settings.proxy else { return doubts };
    if proxy.exempt_when.iter().any(|condition| !is_proof(condition)) {
        let what = "each client that sends what a condition asks for, such as a cookie, is \
                    exempt, so the backend must refuse invented ones; add `ip`, `ip_file`, `asn`, \
                    `country` or `bot` to the condition, which no client can choose";
        doubts.push((&["proxy", "exempt"], what.to_owned()));
    }
    let limits = proxy.limits.iter().map(|limit| &limit.when);
    let denials = proxy.denials.iter().map(|rule| &rule.when);
    let mut whole: Vec<&str> = Vec::new();
    let groups = settings.groups.groups.iter().map(|group| &group.condition);
    for condition in groups.chain(limits).chain(denials).chain(&proxy.exempt_when) {
        condition.clauses.iter().for_each(|clause| whole.extend(whole_agents(clause)));
    }
    whole.sort_unstable();
    whole.dedup();
    doubts.extend(whole.into_iter().map(|agent| -> StartProblem {
        let what = format!(
            "`user_agent: {agent}` matches only a header that is exactly this; write `*{agent}*`"
        );
        (&["proxy"], what)
    }));
    doubts
}

/// Whether a client cannot choose to meet the condition.
fn is_proof(condition: &Condition) -> bool {
    condition.clauses.iter().any(|clause| match clause {
        Clause::Address(_) | Clause::Listed(_) => true,
        Clause::Fact(fact, values) => {
            !values.absent
                && matches!(fact, ClientFact::Asn | ClientFact::Country | ClientFact::Bot)
        }
        Clause::Group(group) => is_proof(&group.condition),
        Clause::Any(all) => all.iter().all(is_proof),
        _ => false,
    })
}

/// The names in a clause that a whole `User-Agent` never is: single words without a version.
fn whole_agents(clause: &Clause) -> Vec<&str> {
    let is_word = |text: &str| {
        text.len() > 1 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    match clause {
        Clause::Header(name, values) if **name == *"user-agent" => values
            .patterns
            .given()
            .iter()
            .map(|text| &**text)
            .filter(|text| is_word(text))
            .collect(),
        Clause::Not(inner) => inner.clauses.iter().flat_map(whole_agents).collect(),
        Clause::Any(all) => {
            all.iter().flat_map(|one| &one.clauses).flat_map(whole_agents).collect()
        }
        _ => Vec::new(),
    }
}
