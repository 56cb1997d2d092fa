//! The folder with the account and the certificate: files that only this user can read, replaced
//! as a whole.
//!
//! The certificate and its key are one file, so they always belong together. `tls` follows that
//! file as any other certificate.

use crate::AcmeError;
use evenkeel_config::settings::tls::AcmeSettings;
use evenkeel_config::source::files::{WatchedFile, WatchedFiles};
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

/// Makes the folder, and a self-signed certificate if there is none that can be used.
///
/// # Errors
/// The file or folder that cannot be written.
pub fn prepare(settings: &AcmeSettings, now: Time) -> Result<(), AcmeError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(&settings.folder);
    made.map_err(|why| AcmeError::file(&settings.folder, why))?;
    let path = settings.certificate();
    match path.exists().then(|| validity(settings)) {
        Some(Ok(Some(_))) => return Ok(()),
        Some(Err(error)) => tracing::error!(
            target: "evenkeel::acme", %error,
            "certificate cannot be used; another one is requested"
        ),
        // It is for other names, but better than a new one that no authority has signed.
        Some(Ok(None)) => return Ok(()),
        None => {}
    }
    let cert = path.display();
    tracing::warn!(
        target: "evenkeel::acme", %cert,
        "no certificate yet; a self-signed one is shown until the authority has issued one"
    );
    write(&path, temporary(settings, now)?.as_bytes())
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

/// The validity of the certificate. `None` if it is not for all names.
///
/// # Errors
/// It cannot be read or used.
pub fn validity(settings: &AcmeSettings) -> Result<Option<CertificateValidity>, AcmeError> {
    let path = settings.certificate();
    let files = WatchedFiles::new(vec![path]).read().map_err(pem::TlsFileError::from)?;
    let file = files.first().ok_or(pem::TlsFileError::Missing)?;
    examined(settings, file, file)
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

/// Saves an issued certificate with its key, if it is better than the previous one: an authority
/// may be broken.
///
/// # Errors
/// It cannot be used, is not for all names or has expired; or the file cannot be written.
pub fn save_certificate(
    settings: &AcmeSettings,
    chain: &str,
    key: &str,
    now: Time,
) -> Result<(), AcmeError> {
    let unusable = |why: String| AcmeError::Unusable { why };
    if chain.len() > CHAIN_BYTES_MAX {
        return Err(unusable(format!("it has {} bytes, which are too many", chain.len())));
    }
    let part = |name: &str, text: &str| WatchedFile {
        path: PathBuf::from(name),
        bytes: text.as_bytes().to_vec(),
        modified: 0,
    };
    let found = examined(settings, &part("the answer", chain), &part("the request", key));
    match found.map_err(|error| unusable(error.to_string()))? {
        None => Err(unusable("it is not for all of `domains`".to_owned())),
        Some(valid) if valid.until <= now.second() => {
            Err(unusable(format!("it was valid until {}", pem::date(valid.until))))
        }
        Some(_) => {
            let line = if chain.ends_with('\n') { "" } else { "\n" };
            write(&settings.certificate(), format!("{chain}{line}{key}").as_bytes())
        }
    }
}

fn account_path(settings: &AcmeSettings) -> PathBuf {
    settings.folder.join("account.json")
}

/// The account at the authority of the settings, if there is one.
///
/// # Errors
/// The file exists and cannot be read.
pub fn account(settings: &AcmeSettings) -> Result<Option<StoredAccount>, AcmeError> {
    let path = account_path(settings);
    let read = || -> io::Result<StoredAccount> {
        let mut text = String::new();
        File::open(&path)?.take(ACCOUNT_BYTES_MAX).read_to_string(&mut text)?;
        serde_json::from_str(&text).map_err(io::Error::from)
    };
    match read() {
        Ok(account) => Ok((account.directory == settings.directory).then_some(account)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(AcmeError::file(&path, why)),
    }
}

/// Saves the account.
///
/// # Errors
/// The file cannot be written.
pub fn save_account(settings: &AcmeSettings, account: &StoredAccount) -> Result<(), AcmeError> {
    let path = account_path(settings);
    let text = serde_json::to_vec(account).map_err(|why| AcmeError::file(&path, why.into()))?;
    write(&path, &text)
}

fn attempt_path(settings: &AcmeSettings) -> PathBuf {
    settings.folder.join("attempt.json")
}

/// The last attempt for these names at this authority that did not succeed, if there is one.
pub fn attempt(settings: &AcmeSettings) -> Option<Attempt> {
    let mut text = String::new();
    let file = File::open(attempt_path(settings)).ok()?;
    file.take(ACCOUNT_BYTES_MAX).read_to_string(&mut text).ok()?;
    // One that cannot be read only means that the next attempt comes earlier.
    let attempt: Attempt = serde_json::from_str(&text).ok()?;
    let same = attempt.directory == settings.directory && attempt.domains == settings.domains;
    same.then_some(attempt)
}

/// Saves an attempt before it is made, which also shows that the folder can be written.
///
/// # Errors
/// The file cannot be written.
pub fn save_attempt(settings: &AcmeSettings, failures: u32, now: Time) -> Result<(), AcmeError> {
    let (directory, domains) = (settings.directory.clone(), settings.domains.clone());
    let attempt = Attempt { directory, domains, failures, second: now.second() };
    let path = attempt_path(settings);
    let text = serde_json::to_vec(&attempt).map_err(|why| AcmeError::file(&path, why.into()))?;
    write(&path, &text)
}

/// Forgets the last attempt: it has succeeded.
pub fn forget_attempt(settings: &AcmeSettings) {
    // If it stays, an order after a restart is late by minutes.
    let _ = std::fs::remove_file(attempt_path(settings));
}

/// Removes an account that the authority does not know any more.
pub fn forget_account(settings: &AcmeSettings) {
    // If it stays, the next attempt fails in the same way and tries again.
    let _ = std::fs::remove_file(account_path(settings));
}

/// Why the folder could not be used by a start; `None` if it could.
pub fn folder_problem(folder: &Path) -> Option<String> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    let writable = existing.is_dir() && access(existing, Access::WRITE_OK).is_ok();
    let shown = folder.display();
    match (writable, existing == folder) {
        (true, _) => None,
        (false, true) => Some(format!("{shown} is not a folder that this user can write to")),
        (false, false) => {
            Some(format!("{shown} does not exist, and this user cannot make it; make it first"))
        }
    }
}

/// Replaces a file, which only this user can read.
fn write(path: &Path, bytes: &[u8]) -> Result<(), AcmeError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Another process may write the same file; in containers, both may have the same id.
    let new = path.with_file_name(format!(".{name}.{:016x}.new", crate::chance()));
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    written().map_err(|why| {
        // A full disk leaves a part of it.
        let _ = std::fs::remove_file(&new);
        AcmeError::file(path, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn settings(folder: &Path, domains: &[&str]) -> AcmeSettings {
        AcmeSettings {
            domains: domains.iter().map(ToString::to_string).collect(),
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
        prepare(&settings, now).expect("prepared");
        let valid = validity(&settings).expect("usable").expect("for both names");
        assert!(crate::plan::renewal(valid, 0) <= now);
        assert_eq!(valid.until, now.second() + 8 * 86_400);
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&settings.certificate()), 0o600);
        assert_eq!(mode(&settings.folder), 0o700);
        // It stays, and is not taken for other names.
        let before = std::fs::read(settings.certificate()).expect("there");
        let more =
            AcmeSettings { domains: vec!["a.example".into(), "c.example".into()], ..settings };
        prepare(&more, now).expect("prepared");
        assert_eq!(std::fs::read(more.certificate()).expect("there"), before);
        assert!(validity(&more).expect("usable").is_none());
        // One that is broken is replaced.
        std::fs::write(more.certificate(), "broken").expect("written");
        prepare(&more, now).expect("prepared");
        assert!(validity(&more).expect("usable").is_some());
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
        let now = Time::ZERO.plus(evenkeel_core::units::Nanos::from_secs(1_800_000_000));
        let (good, key) = issued(&["a.example", "b.example"], 1_900_000_000);
        save_certificate(&settings, &good, &key, now).expect("saved");
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
            let refused = save_certificate(&settings, chain, key, now).expect_err(why).to_string();
            assert!(refused.contains(why), "{refused}");
            assert_eq!(std::fs::read(settings.certificate()).expect("there"), saved, "{why}");
        }
        let left = std::fs::read_dir(folder.path()).expect("there").count();
        assert_eq!(left, 1, "no other file stays");
    }

    #[test]
    fn an_attempt_is_remembered_for_the_same_names_and_authority() {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = settings(folder.path(), &["a.example"]);
        assert!(attempt(&settings).is_none());
        let now = Time::ZERO.plus(evenkeel_core::units::Nanos::from_secs(1_800_000_000));
        save_attempt(&settings, 3, now).expect("saved");
        let found = attempt(&settings).expect("one");
        assert_eq!((found.failures, found.second), (3, 1_800_000_000));
        let corrected = AcmeSettings { domains: vec!["b.example".to_owned()], ..settings.clone() };
        assert!(attempt(&corrected).is_none(), "the operator has changed the names");
        std::fs::write(attempt_path(&settings), "{").expect("written");
        assert!(attempt(&settings).is_none());
        save_attempt(&settings, 1, now).expect("saved");
        forget_attempt(&settings);
        assert!(attempt(&settings).is_none());
    }

    #[test]
    fn folders_that_cannot_be_used_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(folder_problem(&folder.path().join("new/er")), None);
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("written");
        assert!(folder_problem(&file).expect("a file").contains("is not a folder"));
        assert!(folder_problem(&file.join("in")).expect("a file").contains("does not exist"));
        let none = settings(&file, &["a.example"]);
        let error = prepare(&none, Time::ZERO).expect_err("a file").to_string();
        assert!(error.contains(&file.display().to_string()), "{error}");
    }
}
