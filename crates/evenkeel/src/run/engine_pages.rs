//! Asks each backend twice a second how many requests wait inside, if it is an inference engine
//! with a page of metrics, and reports the answers to the engine of the proxy.
//!
//! The effects of the answers: `evenkeel_engine::SharedBackends`. A backend without such a page is
//! asked less and less often, which is logged once. How a page is fetched: `engine_pages/page.rs`;
//! how it is read: `engine_pages/series.rs`.

mod page;
mod series;

use evenkeel_config::settings::BackendAddress;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::{Engine, EngineReport, WatchedPages};
use page::PageError;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;

/// Interval between two rounds. Longer: more requests wait inside before their number is bounded.
/// Shorter: engines are busy with their pages.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
/// The pause after a failure. It doubles with each further one, up to the longest.
const RETRY_PAUSE: Nanos = Nanos::from_secs(1);
const RETRY_PAUSE_MAX: Nanos = Nanos::from_secs(60);

/// Runs as long as the engine exists.
pub async fn follow(engine: Weak<Engine>) {
    let mut rounds: Option<PageRounds> = None;
    while let Some(engine) = engine.upgrade() {
        let watched = engine.watched_pages();
        if rounds.as_ref().map(|rounds| &*rounds.watched) != watched.as_ref() {
            engine.handle_backend_reports(&[]);
            rounds = watched.map(PageRounds::new);
        }
        if let Some(rounds) = &mut rounds {
            let reports = rounds.run(engine.clock().now()).await;
            engine.handle_backend_reports(&reports);
        }
        drop(engine);
        tokio::time::sleep(ROUND_INTERVAL).await;
    }
}

/// The pages of all backends.
struct PageRounds {
    watched: Arc<WatchedPages>,
    pages: Vec<WatchedPage>,
}

impl PageRounds {
    fn new(watched: WatchedPages) -> PageRounds {
        let page = |at: &BackendAddress| WatchedPage {
            at: at.clone(),
            due: Time::ZERO,
            failures: 0,
            told: None,
        };
        let pages = watched.backends.iter().map(page).collect();
        PageRounds { watched: Arc::new(watched), pages }
    }

    /// Fetches the pages that are due, all at once, and returns a report for each backend.
    async fn run(&mut self, now: Time) -> Vec<(BackendAddress, Option<EngineReport>)> {
        let mut fetches = JoinSet::new();
        for (place, page) in self.pages.iter().enumerate().filter(|(_, page)| page.due <= now) {
            let (at, watched) = (page.at.clone(), Arc::clone(&self.watched));
            fetches.spawn(async move { (place, page::fetch(&at, &watched).await) });
        }
        let report = |page: &WatchedPage| (page.at.clone(), None);
        let mut reports: Vec<_> = self.pages.iter().map(report).collect();
        while let Some(fetched) = fetches.join_next().await {
            let Ok((place, result)) = fetched else { continue };
            reports[place].1 = self.pages[place].fetched(result, now);
        }
        reports
    }
}

/// The page of one backend.
struct WatchedPage {
    at: BackendAddress,
    /// When it is next fetched.
    due: Time,
    /// The number of failures in a row.
    failures: u32,
    /// Whether the log says that the page exists or does not; `None`: the log says neither.
    told: Option<bool>,
}

impl WatchedPage {
    fn fetched(
        &mut self,
        result: Result<EngineReport, PageError>,
        now: Time,
    ) -> Option<EngineReport> {
        let backend = &*self.at.place;
        match result {
            Ok(report) => {
                if self.told.replace(true) != Some(true) {
                    tracing::info!(
                        target: "evenkeel::engine_pages", backend,
                        "the backend reports how many requests wait inside; if many do, there are \
                         fewer slots"
                    );
                }
                (self.due, self.failures) = (now, 0);
                Some(report)
            }
            Err(error) => {
                if self.told.replace(false) != Some(false) {
                    tracing::info!(
                        target: "evenkeel::engine_pages", backend, %error,
                        "cannot read how many requests wait inside the backend; if some do, they \
                         are in no fair order"
                    );
                }
                let pause = RETRY_PAUSE.0.saturating_mul(1 << self.failures.min(6));
                self.due = now.plus(Nanos(pause).min(RETRY_PAUSE_MAX));
                self.failures = self.failures.saturating_add(1);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_without_a_page_is_asked_more_and_more_rarely() {
        let at = BackendAddress::http("a:1");
        let mut page = WatchedPage { at, due: Time::ZERO, failures: 0, told: None };
        let now = Time::ZERO.plus(Nanos::from_secs(1_000));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(page.fetched(Err(PageError::Late), now).is_none());
            pauses.push(page.due.since(now).0 / 1_000_000_000);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        let report = EngineReport { running: 1, waiting: 0, cache_used: None };
        assert_eq!(page.fetched(Ok(report), now), Some(report));
        assert_eq!((page.due, page.failures), (now, 0));
    }
}
