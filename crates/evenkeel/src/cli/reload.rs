//! `evenkeel reload`: makes a running server read its configuration again, and says whether it was
//! accepted.
//!
//! The server is the process on this machine that listens at the admin address. It gets SIGHUP, as
//! from `systemctl reload`, and counts the result in its metrics. It also follows its file by
//! itself, so a reload only makes it sooner. It does not check the file: `check`.

use super::local_process::{LocalProcess, LocalProcessError};
use super::remote::{AdminClient, AdminClientError};
use evenkeel_telemetry::metrics::RELOADS;
use rustix::process::Signal;
use std::time::Duration;

/// The longest wait for the result.
const RESULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two looks at the metrics.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Why there was no reload, or it is not known.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error(transparent)]
    Process(#[from] LocalProcessError),
    #[error(
        "process {0} has refused the configuration, and the current one stays in force; its log \
         and `evenkeel check FILE` name the errors"
    )]
    Refused(i32),
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
        let before = counts(&remote.metrics().await?);
        server.signal(Signal::HUP)?;
        let counted = tokio::time::timeout(RESULT_TIMEOUT, counted(&remote, before)).await;
        match counted.map_err(|_| ReloadError::Silent(pid))?? {
            true => {
                let mut told = format!("process {pid} has reloaded its configuration");
                // A server that does not say which keys they are has reloaded all the same.
                let keys = remote.setup().await.map(|setup| setup.restart_keys).unwrap_or_default();
                if !keys.is_empty() {
                    told.push_str("; in force only after a restart: ");
                    told.push_str(&keys.join(", "));
                }
                Ok(told)
            }
            false => Err(ReloadError::Refused(pid)),
        }
    })
}

/// Waits until the server has counted a reload. Returns whether it was accepted.
async fn counted(remote: &AdminClient<'_>, before: ReloadCounts) -> Result<bool, AdminClientError> {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let now = counts(&remote.metrics().await?);
        if now.accepted != before.accepted || now.refused != before.refused {
            return Ok(now.accepted != before.accepted);
        }
    }
}

/// The numbers of reloads as the metrics have them.
#[derive(Clone, Debug, Default, PartialEq)]
struct ReloadCounts {
    accepted: Option<String>,
    refused: Option<String>,
}

fn counts(metrics: &str) -> ReloadCounts {
    let count = |result: &str| {
        let start = format!("{}{{result=\"{result}\"}} ", RELOADS.name);
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
        let counts = counts(metrics);
        assert_eq!((counts.accepted.as_deref(), counts.refused.as_deref()), (Some("3"), Some("1")));
        assert_eq!(super::counts(""), ReloadCounts::default());
    }
}
