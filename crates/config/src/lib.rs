//! Configuration: reads, checks and shows it.
//!
//! This is the only module that reads configuration files and the environment. A file passes
//! through `tree` (text to nodes with places), `variables` (those of the environment in values),
//! `include` (joins the files that it names), `settings` (nodes to the types that doors receive,
//! by means of `reader`) and `show` (back to YAML). The facts about each key are one row (`keys`),
//! from which the schema and the tables of the guide are made too. A file of Tempomat or Smockron
//! is first converted into a native tree (`foreign`). All faults are collected and reported at once
//! (`fault`) and shown with the line of the file (`excerpt`). `source` detects changes of the file.

mod address;
pub mod cpus;
mod doubts;
pub mod environment;
pub mod envoy;
pub mod excerpt;
pub mod fault;
mod foreign;
mod groups;
pub mod host;
mod include;
pub mod keys;
pub mod machine;
mod memory;
mod reader;
mod restart;
pub mod secret;
pub mod settings;
pub mod show;
pub mod source;
pub mod tree;
mod values;
pub mod variables;

pub use doubts::of_facts as unknown_facts;
use fault::{ConfigFault, ConfigFaults, TextPlace};
use include::Includes;
use machine::Machine;
use secret::SecretError;
use settings::Settings;
use settings::sockets::KeyPath;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tree::{YamlNode, YamlValue};

/// A configuration without faults. A reload builds a new one.
#[derive(Clone, Debug)]
pub struct Config {
    /// The settings of the doors.
    pub settings: Settings,
    /// The same configuration as native YAML with all defaults, as `show` prints it.
    pub native: String,
    /// Warnings, each with its place: about conditions that may not do what they seem to, and about
    /// keys of a foreign file that have no effect, or another one, in Evenkeel.
    pub warnings: Vec<String>,
    /// The files that it includes.
    includes: Includes,
    /// The values of all keys, written or default. In contrast to `native` it has passwords.
    values: SecretTree,
}

/// A tree with passwords, which the output of `Debug` does not contain.
#[derive(Clone)]
struct SecretTree(YamlNode);

impl std::fmt::Debug for SecretTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretTree")
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Config) -> bool {
        let facts = |config: &Config| (config.native.clone(), config.warnings.clone());
        self.settings == other.settings && facts(self) == facts(other)
    }
}

/// Reads a configuration from `bytes` and from the files that it includes. `file` is used in
/// messages, and its folder for relative paths of `include`. Defaults depend on the machine.
///
/// # Errors
/// All faults of the configuration.
pub fn parse(
    file: &str,
    bytes: &[u8],
    machine: impl Into<Machine>,
) -> Result<Config, ConfigFaults> {
    read(file, bytes, machine.into()).map(|(_, config)| config)
}

/// Reads a configuration, and returns its tree too. A value with a faulty variable has no further
/// faults.
fn read(file: &str, bytes: &[u8], machine: Machine) -> Result<(YamlNode, Config), ConfigFaults> {
    let JoinedTree { root, includes, mut faulty } =
        joined(file, bytes).map_err(|fault| ConfigFaults::new(file, vec![fault]))?;
    let names = includes.names();
    if includes.is_incomplete {
        return Err(ConfigFaults::new(file, faulty).in_files(&names));
    }
    let config = decode(file, &names, &root, machine);
    if faulty.is_empty() {
        return config.map(|config| (root, Config { includes, ..config }));
    }
    let config = config.map(|config| config.warnings);
    let warnings = config.as_ref().map_or_else(|faults| faults.warnings.clone(), Clone::clone);
    let others = config.err().into_iter().flat_map(|faults| faults.faults);
    let is_other = |fault: &ConfigFault| faulty.iter().all(|one| one.place != fault.place);
    let others: Vec<ConfigFault> = others.filter(is_other).collect();
    faulty.extend(others);
    Err(ConfigFaults::new(file, faulty).in_files(&names).with_warnings(warnings))
}

/// The tree of a configuration, joined with those of the files that it includes.
struct JoinedTree {
    root: YamlNode,
    includes: Includes,
    /// Faults of variables and of `include`.
    faulty: Vec<ConfigFault>,
}

/// Parses a configuration and the files that it includes, and expands the variables in them.
fn joined(file: &str, bytes: &[u8]) -> Result<JoinedTree, ConfigFault> {
    let mut root = tree::parse(bytes)?;
    let mut faulty = variables::expand(&mut root);
    let includes = match foreign::is_foreign(file, &root) {
        true => Includes::default(),
        false => include::join(file, &mut root, settings::ROOT, &mut faulty),
    };
    Ok(JoinedTree { root, includes, faulty })
}

/// The configuration beside this file, or in the folder above it, that includes the file.
#[must_use]
pub fn includer(file: &Path) -> Option<PathBuf> {
    include::includer(file)
}

/// Whether a file is a configuration, with or without faults: it contains a section of Evenkeel, or
/// it is a configuration of Tempomat or Smockron. A file with the key `domain` is a rule file of
/// the rate limit service.
#[must_use]
pub fn is_configuration(file: &Path, bytes: &[u8]) -> bool {
    let Ok(root) = tree::parse(bytes) else { return false };
    let YamlValue::Map(entries) = &root.value else { return false };
    let has_section = entries.iter().any(|(key, _)| settings::ROOT.row(&key.name).is_some());
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    let native = |file| foreign::native(file, &root, 1.0, &mut faults, &mut notes);
    root.find(&["domain"]).is_none()
        && (has_section || Some(&*file.display().to_string()).and_then(native).is_some())
}

/// Checks a file of `group_files` by itself, except for the groups of other files that it names.
/// Returns the number of its groups, or its faults; `None` if it is no file of groups.
#[must_use]
pub fn check_group_file(path: &Path) -> Option<Result<usize, ConfigFaults>> {
    settings::check_group_file(path)
}

/// Error message for a configuration that opens no door, with its fix.
pub const NO_DOOR: &str = "no door to open: the configuration has no section `proxy` that listens, \
                           no `check`, `ext_proc`, `ext_authz`, `line`, `ratelimit` or `master`; \
                           add one, or start `evenkeel proxy --backend URL`";

/// The result of testing a configuration on this machine.
#[derive(Clone, Debug, Default)]
pub struct StartProblems {
    /// Problems that prevent a start.
    pub faults: Vec<StartProblem>,
    /// Files that a start could not use.
    pub files: Vec<FileProblem>,
    /// Problems that may not prevent a start, because they may be fixed before it. They become
    /// warnings.
    pub doubts: Vec<StartProblem>,
}

impl StartProblems {
    /// Merges the results of two tests.
    #[must_use]
    pub fn and(mut self, other: StartProblems) -> StartProblems {
        self.faults.extend(other.faults);
        self.files.extend(other.files);
        self.doubts.extend(other.doubts);
        self
    }

    /// The descriptions of what prevents a start.
    pub fn fault_texts(self) -> impl Iterator<Item = String> {
        let faults = self.faults.into_iter().map(|(_, what)| what);
        faults.chain(self.files.into_iter().map(|file| file.what))
    }
}

/// Checks whether a configuration can run: its own faults first, and if it has none, the problems
/// that a start would have: no door, a token that cannot be read, and everything that `more` finds,
/// each with the path of its key. Returns all warnings, including those of a start.
///
/// # Errors
/// All faults and all problems that prevent a start.
pub fn check(
    file: &str,
    bytes: &[u8],
    machine: impl Into<Machine>,
    more: impl Fn(&Settings) -> StartProblems,
) -> Result<Vec<String>, ConfigFaults> {
    let (root, Config { mut settings, mut warnings, includes, .. }) =
        read(file, bytes, machine.into())?;
    let names = includes.names();
    let located = |faults| ConfigFaults::new(file, faults).in_files(&names);
    settings.line.as_mut().map(source::read_limits).transpose()?;
    let mut faults = Vec::new();
    if settings.doors().is_empty() {
        faults.push(ConfigFault::new(TextPlace::at(1, 1), NO_DOOR));
    }
    let found = secrets(&settings).and(start_warnings(&settings)).and(more(&settings));
    faults.extend(found.faults.into_iter().map(|(way, why)| {
        let place = root.find(way).map_or(root.place, |node| node.place);
        ConfigFault::new(place, why)
    }));
    let files = found.files.into_iter();
    faults.extend(files.map(|file| ConfigFault::new(file.place(&root), file.what)));
    let networks = doubts::of_networks(&root).into_iter();
    warnings.extend(networks.map(|fault| located(vec![fault]).to_string()));
    warnings.extend(found.doubts.into_iter().map(|(way, what)| {
        let place = root.find(way).map_or(root.place, |node| node.place);
        located(vec![ConfigFault::new(place, what)]).to_string()
    }));
    match faults.is_empty() {
        true => Ok(warnings),
        false => Err(located(faults).with_warnings(warnings)),
    }
}

/// Problems that a start would warn about, or that would prevent it if they still exist by then.
/// Folders may be created together with the process (`StateDirectory=` of a systemd unit).
fn start_warnings(settings: &Settings) -> StartProblems {
    let mut doubts: Vec<StartProblem> = Vec::new();
    let mut folder_of = |way, path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let name = path.file_name().unwrap_or_default().display();
            let what =
                format!("`{name}` needs the folder {}, which does not exist", folder.display());
            doubts.push((way, what));
        }
    };
    if let Some(path) = &settings.state.file {
        folder_of(&["state", "file"], path);
    }
    if let Some(proxy) = &settings.proxy
        && let settings::CostSource::Cgroup(path) = &proxy.cost
    {
        if let Err(error) = cpus::cgroup::used(path) {
            let mut what = format!("cannot read {}: {error}", cpus::cgroup::file(path).display());
            for written in proxy.backends.iter().filter_map(cpus::cgroup::cost_advice) {
                what.push_str("; ");
                what.push_str(&written);
            }
            what.push_str("; until it can be read, `cost: shared` is used");
            doubts.push((&["proxy", "cost"], what));
        }
        let wrong =
            proxy.backends.iter().filter_map(|one| cpus::cgroup::wrong_cgroup_warning(path, one));
        let whole = (path == Path::new("/")).then(|| {
            "the root cgroup is the whole machine, so requests are also charged for the CPU time \
             of other programs"
                .to_owned()
        });
        let wrong = wrong.chain(whole);
        doubts.extend(wrong.map(|what| -> StartProblem { (&["proxy", "cost"], what) }));
    }
    let trusted = settings.proxy.iter().flat_map(|proxy| proxy.trusted_networks());
    if let Some(everybody) = trusted.into_iter().find(|network| network.prefix_len() == 0) {
        let what = format!(
            "{everybody} contains all addresses, so each client can choose its own address"
        );
        doubts.push((&["proxy", "trusted_proxies"], what));
    }
    let rules = settings.ratelimit.as_ref().and_then(|door| door.rules.path.as_ref());
    if let Some(path) = rules.filter(|path| !path.exists()) {
        let what =
            format!("{} does not exist; all requests are allowed until it does", path.display());
        doubts.push((&["ratelimit", "rules"], what));
    }
    if settings.master.as_ref().is_some_and(settings::MasterSettings::is_open) {
        doubts.push((&["master"], settings::MasterSettings::OPEN_WARNING.to_owned()));
    }
    doubts.extend(doubts::of_conditions(settings));
    doubts.extend(doubts::of_facts(settings));
    doubts.extend(waiting_room_doubt(settings));
    StartProblems { doubts, ..StartProblems::default() }
}

/// Warns of several instances that do not accept the cookies of each other.
fn waiting_room_doubt(settings: &Settings) -> Option<StartProblem> {
    let proxy = settings.proxy.as_ref().filter(|proxy| !proxy.listen.is_empty())?;
    let room = proxy.queue.waiting_room.as_ref()?;
    if proxy.queue.known == settings::KnownSetting::Off {
        return None;
    }
    let has_peers = settings.peers.is_some();
    let shares_peers_secret =
        settings.peers.as_ref().is_some_and(|peers| peers.secret_file.is_some());
    let shares_secret = room.secret_file.is_some() || shares_peers_secret;
    if shares_secret || !(has_peers || settings.store.is_some()) {
        return None;
    }
    let what = "each instance has its own key for the cookies of visitors that wait, so a visitor \
                loses its place where another instance answers; name the same \
                `queue.waiting_room.secret_file` on all of them";
    Some((&["proxy", "queue"], what.to_owned()))
}

/// A problem of a start: the path of the key and a description.
pub type StartProblem = (KeyPath, String);

/// A file that a start could not use. Several sections may name such files.
#[derive(Clone, Debug)]
pub struct FileProblem {
    /// The section that needs the file.
    pub way: KeyPath,
    /// The path as the configuration has it.
    pub path: PathBuf,
    /// Description of the problem.
    pub what: String,
}

impl FileProblem {
    /// The first place that names the file. If a file of groups does, that of `group_files`.
    fn place(&self, root: &YamlNode) -> TextPlace {
        let named = named_file(root, &self.path, false);
        let included = || root.find(&["group_files"]);
        let node = named.or_else(included).or_else(|| root.find(self.way)).unwrap_or(root);
        node.place
    }
}

/// The node of a path below a key for files of addresses or keys.
fn named_file<'n>(node: &'n YamlNode, path: &Path, is_file_key: bool) -> Option<&'n YamlNode> {
    match &node.value {
        YamlValue::Null => None,
        YamlValue::Text(text) => (is_file_key && Path::new(text) == path).then_some(node),
        YamlValue::List(items) => items.iter().find_map(|item| named_file(item, path, is_file_key)),
        YamlValue::Map(entries) => entries.iter().find_map(|(key, inner)| {
            named_file(inner, path, ["ip_file", "keys"].contains(&&*key.name))
        }),
    }
}

/// The secrets that cannot be read, and a mapping file with faults.
fn secrets(settings: &Settings) -> StartProblems {
    type ReadSecret = fn(&Path) -> Result<String, SecretError>;
    let (peers, store) = (settings.peers.as_ref(), settings.store.as_ref());
    let nats = peers.and_then(|peers| match &peers.via {
        settings::peers::PeerTransport::Nats { credentials_file, .. } => credentials_file.as_ref(),
        _ => None,
    });
    let token = settings.admin.as_ref().and_then(|admin| admin.token_file.as_ref());
    let secret = peers.and_then(|peers| peers.secret_file.as_ref());
    let redis = store.and_then(|store| store.place.credentials_file.as_ref());
    let other = store.and_then(|store| store.per_second.as_ref()?.credentials_file.as_ref());
    let files: [(KeyPath, Option<&PathBuf>, ReadSecret); 5] = [
        (&["admin", "token_file"], token, secret::token),
        (&["peers", "secret_file"], secret, secret::token),
        (&["peers", "credentials_file"], nats, secret::credentials),
        (&["store", "credentials_file"], redis, secret::credentials),
        (&["store", "per_second", "credentials_file"], other, secret::credentials),
    ];
    let faulty = files.into_iter().filter_map(|(way, path, read)| Some((way, read(path?).err()?)));
    let mut faults: Vec<StartProblem> = faulty.map(|(way, why)| (way, why.to_string())).collect();
    let prometheus = settings.ratelimit.as_ref().and_then(|door| door.prometheus.as_ref());
    let mapper = prometheus.and_then(|prometheus| prometheus.mapper.as_deref());
    if let Some(Err(why)) = mapper.map(source::mapper::read) {
        faults.push((&["ratelimit", "prometheus", "mapper"], why.to_string()));
    }
    StartProblems { faults, ..StartProblems::default() }
}

impl Config {
    /// The configuration that results from a reload while `running` is active, and the restart-only
    /// keys that have changed and keep their running values.
    ///
    /// # Errors
    /// If the new values and the kept ones do not work together, such as a backend at an address
    /// where the proxy still listens.
    pub fn reloaded(&self, running: &Config) -> Result<(Config, Vec<String>), ConfigFaults> {
        let mut merged = self.values.0.clone();
        let changed = restart::keep_running_values(&mut merged, &running.values.0);
        let cpus = self.settings.proxy.as_ref().map_or(1.0, |proxy| proxy.cpus);
        let warnings = self.warnings.clone();
        let read = decode(MERGED_FILE_NAME, &[], &merged, cpus.into())?;
        let mut config = Config { warnings, includes: self.includes.clone(), ..read };
        // Rules from `limits_file` are not part of the tree.
        if let (Some(line), Some(read)) = (&mut config.settings.line, &self.settings.line) {
            line.rules = Arc::clone(&read.rules);
        }
        Ok((config, changed))
    }
}

/// Replaces the name of the file in faults of [`Config::reloaded`].
const MERGED_FILE_NAME: &str = "with the keys that stay unchanged until a restart";

/// The flags of `evenkeel proxy`, which replace a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyFlags {
    /// Value of `proxy.backend`.
    pub backend: String,
    /// Values of `proxy.listen`.
    pub listen: Vec<String>,
    /// Value of `proxy.preset`.
    pub preset: Option<String>,
    /// Value of `proxy.cpus`.
    pub cpus: Option<String>,
    /// Value of `proxy.action`.
    pub action: Option<String>,
    /// Value of `proxy.cost`.
    pub cost: Option<String>,
    /// Values of `proxy.trusted_proxies`.
    pub trusted_proxies: Vec<String>,
    /// Value of `admin.listen`, or `off`.
    pub admin: Option<String>,
    /// Value of `proxy.shadow`.
    pub shadow: bool,
}

/// Builds a configuration from flags.
///
/// # Errors
/// All faults, with the names of the flags.
pub fn from_flags(flags: &ProxyFlags, machine: impl Into<Machine>) -> Result<Config, ConfigFaults> {
    let text = |flag: &str, text: &String| YamlNode::text(text).from_input(flag);
    let mut root = YamlNode::map([]);
    for (key, flag, value) in [
        ("backend", "`--backend`", Some(&flags.backend)),
        ("preset", "`--preset`", flags.preset.as_ref()),
        ("cpus", "`--cpus`", flags.cpus.as_ref()),
        ("action", "`--action`", flags.action.as_ref()),
        ("cost", "`--cost`", flags.cost.as_ref()),
    ] {
        value.into_iter().for_each(|value| root.put(&["proxy", key], text(flag, value)));
    }
    let lists = [
        ("listen", "`--listen`", &flags.listen),
        ("trusted_proxies", "`--trusted-proxies`", &flags.trusted_proxies),
    ];
    for (key, flag, values) in lists.into_iter().filter(|(.., values)| !values.is_empty()) {
        let list = YamlValue::List(values.iter().map(|value| text(flag, value)).collect());
        root.put(&["proxy", key], YamlNode::made(list).from_input(flag));
    }
    if flags.shadow {
        root.put(&["proxy", "shadow"], text("`--shadow`", &true.to_string()));
    }
    match &flags.admin {
        Some(off) if off == "off" => root.put(&["admin"], YamlNode::text(off)),
        Some(listen) => root.put(&["admin", "listen"], text("`--admin`", listen)),
        None => {}
    }
    decode("command line", &[], &root, machine.into())
}

/// Interprets a tree, of which some nodes may be in the files `included`.
fn decode(
    file: &str,
    included: &[String],
    root: &YamlNode,
    machine: Machine,
) -> Result<Config, ConfigFaults> {
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    let native = foreign::native(file, root, machine.cpus, &mut faults, &mut notes);
    let root = native.as_ref().unwrap_or(root);
    let (settings, shown) = settings::from_tree(root, machine, &mut faults);
    let (mut warned, faults): (Vec<_>, Vec<_>) =
        faults.into_iter().partition(|fault| fault.is_warning);
    notes.append(&mut warned);
    let warnings = ConfigFaults::new(file, notes).in_files(included).to_string();
    let warnings = warnings.lines().map(String::from).collect();
    if !faults.is_empty() {
        return Err(ConfigFaults::new(file, faults).in_files(included).with_warnings(warnings));
    }
    let native = show::yaml(&show::masked(&shown, settings::ROOT));
    let (includes, values) = (Includes::default(), SecretTree(shown));
    Ok(Config { settings, native, warnings, includes, values })
}
