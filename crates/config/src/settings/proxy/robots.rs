//! The `proxy.robots` section: which robots there are, and how each proves that it is the one that
//! its `User-Agent` names.
//!
//! The files are read by `identity::robots`, which also follows their changes and decides what is
//! proven. The names of their hosts are looked up as those of `exempt` and `merge`.

use crate::keys::{ConfigKey, ListKey, SubsectionKey, section};
use crate::reader::SectionReader;
use crate::settings::hosts::{HostPattern, host_name};
use crate::values::{self, Read};
use std::fmt;
use std::path::PathBuf;

/// Maximum number of robots. What is known of a host is a bit for each.
pub const ROBOTS_MAX: usize = 64;
/// Maximum length of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256;
/// The part of a `User-Agent` that is compared, in bytes.
pub const AGENT_BYTES_MAX: usize = 512;

/// The robots, and the hosts that their signatures count for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RobotSettings {
    /// The robots, at most [`ROBOTS_MAX`].
    pub list: Vec<Robot>,
    /// The names of this site.
    pub signed_for: Vec<HostPattern>,
}

/// A robot, and how it proves that it is this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Robot {
    /// The name of the robot.
    pub name: Box<str>,
    /// What its `User-Agent` looks like.
    pub user_agent: Vec<AgentPattern>,
    /// The confirmed names of its hosts.
    pub host: Vec<HostPattern>,
    /// Files with its addresses.
    pub ip_file: Vec<PathBuf>,
    /// A file with its keys.
    pub keys: Option<PathBuf>,
    /// The host whose directory lists its keys, in lower case, with a port unless it is 443.
    pub directory: Option<Box<str>>,
}

impl RobotSettings {
    /// Whether any robot signs.
    #[must_use]
    pub fn sign(&self) -> bool {
        self.list.iter().any(|robot| robot.keys.is_some() || robot.directory.is_some())
    }

    /// The hosts of key directories.
    pub fn directories(&self) -> impl Iterator<Item = &str> {
        self.list.iter().filter_map(|robot| robot.directory.as_deref())
    }

    /// The files that are read: of each robot those with addresses, then the one with keys.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let of = |robot: &Robot| [&*robot.ip_file, robot.keys.as_slice()].concat();
        self.list.iter().flat_map(of).collect()
    }
}

/// A pattern of a `User-Agent`: `*` matches any run of characters. Case does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPattern {
    text: Box<str>,
    /// The text between two stars, if the pattern is no more than that. Most are.
    part: Option<Box<str>>,
}

/// The value of a `User-Agent` as patterns compare it: its first [`AGENT_BYTES_MAX`] bytes in lower
/// case, so the time is bounded.
pub struct AgentText(Vec<u8>);

impl AgentText {
    /// Makes the text of a value.
    #[must_use]
    pub fn new(agent: &[u8]) -> AgentText {
        AgentText(agent[..agent.len().min(AGENT_BYTES_MAX)].to_ascii_lowercase())
    }
}

impl AgentPattern {
    /// Parses a pattern of 1 to 256 bytes.
    #[must_use]
    pub fn parse(text: &str) -> Option<AgentPattern> {
        let fits = (1..=PATTERN_BYTES_MAX).contains(&text.len());
        let text: Box<str> = fits.then(|| text.to_ascii_lowercase().into())?;
        let part = text.strip_prefix('*').and_then(|rest| rest.strip_suffix('*'));
        let part = part.filter(|part| !part.contains('*')).map(Into::into);
        Some(AgentPattern { text, part })
    }

    /// Whether the whole value matches.
    #[must_use]
    pub fn matches(&self, agent: &AgentText) -> bool {
        match &self.part {
            Some(part) => memchr::memmem::find(&agent.0, part.as_bytes()).is_some(),
            None => glob(self.text.as_bytes(), &agent.0),
        }
    }
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Where the last `*` stands, and where the text begins that follows what it covers.
    let mut star = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == text[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((place, covered)) = star else { return false };
                star = Some((place, covered + 1));
                (at, from) = (place + 1, covered + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

impl fmt::Display for AgentPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

section! {
    /// The [robots](#proxyrobots) that have to prove who they are, at most 64: a list of sections.
    ROBOTS: SubsectionKey = SubsectionKey::list("robots", &TABLE);
    /// The host names of this site, such as `example.com` or `*.example.com`, for which signatures
    /// of [robots](#proxyrobots) count. A signature that was made for another site proves nothing
    /// here. Robots with `keys` or `directory` need it.
    SIGNED_FOR: ListKey<HostPattern> =
        ConfigKey::opaque("signed_for", host).list().example("example.com");
}

section! {
    TABLE = "proxy.robots";

    /// The name of the robot, unique in the list: the value of [`bot` and
    /// `impostor`](#facts-about-clients), and a label of metrics.
    NAME: ConfigKey<Box<str>> = ConfigKey::text("name", values::name)
        .range_note("1 to 64 letters, digits, `-`, `_`, `.`").required().example("googlebot");
    /// Patterns of the `User-Agent` by which the robot calls itself: `*` matches any run of
    /// characters, case does not matter. A request that matches and is not proven is an impostor. A
    /// request that does not match is this robot only if its signature proves it. Without patterns,
    /// an address or a name is proof for any `User-Agent`.
    USER_AGENT: ListKey<AgentPattern> = ConfigKey::opaque("user_agent", agent).list()
        .default_note("any").example("*Googlebot*");
    /// [Confirmed names](#clients-by-name) of its hosts: `*.example.com`, or a whole name.
    HOST: ListKey<HostPattern> =
        ConfigKey::opaque("host", host).list().example("*.googlebot.com");
    /// Files with the addresses of the robot, as JSON that its operator publishes or one network on
    /// each line. Files that change are read again without a restart.
    IP_FILE: ListKey<PathBuf> = ConfigKey::path("ip_file").list()
        .example("/etc/evenkeel/robots/googlebot.json");
    /// File with the public keys (Ed25519) of the robot, a JSON Web Key Set. Needs `signed_for`. A
    /// file that changes is read again without a restart.
    KEYS: ConfigKey<PathBuf> =
        ConfigKey::path("keys").example("/etc/evenkeel/robots/example.jwks.json");
    /// Host of the key directory of the robot, which publishes its keys at
    /// `https://HOST/.well-known/http-message-signatures-directory`; with a port unless it is 443.
    /// Its keys count for signatures that name it in `Signature-Agent`. Needs `signed_for`. It is
    /// fetched in the background, again when its cache time is over (10 min to 1 d; 1 h if it
    /// states none), and after a failure later, while the keys that are known stay in use.
    DIRECTORY: ConfigKey<Box<str>> = ConfigKey::text("directory", directory).example("chatgpt.com");
}

/// Reads `robots` and `signed_for`.
pub(super) fn read(proxy: &mut SectionReader<'_, '_>) -> RobotSettings {
    let settings = RobotSettings { list: list(proxy), signed_for: proxy.key(&SIGNED_FOR) };
    match (settings.sign(), settings.signed_for.is_empty()) {
        (true, true) => {
            let what = "robots with `keys` or `directory` need `signed_for`: the host names of \
                        this site, such as [example.com, www.example.com]; a signature made for \
                        another site would count here";
            proxy.fault("robots", what);
        }
        (false, false) => {
            let what = "is used only for robots with `keys` or `directory`; remove it";
            proxy.fault_of("signed_for", what);
        }
        _ => {}
    }
    settings
}

fn list(proxy: &mut SectionReader<'_, '_>) -> Vec<Robot> {
    let Some(nodes) = proxy.nodes_of(&ROBOTS) else { return Vec::new() };
    if nodes.len() > ROBOTS_MAX {
        proxy.fault("robots", format!("more than {ROBOTS_MAX} robots; remove some"));
    }
    let mut names: Vec<Box<str>> = Vec::new();
    let robots = proxy.sections(&ROBOTS, nodes, |section| {
        section.require(&["name"], |_| "a robot needs `name`".to_owned());
        let robot = Robot {
            name: section.key(&NAME).unwrap_or_default(),
            user_agent: section.key(&USER_AGENT),
            host: section.key(&HOST),
            ip_file: section.key(&IP_FILE),
            keys: section.key(&KEYS),
            directory: section.key(&DIRECTORY),
        };
        if names.contains(&robot.name) {
            section.fault("name", format!("two robots are named `{}`; rename one", robot.name));
        }
        names.push(robot.name.clone());
        let proofs = ["host", "ip_file", "keys", "directory"];
        if !proofs.iter().any(|key| section.has(key)) {
            section
                .fault("name", "a robot needs a proof: `host`, `ip_file`, `keys` or `directory`");
        }
        robot
    });
    robots.into_iter().take(ROBOTS_MAX).collect()
}

fn agent(text: &str) -> Read<AgentPattern> {
    let pattern = AgentPattern::parse(text);
    pattern.ok_or_else(|| format!("a pattern has 1 to {PATTERN_BYTES_MAX} bytes"))
}

fn host(text: &str) -> Read<HostPattern> {
    HostPattern::parse(text)
        .ok_or_else(|| "must be a host name, or `*.` and a domain: *.example.com".to_owned())
}

fn directory(text: &str) -> Read<Box<str>> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "443"));
    let fits = port.parse::<u16>().is_ok_and(|port| port > 0) && host_name(host).is_some();
    fits.then(|| text.to_ascii_lowercase().into())
        .ok_or_else(|| "must be a host name, such as chatgpt.com, without https://".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_value_in_any_case() {
        let matches = |pattern: &str, agent: &str| {
            let pattern = AgentPattern::parse(pattern).expect("a pattern");
            pattern.matches(&AgentText::new(agent.as_bytes()))
        };
        let google = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)";
        assert!(matches("*googlebot/2.*", google));
        assert!(matches("*", "") && matches("*", google) && matches("**t*", "curl/8 t"));
        assert!(!matches("googlebot*", google) && !matches("*bingbot*", google));
        assert!(matches("curl/8", "CURL/8") && !matches("curl/8", "curl/8.1"));
        assert!(matches("a*b*c", "aXbYbZc") && !matches("a*b*c", "aXbYbZ"));
        assert!(!matches("a", "") && matches("a*", "a"));
        assert_eq!(AgentPattern::parse(""), None);
    }

    /// The worst pattern and text take a bounded number of steps.
    #[test]
    fn a_hostile_value_takes_bounded_time() {
        let pattern = AgentPattern::parse(&"*a".repeat(128)).expect("a pattern");
        let begun = std::time::Instant::now();
        for _ in 0..100 {
            let agent = [&[b'a'; 100][..], &[b'b'; 100_000]].concat();
            assert!(!pattern.matches(&AgentText::new(&agent)));
        }
        assert!(begun.elapsed().as_secs() < 5);
    }
}
