//! A certificate authority for tests, and the certificates that it signs, as files.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// The authority of a test, and a folder for the certificates that it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

/// Options of a certificate.
#[derive(Default)]
pub struct Wish {
    /// Its DNS names; `peer.example` if there are none.
    pub names: Vec<&'static str>,
    /// Whether it may only be used by servers.
    pub server_only: bool,
    /// The last year of its validity.
    pub last_year: Option<i32>,
}

impl Authority {
    /// Creates an authority with its certificate in `ca.pem`.
    #[must_use]
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().expect("a key");
        let folder = tempfile::tempdir().expect("a folder");
        let ca = params.self_signed(&key).expect("a certificate");
        fs::write(folder.path().join("ca.pem"), ca.pem()).expect("written");
        Authority { issuer: Issuer::new(params, key), folder }
    }

    #[must_use]
    /// Path of a file in the authority's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[must_use]
    /// Path of the authority's own certificate.
    pub fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Issues a certificate and writes `name.crt` and `name.key`.
    pub fn sign(&self, name: &str, wish: &Wish) -> [PathBuf; 2] {
        let names: Vec<String> = match wish.names.as_slice() {
            [] => vec!["peer.example".to_owned()],
            names => names.iter().map(ToString::to_string).collect(),
        };
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = match wish.server_only {
            true => vec![ExtendedKeyUsagePurpose::ServerAuth],
            false => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
        };
        if let Some(year) = wish.last_year {
            params.not_after = date_time_ymd(year, 12, 31);
        }
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        let [cert_path, key_path] =
            [format!("{name}.crt"), format!("{name}.key")].map(|n| self.path(&n));
        fs::write(&cert_path, cert.pem()).expect("written");
        fs::write(&key_path, key.serialize_pem()).expect("written");
        [cert_path, key_path]
    }

    /// Paths of certificate, key and authority of a peer.
    pub fn peer(&self, name: &str) -> Vec<PathBuf> {
        let [cert, key] = self.sign(name, &Wish::default());
        vec![cert, key, self.ca()]
    }
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}
