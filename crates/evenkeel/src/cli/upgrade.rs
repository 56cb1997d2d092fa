//! `evenkeel upgrade`: replaces a running server by the program that is installed at its path, and
//! waits until that serves.
//!
//! The server is the process on this machine that listens at the admin address. It gets SIGUSR2,
//! starts its successor, and ends when that has opened its listeners. If the successor fails, the
//! server continues, and says why at `/api/setup`. Both listen for a moment, so either may answer.

use super::local_process::{LocalProcess, LocalProcessError};
use super::remote::{AdminClient, AdminClientError};
use evenkeel_telemetry::snapshot::setup::SetupSnapshot;
use rustix::process::Signal;
use std::time::Duration;

/// The longest wait for the result: a server gives its successor 30 s.
const RESULT_TIMEOUT: Duration = Duration::from_secs(45);
/// The time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Why the server was not replaced, or it is not known.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    #[error(transparent)]
    Process(#[from] LocalProcessError),
    #[error(
        "process {pid} was not replaced and continues to serve: {why}; see the log \
         (`journalctl -u evenkeel -n 50`), and try the new program: `{program} check {config}`"
    )]
    Failed { pid: i32, why: String, program: String, config: String },
    #[error(
        "process {0} got SIGUSR2, and no successor serves after 45 s; see the log, and \
         `evenkeel doctor`"
    )]
    Silent(i32),
    #[error(transparent)]
    Admin(#[from] AdminClientError),
}

/// Replaces the server with this admin address. Returns what to tell the user.
///
/// # Errors
/// There is no such server, or it was not replaced.
pub fn upgrade(address: &str) -> Result<String, UpgradeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(AdminClientError::Runtime)?.block_on(async {
        let server = LocalProcess::at(address)?;
        let pid = server.pid;
        let remote = AdminClient { address, token: None };
        let before = remote.setup().await?;
        server.signal(Signal::USR2)?;
        match tokio::time::timeout(RESULT_TIMEOUT, result(&remote, &before)).await {
            Ok(Ok(after)) => Ok(success(&before, &after)),
            Ok(Err(why)) => Err(UpgradeError::Failed {
                pid,
                why,
                program: before.program.unwrap_or_else(|| "evenkeel".to_owned()),
                config: before.config_file.unwrap_or_default(),
            }),
            Err(_) => Err(UpgradeError::Silent(pid)),
        }
    })
}

fn success(before: &SetupSnapshot, after: &SetupSnapshot) -> String {
    let (old, new) = (&before.version, &after.version);
    let (pid, by) = (before.pid, after.pid);
    format!("process {pid} (version {old}) was replaced by process {by} (version {new})")
}

/// Waits until a successor serves, or the server says why there is none.
async fn result(remote: &AdminClient<'_>, before: &SetupSnapshot) -> Result<SetupSnapshot, String> {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        // Between two processes a connection may be cut off.
        let Ok(now) = remote.setup().await else { continue };
        if now.pid != before.pid && now.ready {
            return Ok(now);
        }
        let failed = now.not_replaced.filter(|_| now.pid == before.pid);
        // Older failures were there before.
        if let Some(failed) = failed.filter(|failed| now.now - failed.seconds >= before.now) {
            return Err(failed.why);
        }
    }
}
