//! The folder with the account and the certificate: files that only this user can read, replaced
//! as a whole.
//!
//! The certificate and its key are one file, so they always belong together. `tls` follows that
//! file as any other certificate, and also while it is only in memory (`UnsavedFiles`).

use crate::AcmeError;
use evenkeel_config::settings::tls::AcmeSettings;
use evenkeel_config::source::files::{WatchedFile, WatchedFiles};
use evenkeel_config::source::unsaved::UnsavedFiles;
use evenkeel_core::units::Time;
use evenkeel_tls::pem::{self, CertificateValidity};
use instant_acme::AccountCredentials;
use rcgen::{CertificateParams, KeyPair};
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use time::OffsetDateTime;

/// The lifetime of the certificate that is shown until the first one is issued: two thirds of it
/// are over, so that the first attempt is due at once.
const TEMPORARY_DAYS: [i64; 2] = [16, 8];
const DAY_SECONDS: i64 = 86_400;
/// Maximum size of the file with the account, in bytes.
const ACCOUNT_BYTES_MAX: u64 = 64 << 10;

/// Maximum size of an issued certificate with its chain, in bytes. Each handshake sends it, and
/// clients refuse long ones.
const CHAIN_BYTES_MAX: usize = 64 << 10;

/// An account at an authority.
#[derive(Serialize, Deserialize)]
pub struct StoredAccount {
    /// The directory of the authority.
    pub directory: String,
    /// The address that the authority has.
    pub email: Option<String>,
    pub credentials: AccountCredentials,
}

/// An attempt to order that has not succeeded, perhaps because the process ended.
#[derive(Serialize, Deserialize)]
pub struct Attempt {
    /// The directory of the authority.
    directory: String,
    /// The names of the certificate.
    domains: Vec<String>,
    /// Failures in a row, this one included.
    pub failures: u32,
    /// When it was made, in seconds since the Unix epoch.
    pub second: u64,
}

/// The folder of the settings. A file that cannot be written there stays in memory, so that a full
/// disk does not leave the proxy without a certificate.
#[derive(Clone, Debug)]
pub struct AcmeFolder {
    /// The settings that name it.
    pub settings: AcmeSettings,
    unsaved: Arc<UnsavedFiles>,
}

/// Makes the folder, and a self-signed certificate if there is none that can be used.
///
/// # Errors
/// A certificate cannot be made for these names.
pub fn prepare(settings: &AcmeSettings, now: Time) -> Result<AcmeFolder, AcmeError> {
    let folder = AcmeFolder { settings: settings.clone(), unsaved: Arc::default() };
    let path = settings.certificate();
    match path.exists().then(|| folder.validity()) {
        Some(Ok(Some(_))) => return Ok(folder),
        Some(Err(error)) => tracing::error!(
            target: "evenkeel::acme", %error,
            "certificate cannot be used; another one is requested"
        ),
        // It is for other names, but better than a new one that no authority has signed.
        Some(Ok(None)) => return Ok(folder),
        None => {}
    }
    let cert = path.display();
    tracing::warn!(
        target: "evenkeel::acme", %cert,
        "no certificate yet; a self-signed one is shown until the authority has issued one"
    );
    folder.write(&path, temporary(settings, now)?.as_bytes());
    Ok(folder)
}

/// A certificate that this process signs itself, and its key.
fn temporary(settings: &AcmeSettings, now: Time) -> Result<String, AcmeError> {
    let second = i64::try_from(now.second()).unwrap_or(0);
    let day = |days: i64| {
        let at = OffsetDateTime::from_unix_timestamp(second + days * DAY_SECONDS);
        at.unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    let mut params = CertificateParams::new(settings.domains.clone())?;
    params.not_before = day(-TEMPORARY_DAYS[0]);
    params.not_after = day(TEMPORARY_DAYS[1]);
    let key = KeyPair::generate()?;
    Ok(params.self_signed(&key)?.pem() + &key.serialize_pem())
}

/// The validity of a certificate with its key. `None` if it is not for all names.
fn examined(
    settings: &AcmeSettings,
    cert: &WatchedFile,
    key: &WatchedFile,
) -> Result<Option<CertificateValidity>, AcmeError> {
    let identity = pem::identity(cert, key)?;
    let covers = settings.domains.iter().all(|domain| identity.is_for(domain));
    Ok(covers.then_some(identity.validity))
}

/// The certificate.
impl AcmeFolder {
    /// The contents that are not on the disk, for those that read the certificate.
    #[must_use]
    pub fn unsaved(&self) -> Arc<UnsavedFiles> {
        Arc::clone(&self.unsaved)
    }

    /// The validity of the certificate. `None` if it is not for all names.
    ///
    /// # Errors
    /// It cannot be read or used.
    pub fn validity(&self) -> Result<Option<CertificateValidity>, AcmeError> {
        let files = WatchedFiles::new(vec![self.settings.certificate()]);
        let files = files.with_unsaved(self.unsaved()).read().map_err(pem::TlsFileError::from)?;
        let file = files.first().ok_or(pem::TlsFileError::Missing)?;
        examined(&self.settings, file, file)
    }

    /// Saves an issued certificate with its key, if it is better than the previous one: an
    /// authority may be broken.
    ///
    /// # Errors
    /// It cannot be used, is not for all names or has expired.
    pub fn save_certificate(&self, chain: &str, key: &str, now: Time) -> Result<(), AcmeError> {
        let unusable = |why: String| AcmeError::Unusable { why };
        if chain.len() > CHAIN_BYTES_MAX {
            return Err(unusable(format!("it has {} bytes, which are too many", chain.len())));
        }
        let part = |name: &str, text: &str| WatchedFile {
            path: PathBuf::from(name),
            bytes: text.as_bytes().to_vec(),
            modified: 0,
        };
        let (chain_part, key_part) = (part("the answer", chain), part("the request", key));
        let found = examined(&self.settings, &chain_part, &key_part);
        match found.map_err(|error| unusable(error.to_string()))? {
            None => Err(unusable("it is not for all of `domains`".to_owned())),
            Some(valid) if valid.until <= now.second() => {
                Err(unusable(format!("it was valid until {}", pem::date(valid.until))))
            }
            Some(_) => {
                let line = if chain.ends_with('\n') { "" } else { "\n" };
                let text = format!("{chain}{line}{key}");
                self.write(&self.settings.certificate(), text.as_bytes());
                Ok(())
            }
        }
    }
}

/// The account, and the last attempt.
impl AcmeFolder {
    fn account_path(&self) -> PathBuf {
        self.settings.folder.join("account.json")
    }

    /// The account at the authority of the settings, if there is one.
    ///
    /// # Errors
    /// The file can be read, and is not one of an account.
    pub fn account(&self) -> Result<Option<StoredAccount>, AcmeError> {
        let path = self.account_path();
        // Whatever prevents reading also prevents writing, and then a new account is in memory.
        let Some(text) = self.read(&path) else { return Ok(None) };
        let account = serde_json::from_slice::<StoredAccount>(&text);
        let account = account.map_err(|why| AcmeError::file(&path, why.into()))?;
        Ok((account.directory == self.settings.directory).then_some(account))
    }

    /// Saves the account.
    ///
    /// # Errors
    /// It cannot be written as text.
    pub fn save_account(&self, account: &StoredAccount) -> Result<(), AcmeError> {
        let path = self.account_path();
        let text = serde_json::to_vec(account).map_err(|why| AcmeError::file(&path, why.into()))?;
        self.write(&path, &text);
        Ok(())
    }

    /// Removes an account that the authority does not know any more.
    pub fn forget_account(&self) {
        // If it stays, the next attempt fails in the same way and tries again.
        self.remove(&self.account_path());
    }

    fn attempt_path(&self) -> PathBuf {
        self.settings.folder.join("attempt.json")
    }

    /// The last attempt for these names at this authority that did not succeed, if there is one.
    pub fn attempt(&self) -> Option<Attempt> {
        // One that cannot be read only means that the next attempt comes earlier.
        let attempt: Attempt = serde_json::from_slice(&self.read(&self.attempt_path())?).ok()?;
        let settings = &self.settings;
        let same = attempt.directory == settings.directory && attempt.domains == settings.domains;
        same.then_some(attempt)
    }

    /// Saves an attempt before it is made. Returns whether it will be known after a restart.
    pub fn save_attempt(&self, failures: u32, now: Time) -> bool {
        let (directory, domains) = (self.settings.directory.clone(), self.settings.domains.clone());
        let attempt = Attempt { directory, domains, failures, second: now.second() };
        let path = self.attempt_path();
        // Text and numbers can always be written as JSON.
        self.write(&path, &serde_json::to_vec(&attempt).unwrap_or_default());
        self.unsaved.get(&path).is_none()
    }

    /// Forgets the last attempt, which has succeeded, once all that it brought is saved: until then
    /// a process that is started again and again must not order each time.
    pub fn forget_attempt(&self) {
        let path = self.attempt_path();
        if self.unsaved.paths().iter().all(|unsaved| *unsaved == path) {
            // If it stays, an order after a restart is late by minutes.
            self.remove(&path);
        }
    }
}

/// Reading and writing.
impl AcmeFolder {
    /// The content of a file; `None` if it cannot be read.
    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let from_disk = || {
            let mut text = Vec::new();
            File::open(path).ok()?.take(ACCOUNT_BYTES_MAX).read_to_end(&mut text).ok()?;
            Some(text)
        };
        self.unsaved.get(path).or_else(from_disk)
    }

    /// Writes a file, or keeps it in memory.
    fn write(&self, path: &Path, bytes: &[u8]) {
        self.changing(|| match self.replace(path, bytes) {
            Ok(()) => {
                self.unsaved.remove(path);
                None
            }
            Err(why) => {
                self.unsaved.put(path, bytes);
                Some(why)
            }
        });
    }

    /// Tries again to write all files that are only in memory. Returns whether there is none left.
    pub fn save_again(&self) -> bool {
        for path in self.unsaved.paths() {
            let Some(bytes) = self.unsaved.get(&path) else { continue };
            self.write(&path, &bytes);
        }
        self.unsaved.is_empty()
    }

    fn remove(&self, path: &Path) {
        self.changing(|| {
            self.unsaved.remove(path);
            let _ = std::fs::remove_file(path);
            None
        });
    }

    /// Makes a change, and logs when the first file is only in memory and when there is none left.
    fn changing(&self, change: impl FnOnce() -> Option<io::Error>) {
        let was_saved = self.unsaved.is_empty();
        let error = change().map(|error| error.to_string());
        let folder = self.settings.folder.display();
        match (was_saved, self.unsaved.is_empty()) {
            (true, false) => tracing::warn!(
                target: "evenkeel::acme", %folder, error,
                "the folder for certificates cannot be written; what belongs there is kept in \
                 memory, and a restart orders a certificate again"
            ),
            (false, true) => tracing::info!(
                target: "evenkeel::acme", %folder,
                "the folder for certificates can be written again; all is saved"
            ),
            _ => {}
        }
    }

    /// Replaces a file, which only this user can read.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let folder = &self.settings.folder;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Another process may write the same file; in containers, both may have the same id.
        let new = path.with_file_name(format!(".{name}.{:016x}.new", crate::chance()));
        let written = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, path)?;
            File::open(folder)?.sync_all()
        };
        // A full disk leaves a part of it.
        written().inspect_err(|_| drop(std::fs::remove_file(&new)))
    }
}

/// Why a start could not write to the folder; `None` if it could.
pub fn folder_problem(folder: &Path) -> Option<String> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    if existing.is_dir() && access(existing, Access::WRITE_OK).is_ok() {
        return None;
    }
    let shown = folder.display();
    let why = match existing == folder {
        true => format!("{shown} is not a folder that this user can write to"),
        false => format!("{shown} does not exist, and this user cannot make it; make it first"),
    };
    Some(format!("{why}: the certificate would only be in memory, and ordered at each start"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_config::settings::tls::AcmeChallenge;
    use std::os::unix::fs::PermissionsExt;

    fn settings(folder: &Path, domains: &[&str]) -> AcmeSettings {
        AcmeSettings {
            domains: domains.iter().map(ToString::to_string).collect(),
            challenge: AcmeChallenge::Http01,
            email: None,
            directory: "https://127.0.0.1:1/dir".to_owned(),
            ca: None,
            folder: folder.to_owned(),
        }
    }

    #[test]
    fn a_temporary_certificate_is_due_at_once_and_only_for_this_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = settings(&folder.path().join("a/b"), &["a.example", "b.example"]);
        let now = Time::ZERO.plus(evenkeel_core::units::Nanos::from_secs(1_800_000_000));
        let prepared = prepare(&settings, now).expect("prepared");
        let valid = prepared.validity().expect("usable").expect("for both names");
        assert!(crate::plan::renewal(valid, 0) <= now);
        assert_eq!(valid.until, now.second() + 8 * 86_400);
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&settings.certificate()), 0o600);
        assert_eq!(mode(&settings.folder), 0o700);
        // It stays, and is not taken for other names.
        let before = std::fs::read(settings.certificate()).expect("there");
        let more =
            AcmeSettings { domains: vec!["a.example".into(), "c.example".into()], ..settings };
        let prepared = prepare(&more, now).expect("prepared");
        assert_eq!(std::fs::read(more.certificate()).expect("there"), before);
        assert!(prepared.validity().expect("usable").is_none());
        // One that is broken is replaced.
        std::fs::write(more.certificate(), "broken").expect("written");
        let prepared = prepare(&more, now).expect("prepared");
        assert!(prepared.validity().expect("usable").is_some());
    }

    /// A certificate for these names that is valid until a second, and its key.
    fn issued(names: &[&str], until: i64) -> (String, String) {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_before = OffsetDateTime::UNIX_EPOCH;
        params.not_after = OffsetDateTime::from_unix_timestamp(until).expect("a time");
        let key = KeyPair::generate().expect("a key");
        (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
    }

    #[test]
    fn only_a_usable_certificate_replaces_the_previous_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = settings(folder.path(), &["a.example", "b.example"]);
        let kept = kept(&settings);
        let now = Time::ZERO.plus(evenkeel_core::units::Nanos::from_secs(1_800_000_000));
        let (good, key) = issued(&["a.example", "b.example"], 1_900_000_000);
        kept.save_certificate(&good, &key, now).expect("saved");
        let saved = std::fs::read(settings.certificate()).expect("there");
        let (other, other_key) = issued(&["a.example", "c.example"], 1_900_000_000);
        let (old, old_key) = issued(&["a.example", "b.example"], 1_799_999_999);
        let (again, _) = issued(&["a.example", "b.example"], 1_900_000_000);
        for (chain, key, why) in [
            ("", &key, "no certificate"),
            ("\0\u{1}garbage", &key, "no certificate"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &key, ""),
            (&other, &other_key, "not for all of `domains`"),
            (&old, &old_key, "valid until"),
            (&again, &key, "does not belong"),
            (&good.repeat(2_000), &key, "too many"),
        ] {
            let refused = kept.save_certificate(chain, key, now).expect_err(why).to_string();
            assert!(refused.contains(why), "{refused}");
            assert_eq!(std::fs::read(settings.certificate()).expect("there"), saved, "{why}");
        }
        let left = std::fs::read_dir(folder.path()).expect("there").count();
        assert_eq!(left, 1, "no other file stays");
    }

    fn kept(settings: &AcmeSettings) -> AcmeFolder {
        AcmeFolder { settings: settings.clone(), unsaved: Arc::default() }
    }

    #[test]
    fn an_attempt_is_remembered_for_the_same_names_and_authority() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = settings(folder.path(), &["a.example"]);
        let folder = kept(&settings);
        assert!(folder.attempt().is_none());
        let now = Time::ZERO.plus(evenkeel_core::units::Nanos::from_secs(1_800_000_000));
        assert!(folder.save_attempt(3, now));
        let found = folder.attempt().expect("one");
        assert_eq!((found.failures, found.second), (3, 1_800_000_000));
        let corrected = AcmeSettings { domains: vec!["b.example".to_owned()], ..settings };
        assert!(kept(&corrected).attempt().is_none(), "the operator has changed the names");
        std::fs::write(folder.attempt_path(), "{").expect("written");
        assert!(folder.attempt().is_none());
        assert!(folder.save_attempt(1, now));
        folder.forget_attempt();
        assert!(folder.attempt().is_none());
    }

    #[test]
    fn folders_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(folder_problem(&folder.path().join("new/er")), None);
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("written");
        assert!(folder_problem(&file).expect("a file").contains("is not a folder"));
        assert!(folder_problem(&file.join("in")).expect("a file").contains("does not exist"));
    }

    #[test]
    fn what_cannot_be_written_is_kept_and_written_later() {
        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("acme");
        std::fs::write(&path, "in the way").expect("written");
        let settings = settings(&path, &["a.example"]);
        let now = Time::ZERO.plus(evenkeel_core::units::Nanos::from_secs(1_800_000_000));
        let folder = prepare(&settings, now).expect("prepared");
        assert!(folder.validity().expect("usable").is_some(), "the temporary one");
        assert!(folder.account().expect("no error").is_none());
        assert!(!folder.save_attempt(2, now));
        assert_eq!(folder.attempt().expect("one").failures, 2);
        let (good, key) = issued(&["a.example"], 1_900_000_000);
        folder.save_certificate(&good, &key, now).expect("usable");
        assert_eq!(folder.validity().expect("usable").expect("all names").until, 1_900_000_000);
        // The order counts as one that failed until its certificate is saved.
        folder.forget_attempt();
        assert!(folder.attempt().is_some() && !folder.save_again());
        std::fs::remove_file(&path).expect("removed");
        assert!(folder.save_again());
        assert_eq!(path.metadata().expect("made").permissions().mode() & 0o777, 0o700);
        let saved = std::fs::read_to_string(settings.certificate()).expect("there");
        assert_eq!(saved, good + &key);
        let again = prepare(&settings, now).expect("prepared");
        assert_eq!(again.attempt().expect("saved too").failures, 2);
        again.forget_attempt();
        assert!(folder.attempt().is_none() && folder.unsaved.is_empty());
    }
}
