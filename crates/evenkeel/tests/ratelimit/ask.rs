//! Requests and answers as short texts, so that a case fits on one line.
//!
//! A request is `t: k=v,x=y | zero=m`: the domain, then descriptors with their entries. A
//! descriptor may end with `+3` (its hits), `-3` (hits given back) and `limit 2/HOUR`. The domain
//! may end with `+9` (hits of all descriptors). An answer is
//! `OK [5/HOUR 4, OVER 0/MINUTE 0, -, max]`.

use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_config::source::folder::FolderFile;
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::{SECOND, Time};
use evenkeel_engine::windows::Counters;
use evenkeel_ratelimit::decide::{DecisionBuffers, DecisionError, RatelimitDecider};
use evenkeel_ratelimit::rules::read::{RuleOptions, read};
use evenkeel_ratelimit::rules::{RateUnit, RatelimitRules};
use evenkeel_ratelimit::tally::RuleTallies;
use evenkeel_ratelimit::wire::view::RequestView;
use evenkeel_ratelimit::wire::{
    Code, Descriptor, Entry, Override, ProtoPackage, Request, Response,
};
use evenkeel_runtime::clock::Clock;
use std::sync::Arc;

/// The rules for most cases; the macro's arguments are the units of most windows.
macro_rules! c1 {
    ($hour:literal, $minute:literal) => {
        concat!(
            "
domain: t
descriptors:
- {key: k, rate_limit: {unit: ",
            $hour,
            ", requests_per_unit: 5}}
- {key: k, value: whitelisted}
- {key: zero, rate_limit: {unit: ",
            $minute,
            ", requests_per_unit: 0}}
- {key: a_b, rate_limit: {unit: day, requests_per_unit: 7}}
- {key: w, value: 'foo*', rate_limit: {unit: week, requests_per_unit: 3}}
- {key: w, rate_limit: {unit: month, requests_per_unit: 9}}
- {key: nm, rate_limit: {unit: year, requests_per_unit: 4, name: mylimit}}
- {key: up, rate_limit: {unit: MINUTE, requests_per_unit: 4}}
- {key: un, rate_limit: {unlimited: true}}
- key: mid
  value: x
  rate_limit: {unit: ",
            $hour,
            ", requests_per_unit: 2}
  descriptors:
  - {key: leaf, rate_limit: {unit: ",
            $hour,
            ", requests_per_unit: 3}}
"
        )
    };
}

pub const C1: &str = c1!("hour", "minute");

/// The same rules for tests with the real clock, on which an hour may end during the test.
pub const YEARLY: &str = c1!("year", "year");

/// A file named `name`.
pub fn file(name: &str, text: &str) -> FolderFile {
    FolderFile { name: name.to_owned(), bytes: text.as_bytes().to_vec() }
}

/// A service with a simulated clock.
pub struct Service {
    pub decider: RatelimitDecider,
    pub options: RuleOptions,
    pub now: Time,
}

impl Service {
    /// A service with one file of rules, 2222 seconds after the epoch.
    pub fn new(rules: &str) -> Service {
        Service::with(rules, RatelimitAnswers::default(), RuleOptions::default())
    }

    pub fn answering(rules: &str, answers: RatelimitAnswers) -> Service {
        Service::with(rules, answers, RuleOptions::default())
    }

    pub fn with(rules: &str, answers: RatelimitAnswers, options: RuleOptions) -> Service {
        let clock = Clock::start();
        let counters = Arc::new(Counters::new(1_000, clock));
        let decider = RatelimitDecider::new(answers, counters, KeySeed([5; 16]), clock);
        let service = Service { decider, options, now: Time(2222 * SECOND) };
        service.load(rules);
        service
    }

    /// Puts other rules in force.
    pub fn load(&self, rules: &str) {
        let rules = read(&[file("a.yaml", rules)], self.options, &self.decider.tallies);
        self.decider.rules.store(Some(std::sync::Arc::new(rules.expect("sound rules"))));
    }

    pub fn decide(
        &self,
        request: &Request,
        package: ProtoPackage,
    ) -> Result<Response, DecisionError> {
        self.decider.decide_at(
            &RequestView::of(request),
            package,
            &mut DecisionBuffers::default(),
            self.now,
        )
    }

    pub fn response(&self, asked: &str) -> Response {
        self.decide(&request(asked), ProtoPackage::V3).expect("an answer")
    }

    /// Sends a request and returns the answer as text.
    pub fn ask(&self, asked: &str) -> String {
        shown(&self.response(asked))
    }

    /// A metric of a path.
    pub fn figure(&self, path: &str, name: &str) -> u64 {
        let all = self.decider.tallies.all();
        let found = all.iter().find(|(other, _)| **other == *path);
        let (_, tally) = found.unwrap_or_else(|| panic!("no {path} in {all:?}"));
        let figures = tally.figures();
        figures.iter().find(|(other, _)| *other == name).expect("a figure").1
    }
}

/// Checks that a set of files is refused, and returns the error messages.
pub fn refused(files: &[FolderFile], options: RuleOptions) -> Vec<String> {
    match read(files, options, &RuleTallies::default()) {
        Ok(_) => Vec::new(),
        Err(faults) => faults
            .iter()
            .flat_map(|f| f.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
            .collect(),
    }
}

pub fn rules(text: &str) -> RatelimitRules {
    read(&[file("a.yaml", text)], RuleOptions::default(), &RuleTallies::default())
        .expect("sound rules")
}

pub fn request(asked: &str) -> Request {
    let (domain, rest) = asked.split_once(':').expect("a domain");
    let (domain, hits) = domain.split_once('+').unwrap_or((domain, "0"));
    let descriptors = rest.split('|').map(str::trim).filter(|text| !text.is_empty());
    Request {
        domain: domain.to_owned(),
        descriptors: descriptors.map(descriptor).collect(),
        hits_addend: hits.parse().expect("a number"),
    }
}

/// `()` is a descriptor without entries.
fn descriptor(text: &str) -> Descriptor {
    let mut words = text.split_whitespace();
    let entries = words.next().expect("entries");
    let entry = |text: &str| {
        let (key, value) = text.split_once('=').expect("key=value");
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    let entries = entries.split(',').filter(|text| *text != "()").map(entry).collect();
    let mut descriptor = Descriptor { entries, ..Descriptor::default() };
    while let Some(word) = words.next() {
        if word == "limit" {
            let (requests, unit) = words.next().and_then(|w| w.split_once('/')).expect("N/UNIT");
            let named = RateUnit::UNITS.iter().find(|(name, ..)| *name == unit);
            let unit = named.map_or_else(|| unit.parse().expect("a unit"), |(_, u, _)| *u as i32);
            let requests_per_unit = requests.parse().expect("a number");
            descriptor.limit = Some(Override { requests_per_unit, unit });
        } else {
            let (sign, hits) = word.split_at(1);
            descriptor.is_negative_hits = sign == "-";
            descriptor.hits_addend = Some(hits.parse().expect("a number"));
        }
    }
    descriptor
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Unknown => "UNKNOWN",
        Code::Ok => "OK",
        Code::OverLimit => "OVER",
    }
}

pub fn shown(response: &Response) -> String {
    let statuses = response.statuses.iter().map(|status| {
        let over = if status.code() == Code::OverLimit { "OVER " } else { "" };
        match (&status.current_limit, status.limit_remaining) {
            (None, u32::MAX) => "max".to_owned(),
            (None, _) => format!("{over}-"),
            (Some(limit), left) => {
                let unit = RateUnit::from_wire(limit.unit).expect("a unit").name();
                format!("{over}{}/{unit} {left}", limit.requests_per_unit)
            }
        }
    });
    let statuses: Vec<String> = statuses.collect();
    format!("{} [{}]", code(response.overall_code()), statuses.join(", "))
}
