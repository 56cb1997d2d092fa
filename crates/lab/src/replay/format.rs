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

use super::entry::Draft;
use columns::Columns;
use common::Whole;

/// The format in which a log is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Common(Whole),
    Haproxy,
    Json,
    Envoy,
    Columns(Columns),
    Elb,
}

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The line is empty or a comment.
    Nothing,
    /// The line cannot be parsed.
    Faulty,
}

impl Format {
    /// The format of a log that begins with these lines; `None` if no parser can read any of them.
    #[must_use]
    pub fn of(lines: &[String]) -> Option<Format> {
        let whole = common::whole(lines.iter().map(String::as_str));
        let kinds = [
            Kind::Common(whole),
            Kind::Haproxy,
            Kind::Json,
            Kind::Envoy,
            Kind::Columns(Columns::default()),
            Kind::Elb,
        ];
        let read = |kind: &Kind| {
            let mut format = Format(kind.clone());
            lines.iter().filter(|line| format.read(line).is_ok()).count()
        };
        let best = kinds.into_iter().rev().max_by_key(read)?;
        (read(&best) > 0).then_some(Format(best))
    }

    /// Parses one line. A comment may change how the next lines are parsed.
    ///
    /// # Errors
    /// Returns [`Unread`] if the line is no request.
    pub fn read<'a>(&mut self, line: &'a str) -> Result<Draft<'a>, Unread> {
        if line.trim().is_empty() {
            return Err(Unread::Nothing);
        }
        if line.starts_with('#') {
            if let Kind::Columns(columns) = &mut self.0 {
                columns.learn(line);
            }
            return Err(Unread::Nothing);
        }
        let draft = match &self.0 {
            Kind::Common(whole) => common::parse(line, *whole),
            Kind::Haproxy => haproxy::parse(line),
            Kind::Json => json::parse(line),
            Kind::Envoy => envoy::parse(line),
            Kind::Columns(columns) => columns.parse(line),
            Kind::Elb => elb::parse(line),
        };
        draft.ok_or(Unread::Faulty)
    }

    /// The name of the format for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Kind::Common(_) => "common or combined (nginx, Apache)",
            Kind::Haproxy => "HAProxy",
            Kind::Json => "JSON (Caddy, nginx, Traefik)",
            Kind::Envoy => "Envoy",
            Kind::Columns(_) => "CloudFront",
            Kind::Elb => "AWS load balancer",
        }
    }
}

#[cfg(test)]
mod tests;
