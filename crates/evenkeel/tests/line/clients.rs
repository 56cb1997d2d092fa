//! Real clients: the command line client and the library of Redis, and the short clients of the
//! guide in four languages. `ci/test` installs what they need.

use crate::stage::{LineServer, ONCE};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;

fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}; see ci/test"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn the_terminal_of_redis_speaks_both_versions() {
    let program = LineServer::start(ONCE);
    let port = program.resp.port().to_string();
    let cli = |words: &[&str]| output(Command::new("redis-cli").args(["-p", &port]).args(words));
    assert_eq!(cli(&["PING"]), "PONG\n");
    assert_eq!(cli(&["CL.THROTTLE", "user123", "15", "30", "60"]), "0\n16\n15\n-1\n2\n");
    assert_eq!(cli(&["-3", "THROTTLE", "C"]).lines().next(), Some("0"));
    assert_eq!(cli(&["-3", "THROTTLE", "C"]).lines().next(), Some("1"));
    assert!(cli(&["-3", "HELLO", "3"]).contains("server evenkeel"));
    assert!(cli(&["SET", "a", "b"]).contains("ERR unknown command 'SET'"));
    assert_eq!(cli(&["-r", "3", "-i", "0", "PING"]), "PONG\nPONG\nPONG\n");
}

const LIBRARY: &str = r#"
import sys, redis
r = redis.Redis(port=int(sys.argv[1]), client_name="test")
assert r.ping()
assert r.execute_command("CL.THROTTLE", "k", 0, 1, 60) == [0, 1, 0, -1, 60]
limited, limit, left, retry, full = r.execute_command("CL.THROTTLE", "k", 0, 1, 60)
assert (limited, limit, left) == (1, 1, 0) and 0 < retry <= 60 and retry == full
with r.pipeline() as pipe:
    for n in range(3):
        pipe.execute_command("THROTTLE", "t")
    assert [reply[0] for reply in pipe.execute()] == [0, 1, 1]
with r.pipeline(transaction=False) as pipe:
    for n in range(1000):
        pipe.execute_command("CL.THROTTLE", "n%d" % n, 1, 1, 60)
    assert all(reply[0] == 0 for reply in pipe.execute())
try:
    r.get("k")
except redis.ResponseError as error:
    assert "rate limiter" in str(error)
else:
    raise AssertionError("GET was answered")
print("good")
"#;

#[test]
fn the_library_of_redis_for_python_works_unchanged() {
    let program = LineServer::start(ONCE);
    let port = program.resp.port().to_string();
    let said = output(Command::new("/usr/bin/python3").args(["-c", LIBRARY, &port]));
    assert_eq!(said, "good\n");
}

/// The language of a block in the guide, the program that runs it, and code that asks twice.
const LANGUAGES: [(&str, &str, &str); 4] = [
    ("python", "/usr/bin/python3", "\nprint(allowed('python'), allowed('python'))\n"),
    ("php", "php", "\nvar_export(allowed('php')); echo ' '; var_export(allowed('php'));\n"),
    (
        "perl",
        "perl",
        "\nprint join(' ', map { allowed('perl') ? 'true' : 'false' } 1 .. 2), \"\\n\";\n",
    ),
    ("sh", "bash", "\nfor n in 1 2; do if allowed sh; then echo true; else echo false; fi; done\n"),
];

/// The output of a client of the guide that asks twice at this port.
fn asked_twice(folder: &Path, language: &str, runner: &str, driver: &str, port: u16) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/line.md");
    let guide = fs::read_to_string(path).expect("the guide");
    let fence = format!("```{language}\n");
    let block = guide.split(&fence).nth(1).and_then(|rest| rest.split("```").next());
    let block = block.unwrap_or_else(|| panic!("no {language} in the guide"));
    assert!(block.contains("7070"), "{language}: {block}");
    // A timeout for a slow, busy machine. A missing server is noticed at once all the same.
    let block = block.replace("0, 50000", "60").replace("0.05", "60");
    assert!(block.contains("60"), "{language}: {block}");
    let file = folder.join(language);
    fs::write(&file, block.replace("7070", &port.to_string()) + driver).expect("saved");
    let said = output(Command::new(runner).arg(&file)).to_lowercase();
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_clients_of_the_guide_ask_and_let_everybody_through_when_nobody_answers() {
    let mut program = LineServer::start(ONCE);
    let folder = tempfile::tempdir().expect("a folder");
    let ask = |(language, runner, driver): &(&str, &str, &str), port| {
        asked_twice(folder.path(), language, runner, driver, port)
    };
    let port = program.lines.port();
    for language in &LANGUAGES {
        assert_eq!(ask(language, port), "true false", "{}", language.0);
    }
    program.signal(Signal::TERM);
    program.end();
    for language in &LANGUAGES {
        assert_eq!(ask(language, port), "true true", "{}: nobody is there", language.0);
    }
}
