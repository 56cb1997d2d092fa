//! Certificates from an authority that speaks ACME (RFC 8555), such as Let's Encrypt.
//!
//! A thread orders the certificate of the proxy and renews it (`plan`, `order`). It only writes
//! files, or keeps them in memory while the folder cannot be written: the proxy follows them as any
//! other certificate (`tls::reload`), so one that cannot be renewed stays in use. The proxy shows
//! what the authority asks for (`tls::challenges`).

mod files;
mod http;
mod order;
pub mod plan;

use evenkeel_config::settings::Settings;
use evenkeel_config::{StartProblem, StartProblems};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_telemetry::metrics::ACME_ORDERS;
use evenkeel_telemetry::registry::Registry;
use evenkeel_tls::challenges::OpenChallenges;
use evenkeel_tls::pem;
pub use files::{AcmeFolder, prepare};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The longest time of an order.
const ORDER_TIME: Duration = Duration::from_secs(300);
/// How often the time is compared with the next attempt. The system's clock may be set.
const LOOK_INTERVAL: Nanos = Nanos::from_secs(1);
/// How often writing is tried again while a file is only in memory.
const SAVE_INTERVAL: Nanos = Nanos::from_secs(10);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// A file of the folder is damaged.
    #[error("{path}: {why}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// The certificate in the folder cannot be used.
    #[error(transparent)]
    Pem(#[from] pem::TlsFileError),
    /// A certificate cannot be made for these names.
    #[error("a certificate cannot be made for these names: {0}")]
    Names(#[from] rcgen::Error),
    /// The authority cannot be reached, or is none.
    #[error("the authority cannot be asked: {why}")]
    Unreachable {
        /// The error of the connection.
        why: String,
    },
    /// The authority has refused because of a rate limit.
    #[error("the rate limit of the authority is reached: {why}")]
    RateLimited {
        /// What the authority says.
        why: String,
    },
    /// The authority has refused for another reason.
    #[error("the authority refuses: {why}")]
    Refused {
        /// What the authority says.
        why: String,
    },
    /// The authority has issued a certificate that is of no use.
    #[error("the authority has issued a certificate that cannot be used: {why}")]
    Unusable {
        /// What is wrong with it.
        why: String,
    },
    /// The authority does not check a name in the way of the settings.
    #[error("the authority does not check {name} by {challenge}; choose another `challenge`")]
    NoChallenge {
        /// The name.
        name: String,
        /// The way of the settings.
        challenge: &'static str,
    },
    /// The authority has checked a name and does not accept it.
    #[error("the authority could not check {name}: {why}{advice}")]
    Check {
        /// The name.
        name: String,
        /// What the authority says.
        why: String,
        /// What to do about it, with a semicolon before it.
        advice: String,
    },
}

impl AcmeError {
    fn file(path: &Path, why: io::Error) -> AcmeError {
        AcmeError::File { path: path.to_owned(), why }
    }
}

/// The thread that orders certificates; it ends when this is dropped.
pub type AcmeThread = OwnedThread<oneshot::Sender<()>>;

/// Starts the thread, with the folder that [`prepare`] has returned.
///
/// # Errors
/// The system provides no thread.
pub fn start(
    folder: AcmeFolder,
    challenges: Arc<OpenChallenges>,
    clock: Clock,
    registry: &Registry,
) -> io::Result<AcmeThread> {
    let (orders, ended) = oneshot::channel();
    let counts = ["ok", "failed"].map(|result| registry.counter(&ACME_ORDERS, &[result]));
    let renewals = Renewals { folder, challenges, clock, counts, failures: 0 };
    OwnedThread::serve("acme", orders, (), move || async move {
        tokio::select! {
            _ = ended => {}
            () = renewals.run() => {}
        }
    })
}

struct Renewals {
    folder: AcmeFolder,
    challenges: Arc<OpenChallenges>,
    clock: Clock,
    /// Orders that succeeded and failed.
    counts: [evenkeel_telemetry::registry::Counter; 2],
    /// Failures in a row.
    failures: u32,
}

impl Renewals {
    async fn run(mut self) {
        let mut next = self.due();
        if next <= self.clock.now() {
            next = self.after_last_attempt();
        }
        loop {
            self.wait(next).await;
            // Another process may have renewed it.
            let due = self.due();
            next = if due > self.clock.now() {
                due
            } else {
                match self.ordered().await {
                    Ok(()) => self.issued(),
                    Err(error) => self.failed(&error),
                }
            };
        }
    }

    async fn ordered(&self) -> Result<(), AcmeError> {
        self.folder.save_attempt(self.failures.saturating_add(1), self.clock.now());
        let ordered = order::order(&self.folder, &self.challenges, || self.clock.now());
        let late = || AcmeError::Refused {
            why: format!("the order has taken more than {} s", ORDER_TIME.as_secs()),
        };
        let ordered = tokio::time::timeout(ORDER_TIME, ordered).await;
        ordered.unwrap_or_else(|_| Err(late()))
    }

    /// The earliest time of an attempt after that of the previous process. One that is started
    /// again and again must not ask the authority each time.
    fn after_last_attempt(&mut self) -> Time {
        let now = self.clock.now();
        let last = self.folder.attempt();
        if last.is_none() && self.folder.save_attempt(1, now) {
            return now;
        }
        // In a folder that cannot be written no attempt is found: there may have been one just now.
        let (failures, second) =
            last.map_or((1, now.second()), |last| (last.failures, last.second));
        self.failures = failures;
        let wait = plan::after_restart(failures, chance());
        // The clock may have been ahead then.
        let at = Time::ZERO.plus(Nanos::from_secs(second)).min(now).plus(wait);
        if at > now {
            let again_in = format!("{} s", at.since(now).0 / 1_000_000_000);
            tracing::warn!(
                target: "evenkeel::acme", names = self.names(), again_in,
                "the last order before this start failed or was not saved; the next one waits"
            );
        }
        at
    }

    /// When the certificate in the folder is to be renewed.
    fn due(&self) -> Time {
        match self.folder.validity() {
            Ok(Some(validity)) => plan::renewal(validity, chance()),
            Ok(None) | Err(_) => self.clock.now(),
        }
    }

    /// Waits until a time. What could not be written is written if that is possible now.
    async fn wait(&self, at: Time) {
        let mut save = self.clock.now().plus(SAVE_INTERVAL);
        while self.clock.now() < at {
            let look = at.min(self.clock.now().plus(LOOK_INTERVAL));
            tokio::time::sleep_until(self.clock.instant(look)).await;
            if self.folder.unsaved().is_empty() || self.clock.now() < save {
                continue;
            }
            save = self.clock.now().plus(SAVE_INTERVAL);
            if self.folder.save_again() && self.failures == 0 {
                self.folder.forget_attempt();
            }
        }
    }

    fn issued(&mut self) -> Time {
        self.counts[0].increment(1);
        self.failures = 0;
        let validity = self.folder.validity().ok().flatten();
        let until = validity.map(|validity| pem::date(validity.until));
        self.folder.forget_attempt();
        // One that is due at once, because a clock is wrong, must not be ordered without end.
        let next = self.due().max(self.clock.now().plus(plan::pause(validity)));
        let (names, renewal) = (self.names(), pem::date(next.second()));
        tracing::info!(target: "evenkeel::acme", names, until, renewal, "certificate issued");
        next
    }

    fn failed(&mut self, error: &AcmeError) -> Time {
        self.counts[1].increment(1);
        self.failures = self.failures.saturating_add(1);
        let mut wait = plan::retry(self.failures, chance());
        if matches!(error, AcmeError::RateLimited { .. }) {
            wait = wait.max(plan::RATE_LIMITED);
        }
        let (names, again_in) = (self.names(), format!("{} s", wait.0 / 1_000_000_000));
        tracing::error!(
            target: "evenkeel::acme", names, %error, again_in,
            "certificate not issued; the previous one stays in use"
        );
        self.clock.now().plus(wait)
    }

    fn names(&self) -> String {
        self.folder.settings.domains.join(",")
    }
}

/// A random number; it only spreads attempts.
fn chance() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers there is no spread, and no TLS either.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Problems that a start would have.
#[must_use]
pub fn start_problems(settings: &Settings) -> StartProblems {
    let tls = settings.proxy.as_ref().and_then(|proxy| proxy.tls.as_ref());
    let Some(acme) = tls.and_then(|tls| tls.acme.as_ref()) else { return StartProblems::default() };
    let problem = |what| -> StartProblem { (&["proxy", "tls", "acme", "folder"], what) };
    // The folder may be made together with the process (`StateDirectory=` of a systemd unit).
    let doubts = files::folder_problem(&acme.folder).map(problem).into_iter().collect();
    StartProblems { doubts, ..StartProblems::default() }
}
