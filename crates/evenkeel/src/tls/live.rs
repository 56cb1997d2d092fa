//! What is made of files, kept as the files are.
//!
//! The files are looked at once a second; what they hold is taken over when it has changed and is
//! good. If it is not, what runs stays, which is told and counted: a certificate that is renewed
//! badly costs nobody a connection. So an expired certificate is told when it is all there is, and
//! refused when it would replace another.

use super::pem::{Fault, Validity, date};
use crate::config::source::files::{File, Files};
use crate::watch::metrics::{TLS_RELOADS, TLS_UNTIL};
use crate::watch::registry::{Counter, Gauge, Registry};
use arc_swap::ArcSwap;
use evenkeel_core::units::Time;
use std::path::PathBuf;
use std::sync::Arc;

/// A certificate that ends in less than this is told of, in seconds: seven days.
const SOON: u64 = 7 * 86_400;

/// What was made of files.
#[derive(Debug)]
pub struct Made<T> {
    /// What runs.
    pub value: T,
    /// When its certificate is valid.
    pub validity: Validity,
}

/// How it is made.
type Make<T> = Box<dyn Fn(&[File]) -> Result<Made<T>, Fault> + Send>;

/// What the time says of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    NotYet,
    Good,
    EndsSoon,
    Over,
}

/// What runs, and the files that it is made of.
pub struct Live<T> {
    /// Who has it: `peers`, `ratelimit`.
    of: &'static str,
    files: Files,
    /// The certificate's, for messages.
    path: PathBuf,
    make: Make<T>,
    running: Arc<ArcSwap<T>>,
    validity: Validity,
    told: Age,
    /// Taken over, and refused.
    reloads: [Counter; 2],
    until: Gauge,
}

impl<T> Live<T> {
    /// Reads `paths`, of which the first is the certificate's, and makes something of them.
    ///
    /// # Errors
    /// [`Fault`]; what has expired is told only.
    pub fn load(
        of: &'static str,
        paths: Vec<PathBuf>,
        make: impl Fn(&[File]) -> Result<Made<T>, Fault> + Send + 'static,
        now: Time,
        registry: &Registry,
    ) -> Result<Live<T>, Fault> {
        let path = paths.first().cloned().ok_or(Fault::Missing)?;
        let mut files = Files::new(paths);
        let Made { value, validity } = make(&files.read()?)?;
        let reloads = ["ok", "failed"].map(|result| registry.counter(&TLS_RELOADS, &[of, result]));
        let mut live = Live {
            of,
            files,
            path,
            make: Box::new(make),
            running: Arc::new(ArcSwap::from_pointee(value)),
            validity,
            told: Age::Good,
            reloads,
            until: registry.gauge(&TLS_UNTIL, &[of]),
        };
        live.tell(now);
        Ok(live)
    }

    /// What runs, at any time.
    #[must_use]
    pub fn running(&self) -> Arc<ArcSwap<T>> {
        Arc::clone(&self.running)
    }

    /// Takes the files over if they have changed; to be called once a second.
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
                    target: "evenkeel::tls", of, %error, "certificate refused; the one before stays"
                ),
            }
        }
        self.tell(now);
    }

    fn take(&mut self, files: &[File], now: Time) -> Result<(), Fault> {
        let Made { value, validity } = (self.make)(files)?;
        if age(validity, now) == Age::Over {
            return Err(Fault::Expired { path: self.path.clone(), until: date(validity.until) });
        }
        self.running.store(Arc::new(value));
        self.validity = validity;
        self.told = Age::Good;
        Ok(())
    }

    /// Says once what time does to the certificate.
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
            Age::Good => {}
            Age::NotYet => tracing::error!(
                target: "evenkeel::tls", of, %cert, from, "the certificate is not valid yet"
            ),
            Age::EndsSoon => tracing::warn!(
                target: "evenkeel::tls", of, %cert, until, "the certificate expires soon"
            ),
            Age::Over => tracing::error!(
                target: "evenkeel::tls", of, %cert, until,
                "the certificate has expired: others will refuse it; put a good one in its place"
            ),
        }
    }
}

fn age(validity: Validity, now: Time) -> Age {
    let now = now.second();
    match () {
        () if now > validity.until => Age::Over,
        () if now < validity.from => Age::NotYet,
        () if validity.until - now < SOON => Age::EndsSoon,
        () => Age::Good,
    }
}
