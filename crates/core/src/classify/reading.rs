//! A request as conditions read it.
//!
//! Each part is parsed when a condition first needs it, and each group is examined once. Decisions
//! are made elsewhere: whether a condition that may hold counts as one that holds depends on its
//! use. The types of conditions: `crate::condition`.

use super::path::RequestPath;
use super::{RequestAttributes, host_name};
use crate::condition::patterns::PathPatterns;
use crate::condition::{Clause, Condition, Group, Truth};
use crate::percent::decoded;
use alloc::borrow::Cow;
use core::cell::{Cell, OnceCell};

/// A request with lazy parsing.
pub struct RequestReading<'a, R> {
    /// The request.
    pub request: &'a R,
    path: OnceCell<RequestPath<'a>>,
    /// Bit sets by group: whether it was examined, and whether it may hold and does hold.
    groups: Cell<[u64; 3]>,
}

impl<'a, R: RequestAttributes> RequestReading<'a, R> {
    /// A request before any part of it is parsed.
    pub fn new(request: &'a R) -> RequestReading<'a, R> {
        RequestReading { request, path: OnceCell::new(), groups: Cell::default() }
    }

    pub(super) fn path(&self) -> &RequestPath<'a> {
        self.path.get_or_init(|| RequestPath::read(self.request.path()))
    }

    /// Whether a condition holds.
    #[must_use]
    pub fn truth(&self, condition: &Condition) -> Truth {
        let mut all = Truth::Yes;
        for clause in &condition.clauses {
            all = all.min(self.clause(clause));
            if all == Truth::No {
                break;
            }
        }
        all
    }

    fn clause(&self, clause: &Clause) -> Truth {
        let request = self.request;
        match clause {
            Clause::Method(patterns) => {
                let method = request.method();
                // Some backends treat a method in lower case as the upper-case method, others as
                // unknown.
                match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
                    true => Truth::Maybe,
                    false => Truth::of(patterns.matches(method.as_bytes())),
                }
            }
            Clause::Path(patterns) => self.path_matches(patterns),
            Clause::Vhost(patterns) => {
                Truth::of(patterns.matches(host_name(request.vhost()).as_bytes()))
            }
            Clause::Header(name, values) => values.hold(request.headers(name)),
            Clause::Cookie(name, values) => values.hold(cookies(request, name)),
            Clause::Query(name, values) => {
                let is_name = |key: &[u8]| key.eq_ignore_ascii_case(name.as_bytes());
                let query = request.query();
                let strict = values.hold(parameters(query, is_name));
                let lenient = |key: &[u8]| is_name(key) || is_php_spelling_of(key, name);
                let php = values.hold(parameters(query, lenient));
                if strict == php { strict } else { Truth::Maybe }
            }
            Clause::Fact(fact, values) => {
                values.hold(request.fact(*fact).iter().map(|t| t.as_bytes()))
            }
            Clause::Address(set) => Truth::of(set.contains(request.address())),
            Clause::Listed(lists) => Truth::of(lists.iter().any(|list| request.is_listed(list))),
            Clause::Group(group) => self.group(group),
            Clause::Not(condition) => self.truth(condition).not(),
            Clause::Any(all) => all.iter().map(|one| self.truth(one)).max().unwrap_or(Truth::No),
        }
    }

    fn path_matches(&self, patterns: &PathPatterns) -> Truth {
        let path = self.path();
        match path.climbing() {
            Some(segments) if patterns.may_match_some_of(&segments) => Truth::Maybe,
            Some(_) => Truth::No,
            None => {
                let matches = patterns.matches(path.as_str());
                if path.is_certain() { matches } else { matches.min(Truth::Maybe) }
            }
        }
    }

    fn group(&self, group: &Group) -> Truth {
        let bit = 1u64.checked_shl(group.index.into()).unwrap_or(0);
        let [known, maybe, yes] = self.groups.get();
        if known & bit != 0 {
            return match (maybe & bit != 0, yes & bit != 0) {
                (_, true) => Truth::Yes,
                (true, false) => Truth::Maybe,
                (false, false) => Truth::No,
            };
        }
        let truth = self.truth(&group.condition);
        // An inner group may have been examined in the meantime.
        let [known, maybe, yes] = self.groups.get();
        let set = |holds: bool| if holds { bit } else { 0 };
        self.groups.set([
            known | bit,
            maybe | set(truth == Truth::Maybe),
            yes | set(truth == Truth::Yes),
        ]);
        truth
    }
}

/// The values of a cookie (RFC 6265, 5.4: pairs separated by semicolons), on all lines.
pub(super) fn cookies<'a>(
    request: &'a impl RequestAttributes,
    name: &'a str,
) -> impl Iterator<Item = &'a [u8]> {
    let pairs = request.headers("cookie").flat_map(|line| line.split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        (&pair[..equals] == name.as_bytes()).then(|| &pair[equals + 1..])
    })
}

/// The decoded values of the parameters in a query that have a wanted decoded name. A parameter
/// without `=` has an empty value.
fn parameters<'a>(
    query: &'a str,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        is_wanted(&decoded(key, b' ')).then(|| decoded(value, b' '))
    })
}

/// Whether PHP reads a decoded name as `name`: it skips leading spaces, ends a name at `[` or NUL
/// (`diff[]` is the array `diff`), and replaces spaces and dots by `_`.
fn is_php_spelling_of(key: &[u8], name: &str) -> bool {
    let start = key.iter().position(|byte| *byte != b' ').unwrap_or(key.len());
    let key = key.get(start..).unwrap_or_default();
    let end = key.iter().position(|byte| matches!(byte, b'[' | 0)).unwrap_or(key.len());
    let plain = |byte: &u8| if matches!(byte, b' ' | b'.') { b'_' } else { *byte };
    let mut pairs = key.iter().zip(name.as_bytes());
    end == name.len() && pairs.all(|(one, other)| plain(one).eq_ignore_ascii_case(other))
}
