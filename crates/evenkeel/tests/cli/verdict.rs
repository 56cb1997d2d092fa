//! Configurations that `check` accepts must start, and `check` must name what prevents a start:
//! both get the same configurations, as the same user on the same machine.

use crate::{evenkeel, text};
use evenkeel_testing::program::Program;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than a start takes on a slow, busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Rules for the rate limit service.
const RULES: &str = "domain: a\ndescriptors:\n  - key: k\n    \
                     rate_limit: {unit: day, requests_per_unit: 1}\n";

/// A folder with the files that configurations refer to.
struct Ground {
    folder: tempfile::TempDir,
    _taken: (TcpListener, UdpSocket, UnixListener),
    ports: [(&'static str, String); 2],
}

impl Ground {
    fn new() -> Ground {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for (name, text) in [
            ("plain", "no socket\n"),
            ("short", "token\n"),
            ("token", "0123456789abcdef\n"),
            ("rules.yaml", RULES),
            ("faulty.yaml", "domain: a\ndescriptors: [{}]\n"),
            ("limits", "a 1/s\n"),
            ("faulty", "a\n"),
            ("pem", "no certificate\n"),
        ] {
            fs::write(path(name), text).expect("written");
        }
        fs::create_dir(path("empty")).expect("a folder");
        let cert = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
        fs::write(path("cert.pem"), cert.cert.pem()).expect("written");
        fs::write(path("key.pem"), cert.signing_key.serialize_pem()).expect("written");
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let file = UnixListener::bind(path("taken.sock")).expect("a socket");
        // A socket left over from a program that has ended.
        drop(UnixListener::bind(path("left.sock")).expect("a socket"));
        let ports = [
            ("TAKEN_TCP", tcp.local_addr().expect("bound").port().to_string()),
            ("TAKEN_UDP", udp.local_addr().expect("bound").port().to_string()),
        ];
        Ground { folder, _taken: (tcp, udp, file), ports }
    }

    /// Writes a file with this configuration, with words in capitals replaced.
    fn write(&self, text: &str) -> PathBuf {
        let folder = self.folder.path().display().to_string();
        let text = text.replace("DIR", &folder);
        let named = |text: String, (word, port): &(&str, String)| text.replace(word, port);
        let text = self.ports.iter().fold(text, named);
        let path = self.folder.path().join("t.yaml");
        fs::write(&path, text).expect("written");
        path
    }
}

/// Whether the program reports that it is ready with this file; otherwise its output.
fn starts(config: &Path) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let herald = folder.path().join("notify");
    let ready = UnixDatagram::bind(&herald).expect("a socket");
    ready.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let mut command = evenkeel!();
    command.args(["serve", "--config"]).arg(config).env("NOTIFY_SOCKET", &herald);
    let mut started = Program::start(command);
    let begun = Instant::now();
    let mut message = [0; 512];
    loop {
        if let Ok(count) = ready.recv(&mut message)
            && message[..count].starts_with(b"READY=1")
        {
            return Ok(());
        }
        if started.ended().is_some() {
            return Err(started.log());
        }
        assert!(begun.elapsed() < DEADLINE, "neither ready nor gone: {}", config.display());
    }
}

/// The warning for the one intended difference: a port that another program uses at the moment.
const OF_THE_MOMENT: &str = "another program uses it";

/// The warning if connections may need more files than may be open.
const OPEN_FILES: &str = "the limit on open files is too low";

/// Configurations, each with a part of the message about it: an error, or a warning if both `check`
/// and `serve` accept it. The text is empty if the configuration is valid without a warning.
const CASES: [(&str, &str); 45] = [
    // Valid ones, for every door.
    ("proxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:1'}", ""),
    ("check: {listen: '127.0.0.1:0', syslog: 'udp://127.0.0.1:0'}", ""),
    ("line: {listen: 'unix://DIR/line.sock'}", ""),
    ("line: {listen: 'unix://DIR/left.sock', resp: '127.0.0.1:0'}", ""),
    ("line: {listen: '127.0.0.1:0', limits_file: DIR/limits}", ""),
    ("ratelimit: {rules: DIR/rules.yaml, PORTS, grpc_unix: DIR/grpc.sock}", ""),
    (
        "master: {accounting: 'tcp://127.0.0.1:0', control: 'tcp://127.0.0.1:0', \
       domains: {a: {rate: 1/s, burst: 1}}}",
        "",
    ),
    ("line: {listen: '127.0.0.1:0'}\npeers: {listen: '127.0.0.1:0'}", ""),
    ("line: {listen: '127.0.0.1:0'}\nstate: {file: DIR/state}", ""),
    // Addresses that do not belong to this machine.
    ("proxy: {listen: '192.0.2.1:8888', backend: 'http://127.0.0.1:1'}", "not an address of this"),
    ("check: {listen: '192.0.2.1:9971'}", "not an address of this"),
    ("check: {listen: '127.0.0.1:0', syslog: 'udp://192.0.2.1:5514'}", "not an address of this"),
    ("line: {listen: '192.0.2.1:7070'}", "not an address of this"),
    ("line: {listen: '127.0.0.1:0', resp: '192.0.2.1:6380'}", "not an address of this"),
    (
        "ratelimit: {rules: off, grpc: '192.0.2.1:8081', http: '127.0.0.1:0', \
       debug: '127.0.0.1:0'}",
        "not an address of this",
    ),
    (
        "ratelimit: {rules: off, grpc: '127.0.0.1:0', http: '192.0.2.1:8080', \
       debug: '127.0.0.1:0'}",
        "not an address of this",
    ),
    (
        "master: {accounting: 'tcp://192.0.2.1:7', control: 'tcp://127.0.0.1:0', \
       allow: '127.0.0.1', domains: {a: {rate: 1/s, burst: 1}}}",
        "not an address of this",
    ),
    (
        "line: {listen: '127.0.0.1:0'}\npeers: {listen: '192.0.2.1:7946', secret_file: DIR/token}",
        "not an address of this",
    ),
    // Two listeners on one address.
    (
        "proxy: {listen: ['[::]:TAKEN_TCP', '0.0.0.0:TAKEN_TCP'], backend: 'http://127.0.0.1:1'}",
        "two listeners use",
    ),
    ("line: {listen: ['unix://DIR/a.sock', 'unix://DIR/./a.sock']}", "two listeners use"),
    // Unix sockets.
    ("line: {listen: 'unix://DIR/nowhere/line.sock'}", "create its folder first"),
    ("line: {listen: 'unix://DIR/plain'}", "a file that is not a socket"),
    ("ratelimit: {rules: off, PORTS, grpc_unix: DIR/nowhere/grpc.sock}", "create its folder first"),
    ("ratelimit: {rules: off, PORTS, grpc_unix: DIR/plain}", "a file that is not a socket"),
    // Ports that are in use at the moment.
    ("proxy: {listen: '127.0.0.1:TAKEN_TCP', backend: 'http://127.0.0.1:1'}", OF_THE_MOMENT),
    ("check: {listen: '127.0.0.1:0', syslog: 'udp://127.0.0.1:TAKEN_UDP'}", OF_THE_MOMENT),
    ("line: {listen: 'unix://DIR/taken.sock'}", OF_THE_MOMENT),
    ("line: {listen: '127.0.0.1:0'}\npeers: {listen: '127.0.0.1:TAKEN_TCP'}", OF_THE_MOMENT),
    // Certificates, tokens and other files.
    (
        "proxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:1', \
       tls: {cert: DIR/cert.pem, key: DIR/key.pem}}",
        "",
    ),
    (
        "proxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:1', \
       tls: {cert: DIR/none.pem, key: DIR/key.pem}}",
        "none.pem",
    ),
    (
        "proxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:1', \
       tls: {cert: DIR/pem, key: DIR/key.pem}}",
        "pem",
    ),
    (
        "proxy: {listen: '127.0.0.1:0', backend: 'https://127.0.0.1:1', \
       backend_tls: {ca: DIR/none.pem}}",
        "none.pem",
    ),
    ("ratelimit: {rules: off, PORTS, tls: {cert: DIR/cert.pem, key: DIR/none.pem}}", "none.pem"),
    ("line: {listen: '127.0.0.1:0'}\nadmin: {listen: '127.0.0.1:0', token_file: DIR/none}", "none"),
    (
        "line: {listen: '127.0.0.1:0'}\nadmin: {listen: '127.0.0.1:0', token_file: DIR/short}",
        "16 to 1024",
    ),
    (
        "line: {listen: '127.0.0.1:0'}\npeers: {listen: '127.0.0.1:0', secret_file: DIR/none}",
        "none",
    ),
    ("line: {listen: '127.0.0.1:0', limits_file: DIR/none}", "none: cannot be read"),
    ("line: {listen: '127.0.0.1:0', limits_file: DIR/faulty}", "a line is `PREFIX RATE`"),
    (
        "ratelimit: {rules: off, PORTS, prometheus: {listen: '127.0.0.1:0', mapper: DIR/none}}",
        "none",
    ),
    // Configurations that start with a warning.
    ("ratelimit: {rules: DIR/later, PORTS}", "warning"),
    ("line: {listen: '127.0.0.1:0'}\nstate: {file: DIR/nowhere/state}", "warning"),
    (
        "proxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:1', cost: 'cgroup:/nowhere'}",
        "warning",
    ),
    (
        "proxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:1', \
       bounds: {connections: 10000000}}",
        OPEN_FILES,
    ),
    // No configuration.
    ("", "no door to open"),
    ("proxy: {actoin: hold}", "did you mean `action`?"),
];

#[test]
fn check_calls_good_what_starts_and_nothing_else() {
    let ground = Ground::new();
    let wrong: Vec<String> = CASES.iter().filter_map(|case| ground.disagreement(*case)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let plain = fs::read_to_string(ground.folder.path().join("plain"));
    assert_eq!(plain.expect("it is there still"), "no socket\n");
}

impl Ground {
    /// Describes the case if `check` and a start with this configuration disagree.
    fn disagreement(&self, (case, said): (&str, &str)) -> Option<String> {
        let mut case =
            case.replace("PORTS", "grpc: '127.0.0.1:0', http: '127.0.0.1:0', debug: '127.0.0.1:0'");
        if !case.contains("admin") && !case.is_empty() {
            case.push_str("\nadmin: off\n");
        }
        let path = self.write(&case);
        let checked = evenkeel(&["check", &path.display().to_string()]);
        let all = text(&checked.stderr);
        // The limit on open files depends on the machine, so its warning is ignored unless the case
        // expects it.
        let is_asked = |line: &&str| said == OPEN_FILES || !line.contains(OPEN_FILES);
        let told: Vec<&str> = messages(&all).filter(is_asked).collect();
        let told = told.join("\n");
        let started = starts(&path);
        let good = checked.status.success();
        let agree = match said == OF_THE_MOMENT {
            true => good && started.is_err(),
            false => good == started.is_ok(),
        };
        let named = told.contains(said) && told.is_empty() == said.is_empty();
        (!agree || !named).then(|| format!("{case}{good}: {told}\nsaid: {said}\n{started:?}"))
    }
}

/// The messages of a check, without the lines of the file and the count.
fn messages(printed: &str) -> impl Iterator<Item = &str> {
    let is_excerpt =
        |line: &str| line.trim_start_matches([' ', '0', '1', '2', '3']).starts_with('|');
    let is_count = |line: &str| !line.contains(':');
    printed.lines().filter(move |line| !is_excerpt(line) && !is_count(line))
}

/// Users other than root may not use ports below 1024, nor write everywhere.
#[test]
fn check_says_what_this_user_may_not() {
    let ground = Ground::new();
    let locked = ground.folder.path().join("locked");
    fs::create_dir(&locked).expect("a folder");
    for path in [ground.folder.path(), &locked] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a folder");
    }
    let cases = [
        ("line: {listen: '127.0.0.1:7'}\nadmin: off", "CAP_NET_BIND_SERVICE"),
        ("line: {listen: 'unix://DIR/locked/a.sock'}\nadmin: off", "may not write into its folder"),
    ];
    for (case, said) in cases {
        let path = ground.write(case);
        let program = env!("CARGO_BIN_EXE_evenkeel");
        let as_nobody = |arguments: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
            command.args(arguments).arg(&path).output().expect("setpriv runs it")
        };
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let checked = as_nobody(&["check"]);
        let told = text(&checked.stderr);
        if told.contains("setpriv") {
            // The program is in a folder that this user may not read.
            return;
        }
        assert!(!checked.status.success() && told.contains(said), "{case}\n{told}");
        let served = as_nobody(&["serve", "--config"]);
        assert!(!served.status.success(), "{case}\n{}", text(&served.stderr));
    }
}

#[test]
fn ports_that_a_server_of_ours_has_are_nothing_to_speak_of() {
    let ground = Ground::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let path =
        ground.write(&format!("line: {{listen: ['{free}', 'unix://DIR/own.sock']}}\nadmin: off\n"));
    let folder = tempfile::tempdir().expect("a folder");
    let herald = folder.path().join("notify");
    let ready = UnixDatagram::bind(&herald).expect("a socket");
    ready.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let mut command = evenkeel!();
    command.args(["serve", "--config"]).arg(&path).env("NOTIFY_SOCKET", &herald);
    let _started = Program::start(command);
    ready.recv(&mut [0; 512]).expect("it is ready");
    let checked = evenkeel(&["check", &path.display().to_string()]);
    assert_eq!((checked.status.code(), text(&checked.stderr)), (Some(0), String::new()));
    assert!(ground.folder.path().join("own.sock").exists(), "its socket is where it was");
}

#[test]
fn check_and_start_say_the_same_about_this_machine() {
    let ground = Ground::new();
    let path = ground.write(
        "proxy: {listen: '127.0.0.1:0', backend: 'http://127.0.0.1:TAKEN_TCP'}\nadmin: off\n",
    );
    let with_few_files = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        let program = env!("CARGO_BIN_EXE_evenkeel");
        command.args(["-c", "ulimit -n 1000; exec \"$0\" \"$@\"", program]).args(arguments);
        command.arg(&path);
        command
    };
    let checked = with_few_files(&["check"]).output().expect("sh runs it");
    let checked = text(&checked.stderr);
    assert!(checked.contains(OPEN_FILES), "{checked}");
    let mut program = Program::start(with_few_files(&["serve", "--config"]));
    // A start warns before it opens its doors, and notes when they are open.
    let (notes, warnings): (Vec<_>, Vec<_>) =
        messages(&checked).partition(|line| line.starts_with("note: "));
    for line in warnings.into_iter().chain(notes) {
        // `warning: FILE:LINE:COLUMN: what` or `note: what`.
        let said = line.strip_prefix("note: ");
        let said = said.or_else(|| line.splitn(5, ':').last().map(str::trim)).expect("a message");
        program.told(said);
    }
}

#[test]
fn a_folder_is_what_lies_in_it() {
    let ground = Ground::new();
    let folder = |name: &str| ground.folder.path().join(name);
    let check = |name: &str| {
        let checked = evenkeel(&["check", &folder(name).display().to_string()]);
        (checked.status.success(), text(&checked.stderr))
    };
    for name in ["rules", "config", "config/rules", "faulty-config", "other"] {
        fs::create_dir(folder(name)).expect("a folder");
    }
    let config = "line: {listen: '127.0.0.1:0', connections: 9}\nadmin: off\n";
    for (name, text) in [
        ("rules/a.yaml", RULES),
        ("config/evenkeel.yaml", config),
        ("config/rules/a.yaml", RULES),
        ("faulty-config/evenkeel.yaml", "proxy: {actoin: hold}\n"),
        ("other/notes.txt", "hello\n"),
    ] {
        fs::write(folder(name), text).expect("written");
    }
    assert_eq!(check("rules"), (true, String::new()));
    assert_eq!(check("config"), (true, String::new()));
    let (good, told) = check("faulty-config");
    assert!(!good && told.contains("evenkeel.yaml:1:9: unknown key `actoin` in `proxy`"), "{told}");
    for (name, text) in [
        ("config/broken.yml", "proxy: [\n"),
        ("config/other.json", "{\"name\": 1}"),
        ("config/rule.yaml", RULES),
        ("config/notes.txt", "proxy: {}\n"),
        ("config/.hidden.yaml", "proxy: [\n"),
    ] {
        fs::write(folder(name), text).expect("written");
    }
    let (good, told) = check("config");
    assert!(!good && told.contains("broken.yml:1:8: not YAML"), "{told}");
    fs::remove_file(folder("config/broken.yml")).expect("there");
    let checked = evenkeel(&["check", &folder("config").display().to_string()]);
    let config = folder("config").display().to_string();
    let expected = format!(
        "{config}/notes.txt: skipped, its name does not end in .yaml, .yml or .json\n\
         {config}/other.json: skipped, it has no section of a configuration\n\
         {config}/rule.yaml: skipped, it is a rule file; name it to have it checked\n\
         {config}/rules: skipped, it is a folder\n{config}: good\n"
    );
    let printed = text(&checked.stdout);
    // The default of `keys_max` is that of the machine.
    let printed: Vec<&str> = printed.lines().filter(|line| !line.contains("keys_max")).collect();
    let printed = printed.join("\n") + "\n";
    assert_eq!((checked.status.success(), printed), (true, expected));
    for name in ["empty", "other"] {
        let (good, told) = check(name);
        assert!(!good && told.contains("contains neither a configuration nor a rule"), "{told}");
    }
}
