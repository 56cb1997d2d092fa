//! The folder with the account and the certificate: files that only this user can read, replaced
//! as a whole.
//!
//! The certificate and its key are one file, so they always belong together. `tls` follows that
//! file as any other certificate.

use crate::AcmeError;
use evenkeel_config::settings::tls::AcmeSettings;
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

/// An account at an authority.
#[derive(Serialize, Deserialize)]
pub struct StoredAccount {
    /// The directory of the authority.
    pub directory: String,
    /// The address that the authority has.
    pub email: Option<String>,
    pub credentials: AccountCredentials,
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
    let files = evenkeel_config::source::files::WatchedFiles::new(vec![path]).read();
    let file = files.map_err(pem::TlsFileError::from)?;
    let file = file.first().ok_or(pem::TlsFileError::Missing)?;
    let identity = pem::identity(file, file)?;
    let covers = settings.domains.iter().all(|domain| identity.is_for(domain));
    Ok(covers.then_some(identity.validity))
}

/// Saves an issued certificate with its key.
///
/// # Errors
/// The file cannot be written.
pub fn save_certificate(settings: &AcmeSettings, chain: &str, key: &str) -> Result<(), AcmeError> {
    let line = if chain.ends_with('\n') { "" } else { "\n" };
    write(&settings.certificate(), format!("{chain}{line}{key}").as_bytes())
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
    let new = path.with_file_name(format!(".{name}.new"));
    let written = || -> io::Result<()> {
        // Its mode is set only when it is made.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    written().map_err(|why| AcmeError::file(path, why))
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
