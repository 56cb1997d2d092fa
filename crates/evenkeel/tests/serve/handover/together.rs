//! Instances that share a queue and are replaced one after the other, while clients send requests.

use super::{Crowd, LONG, Last, configuration, get, read_head, start, told_pid};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::{self, Program};
use evenkeel_testing::wait::until;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The number of slots that both instances share.
const SLOTS: usize = 2;

/// A backend that takes some time for each request. Returns its address, and the maximum number of
/// requests that it had at once.
fn slow_backend() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let told = Arc::clone(&most);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            thread::spawn(move || {
                while read_head(&mut stream).is_some() {
                    most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                    thread::sleep(Duration::from_millis(10));
                    now.fetch_sub(1, SeqCst);
                    let text = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
                    if stream.write_all(text).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, told)
}

/// One address of the mesh, and the process that uses it now.
struct Seat {
    program: Program,
    last: Last,
    proxy: SocketAddr,
    admin: SocketAddr,
    peers: String,
    _folder: TempDir,
}

impl Seat {
    fn start(backend: SocketAddr, join: &str) -> Seat {
        let folder = tempfile::tempdir().expect("a folder");
        let local = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (proxy, admin, peers) = (local(), local(), local().to_string());
        let text = format!(
            "admin: {{listen: '{admin}'}}\nstate: {{file: {}}}\nproxy:\n  listen: {proxy}\n  \
             backend: http://{backend}\n  queue: {{concurrency: {SLOTS}, reserve: 0}}\n  \
             limits: [{{name: ip, by: ip/32, share: 100%, burst: 1h, keys_max: 1000}}]\n\
             peers: {{listen: '{peers}', join: [{join}], cpus_shared: true}}\n",
            folder.path().join("state").display()
        );
        let path = configuration(folder.path(), &text);
        let mut program = start(&["serve", "--config", &path.display().to_string()]);
        program.told("mesh open");
        let last = Last(program.id());
        Seat { program, last, proxy, admin, peers, _folder: folder }
    }

    fn figure(&self, name: &str) -> Option<usize> {
        let all = get(self.admin, "/metrics");
        let series = format!("evenkeel_queue_{name}{{door=\"proxy\"}} ");
        all.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
    }

    /// Replaces the process. Waits until the old one has served its last requests.
    fn replace(&mut self) {
        let before = self.last.0;
        program::signal(before, Signal::USR2);
        let successor = told_pid(&self.program.told("a successor was started and opens its doors"));
        self.program.told("replaced: the successor accepts all new clients");
        self.last.0 = successor;
        self.program.told("stopped");
        if before == self.program.id() {
            assert_eq!(self.program.end().code(), Some(0));
        }
    }
}

/// Waits until both share one queue. Returns the index of its owner.
fn owner(both: &[Seat; 2]) -> usize {
    until("they share a queue", || {
        let owners = both.iter().filter(|one| one.figure("owner") == Some(1)).count();
        owners == 1 && both.iter().all(|one| one.figure("instances") == Some(2))
    });
    usize::from(both[1].figure("owner") == Some(1))
}

/// Only the second of both connects to the other, so the first one's successor cannot find it.
#[test]
fn each_instance_with_a_shared_queue_is_replaced_and_no_request_is_lost() {
    let (backend, most) = slow_backend();
    let first = Seat::start(backend, "");
    let join = format!("'{}'", first.peers);
    let mut both = [first, Seat::start(backend, &join)];
    owner(&both);
    let crowds = [Crowd::start(3, both[0].proxy), Crowd::start(3, both[1].proxy)];
    for _ in 0..4 {
        // The owner, and then the next one: each is replaced twice.
        let next = owner(&both);
        crowds.iter().for_each(|crowd| crowd.go_on(20));
        both[next].replace();
        crowds.iter().for_each(|crowd| crowd.go_on(20));
        // And one that does not own the queue.
        let other = 1 - owner(&both);
        both[other].replace();
    }
    owner(&both);
    for crowd in crowds {
        crowd.go_on(20);
        let (answered, lost) = crowd.stop();
        assert_eq!(lost, 0, "of {answered}");
    }
    let most = most.load(SeqCst);
    assert!(most <= SLOTS + 1, "{most} requests were with the backend at once");
    for seat in &both {
        let log = seat.program.log();
        assert!(!log.contains("panicked") && !log.contains("cannot reach a peer"), "{log}");
    }
}

/// The number of hits that the key `a` has left, after taking `hits`.
fn left(resp: SocketAddr, hits: u32) -> Option<u32> {
    let mut stream = TcpStream::connect(resp).ok()?;
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    stream.write_all(format!("THROTTLE a {hits}\r\n").as_bytes()).ok()?;
    let mut lines = BufReader::new(stream).lines();
    lines.nth(3)?.ok()?.strip_prefix(':')?.parse().ok()
}

#[test]
fn a_successor_knows_the_debts_of_its_predecessor_and_counts_them_once() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let local = || SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (peers, resp) = ([local(), local()], [local(), local()]);
    let begin = |own: usize, join: &str| {
        let text = format!(
            "admin: off\nstate: {{file: {}}}\n\
             line: {{listen: 'tcp://127.0.0.1:0', resp: '{}', rate: 1/d, burst: 20}}\n\
             peers: {{listen: '{}', join: [{join}], period: 200ms}}\n",
            folders[own].path().join("state").display(),
            resp[own],
            peers[own]
        );
        let path = configuration(folders[own].path(), &text);
        let mut program = start(&["serve", "--config", &path.display().to_string()]);
        program.told("mesh open");
        program
    };
    let mut first = begin(0, "");
    let _second = begin(1, &format!("'{}'", peers[0]));
    assert_eq!(left(resp[0], 5), Some(15));
    until("the other knows it", || left(resp[1], 0) == Some(15));
    // These are perhaps not reported when the snapshot is written.
    assert_eq!(left(resp[0], 3), Some(12));
    first.signal(Signal::USR2);
    let _last = Last(told_pid(&first.told("a successor was started and opens its doors")));
    assert_eq!(first.end().code(), Some(0));
    until("the other knows all", || left(resp[1], 0) == Some(12));
    assert_eq!(left(resp[1], 1), Some(11));
    // By then all earlier reports have arrived.
    until("the successor knows all, once", || left(resp[0], 0) == Some(11));
    assert_eq!(left(resp[0], 2), Some(9));
    until("the other hears of the successor", || left(resp[1], 0) == Some(9));
}
