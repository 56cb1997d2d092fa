//! The operator's pages for browsers whose request is refused.
//!
//! They have the placeholders of the waiting page. Their files are part of the configuration and
//! are read with it (`proxy.pages`). All other refusals: `answer`.

use crate::waiting_page::{WaitingPage, WaitingPageError};
use evenkeel_config::settings::{RefusalPages, Settings};
use evenkeel_config::{StartProblem, StartProblems};
use evenkeel_core::limit::RefusalKind;

/// The pages by the kind of refusal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RefusalPageSet {
    denied: Option<WaitingPage>,
    over_rate: Option<WaitingPage>,
    busy: Option<WaitingPage>,
}

impl RefusalPageSet {
    /// Reads the pages. One that is faulty is logged and left out.
    #[must_use]
    pub fn new(pages: &RefusalPages) -> RefusalPageSet {
        let read = |(status, text): (u16, &Option<Box<str>>)| {
            let page = WaitingPage::parse(text.as_ref()?.as_bytes());
            let told = |error: &WaitingPageError| {
                tracing::error!(
                    target: "evenkeel::proxy", status, %error, "page for refusals not used"
                );
            };
            page.inspect_err(told).ok()
        };
        let [denied, over_rate, busy] = texts(pages).map(read);
        RefusalPageSet { denied, over_rate, busy }
    }

    /// The page for a refusal, if the operator has one. `seconds` is the time of `Retry-After`.
    #[must_use]
    pub fn render(&self, kind: RefusalKind, seconds: u64) -> Option<String> {
        let page = match kind {
            RefusalKind::Denied => &self.denied,
            RefusalKind::OverRate => &self.over_rate,
            RefusalKind::Busy => &self.busy,
        };
        page.as_ref().map(|page| page.render_refusal(seconds))
    }
}

/// The texts of the pages with their status.
fn texts(pages: &RefusalPages) -> [(u16, &Option<Box<str>>); 3] {
    [(403, &pages.denied), (429, &pages.over_rate), (503, &pages.busy)]
}

/// Finds the errors in the pages that a start would log.
#[must_use]
pub fn start_problems(settings: &Settings) -> StartProblems {
    let Some(proxy) = &settings.proxy else { return StartProblems::default() };
    let fault = |(status, text): (u16, &Option<Box<str>>)| -> Option<StartProblem> {
        let error = WaitingPage::parse(text.as_ref()?.as_bytes()).err()?;
        Some((&["proxy", "pages"], format!("the page for {status}: {error}")))
    };
    let faults = texts(&proxy.pages).into_iter().filter_map(fault).collect();
    StartProblems { faults, ..StartProblems::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_refusal_has_its_page_and_a_faulty_one_is_left_out() {
        let pages = RefusalPages {
            denied: Some("no".into()),
            over_rate: Some("wait {{seconds}} or {{wait}}".into()),
            busy: Some("{{what}}".into()),
            ..RefusalPages::default()
        };
        let set = RefusalPageSet::new(&pages);
        assert_eq!(set.render(RefusalKind::Denied, 0).as_deref(), Some("no"));
        assert_eq!(set.render(RefusalKind::OverRate, 7).as_deref(), Some("wait 7 or 7 seconds"));
        assert_eq!(set.render(RefusalKind::Busy, 7), None);
    }
}
