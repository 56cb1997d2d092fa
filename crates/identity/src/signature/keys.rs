//! The public keys of robots, from JSON Web Key Sets (RFC 7517, 8037).
//!
//! A key is found by its thumbprint (RFC 7638), which is computed here; what a file says in `kid`
//! is not believed. Keys of other types are skipped, since directories list keys for other uses as
//! well. A key that comes from the directory of a host counts only for signatures that name this
//! directory, as the draft demands: any host can list the keys of another.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, ParsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_config::settings::hosts::HostPattern;
use serde_json::Value;
use std::collections::HashMap;
use thiserror::Error;

/// Size of a key set. Published ones have some hundred bytes.
pub const KEY_SET_BYTES_MAX: usize = 65_536;
/// Keys of one set.
const KEYS_MAX: usize = 64;
/// Bytes of a public key.
const KEY_BYTES: usize = 32;
/// The thumbprint of the Ed25519 key in RFC 9421, B.1.4. Its private key is public.
const TEST_KEY: &str = "poqkLGiymh_W0uP6PZFw-dvez3QJT5SolqXBCW38r0U";

/// Why a key set cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KeyFault {
    /// It is not JSON, or larger than 64 KiB.
    #[error("not a JSON Web Key Set: {0}")]
    NoSet(String),
    /// There is no key for signatures with Ed25519 in it.
    #[error("no key with `kty` OKP and `crv` Ed25519 in `keys`")]
    NoKey,
    /// More keys than a robot has.
    #[error("more than 64 keys in `keys`")]
    TooMany,
    /// A key is damaged.
    #[error("key {0} of `keys`: `x` is not an Ed25519 public key in base64url")]
    BadKey(usize),
    /// The key of the examples.
    #[error("key {0} of `keys` is the test key of RFC 9421, whose private key is public")]
    TestKey(usize),
}

/// A public key of a robot.
#[derive(Clone, Debug)]
pub struct RobotKey {
    thumbprint: Box<str>,
    pub(super) key: ParsedPublicKey,
    /// When the key ends, in seconds of Unix time.
    pub(super) expires: Option<u64>,
}

/// A key with its owner.
#[derive(Clone, Debug)]
pub(super) struct OwnedKey {
    pub robot: u16,
    pub key: RobotKey,
    /// The host of the directory that lists the key; `None` for a key from a file.
    pub directory: Option<Box<str>>,
}

/// All keys of all robots, and the hosts that signatures count for.
#[derive(Clone, Debug, Default)]
pub struct RobotKeys {
    keys: HashMap<Box<str>, Vec<OwnedKey>>,
    hosts: Vec<HostPattern>,
}

impl RobotKey {
    /// A key from its 32 bytes. `None` if they are no key.
    #[must_use]
    pub fn new(public: &[u8]) -> Option<RobotKey> {
        let key =
            ParsedPublicKey::new(&ED25519, public).ok().filter(|_| public.len() == KEY_BYTES)?;
        let x = URL_SAFE_NO_PAD.encode(public);
        // RFC 8037, A.3: the required members in the order of their names, without spaces.
        let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
        let thumbprint = URL_SAFE_NO_PAD.encode(digest(&SHA256, members.as_bytes()));
        Some(RobotKey { thumbprint: thumbprint.into(), key, expires: None })
    }

    /// The thumbprint of the key, which is the `keyid` of its signatures.
    #[must_use]
    pub fn thumbprint(&self) -> &str {
        &self.thumbprint
    }

    /// Reads the Ed25519 keys of a key set.
    ///
    /// # Errors
    /// The text is no key set, or has no such key, too many, or a damaged one.
    pub fn read_set(text: &[u8]) -> Result<Vec<RobotKey>, KeyFault> {
        let keys = RobotKey::each(text)?.collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(KeyFault::NoKey) } else { Ok(keys) }
    }

    /// Reads the Ed25519 keys of a directory that its operator keeps: a damaged key is left out,
    /// and there may be none.
    ///
    /// # Errors
    /// The text is no key set, or has too many keys.
    pub fn read_directory(text: &[u8]) -> Result<Vec<RobotKey>, KeyFault> {
        Ok(RobotKey::each(text)?.filter_map(Result::ok).collect())
    }

    fn each(text: &[u8]) -> Result<impl Iterator<Item = Result<RobotKey, KeyFault>>, KeyFault> {
        if text.len() > KEY_SET_BYTES_MAX {
            return Err(KeyFault::NoSet("larger than 64 KiB".to_owned()));
        }
        let mut set: Value =
            serde_json::from_slice(text).map_err(|fault| KeyFault::NoSet(fault.to_string()))?;
        let list = match set.get_mut("keys").map(Value::take) {
            Some(Value::Array(list)) if list.len() > KEYS_MAX => return Err(KeyFault::TooMany),
            Some(Value::Array(list)) => list,
            _ => return Err(KeyFault::NoSet("no list `keys`".to_owned())),
        };
        let is = |entry: &Value, name: &str, value: &str| {
            entry.get(name).is_some_and(|found| found == value)
        };
        let signs = move |entry: &Value| is(entry, "kty", "OKP") && is(entry, "crv", "Ed25519");
        let signing = (1..).zip(list).filter(move |(_, entry)| signs(entry));
        Ok(signing.map(|(number, entry)| RobotKey::read(&entry, number)))
    }

    fn read(entry: &Value, number: usize) -> Result<RobotKey, KeyFault> {
        let x = entry.get("x").and_then(Value::as_str).unwrap_or_default();
        let public = URL_SAFE_NO_PAD.decode(x).ok();
        let key = public.and_then(|public| RobotKey::new(&public));
        let key = key.ok_or(KeyFault::BadKey(number))?;
        if key.thumbprint() == TEST_KEY {
            return Err(KeyFault::TestKey(number));
        }
        Ok(RobotKey { expires: entry.get("exp").and_then(Value::as_u64), ..key })
    }
}

impl RobotKeys {
    /// An empty set. Signatures count for requests to `hosts`; to any host if there are none, and
    /// then another site can pass on a request that a robot has sent to it.
    #[must_use]
    pub fn new(hosts: &[HostPattern]) -> RobotKeys {
        RobotKeys { keys: HashMap::new(), hosts: hosts.to_vec() }
    }

    /// Whether signatures count for requests to this host.
    pub(super) fn serves(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        self.hosts.is_empty() || self.hosts.iter().any(|pattern| pattern.matches(host))
    }

    /// Adds a key of the robot with this number. `directory` is the host of the directory that
    /// lists it; `None` for a key that the operator has pinned.
    pub fn add(&mut self, robot: u16, key: RobotKey, directory: Option<&str>) {
        let directory = directory.map(|host| host.to_ascii_lowercase().into());
        let owned = OwnedKey { robot, key, directory };
        self.keys.entry(owned.key.thumbprint.clone()).or_default().push(owned);
    }

    /// Whether no robot has a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.values().map(Vec::len).sum()
    }

    /// The key with this thumbprint: a pinned one, or one that the directory of `agent` lists.
    pub(super) fn find(&self, thumbprint: &str, agent: Option<&str>) -> Option<&OwnedKey> {
        let owners = self.keys.get(thumbprint)?;
        let listed = |owner: &&OwnedKey| match (&owner.directory, agent) {
            (Some(directory), Some(agent)) => directory.eq_ignore_ascii_case(agent),
            _ => false,
        };
        let pinned = |owner: &&OwnedKey| owner.directory.is_none();
        owners.iter().find(listed).or_else(|| owners.iter().find(pinned))
    }
}
