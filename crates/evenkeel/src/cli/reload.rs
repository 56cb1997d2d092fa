//! `evenkeel reload`: makes a running server read its configuration again, and says whether it was
//! accepted.
//!
//! The server is the process on this machine that listens at the admin address. It gets SIGHUP, as
//! from `systemctl reload`, and counts the result in its metrics: for its configuration, and for
//! the rules of the rate limit service, which are files of their own. It also follows its files by
//! itself, so a reload only makes it sooner. It does not check the files: `check`.

use super::local_process::{LocalProcess, LocalProcessError};
use super::remote::{AdminClient, AdminClientError};
use evenkeel_telemetry::metrics::{Metric, RELOADS, RULE_LOADS};
use evenkeel_telemetry::snapshot::TopQuery;
use rustix::process::Signal;
use std::time::Duration;

/// The longest wait for the result.
const RESULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two looks at the metrics.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The number of looks that wait for the second result. There may be none: rules from another
/// server are not reloaded, and a server without a file has no configuration to reload.
const OTHER_LOOKS_MAX: usize = 20;

/// Why there was no reload, or it is not known.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error(transparent)]
    Process(#[from] LocalProcessError),
    #[error("process {0}: {1}; its log and `evenkeel check` name all errors")]
    Refused(i32, String),
    #[error(
        "process {0} has refused the configuration or the rules, and the current ones stay in \
         force; its log and `evenkeel check FILE` name the errors"
    )]
    RefusedSilently(i32),
    #[error(
        "process {0} got SIGHUP and has not answered; see its log. A server that was started with \
         flags has no configuration to reload"
    )]
    Silent(i32),
    #[error(transparent)]
    Admin(#[from] AdminClientError),
}

/// Reloads the configuration of the server with this admin address. Returns what to tell the user.
///
/// # Errors
/// There is no such server, or it refuses its configuration.
pub fn reload(address: &str) -> Result<String, ReloadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(AdminClientError::Runtime)?.block_on(async {
        let server = LocalProcess::at(address)?;
        let pid = server.pid;
        let remote = AdminClient { address, token: None };
        let before = results(&remote.metrics().await?);
        server.signal(Signal::HUP)?;
        let counted = tokio::time::timeout(RESULT_TIMEOUT, counted(&remote, before)).await;
        if !counted.map_err(|_| ReloadError::Silent(pid))?? {
            let query = TopQuery { limit: None, rows: 1 };
            let why = remote.snapshot(&query).await.ok().and_then(|(_, top)| top.refused_config);
            return Err(match why {
                Some(why) => ReloadError::Refused(pid, why.to_string()),
                None => ReloadError::RefusedSilently(pid),
            });
        }
        let mut told = format!("process {pid} has reloaded its configuration");
        // A server that does not say which keys they are has reloaded all the same.
        let keys = remote.setup().await.map(|setup| setup.restart_keys).unwrap_or_default();
        if !keys.is_empty() {
            told.push_str("; in force only after a restart: ");
            told.push_str(&keys.join(", "));
        }
        Ok(told)
    })
}

/// Waits until the server has counted a reload. Returns whether all of it was accepted.
async fn counted(
    remote: &AdminClient<'_>,
    before: [ReloadCounts; 2],
) -> Result<bool, AdminClientError> {
    let expected = 1 + usize::from(before[1].any());
    let mut looks = 0;
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let now = results(&remote.metrics().await?);
        let changed = now.iter().zip(&before).filter(|(now, before)| now != before);
        let accepted: Vec<bool> =
            changed.map(|(now, before)| now.refused == before.refused).collect();
        looks += usize::from(!accepted.is_empty());
        if accepted.contains(&false) {
            return Ok(false);
        }
        if accepted.len() >= expected || looks > OTHER_LOOKS_MAX {
            return Ok(true);
        }
    }
}

/// The counts of one kind of reload, in the form of the metrics.
#[derive(Clone, Debug, Default, PartialEq)]
struct ReloadCounts {
    accepted: Option<String>,
    refused: Option<String>,
}

/// The reloads of the configuration, and the loads of rules.
fn results(metrics: &str) -> [ReloadCounts; 2] {
    [&RELOADS, &RULE_LOADS].map(|metric| counts(metrics, metric))
}

impl ReloadCounts {
    fn any(&self) -> bool {
        [&self.accepted, &self.refused].into_iter().flatten().any(|count| count != "0")
    }
}

fn counts(metrics: &str, metric: &Metric) -> ReloadCounts {
    let count = |result: &str| {
        let start = format!("{}{{result=\"{result}\"}} ", metric.name);
        metrics.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    };
    ReloadCounts { accepted: count("ok"), refused: count("failed") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_metrics() {
        let metrics = "# TYPE evenkeel_config_reloads_total counter\n\
                       evenkeel_config_reloads_total{result=\"ok\"} 3\n\
                       evenkeel_config_reloads_total{result=\"failed\"} 1\n";
        let [counts, rules] = results(metrics);
        assert_eq!((counts.accepted.as_deref(), counts.refused.as_deref()), (Some("3"), Some("1")));
        assert_eq!(rules, ReloadCounts::default());
    }
}
