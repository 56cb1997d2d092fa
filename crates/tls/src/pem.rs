//! Reads certificates, keys and authorities from PEM files, and describes their faults.
//!
//! Every fault names the file, what is expected in it and, where it helps, the command that fixes
//! it. The validity of a certificate is taken from the library that verifies it, so certificates
//! are not parsed twice.

use evenkeel_config::source::files::{FileReadError, WatchedFile};
use rustls::client::verify_server_cert_signed_by_trust_anchor as signed_for_servers;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, RootCertStore};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Maximum number of certificates in one file. All public authorities together have some 150.
const CERTIFICATES_MAX: usize = 1_000;

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// A file cannot be read.
    #[error(transparent)]
    Unread(#[from] FileReadError),
    /// Fewer files were given than are needed.
    #[error("a certificate and its key are needed")]
    Missing,
    /// A file is not valid PEM.
    #[error("{path} is not a PEM file: {why}")]
    NotPem {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// The file contains no certificate.
    #[error("{path} contains no certificate: it needs a block BEGIN CERTIFICATE{hint}")]
    NoCertificate {
        /// Path of the file.
        path: PathBuf,
        /// The likely cause, or empty.
        hint: &'static str,
    },
    /// The file contains more than `CERTIFICATES_MAX` certificates.
    #[error("{0} contains more than {CERTIFICATES_MAX} certificates")]
    TooMany(PathBuf),
    /// A certificate is invalid or of an unsupported kind.
    #[error("certificate {number} in {path} cannot be used: {why}")]
    Certificate {
        /// Path of the file.
        path: PathBuf,
        /// Number of the certificate in the file, from one.
        number: usize,
        /// Description of the error.
        why: String,
    },
    /// The file contains no private key.
    #[error("{path} contains no private key: it needs a block BEGIN PRIVATE KEY{hint}")]
    NoKey {
        /// Path of the file.
        path: PathBuf,
        /// The likely cause, or empty.
        hint: &'static str,
    },
    /// The key is encrypted with a password.
    #[error("the key in {path} is encrypted; to remove the password: openssl pkey -in {path}")]
    Encrypted {
        /// Path of the file.
        path: PathBuf,
    },
    /// The key is of an unsupported kind.
    #[error("the key in {path} cannot be used: {why}; RSA, ECDSA and Ed25519 keys are supported")]
    Key {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// Certificate and key do not belong together.
    #[error("the key in {key} does not belong to the first certificate in {cert}")]
    Mismatch {
        /// Path of the certificate.
        cert: PathBuf,
        /// Path of the key.
        key: PathBuf,
    },
    /// The authorities cannot be used.
    #[error("the certificate authorities in {path} cannot be used: {why}")]
    Authority {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// Peers would not accept the certificate.
    #[error("peers would refuse the certificate in {cert} with the authorities in {ca}: {why}")]
    Unbelieved {
        /// Path of the certificate.
        cert: PathBuf,
        /// Path of the authorities.
        ca: PathBuf,
        /// Description of the error.
        why: String,
    },
    /// No authorities are configured, and the system has none.
    #[error("this system has no CA certificates: install them, or name a file as `ca`")]
    NoAuthorities,
    /// The name cannot be part of a certificate.
    #[error("`{0}` is not a DNS name that a certificate can contain")]
    Name(String),
    /// The certificate has expired. Only a renewal is refused for that: see `reload`.
    #[error("the certificate in {path} has expired: it was valid until {until}")]
    Expired {
        /// Path of the certificate.
        path: PathBuf,
        /// The date of expiry.
        until: String,
    },
    /// The TLS library refuses the configuration.
    #[error("TLS: {0}")]
    Library(Error),
}

/// Validity of a certificate, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateValidity {
    /// The first second at which it is valid.
    pub from: u64,
    /// The last second at which it is valid.
    pub until: u64,
}

impl CertificateValidity {
    /// The validity of something that never expires.
    pub const ALWAYS: CertificateValidity = CertificateValidity { from: 0, until: u64::MAX };

    /// The time in which both are valid.
    #[must_use]
    pub fn both(self, other: CertificateValidity) -> CertificateValidity {
        CertificateValidity { from: self.from.max(other.from), until: self.until.min(other.until) }
    }
}

/// A certificate with its key.
#[derive(Debug)]
pub struct TlsIdentity {
    /// The certificate chain and the private key.
    pub key: CertifiedKey,
    /// Validity of the first certificate of the chain.
    pub validity: CertificateValidity,
}

impl TlsIdentity {
    /// Whether the first certificate is valid for a DNS name.
    #[must_use]
    pub fn is_for(&self, name: &str) -> bool {
        let name = rustls::pki_types::ServerName::try_from(name.to_owned());
        name.is_ok_and(|name| super::names::is_for(&self.key, &name))
    }
}

/// Formats a time for messages.
#[must_use]
pub fn date(second: u64) -> String {
    // Certificates without expiry contain the year 9999.
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second.min(253_402_300_799)))
}

/// Reads a certificate and its key.
///
/// # Errors
/// [`TlsFileError`] if a file is invalid, or if the two do not belong together.
pub fn identity(cert: &WatchedFile, key: &WatchedFile) -> Result<TlsIdentity, TlsFileError> {
    let chain = certificates(cert)?;
    let private = private_key(key)?;
    let validity = validity(cert, &chain)?;
    let provider = crate::provider::provider();
    let unusable =
        |error: Error| TlsFileError::Key { path: key.path.clone(), why: error.to_string() };
    let private = provider.key_provider.load_private_key(private).map_err(unusable)?;
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Err(Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(TlsFileError::Mismatch { cert: cert.path.clone(), key: key.path.clone() })
        }
        _ => Ok(TlsIdentity { key: certified, validity }),
    }
}

/// Reads the trusted authorities.
///
/// # Errors
/// [`TlsFileError`] if the file contains no certificate, or an invalid one.
pub fn authorities(ca: &WatchedFile) -> Result<RootCertStore, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates(ca)?.into_iter().enumerate() {
        roots.add(certificate).map_err(|error| unusable(ca, index, &error))?;
    }
    Ok(roots)
}

/// Checks whether peers that trust `ca` would accept this certificate, as a server's and as a
/// client's. Its validity in time is not checked, because that can change.
///
/// # Errors
/// [`TlsFileError::Unbelieved`] if they would not; other faults if a certificate is invalid.
pub fn usable_by_peers(
    identity: &TlsIdentity,
    cert: &WatchedFile,
    ca: &WatchedFile,
) -> Result<(), TlsFileError> {
    let provider = crate::provider::provider();
    let algorithms = provider.signature_verification_algorithms.all;
    let unbelieved = |why: String| TlsFileError::Unbelieved {
        cert: cert.path.clone(),
        ca: ca.path.clone(),
        why,
    };
    let [end, between @ ..] = identity.key.cert.as_slice() else {
        return Err(TlsFileError::Missing);
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(identity.validity.from));
    let roots = Arc::new(authorities(ca)?);
    let parsed = ParsedCertificate::try_from(end).map_err(|error| unusable(cert, 0, &error))?;
    signed_for_servers(&parsed, &roots, between, now, algorithms)
        .map_err(|error| unbelieved(format!("as a server's, {error}")))?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
    let clients = clients.map_err(|error| unbelieved(error.to_string()))?;
    let verified = clients.verify_client_cert(end, between, now);
    verified.map(|_| ()).map_err(|error| unbelieved(format!("as a client's, {error}")))
}

fn certificates(file: &WatchedFile) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&file.bytes) {
        chain.push(certificate.map_err(|error| not_pem(file, &error))?);
        if chain.len() > CERTIFICATES_MAX {
            return Err(TlsFileError::TooMany(file.path.clone()));
        }
    }
    if chain.is_empty() {
        let is_key = PrivateKeyDer::from_pem_slice(&file.bytes).is_ok();
        let hint = if is_key { "; it contains a private key: are the two swapped?" } else { "" };
        return Err(TlsFileError::NoCertificate { path: file.path.clone(), hint });
    }
    Ok(chain)
}

fn private_key(file: &WatchedFile) -> Result<PrivateKeyDer<'static>, TlsFileError> {
    use rustls::pki_types::pem::Error as PemError;
    let path = || file.path.clone();
    match PrivateKeyDer::from_pem_slice(&file.bytes) {
        Ok(key) => Ok(key),
        Err(PemError::NoItemsFound) if is_encrypted(&file.bytes) => {
            Err(TlsFileError::Encrypted { path: path() })
        }
        Err(PemError::NoItemsFound) => {
            let mut blocks = <(SectionKind, Vec<u8>)>::pem_slice_iter(&file.bytes);
            let is_certificate =
                blocks.any(|block| block.is_ok_and(|(kind, _)| kind == SectionKind::Certificate));
            let hint = "; it contains a certificate: are the two swapped?";
            Err(TlsFileError::NoKey { path: path(), hint: if is_certificate { hint } else { "" } })
        }
        // Older tools encrypt keys inside the block, with headers that name the encryption.
        Err(_) if is_encrypted(&file.bytes) => Err(TlsFileError::Encrypted { path: path() }),
        Err(error) => Err(not_pem(file, &error)),
    }
}

fn is_encrypted(bytes: &[u8]) -> bool {
    let has = |word: &[u8]| memchr::memmem::find(bytes, word).is_some();
    has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED")
}

fn not_pem(file: &WatchedFile, error: &rustls::pki_types::pem::Error) -> TlsFileError {
    use rustls::pki_types::pem::Error as PemError;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().escape_debug().to_string();
    let why = match error {
        PemError::MissingSectionEnd { end_marker } => {
            format!("the line -----END {}----- is missing; is it complete?", text(end_marker))
        }
        PemError::IllegalSectionStart { line } => format!("`{}` begins no block", text(line)),
        other => other.to_string(),
    };
    TlsFileError::NotPem { path: file.path.clone(), why }
}

fn unusable(file: &WatchedFile, index: usize, error: &Error) -> TlsFileError {
    TlsFileError::Certificate { path: file.path.clone(), number: index + 1, why: error.to_string() }
}

/// Finds the validity of a certificate: the library names its ends when it verifies the certificate
/// at a time far in the past and one far in the future.
fn validity(
    file: &WatchedFile,
    chain: &[CertificateDer<'static>],
) -> Result<CertificateValidity, TlsFileError> {
    let refused = |error: &Error| unusable(file, 0, error);
    let [end, ..] = chain else { return Err(TlsFileError::Missing) };
    let end = ParsedCertificate::try_from(end).map_err(|error| refused(&error))?;
    let provider = crate::provider::provider();
    let at = |second| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(second));
        let algorithms = provider.signature_verification_algorithms.all;
        signed_for_servers(&end, &RootCertStore::empty(), &[], time, algorithms)
    };
    let mut validity = CertificateValidity::ALWAYS;
    match at(0) {
        Err(Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before, ..
        })) => validity.from = not_before.as_secs(),
        Err(error @ Error::InvalidCertificate(CertificateError::BadEncoding)) => {
            return Err(refused(&error));
        }
        _ => {}
    }
    if let Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) =
        at(u64::MAX)
    {
        validity.until = not_after.as_secs();
    }
    Ok(validity)
}
