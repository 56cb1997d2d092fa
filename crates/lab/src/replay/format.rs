//! The formats of access logs, and their detection: all parsers try the first lines of a log, and
//! the one that can read most of them is used.
//!
//! A parser returns the content of a line, or no value; it has no other errors, whatever the bytes.
//! The meaning of the fields is described in the file of each parser.

mod columns;
mod common;
mod elb;
mod envoy;
mod haproxy;
mod json;
mod time;
mod token;

use super::entry::LineDraft;
use columns::LogColumns;
use common::WholeNumberUnit;

/// The format in which a log is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogFormat(AccessLogKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum AccessLogKind {
    Common(WholeNumberUnit),
    Haproxy,
    Json,
    Envoy,
    Columns(LogColumns),
    Elb,
}

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineReadError {
    /// The line is empty or a comment.
    Nothing,
    /// The line cannot be parsed.
    Faulty,
}

impl AccessLogFormat {
    /// The format of a log that begins with these lines; `None` if no parser can read any of them.
    pub fn of(lines: &[String]) -> Option<AccessLogFormat> {
        let whole = common::whole(lines.iter().map(String::as_str));
        let kinds = [
            AccessLogKind::Common(whole),
            AccessLogKind::Haproxy,
            AccessLogKind::Json,
            AccessLogKind::Envoy,
            AccessLogKind::Columns(LogColumns::default()),
            AccessLogKind::Elb,
        ];
        let read = |kind: &AccessLogKind| {
            let mut format = AccessLogFormat(kind.clone());
            lines.iter().filter(|line| format.read(line).is_ok()).count()
        };
        let best = kinds.into_iter().rev().max_by_key(read)?;
        (read(&best) > 0).then_some(AccessLogFormat(best))
    }

    /// Parses one line. A comment may change how the next lines are parsed.
    pub fn read<'a>(&mut self, line: &'a str) -> Result<LineDraft<'a>, LineReadError> {
        if line.trim().is_empty() {
            return Err(LineReadError::Nothing);
        }
        if line.starts_with('#') {
            if let AccessLogKind::Columns(columns) = &mut self.0 {
                columns.learn(line);
            }
            return Err(LineReadError::Nothing);
        }
        let draft = match &self.0 {
            AccessLogKind::Common(whole) => common::parse(line, *whole),
            AccessLogKind::Haproxy => haproxy::parse(line),
            AccessLogKind::Json => json::parse(line),
            AccessLogKind::Envoy => envoy::parse(line),
            AccessLogKind::Columns(columns) => columns.parse(line),
            AccessLogKind::Elb => elb::parse(line),
        };
        draft.ok_or(LineReadError::Faulty)
    }

    /// The name of the format for people.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            AccessLogKind::Common(_) => "common or combined (nginx, Apache)",
            AccessLogKind::Haproxy => "HAProxy",
            AccessLogKind::Json => "JSON (Caddy, nginx, Traefik)",
            AccessLogKind::Envoy => "Envoy",
            AccessLogKind::Columns(_) => "CloudFront",
            AccessLogKind::Elb => "AWS load balancer",
        }
    }
}

#[cfg(test)]
mod tests;
