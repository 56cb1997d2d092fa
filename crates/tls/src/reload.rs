//! Values that are built from files and follow their changes.
//!
//! The files are checked once a second. A changed and valid content is applied. An invalid one is
//! logged, counted and ignored, so a failed renewal does not break any connection. An expired
//! certificate is therefore accepted with a message at the start, but refused as a replacement.

use super::pem::{CertificateValidity, TlsFileError, date};
use arc_swap::ArcSwap;
use evenkeel_config::source::files::{WatchedFile, WatchedFiles};
use evenkeel_core::units::Time;
use evenkeel_telemetry::metrics::{TLS_RELOADS, TLS_UNTIL};
use evenkeel_telemetry::registry::{Counter, Gauge, Registry};
use std::path::PathBuf;
use std::sync::Arc;

/// Warning time before a certificate expires, in seconds: seven days.
const EXPIRY_WARNING_SECONDS: u64 = 7 * 86_400;

/// A value that was built from files.
#[derive(Debug)]
pub struct BuiltFromFiles<T> {
    /// The value itself.
    pub value: T,
    /// Validity of its certificate.
    pub validity: CertificateValidity,
}

/// The function that builds the value.
type Make<T> = Box<dyn Fn(&[WatchedFile]) -> Result<BuiltFromFiles<T>, TlsFileError> + Send>;

/// State of a certificate at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CertificateState {
    NotYet,
    Good,
    EndsSoon,
    Over,
}

/// A value that is in use, and the files that it is built from.
pub struct LiveValue<T> {
    /// Name of the user for messages and metrics: `peers`, `ratelimit`.
    of: &'static str,
    files: WatchedFiles,
    /// Path of the certificate, for messages.
    path: PathBuf,
    make: Make<T>,
    running: Arc<ArcSwap<T>>,
    validity: CertificateValidity,
    told: CertificateState,
    /// Counters of successful and failed reloads.
    reloads: [Counter; 2],
    until: Gauge,
}

impl<T> LiveValue<T> {
    /// Reads the files and builds the value. The first one must be the certificate.
    ///
    /// # Errors
    /// [`TlsFileError`]. An expired certificate is only logged.
    pub fn load(
        of: &'static str,
        files: impl Into<WatchedFiles>,
        make: impl Fn(&[WatchedFile]) -> Result<BuiltFromFiles<T>, TlsFileError> + Send + 'static,
        now: Time,
        registry: &Registry,
    ) -> Result<LiveValue<T>, TlsFileError> {
        let mut files = files.into();
        let path = files.paths().first().cloned().ok_or(TlsFileError::Missing)?;
        let BuiltFromFiles { value, validity } = make(&files.read()?)?;
        let reloads = ["ok", "failed"].map(|result| registry.counter(&TLS_RELOADS, &[of, result]));
        let mut live = LiveValue {
            of,
            files,
            path,
            make: Box::new(make),
            running: Arc::new(ArcSwap::from_pointee(value)),
            validity,
            told: CertificateState::Good,
            reloads,
            until: registry.gauge(&TLS_UNTIL, &[of]),
        };
        live.tell(now);
        Ok(live)
    }

    /// The value in use. It can be read at any time.
    #[must_use]
    pub fn running(&self) -> Arc<ArcSwap<T>> {
        Arc::clone(&self.running)
    }

    /// Applies the files if they have changed. Must be called once a second.
    pub fn look(&mut self, now: Time) {
        if let Some(files) = self.files.look() {
            let taken = self.take(&files, now);
            self.reloads[usize::from(taken.is_err())].increment(1);
            let (of, cert) = (self.of, self.path.display());
            match taken {
                Ok(()) => {
                    let until = date(self.validity.until);
                    tracing::info!(
                        target: "evenkeel::tls", of, %cert, until, "certificate reloaded"
                    );
                }
                Err(error) => tracing::error!(
                    target: "evenkeel::tls", of, %error,
                    "certificate refused; the previous one stays in use"
                ),
            }
        }
        self.tell(now);
    }

    fn take(&mut self, files: &[WatchedFile], now: Time) -> Result<(), TlsFileError> {
        let BuiltFromFiles { value, validity } = (self.make)(files)?;
        if age(validity, now) == CertificateState::Over {
            return Err(TlsFileError::Expired {
                path: self.path.clone(),
                until: date(validity.until),
            });
        }
        self.running.store(Arc::new(value));
        self.validity = validity;
        self.told = CertificateState::Good;
        Ok(())
    }

    /// Logs each change of the certificate's state once.
    fn tell(&mut self, now: Time) {
        self.until.set(i64::try_from(self.validity.until).unwrap_or(i64::MAX));
        let age = age(self.validity, now);
        if age == self.told {
            return;
        }
        self.told = age;
        let (of, cert) = (self.of, self.path.display());
        let (from, until) = (date(self.validity.from), date(self.validity.until));
        match age {
            CertificateState::Good => {}
            CertificateState::NotYet => tracing::error!(
                target: "evenkeel::tls", of, %cert, from, "the certificate is not valid yet"
            ),
            CertificateState::EndsSoon => tracing::warn!(
                target: "evenkeel::tls", of, %cert, until, "the certificate expires soon"
            ),
            CertificateState::Over => tracing::error!(
                target: "evenkeel::tls", of, %cert, until,
                "the certificate has expired and is refused by other programs; replace it"
            ),
        }
    }
}

fn age(validity: CertificateValidity, now: Time) -> CertificateState {
    let now = now.second();
    match () {
        () if now > validity.until => CertificateState::Over,
        () if now < validity.from => CertificateState::NotYet,
        () if validity.until - now < EXPIRY_WARNING_SECONDS => CertificateState::EndsSoon,
        () => CertificateState::Good,
    }
}
