//! When each key directory is fetched: at the start, when its cache time is over, and after a
//! failure with growing pauses.
//!
//! Fetches run in the background, at most one for a directory. A failure is told once until a fetch
//! succeeds again, and removes no key: that a directory does not answer says nothing of its keys.

use super::directory::{self, DirectoryError, FetchedKeys};
use evenkeel_config::settings::RobotSettings;
use evenkeel_config::settings::robots::ROBOTS_MAX;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_identity::signature::RobotKey;
use tokio::sync::mpsc;

/// The pause after the first failure. It doubles with each further one, up to the longest.
const RETRY_PAUSE: Nanos = Nanos::from_secs(60);
const RETRY_PAUSE_MAX: Nanos = Nanos::from_secs(3_600);

/// The directories of the robots.
pub struct DirectorySchedule {
    directories: Vec<Directory>,
    fetched: mpsc::Receiver<FetchResult>,
    results: mpsc::Sender<FetchResult>,
}

type FetchResult = (String, Result<FetchedKeys, DirectoryError>);

struct Directory {
    host: String,
    /// When it is fetched next; `None` while a fetch runs.
    due: Option<Time>,
    failures: u32,
}

impl DirectorySchedule {
    /// The directories of these robots, all due at once.
    pub fn new(settings: &RobotSettings) -> DirectorySchedule {
        let (results, fetched) = mpsc::channel(ROBOTS_MAX);
        let mut schedule = DirectorySchedule { directories: Vec::new(), fetched, results };
        schedule.follow(settings);
        schedule
    }

    /// Follows changed settings: directories that are still used keep their times.
    pub fn follow(&mut self, settings: &RobotSettings) {
        self.directories.retain(|one| settings.directories().any(|host| *host == *one.host));
        for host in settings.directories() {
            if self.directories.iter().all(|one| *one.host != *host) {
                let (host, due) = (host.to_owned(), Some(Time::ZERO));
                self.directories.push(Directory { host, due, failures: 0 });
            }
        }
    }

    /// Starts the fetches that are due, and passes the keys that have arrived to `learn`, each with
    /// the host of its directory. Must be called once a second, within a runtime.
    pub fn look(&mut self, now: Time, mut learn: impl FnMut(&str, Vec<RobotKey>)) {
        while let Ok((host, result)) = self.fetched.try_recv() {
            if let Some(one) = self.directories.iter_mut().find(|one| one.host == host)
                && let Some(keys) = one.fetched(result, now)
            {
                learn(&host, keys);
            }
        }
        for one in &mut self.directories {
            if one.due.is_some_and(|due| due <= now) {
                one.due = None;
                let (host, results) = (one.host.clone(), self.results.clone());
                tokio::spawn(async move {
                    let result = directory::fetch(&host).await;
                    let _ = results.try_send((host, result));
                });
            }
        }
    }
}

impl Directory {
    fn fetched(
        &mut self,
        result: Result<FetchedKeys, DirectoryError>,
        now: Time,
    ) -> Option<Vec<RobotKey>> {
        match result {
            Ok(FetchedKeys { keys, fresh }) => {
                let (host, count) = (&self.host, keys.len());
                tracing::debug!(target: "evenkeel::robots", host, count, "key directory fetched");
                self.failures = 0;
                self.due = Some(now.plus(fresh));
                Some(keys)
            }
            Err(error) => {
                if self.failures == 0 {
                    tracing::warn!(
                        target: "evenkeel::robots", host = self.host, %error,
                        "cannot fetch a key directory; the known keys stay in use"
                    );
                }
                let pause = RETRY_PAUSE.0.saturating_mul(1 << self.failures.min(6));
                self.due = Some(now.plus(Nanos(pause).min(RETRY_PAUSE_MAX)));
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
    fn failures_are_repeated_with_growing_pauses_and_successes_after_their_cache_time() {
        let mut one = Directory { host: "x.test".into(), due: None, failures: 0 };
        let now = Time::ZERO.plus(Nanos::from_secs(1_000));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(one.fetched(Err(DirectoryError::Late), now).is_none());
            pauses.push(one.due.expect("due").since(now).0 / 1_000_000_000);
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1_920, 3_600, 3_600]);
        let fetched = FetchedKeys { keys: Vec::new(), fresh: Nanos::from_secs(700) };
        assert_eq!(one.fetched(Ok(fetched), now).map(|keys| keys.len()), Some(0));
        assert_eq!((one.due, one.failures), (Some(now.plus(Nanos::from_secs(700))), 0));
    }
}
