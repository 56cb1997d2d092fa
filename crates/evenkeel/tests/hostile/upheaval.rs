//! The same law while the proxy reloads its configuration (SIGHUP) and is replaced by its successor
//! (SIGUSR2): the real binary, again and again during hostile seeds.
//!
//! Charges are not compared, because each process counts its own. If a connection is closed before
//! an answer has begun, that is not an error of a proxy that is being replaced.

use crate::backend;
use crate::client::pause;
use crate::law::Ledger;
use crate::plan::Plan;
use crate::seed::{Outcome, RAW, play};
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::task::LocalSet;

/// The time between two reloads.
const BETWEEN_RELOADS: Duration = Duration::from_millis(15);

/// The program, whichever process it is by now.
struct Gate {
    first: Program,
    /// The process id of the latest successor.
    last: AtomicU32,
    config: PathBuf,
    front: SocketAddr,
    behind: SocketAddr,
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = kill_process(pid(self.last.load(Relaxed)), Signal::KILL);
    }
}

fn configuration(path: &Path, front: SocketAddr, behind: SocketAddr, turn: usize) {
    let (buffer, cpus, concurrency) = ([0, 300, 65_536][turn % 3], 1 + turn % 2, 4 + turn % 5);
    let text = format!(
        "admin: off\nproxy:\n  listen: {front}\n  backend: http://{behind}\n  cpus: {cpus}\n  \
         action: queue\n  queue: {{concurrency: {concurrency}}}\n  \
         bounds: {{body_buffer: {buffer}}}\n"
    );
    let aside = path.with_extension("aside");
    fs::write(&aside, text).expect("a configuration");
    fs::rename(&aside, path).expect("a configuration");
}

impl Gate {
    fn start(folder: &Path) -> Gate {
        let [front, behind] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let config = folder.join("evenkeel.yaml");
        configuration(&config, front, behind, 0);
        let mut command = evenkeel!();
        command.arg("serve").arg("--config").arg(&config);
        let first = Program::listening(command, front.port());
        let last = AtomicU32::new(first.id());
        Gate { first, last, config, front, behind }
    }

    fn signal(&self, signal: Signal) {
        kill_process(pid(self.last.load(Relaxed)), signal).expect("it runs");
    }

    /// The number of log lines that contain this text.
    fn said(&self, what: &str) -> usize {
        self.first.log().matches(what).count()
    }

    /// Replaces the process, and waits until that is done.
    async fn replace(&self) {
        const BEGUN: &str = "a successor was started and opens its doors";
        let before = self.said(BEGUN);
        self.signal(Signal::USR2);
        while self.said(BEGUN) == before || self.said("replaced: ") == before {
            pause(Duration::from_millis(5)).await;
        }
        let log = self.first.log();
        let line = log.lines().rfind(|line| line.contains(BEGUN)).expect("said");
        let number = line.split("pid=").nth(1).expect("a pid").split_whitespace().next();
        let number = number.and_then(|number| number.parse().ok()).expect("a number");
        self.last.store(number, Relaxed);
    }

    /// Reloads until `over`, and replaces the process in every third seed.
    async fn disturb(&self, seed: u64, over: &Cell<bool>) {
        for turn in 0.. {
            if over.get() && turn > 1 {
                return;
            }
            configuration(&self.config, self.front, self.behind, turn);
            self.signal(Signal::HUP);
            pause(BETWEEN_RELOADS).await;
            if turn == 1 && seed.is_multiple_of(3) {
                self.replace().await;
            }
        }
    }

    fn run(&self, seed: u64) -> Outcome {
        let ledger = Rc::new(Ledger::new(Plan::of(seed, &RAW), true, true));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        LocalSet::new().block_on(&runtime.expect("a runtime"), async {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.set_reuseaddr(true).expect("an option");
            socket.bind(self.behind).expect("the port is free again");
            let listener = socket.listen(1024).expect("it listens");
            tokio::task::spawn_local(backend::serve(listener, Rc::clone(&ledger)));
            let over = Cell::new(false);
            let played = async {
                play(&ledger, self.front).await;
                over.set(true);
            };
            tokio::join!(played, self.disturb(seed, &over));
        });
        Outcome::of(&ledger, None)
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).expect("a process id")).expect("a process id")
}

#[test]
fn reloads_and_successors_mix_nothing_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = Gate::start(folder.path());
    // One after the other, because all seeds use the same process.
    crate::run_all("reloads and successors", 1, crate::share(25), |seed| gate.run(seed));
    wait_for("a reload", || (gate.said("configuration reloaded") > 0).then_some(()));
    gate.signal(Signal::TERM);
}
