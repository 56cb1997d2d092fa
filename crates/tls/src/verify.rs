//! Verifiers of peers: by name, by authority alone, by one key, or not at all.
//!
//! Signatures and chains are verified by the library; these types only choose what it verifies. The
//! derivation of a key from a secret is at the end.

use super::pem::TlsFileError;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SigningKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;

type Valid = Result<HandshakeSignatureValid, Error>;

/// Accepts clients that `any` accepts and that have a certificate for this name.
#[derive(Debug)]
pub struct NamedClientVerifier {
    /// The verifier of the certificate chain.
    pub any: Arc<dyn ClientCertVerifier>,
    /// The name that the certificate must be valid for.
    pub name: ServerName<'static>,
}

impl ClientCertVerifier for NamedClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.any.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.any.verify_client_cert(end, between, now)?;
        verify_server_name(&ParsedCertificate::try_from(end)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Valid {
        self.any.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Valid {
        self.any.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any.supported_verify_schemes()
    }
}

/// Accepts servers with a certificate of these authorities, regardless of its name: peers are found
/// by address, by a name that many share, or by discovery.
#[derive(Debug)]
pub struct AnyNameVerifier {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyNameVerifier {
    /// Accepts certificates that `roots` have signed.
    pub fn new(roots: RootCertStore, provider: Arc<CryptoProvider>) -> AnyNameVerifier {
        AnyNameVerifier { roots, algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for AnyNameVerifier {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let end = ParsedCertificate::try_from(end)?;
        let all = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&end, &self.roots, between, now, all)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Valid {
        verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Valid {
        verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Accepts every server that has the key of its certificate. The certificate itself is not
/// verified.
#[derive(Debug)]
pub struct AnyServerVerifier(WebPkiSupportedAlgorithms);

impl AnyServerVerifier {
    /// Uses the signature algorithms of `provider`.
    pub fn new(provider: Arc<CryptoProvider>) -> AnyServerVerifier {
        AnyServerVerifier(provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for AnyServerVerifier {
    fn verify_server_cert(
        &self,
        _end: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Valid {
        verify_tls12_signature(message, cert, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Valid {
        verify_tls13_signature(message, cert, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Accepts peers with one certain key, which is sent without a certificate (RFC 7250).
#[derive(Debug)]
pub struct SingleKeyVerifier {
    public: Vec<u8>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl SingleKeyVerifier {
    /// Accepts peers with `key`.
    pub fn new(key: &RawKey, provider: Arc<CryptoProvider>) -> SingleKeyVerifier {
        let algorithms = provider.signature_verification_algorithms;
        SingleKeyVerifier { public: key.public.as_ref().to_vec(), algorithms }
    }

    fn check_key(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        match shown.as_ref() == self.public && between.is_empty() {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_signature(&self, message: &[u8], signed: &DigitallySignedStruct) -> Valid {
        let public = SubjectPublicKeyInfoDer::from(self.public.as_slice());
        verify_tls13_signature_with_raw_key(message, &public, signed, &self.algorithms)
    }
}

/// Raw public keys are only supported with TLS 1.3 here.
fn too_old() -> Valid {
    Err(Error::General("peers use TLS 1.3".to_owned()))
}

impl ServerCertVerifier for SingleKeyVerifier {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_key(end, between).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Valid {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Valid {
        self.verify_signature(message, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for SingleKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_key(end, between).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Valid {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Valid {
        self.verify_signature(message, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A key pair without a certificate.
#[derive(Debug)]
pub struct RawKey {
    /// The private key, for signatures.
    pub key: Arc<dyn SigningKey>,
    public: SubjectPublicKeyInfoDer<'static>,
}

impl RawKey {
    /// The public key in the form in which TLS sends a certificate.
    pub fn as_certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from(self.public.as_ref().to_vec())
    }
}

/// Output length of the key derivation: an Ed25519 seed of 32 bytes.
struct SeedLength;

impl KeyType for SeedLength {
    fn len(&self) -> usize {
        32
    }
}

/// Derives the key of all peers with the same `secret` and `cluster`. The keys of two clusters with
/// the same secret are independent; neither cluster can find out that the other has the same
/// secret.
pub fn key_of(secret: &[u8], cluster: &str) -> Result<RawKey, TlsFileError> {
    let refused = |what: &str| TlsFileError::Library(Error::General(what.to_owned()));
    let unmade = |_| refused("no key can be derived from the secret");
    let mut seed = [0; 32];
    let info = [b"mesh ed25519 ".as_slice(), cluster.as_bytes()];
    let root = Salt::new(HKDF_SHA256, b"evenkeel peers").extract(secret);
    root.expand(&info, SeedLength).and_then(|key| key.fill(&mut seed)).map_err(unmade)?;
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed);
    let pair = pair.map_err(|_| refused("no key can be derived from the secret"))?;
    let pkcs8 = pair.to_pkcs8v1().map_err(unmade)?;
    let key =
        any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_ref())).map_err(TlsFileError::Library)?;
    let public = key.public_key().ok_or_else(|| refused("the key has no public half"))?;
    let public = SubjectPublicKeyInfoDer::from(public.as_ref().to_vec());
    Ok(RawKey { key, public })
}
