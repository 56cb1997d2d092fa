//! Certificates, keys and authorities out of files in PEM, and what can be wrong with them.
//!
//! Every fault names the file, what was expected there and, where it helps, the command that mends
//! it. Of a certificate's time the ends are asked of the library that will judge it, so nothing
//! is parsed a second time.

use crate::config::source::files::{File, Unread};
use rustls::client::verify_server_cert_signed_by_trust_anchor as signed_for_servers;
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error, RootCertStore};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// The most certificates of one file: those of all public authorities are some 150.
const CERTIFICATES_MAX: usize = 1_000;

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// One cannot be read.
    #[error(transparent)]
    Unread(#[from] Unread),
    /// Fewer were named than are needed.
    #[error("a certificate and its key are needed")]
    Missing,
    /// One is not written as PEM is.
    #[error("{path} is no PEM file: {why}")]
    NotPem {
        /// Which.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// There is no certificate in it.
    #[error("{path} holds no certificate: it needs a block BEGIN CERTIFICATE{hint}")]
    NoCertificate {
        /// Which.
        path: PathBuf,
        /// What may have happened.
        hint: &'static str,
    },
    /// There are more certificates in it than can be meant.
    #[error("{0} holds more than {CERTIFICATES_MAX} certificates")]
    TooMany(PathBuf),
    /// What is in it is no certificate, or one of a kind that cannot be used.
    #[error("certificate {number} in {path} cannot be used: {why}")]
    Certificate {
        /// Which file.
        path: PathBuf,
        /// Which of its certificates, from one.
        number: usize,
        /// Why not.
        why: String,
    },
    /// There is no key in it.
    #[error("{path} holds no private key: it needs a block BEGIN PRIVATE KEY{hint}")]
    NoKey {
        /// Which.
        path: PathBuf,
        /// What may have happened.
        hint: &'static str,
    },
    /// The key in it has a password, and nobody is there to ask.
    #[error("the key in {path} is encrypted; without a password: openssl pkey -in {path}")]
    Encrypted {
        /// Which.
        path: PathBuf,
    },
    /// The key is of a kind that cannot be used.
    #[error("the key in {path} cannot be used: {why}; RSA, ECDSA and Ed25519 can")]
    Key {
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// They do not belong together.
    #[error("the key in {key} is not that of the first certificate in {cert}")]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's.
        key: PathBuf,
    },
    /// The authorities cannot be used.
    #[error("the authorities in {path} cannot be used: {why}")]
    Authority {
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Peers would not believe the certificate.
    #[error("peers would not believe the certificate in {cert} by the authorities in {ca}: {why}")]
    Unbelieved {
        /// The certificate's file.
        cert: PathBuf,
        /// The authorities'.
        ca: PathBuf,
        /// Why not.
        why: String,
    },
    /// The system has none, and none were named.
    #[error("this system has no certificates of authorities: install them, or name a file as `ca`")]
    NoAuthorities,
    /// It cannot be in a certificate.
    #[error("`{0}` is no DNS name that a certificate could be for")]
    Name(String),
    /// Its time is over. Only a renewal is refused for that: see `live`.
    #[error("the certificate in {path} has expired: it was valid until {until}")]
    Expired {
        /// Which.
        path: PathBuf,
        /// When that was.
        until: String,
    },
    /// The library refuses it as a whole.
    #[error("TLS: {0}")]
    Library(Error),
}

/// From when until when a certificate is valid, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub from: u64,
    /// The last.
    pub until: u64,
}

impl Validity {
    /// For what never expires.
    pub const ALWAYS: Validity = Validity { from: 0, until: u64::MAX };

    /// When both are valid.
    #[must_use]
    pub fn both(self, other: Validity) -> Validity {
        Validity { from: self.from.max(other.from), until: self.until.min(other.until) }
    }
}

/// A certificate that has its key.
#[derive(Debug)]
pub struct Identity {
    /// Both.
    pub key: CertifiedKey,
    /// When it is valid.
    pub validity: Validity,
}

/// A moment, as people read it.
#[must_use]
pub fn date(second: u64) -> String {
    // Year 9999 is what certificates say that never expire.
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second.min(253_402_300_799)))
}

/// A certificate and its key.
///
/// # Errors
/// [`Fault`]
pub fn identity(cert: &File, key: &File) -> Result<Identity, Fault> {
    let chain = certificates(cert)?;
    let private = private_key(key)?;
    let validity = validity(cert, &chain)?;
    let provider = super::provider();
    let unusable = |error: Error| Fault::Key { path: key.path.clone(), why: error.to_string() };
    let private = provider.key_provider.load_private_key(private).map_err(unusable)?;
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        Err(Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(Fault::Mismatch { cert: cert.path.clone(), key: key.path.clone() })
        }
        _ => Ok(Identity { key: certified, validity }),
    }
}

/// Everybody whose signatures are believed.
///
/// # Errors
/// [`Fault`]
pub fn authorities(ca: &File) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates(ca)?.into_iter().enumerate() {
        roots.add(certificate).map_err(|error| unusable(ca, index, &error))?;
    }
    Ok(roots)
}

/// Whether peers that believe `ca` would believe us, both when we are asked and when we ask. Its
/// time is no matter here: that may come, or be over.
///
/// # Errors
/// [`Fault::Unbelieved`]
pub fn usable_by_peers(identity: &Identity, cert: &File, ca: &File) -> Result<(), Fault> {
    let provider = super::provider();
    let algorithms = provider.signature_verification_algorithms.all;
    let unbelieved =
        |why: String| Fault::Unbelieved { cert: cert.path.clone(), ca: ca.path.clone(), why };
    let [end, between @ ..] = identity.key.cert.as_slice() else { return Err(Fault::Missing) };
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

fn certificates(file: &File) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&file.bytes) {
        chain.push(certificate.map_err(|error| not_pem(file, &error))?);
        if chain.len() > CERTIFICATES_MAX {
            return Err(Fault::TooMany(file.path.clone()));
        }
    }
    if chain.is_empty() {
        let is_key = PrivateKeyDer::from_pem_slice(&file.bytes).is_ok();
        let hint = if is_key { "; it holds a private key: are the two swapped?" } else { "" };
        return Err(Fault::NoCertificate { path: file.path.clone(), hint });
    }
    Ok(chain)
}

fn private_key(file: &File) -> Result<PrivateKeyDer<'static>, Fault> {
    use rustls::pki_types::pem::Error as PemError;
    let path = || file.path.clone();
    match PrivateKeyDer::from_pem_slice(&file.bytes) {
        Ok(key) => Ok(key),
        Err(PemError::NoItemsFound) if is_encrypted(&file.bytes) => {
            Err(Fault::Encrypted { path: path() })
        }
        Err(PemError::NoItemsFound) => {
            let mut blocks = <(SectionKind, Vec<u8>)>::pem_slice_iter(&file.bytes);
            let is_certificate =
                blocks.any(|block| block.is_ok_and(|(kind, _)| kind == SectionKind::Certificate));
            let hint = "; it holds a certificate: are the two swapped?";
            Err(Fault::NoKey { path: path(), hint: if is_certificate { hint } else { "" } })
        }
        // Keys of older tools carry headers in the block, and those are of a password.
        Err(_) if is_encrypted(&file.bytes) => Err(Fault::Encrypted { path: path() }),
        Err(error) => Err(not_pem(file, &error)),
    }
}

fn is_encrypted(bytes: &[u8]) -> bool {
    let has = |word: &[u8]| memchr::memmem::find(bytes, word).is_some();
    has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED")
}

fn not_pem(file: &File, error: &rustls::pki_types::pem::Error) -> Fault {
    use rustls::pki_types::pem::Error as PemError;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().escape_debug().to_string();
    let why = match error {
        PemError::MissingSectionEnd { end_marker } => {
            format!("the line -----END {}----- is missing; is it complete?", text(end_marker))
        }
        PemError::IllegalSectionStart { line } => format!("`{}` begins no block", text(line)),
        other => other.to_string(),
    };
    Fault::NotPem { path: file.path.clone(), why }
}

fn unusable(file: &File, index: usize, error: &Error) -> Fault {
    Fault::Certificate { path: file.path.clone(), number: index + 1, why: error.to_string() }
}

/// Asked about a time long before and one long after, the library names both ends.
fn validity(file: &File, chain: &[CertificateDer<'static>]) -> Result<Validity, Fault> {
    let refused = |error: &Error| unusable(file, 0, error);
    let [end, ..] = chain else { return Err(Fault::Missing) };
    let end = ParsedCertificate::try_from(end).map_err(|error| refused(&error))?;
    let provider = super::provider();
    let at = |second| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(second));
        let algorithms = provider.signature_verification_algorithms.all;
        signed_for_servers(&end, &RootCertStore::empty(), &[], time, algorithms)
    };
    let mut validity = Validity::ALWAYS;
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
