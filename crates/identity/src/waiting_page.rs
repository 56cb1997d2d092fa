//! The page for visitors that have to wait, and which requests may get it.
//!
//! Only a person in front of a browser can read a page and wait, so only a navigation gets one.
//! Feeds, programs and parts of a page get a short error (`answer`). The page has no script. The
//! browser asks again when `Refresh` says so, or the visitor follows the link.
//!
//! An operator may write a page instead. `{{wait}}` in it becomes the expected time until the
//! visitor's turn in English words, `{{seconds}}` the number of seconds until the browser asks
//! again. The cookie of the answer: `visit`. The status and the headers are the
//! door's.

use super::answer::AnswerFormat;
use evenkeel_core::units::Nanos;
use http::header::{self, HeaderMap, HeaderName};
use http::{HeaderValue, Method};
use std::fmt::Write;

/// Maximum size of a page, in bytes. It is sent to each waiting visitor, again and again.
pub const PAGE_BYTES_MAX: usize = 16 << 10;
/// The page of operators that have none.
const BUILT_IN: &str = include_str!("waiting_page.html");
/// From this number of seconds on, a wait is written in minutes.
const MINUTES_FROM_SECONDS: u64 = 90;
/// Room in a page for what replaces its placeholders.
const WAIT_BYTES: usize = 32;

const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SEC_PURPOSE: HeaderName = HeaderName::from_static("sec-purpose");
const PURPOSE: HeaderName = HeaderName::from_static("purpose");
const X_REQUESTED_WITH: HeaderName = HeaderName::from_static("x-requested-with");

/// Error in the page of an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitingPageError {
    /// The page is too large.
    #[error("it has {0} bytes; at most {PAGE_BYTES_MAX} are sent to each visitor that waits")]
    Size(usize),
    /// The page is empty.
    #[error("it is empty; remove the key for the built-in page")]
    Empty,
    /// The page is not UTF-8.
    #[error("line {0} is not UTF-8")]
    Text(usize),
    /// The page has a placeholder that nothing replaces.
    #[error(
        "line {line}: unknown placeholder {{{{{name}}}}}; known are {{{{wait}}}} and \
             {{{{seconds}}}}"
    )]
    Placeholder {
        /// The line, counted from one.
        line: usize,
        /// The text between the braces.
        name: String,
    },
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PagePart {
    Text(Box<str>),
    /// The expected wait in words.
    Wait,
    /// The time until the browser asks again, in seconds.
    Seconds,
}

/// A page, taken apart at its placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingPage {
    parts: Vec<PagePart>,
    /// The size of the text.
    bytes: usize,
}

impl Default for WaitingPage {
    fn default() -> WaitingPage {
        WaitingPage::parse(BUILT_IN.as_bytes()).unwrap_or(WaitingPage { parts: vec![], bytes: 0 })
    }
}

impl WaitingPage {
    /// Reads a page.
    ///
    /// # Errors
    /// [`WaitingPageError`] if it is empty, too large or not UTF-8, or has an unknown placeholder.
    pub fn parse(bytes: &[u8]) -> Result<WaitingPage, WaitingPageError> {
        if bytes.len() > PAGE_BYTES_MAX {
            return Err(WaitingPageError::Size(bytes.len()));
        }
        let text = str::from_utf8(bytes)
            .map_err(|error| WaitingPageError::Text(line_of(&bytes[..error.valid_up_to()])))?;
        if text.trim().is_empty() {
            return Err(WaitingPageError::Empty);
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, name, after)) = placeholder(rest) {
            parts.push(PagePart::Text(before.into()));
            parts.push(match name.trim() {
                "wait" => PagePart::Wait,
                "seconds" => PagePart::Seconds,
                other => {
                    let line = line_of(&bytes[..text.len() - rest.len() + before.len()]);
                    return Err(WaitingPageError::Placeholder { line, name: readable(other) });
                }
            });
            rest = after;
        }
        parts.push(PagePart::Text(rest.into()));
        Ok(WaitingPage { parts, bytes: bytes.len() })
    }

    /// Whether the page says when to try again.
    #[must_use]
    pub fn states_time(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, PagePart::Wait | PagePart::Seconds))
    }

    /// The page for a request that makes sense again after `seconds`.
    #[must_use]
    pub fn render_refusal(&self, seconds: u64) -> String {
        let wait = Nanos::from_secs(seconds);
        self.render(wait, wait)
    }

    /// The page for a visitor with an expected wait of `expected`. Its browser asks again after
    /// `refresh`.
    #[must_use]
    pub fn render(&self, expected: Nanos, refresh: Nanos) -> String {
        let (wait, seconds) =
            (expected.max(refresh).retry_after_secs(), refresh.retry_after_secs());
        let mut page = String::with_capacity(self.bytes + WAIT_BYTES);
        for part in &self.parts {
            // Writing to a String cannot fail.
            let _ = match part {
                PagePart::Text(text) => page.write_str(text),
                PagePart::Wait => write_wait(&mut page, wait),
                PagePart::Seconds => write!(page, "{seconds}"),
            };
        }
        page
    }
}

/// The text before the first placeholder, what stands in it, and the text after it.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("{{")?;
    let (name, after) = rest.split_once("}}")?;
    Some((before, name, after))
}

/// The line that follows these bytes, counted from one.
fn line_of(before: &[u8]) -> usize {
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The beginning of what stands in an unknown placeholder, for a message.
fn readable(name: &str) -> String {
    name.chars().take(20).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn write_wait(page: &mut String, seconds: u64) -> std::fmt::Result {
    match seconds {
        1 => page.write_str("1 second"),
        2..MINUTES_FROM_SECONDS => write!(page, "{seconds} seconds"),
        _ => write!(page, "{} minutes", seconds.div_ceil(60)),
    }
}

/// Whether a request comes from a browser that shows the answer as a page: a GET for a document,
/// which is no prefetch and no request of a script. Without `Sec-Fetch-Mode`, which older browsers
/// do not send, a client that likes HTML best counts as a browser.
#[must_use]
pub fn accepts_page(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name: &HeaderName, text: &str| {
        headers.get(name).map(|value| value.as_bytes().eq_ignore_ascii_case(text.as_bytes()))
    };
    let prefetches = |name: &HeaderName| {
        let begins = |value: &HeaderValue| value.as_bytes().starts_with(b"prefetch");
        headers.get(name).is_some_and(begins)
    };
    if method != Method::GET || headers.contains_key(header::UPGRADE) {
        return false;
    }
    let shown = match is(&SEC_FETCH_MODE, "navigate") {
        Some(navigates) => navigates && is(&SEC_FETCH_DEST, "document") != Some(false),
        None => {
            !headers.contains_key(X_REQUESTED_WITH)
                && AnswerFormat::of(headers) == AnswerFormat::Html
        }
    };
    shown && !prefetches(&SEC_PURPOSE) && !prefetches(&PURPOSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str, seconds: u64) -> String {
        let wait = Nanos::from_secs(seconds);
        WaitingPage::parse(text.as_bytes()).expect("a page").render(wait, wait)
    }

    #[test]
    fn the_built_in_page_is_small_and_plain() {
        let page = WaitingPage::default().render(Nanos::from_secs(200), Nanos::from_secs(12));
        assert!(page.contains("<html lang=\"en\">") && page.contains("<title>Please wait</title>"));
        assert!(page.contains("Your turn is expected in about 4 minutes."), "{page}");
        assert!(page.contains("This page asks again in 12 s."), "{page}");
        assert!((600..1_300).contains(&page.len()), "{} bytes", page.len());
        for not in ["<script", "http", "{{", "onload"] {
            assert!(!page.contains(not), "{not}");
        }
    }

    #[test]
    fn the_wait_is_told_in_words_and_as_a_number() {
        for (seconds, words) in [
            (0, "1 second"),
            (1, "1 second"),
            (2, "2 seconds"),
            (89, "89 seconds"),
            (90, "2 minutes"),
            (120, "2 minutes"),
            (121, "3 minutes"),
        ] {
            assert_eq!(rendered("{{wait}}", seconds), words);
        }
        assert_eq!(rendered("a{{ seconds }}b{{wait}}c", 95), "a95b2 minutesc");
        assert_eq!(rendered("body { a } }} {{", 5), "body { a } }} {{");
        // The browser never asks later than the visitor's turn is expected.
        let page = WaitingPage::parse(b"{{wait}}, {{seconds}}").expect("a page");
        let seconds = Nanos::from_secs;
        assert_eq!(page.render(seconds(100), seconds(4)), "2 minutes, 4");
        assert_eq!(page.render(seconds(1), seconds(4)), "4 seconds, 4");
    }

    #[test]
    fn a_faulty_page_is_refused_with_its_line() {
        let fault = |bytes: &[u8]| WaitingPage::parse(bytes).expect_err("refused").to_string();
        assert_eq!(
            fault(b"a\nb {{wait}}\n{{ name }}"),
            "line 3: unknown placeholder {{name}}; known are {{wait}} and {{seconds}}"
        );
        assert_eq!(fault(b"a\n\xff"), "line 2 is not UTF-8");
        assert!(fault(b" \n").contains("empty"));
        let large = vec![b'a'; PAGE_BYTES_MAX + 1];
        assert!(fault(&large).contains("at most 16384"));
        assert!(WaitingPage::parse(&large[1..]).is_ok());
    }

    #[test]
    fn fuzz_any_page_is_read_or_refused() {
        evenkeel_fuzz::fuzz().with_type::<Vec<Vec<u8>>>().for_each(|pieces: &Vec<Vec<u8>>| {
            let page = pieces.join(&b"{{wait}}"[..]);
            if let Ok(page) = WaitingPage::parse(&page) {
                assert!(!page.render(Nanos(u64::MAX), Nanos::ZERO).is_empty());
            }
        });
    }

    fn accepts(method: &Method, fields: &[(&'static str, &'static str)]) -> bool {
        let field = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        accepts_page(method, &fields.iter().map(field).collect())
    }

    #[test]
    fn only_a_navigation_gets_the_page() {
        const HTML: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        const NAVIGATE: (&str, &str) = ("sec-fetch-mode", "navigate");
        for fields in [
            &[HTML][..],
            &[NAVIGATE],
            &[NAVIGATE, ("sec-fetch-dest", "document"), ("accept", "*/*")],
        ] {
            assert!(accepts(&Method::GET, fields), "{fields:?}");
            for method in [Method::HEAD, Method::POST, Method::PUT, Method::OPTIONS] {
                assert!(!accepts(&method, fields), "{method} {fields:?}");
            }
        }
        for fields in [
            &[][..],
            &[("accept", "*/*")],
            &[("accept", "application/rss+xml, text/xml")],
            &[("accept", "application/json, text/html;q=0.5")],
            &[HTML, ("x-requested-with", "XMLHttpRequest")],
            &[HTML, ("sec-fetch-mode", "cors")],
            &[HTML, ("sec-fetch-mode", "same-origin")],
            &[HTML, ("upgrade", "websocket")],
            &[NAVIGATE, ("upgrade", "websocket")],
            &[NAVIGATE, ("sec-fetch-dest", "iframe")],
            &[NAVIGATE, ("sec-purpose", "prefetch;prerender")],
            &[HTML, ("purpose", "prefetch")],
        ] {
            assert!(!accepts(&Method::GET, fields), "{fields:?}");
        }
    }
}
