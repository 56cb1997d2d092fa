//! Configuration: as written, checked, as it runs.
//!
//! The only part of the program that reads files of settings and the environment. The way of a
//! file: `tree` (text to places), `written` with `proxy` and `limits` (tree to settings, through
//! `reader`), `settings` (what doors get), `show` (back to YAML). What is wrong is told all at once
//! (`fault`). `source` looks for changes of the file.

mod address;
pub mod cpus;
pub mod fault;
mod limits;
mod proxy;
mod reader;
pub mod secret;
pub mod settings;
mod show;
pub mod source;
mod tree;
mod written;

use fault::{Fault, Faults};
use settings::Settings;
use tree::Node;

/// A configuration that has no faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What runs.
    pub settings: Settings,
    /// The same as native YAML, defaults filled in: what `show` prints.
    pub native: String,
}

/// Reads a configuration from the bytes of `file`, which is only named in faults. `cpus` is what
/// the machine has to share out.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(file: &str, bytes: &[u8], cpus: f64) -> Result<Config, Faults> {
    let root = tree::parse(bytes).map_err(|fault| Faults::new(file, vec![fault]))?;
    decode(file, &root, cpus)
}

/// The flags of `tollgate proxy`: what would otherwise stand in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `proxy.backend`.
    pub backend: String,
    /// `proxy.listen`.
    pub listen: Vec<String>,
    /// `proxy.cpus`.
    pub cpus: Option<String>,
    /// `proxy.action`.
    pub action: Option<String>,
    /// `proxy.cost`.
    pub cost: Option<String>,
    /// `proxy.trusted_proxies`.
    pub trusted_proxies: Vec<String>,
    /// `admin.listen`, or `off`.
    pub admin: Option<String>,
}

/// The configuration that flags stand for.
///
/// # Errors
/// Everything that is wrong with them.
pub fn from_flags(flags: &Flags, cpus: f64) -> Result<Config, Faults> {
    let one = |key, value: &Option<String>| value.as_ref().map(|text| (key, Node::text(text)));
    let many = |key, values: &[String]| {
        let list = values.iter().map(Node::text).collect();
        (!values.is_empty()).then_some((key, Node::made(tree::Value::List(list))))
    };
    let proxy = [
        Some(("backend", Node::text(&flags.backend))),
        many("listen", &flags.listen),
        one("cpus", &flags.cpus),
        one("action", &flags.action),
        one("cost", &flags.cost),
        many("trusted_proxies", &flags.trusted_proxies),
    ];
    let admin = flags.admin.as_deref().map(|text| match text {
        "off" => ("admin", Node::text("off")),
        _ => ("admin", Node::map([("listen", Node::text(text))])),
    });
    let proxy = ("proxy", Node::map(proxy.into_iter().flatten()));
    decode("command line", &Node::map([Some(proxy), admin].into_iter().flatten()), cpus)
}

fn decode(file: &str, root: &Node, cpus: f64) -> Result<Config, Faults> {
    let mut faults: Vec<Fault> = Vec::new();
    let (settings, shown) = written::settings(root, cpus, &mut faults);
    if faults.is_empty() {
        return Ok(Config { settings, native: show::yaml(&shown) });
    }
    Err(Faults::new(file, faults))
}
