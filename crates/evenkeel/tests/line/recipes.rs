//! The recipes of docs/guide/turns-recipes.md, with the real programs: Celery, Sidekiq, the shell.
//!
//! The jobs of both runners are those of `turn_pools`. PHP-FPM has its test in the journeys. cron
//! itself does not run: its commands run as it would run them.

use crate::stage::LineServer;
use crate::turn_pools::{SLOTS, expect_fair, start, waiting};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::{until, wait_for};
use evenkeel_testing::{evenkeel, examples};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The jobs that are given to a runner, in this order; then those of tenants B to E.
const HEAVY_JOBS: usize = 100;

/// A Redis server with its files in `folder`, and its address.
fn redis(folder: &Path) -> (Program, String) {
    let port = free_port();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
    (Program::listening(command.current_dir(folder), port), format!("redis://127.0.0.1:{port}/0"))
}

fn tenants() -> String {
    "A".repeat(HEAVY_JOBS) + "BCDE"
}

/// What the jobs have written, once all are done.
fn order(folder: &Path) -> String {
    wait_for("all jobs", || {
        let order = fs::read_to_string(folder.join("order")).unwrap_or_default();
        (order.len() == tenants().len()).then_some(order)
    })
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}; see ci/test"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

const CELERY: &str = r#"
import os, threading
from celery import Celery
from celery_turns import FairTask

app = Celery("jobs", broker=os.environ["BROKER"])
one_round = threading.Barrier(int(os.environ["SLOTS"]))

@app.task(base=FairTask)
def job(tenant):
    one_round.wait()
    with open("order", "a") as order:
        order.write(tenant)

@app.task(base=FairTask, turn_wait=0, turn_retry=0.1)
def hurried(tenant):
    open("hurried", "w").close()
"#;

#[test]
fn tasks_of_celery_take_turns() {
    let (program, holder) = start();
    let folder = tempfile::tempdir().expect("a folder");
    let (_redis, broker) = redis(folder.path());
    fs::write(folder.path().join("jobs.py"), CELERY).expect("saved");
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
    let path = format!("{client}:{}", examples::path("turns").display());
    let python = |arguments: &[&str]| {
        let mut command = Command::new("/usr/bin/python3");
        command.args(arguments).current_dir(folder.path());
        command.env("PYTHONPATH", &path).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("EVENKEEL_LINE", format!("unix://{}", program.socket().display()));
        command.env("BROKER", &broker).env("SLOTS", SLOTS.to_string());
        command
    };
    let give = "import sys; from jobs import hurried, job; hurried.delay('A'); \
                [job.delay(tenant) for tenant in sys.argv[1]]";
    run(&mut python(&["-c", give, &tenants()]));
    let words = "-m celery --app jobs worker --pool threads --concurrency 120 \
                 --prefetch-multiplier 1 --loglevel INFO";
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut worker = Program::start(python(&words).stdout(Stdio::null()));
    worker.told("Retry in");
    until("all tasks wait", || waiting(&program, tenants().len()));
    assert!(!folder.path().join("hurried").exists(), "it has no turn");
    drop(holder);
    expect_fair(&order(folder.path()), 1);
    until("the task that came back", || folder.path().join("hurried").exists());
}

const SIDEKIQ: &str = r#"
require 'sidekiq'
require 'sidekiq_turns'

# Lets jobs go on in rounds.
class Round
  def initialize(size)
    @size, @arrived, @number = size, 0, 0
    @lock, @full = Mutex.new, ConditionVariable.new
  end

  def wait
    @lock.synchronize do
      number = @number
      @arrived += 1
      if @arrived == @size
        @arrived = 0
        @number += 1
        @full.broadcast
      end
      @full.wait(@lock) while number == @number
    end
  end
end

ROUND = Round.new(ENV.fetch('SLOTS').to_i)

class TurnJob
  include Sidekiq::Job
  sidekiq_options 'turn' => true

  def perform(tenant)
    ROUND.wait
    File.write('order', tenant, mode: 'a')
  end
end
"#;

#[test]
fn jobs_of_sidekiq_take_turns() {
    let (program, holder) = start();
    let folder = tempfile::tempdir().expect("a folder");
    let (_redis, broker) = redis(folder.path());
    fs::write(folder.path().join("jobs.rb"), SIDEKIQ).expect("saved");
    let ruby = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.args(arguments).current_dir(folder.path());
        command.env("RUBYLIB", examples::path("turns"));
        command.env("EVENKEEL_LINE", format!("tcp://{}", program.lines));
        command.env("REDIS_URL", &broker).env("SLOTS", SLOTS.to_string());
        command
    };
    let give = "require './jobs'; ARGV[0].each_char { |tenant| TurnJob.perform_async(tenant) }";
    run(&mut ruby("ruby", &["-e", give, &tenants()]));
    let threads = tenants().len().to_string();
    let mut sidekiq = ruby("sidekiq", &["--require", "./jobs.rb", "--concurrency", &threads]);
    let _sidekiq = Program::start(sidekiq.stdout(Stdio::null()));
    until("all jobs wait", || waiting(&program, tenants().len()));
    drop(holder);
    expect_fair(&order(folder.path()), 1);
}

/// A command with this program at the front of its path, and with the address of its door.
fn with_evenkeel(program: &LineServer, mut command: Command) -> Command {
    let binary = evenkeel!();
    let binaries = Path::new(binary.get_program()).parent().expect("a folder");
    command.env_clear().env("PATH", format!("{}:/usr/bin:/bin", binaries.display()));
    command.env("EVENKEEL_LINE", format!("unix://{}", program.socket().display()));
    command
}

#[test]
fn backups_of_a_script_take_turns() {
    let (program, holder) = start();
    let folder = tempfile::tempdir().expect("a folder");
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    fs::create_dir(&to).expect("a folder");
    let customers = ["a", "b c", "d", "e", "f"];
    for customer in customers {
        fs::create_dir_all(from.join(customer)).expect("a folder");
        fs::write(from.join(customer).join("file"), customer).expect("saved");
    }
    let script = examples::path("turns/backup.sh");
    let mut command = with_evenkeel(&program, Command::new("/bin/sh"));
    let mut script = Program::start(command.arg(script).args([&from, &to]));
    until("all backups wait", || waiting(&program, customers.len()));
    assert_eq!(fs::read_dir(&to).expect("a folder").count(), 0);
    drop(holder);
    assert!(script.end().success(), "{}", script.log());
    for customer in customers {
        let archive = to.join(format!("{customer}.tar.gz"));
        let files = run(Command::new("tar").arg("-tzf").arg(archive));
        assert!(files.lines().any(|file| file == format!("{customer}/file")), "{files}");
    }
}

#[test]
fn jobs_of_cron_take_turns() {
    let program = LineServer::start("turns: {slots: 1, wait_max: 1h}");
    let folder = tempfile::tempdir().expect("a folder");
    let text = fs::read_to_string(examples::path("turns/crontab")).expect("the example");
    let jobs: Vec<&str> = text.lines().filter(|line| line.starts_with("0 2 * * * ")).collect();
    assert_eq!(jobs.len(), 3);
    for job in jobs {
        let command = job.splitn(7, ' ').nth(6).expect("a command");
        let (_, own) = command.split_once("/usr/local/sbin/").expect("a program");
        let name = own.split(' ').next().expect("a name");
        let file = folder.path().join(name);
        fs::write(&file, format!("#!/bin/sh\necho {name} runs with $# words\n")).expect("saved");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("executable");
        let command = command.replace("/usr/local/sbin", &folder.path().display().to_string());
        let said = run(with_evenkeel(&program, Command::new("/bin/sh")).args(["-c", &command]));
        assert!(said.starts_with(&format!("{name} runs with")), "{said}");
    }
    let top = program.get("/api/top?limit=turns");
    for tag in ["backup", "reports", "search"] {
        assert!(top.contains(&format!("\"{tag}\"")), "{tag} in {top}");
    }
}
