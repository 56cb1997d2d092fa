//! The `proxy.robots` section: which robots there are, and how each proves that it is the one that
//! its `User-Agent` names.
//!
//! The files are read by `identity::robots`, which also follows their changes and decides what is
//! proven. The names of their hosts are looked up as those of `exempt` and `merge`.

use crate::keys::{ConfigKey, ListKey, SubsectionKey, section};
use crate::reader::SectionReader;
use crate::settings::conditions::{self, pattern};
use crate::settings::hosts::{HostPattern, host_name};
use crate::values::{self, Read};
use evenkeel_core::condition::patterns::Patterns;
use std::path::PathBuf;

/// Maximum number of robots. What is known of a host is a bit for each.
pub const ROBOTS_MAX: usize = 64;

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
    pub user_agent: Patterns,
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

section! {
    /// A list of [robots](#proxyrobots) that have to prove their identity, at most 64.
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
    /// Patterns of the `User-Agent` by which the robot calls itself, as in [`when`](#when). A
    /// request that matches and is not proven is an impostor. A request that does not match is this
    /// robot only if its signature proves it. Without patterns, an address or a name is proof for
    /// any `User-Agent`.
    USER_AGENT: ListKey<Box<str>> = ConfigKey::text("user_agent", pattern).list()
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
        section.refuse_empty();
        conditions::doubts::agents(section);
        let robot = Robot {
            name: section.key(&NAME).unwrap_or_default(),
            user_agent: agents(section),
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

fn agents(section: &mut SectionReader<'_, '_>) -> Patterns {
    let patterns = section.key(&USER_AGENT);
    Patterns::new(patterns).unwrap_or_else(|fault| {
        section.fault("user_agent", format!("has patterns that are {fault}"));
        Patterns::default()
    })
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
