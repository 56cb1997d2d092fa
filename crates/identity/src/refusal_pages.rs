//! The operator's pages for browsers, after a refused or failed request.
//!
//! Those of refusals have the placeholders of the waiting page; for the others no time is known.
//! Their files are part of the configuration and are read with it (`proxy.pages`). The answers for
//! other clients are in `answer`.

use crate::waiting_page::{WaitingPage, WaitingPageError};
use evenkeel_config::settings::{RefusalPages, Settings};
use evenkeel_config::{StartProblem, StartProblems};
use http::StatusCode;

/// Statuses that may have a page.
const STATUSES: [StatusCode; 5] = [
    StatusCode::FORBIDDEN,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// The pages of the statuses 403, 429, 502, 503 and 504, if there are any.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RefusalPageSet([Option<WaitingPage>; STATUSES.len()]);

/// Error in a page.
#[derive(Debug, thiserror::Error)]
enum RefusalPageError {
    #[error(transparent)]
    Page(#[from] WaitingPageError),
    #[error(
        "the time of the next attempt is not known, so it can have no {{{{seconds}}}} or \
             {{{{wait}}}}"
    )]
    NoTime,
}

fn parse(status: StatusCode, text: &str) -> Result<WaitingPage, RefusalPageError> {
    let page = WaitingPage::parse(text.as_bytes())?;
    let has_time =
        [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status);
    if !has_time && page.states_time() {
        return Err(RefusalPageError::NoTime);
    }
    Ok(page)
}

impl RefusalPageSet {
    /// Reads the pages. One that is faulty is logged and left out.
    #[must_use]
    pub fn new(pages: &RefusalPages) -> RefusalPageSet {
        RefusalPageSet(texts(pages).map(|(status, text)| {
            let told = |error: &RefusalPageError| {
                let status = status.as_u16();
                tracing::error!(
                    target: "evenkeel::proxy", status, %error, "page for refusals not used"
                );
            };
            parse(status, text.as_ref()?).inspect_err(told).ok()
        }))
    }

    /// The page for an answer with this status, if the operator has one. `seconds` is the time of
    /// `Retry-After`, if there is one.
    #[must_use]
    pub fn render(&self, status: StatusCode, seconds: u64) -> Option<String> {
        let at = STATUSES.iter().position(|one| *one == status)?;
        self.0[at].as_ref().map(|page| page.render_refusal(seconds))
    }
}

/// The texts of the pages with their status.
fn texts(pages: &RefusalPages) -> [(StatusCode, &Option<Box<str>>); STATUSES.len()] {
    let texts = [&pages.denied, &pages.over_rate, &pages.bad_gateway, &pages.busy, &pages.too_late];
    std::array::from_fn(|at| (STATUSES[at], texts[at]))
}

/// Finds the errors in the pages that a start would log.
#[must_use]
pub fn start_problems(settings: &Settings) -> StartProblems {
    let Some(proxy) = &settings.proxy else { return StartProblems::default() };
    let fault = |(status, text): (StatusCode, &Option<Box<str>>)| -> Option<StartProblem> {
        let error = parse(status, text.as_ref()?).err()?;
        Some((&["proxy", "pages"], format!("the page for {}: {error}", status.as_u16())))
    };
    let faults = texts(&proxy.pages).into_iter().filter_map(fault).collect();
    StartProblems { faults, ..StartProblems::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_page_and_a_faulty_one_is_left_out() {
        let pages = RefusalPages {
            denied: Some("no".into()),
            over_rate: Some("wait {{seconds}} or {{wait}}".into()),
            bad_gateway: Some("down".into()),
            busy: Some("{{what}}".into()),
            too_late: Some("again in {{wait}}".into()),
            ..RefusalPages::default()
        };
        let set = RefusalPageSet::new(&pages);
        let page = |status, seconds| set.render(status, seconds);
        assert_eq!(page(StatusCode::FORBIDDEN, 0).as_deref(), Some("no"));
        let wait = page(StatusCode::TOO_MANY_REQUESTS, 7);
        assert_eq!(wait.as_deref(), Some("wait 7 or 7 seconds"));
        assert_eq!(page(StatusCode::BAD_GATEWAY, 0).as_deref(), Some("down"));
        assert_eq!(page(StatusCode::SERVICE_UNAVAILABLE, 7), None);
        assert_eq!(page(StatusCode::GATEWAY_TIMEOUT, 0), None, "no time is known");
        assert_eq!(page(StatusCode::NOT_FOUND, 0), None);
        let error = parse(StatusCode::FORBIDDEN, "{{seconds}}").expect_err("refused").to_string();
        assert!(error.contains("{{seconds}} or {{wait}}"), "{error}");
    }
}
