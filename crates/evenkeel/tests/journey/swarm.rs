//! A swarm of ever-new addresses in front of a real site: what programs reach during it, what a
//! cache in front keeps, and what an operator sees.
//!
//! A browser is among the tests of the page (`tests/browser/waiting.test.js`). How long people wait
//! is measured by `bench/arena`.

use crate::client::{Answer, Client};
use crate::gate::{Gate, lines};
use crate::site::{Site, php, start_nginx};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The page that people and swarm ask for: a fifth of a second of the only processor.
const PAGE: &str = "/page?ms=200";
const BROWSER: &str = "Accept: text/html,*/*;q=0.8\r\nSec-Fetch-Mode: navigate\r\n";
/// The number of connections of the swarm: twenty seconds of work.
const CONNECTIONS: usize = 100;

/// A swarm, each of whose requests has a new address. It ends when this value is dropped.
struct Swarm {
    over: Arc<AtomicBool>,
    connections: Vec<JoinHandle<()>>,
}

impl Swarm {
    fn start(port: u16) -> Swarm {
        let (over, names) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let connection = |_| {
            let (over, names) = (Arc::clone(&over), Arc::clone(&names));
            thread::spawn(move || {
                let mut client = Client::new("127.0.0.1", port);
                while !over.load(Relaxed) {
                    // Spread over all networks: no limit by network catches them.
                    let bits = names.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b1);
                    let [a, b, c, d] = bits.to_be_bytes();
                    ask(&mut client, PAGE, &format!("{}.{b}.{c}.{d}", 1 + a % 120), BROWSER);
                }
            })
        };
        let connections = (0..CONNECTIONS).map(connection).collect();
        Swarm { over, connections }
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        for connection in self.connections.drain(..) {
            let _ = connection.join();
        }
    }
}

fn ask(client: &mut Client, path: &str, address: &str, headers: &str) -> Answer {
    client.get_with(path, &format!("X-Forwarded-For: {address}\r\n{headers}"))
}

/// A site with a folder of files beside its pages, and a program for repositories, which does not
/// wait for the worker of the pages.
struct SiteWithFiles {
    site: Site,
    _servers: [Program; 2],
    port: u16,
}

fn site() -> SiteWithFiles {
    let site = Site::start(1);
    let (home, port, git_port) = (site.folder.path(), free_port(), free_port());
    let server = format!(
        "access_log off;\nserver {{\nlisten 127.0.0.1:{port};\nroot {home}/files;\n\
         location /page {{\nfastcgi_pass 127.0.0.1:{php};\n\
         fastcgi_param SCRIPT_FILENAME {home}/burn.php;\n\
         fastcgi_param REQUEST_METHOD $request_method;\n\
         fastcgi_param QUERY_STRING $query_string;\n}}\n\
         location ~ ^/smart(/.*) {{\nfastcgi_pass 127.0.0.1:{git_port};\n\
         fastcgi_param SCRIPT_FILENAME {home}/git.php;\n\
         fastcgi_param GIT_PROJECT_ROOT {home}/files;\n\
         fastcgi_param PATH_INFO $1;\n\
         fastcgi_param REQUEST_METHOD $request_method;\n\
         fastcgi_param CONTENT_TYPE $content_type;\n\
         fastcgi_param CONTENT_LENGTH $content_length;\n\
         fastcgi_param QUERY_STRING $query_string;\n}}\n}}\n",
        home = home.display(),
        php = site.php_port,
    );
    fs::create_dir(home.join("files")).expect("a folder");
    fs::write(home.join("files/feed.atom"), "a feed\n").expect("a feed");
    fs::write(home.join("git.php"), include_str!("git.php")).expect("a program");
    let git = home.join("git");
    fs::create_dir(&git).expect("a folder");
    let servers = [php(&git, git_port, 1), start_nginx(home, "files", &server, port)];
    SiteWithFiles { site, _servers: servers, port }
}

/// Evenkeel with one slot, and all else as it is by default.
fn gate(site: &SiteWithFiles) -> Gate {
    Gate::start_with(&site.site, "evenkeel.yaml", |port, admin| {
        format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\nlog: {{level: info, format: json}}\nproxy:\n  \
             listen: 127.0.0.1:{port}\n  backend: http://127.0.0.1:{}\n  cpus: 1\n  cost: wall\n  \
             trusted_proxies: [127.0.0.1]\n  queue: {{concurrency: 1}}\n",
            site.port
        )
    })
}

/// Waits until visitors are sent to the waiting room.
fn wait_for_pressure(gate: &Gate) {
    gate.wait_for_metric("evenkeel_waiting_room_pages_total", &[], 1.0);
    gate.wait_for_metric("evenkeel_pressure_start_time_seconds", &[], 1.0);
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A repository that clients fetch file by file.
fn repository(folder: &Path) {
    let run = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").arg("-C").arg(folder).args(arguments);
        run(&mut git);
    };
    run(&["init", "--quiet", "work"]);
    fs::write(folder.join("work/text"), "a text\n").expect("a file");
    run(&["-C", "work", "add", "text"]);
    let author = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
    run(&[&["-C", "work"], &author[..], &["commit", "--quiet", "-m", "a text"]].concat());
    run(&["clone", "--quiet", "--bare", "work", "files/text.git"]);
    run(&["-C", "files/text.git", "update-server-info"]);
}

/// Programs of one user, each with the address that it is given.
struct Programs<'a> {
    home: &'a Path,
    url: String,
}

impl Programs<'_> {
    fn curl(&self, address: &str, path: &str, more: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "100", "--header"]);
        curl.arg(format!("X-Forwarded-For: {address}")).args(more);
        run(curl.arg(format!("{}{path}", self.url)))
    }

    /// A reader of feeds asks twice, the second time whether the feed has changed. Returns the
    /// first answer and the second status.
    fn read_feed(&self, address: &str) -> [String; 2] {
        let tag = self.home.join("tag").display().to_string();
        let reader = ["--user-agent", "Reader/1.0", "--header", "Accept: application/atom+xml"];
        let ask = |more: &[&str]| self.curl(address, "/feed.atom", &[&reader, more].concat());
        let first = ask(&["--etag-save", &tag]);
        [first, ask(&["--etag-compare", &tag, "--write-out", "%{http_code}"])]
    }

    /// Opens the page for one of several users, each with an address and cookies of its own.
    fn w3m(&self, user: usize) -> String {
        let own = self.home.join(format!("user-{user}"));
        fs::create_dir_all(&own).expect("a folder");
        let mut w3m = Command::new("w3m");
        let address = format!("X-Forwarded-For: 198.51.100.{user}");
        w3m.env("HOME", own).args(["-dump", "-cookie", "-header", &address]);
        run(w3m.arg(format!("{}{PAGE}", self.url)))
    }

    /// Clones a repository, and returns what is in its file.
    fn clone(&self, address: &str, path: &str, copy: &str) -> String {
        let mut git = Command::new("git");
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_TERMINAL_PROMPT", "0");
        let header = format!("http.extraHeader=X-Forwarded-For: {address}");
        git.current_dir(self.home).args(["-c", &header, "clone", "--quiet"]);
        run(git.arg(format!("{}{path}", self.url)).arg(copy));
        fs::read_to_string(self.home.join(copy).join("text")).expect("a file")
    }
}

#[test]
fn programs_reach_everything_while_there_is_a_swarm() {
    let site = site();
    let gate = gate(&site);
    let home = site.site.folder.path();
    repository(home);
    let swarm = Swarm::start(gate.port);
    wait_for_pressure(&gate);
    let programs = Programs { home, url: format!("http://127.0.0.1:{}", gate.port) };
    // A program that neither shows pages nor keeps cookies, and one for feeds.
    assert_eq!(programs.curl("192.0.2.1", PAGE, &[]), "burnt 200 ms\n");
    let feed = ["--header", "Accept: application/atom+xml, */*;q=0.1"];
    assert_eq!(programs.curl("192.0.2.2", PAGE, &feed), "burnt 200 ms\n");
    assert_eq!(programs.read_feed("192.0.2.5"), ["a feed\n", "304"]);
    // A browser without scripts, which keeps cookies and comes back when `Retry-After` says so.
    let jar = home.join("jar").display().to_string();
    let browser = ["--header", "Accept: text/html, text/*;q=0.5", "--cookie", &jar];
    let back = ["--cookie-jar", &jar, "--retry", "30"];
    let served = programs.curl("192.0.2.3", PAGE, &[browser, back].concat());
    assert_eq!(served, "burnt 200 ms\n");
    // A browser for terminals, which keeps cookies and comes back when its user reloads the page.
    // Of fifteen at once, not all can get their turn within two seconds.
    let waits = |user: &usize| {
        let shown = programs.w3m(*user);
        assert!(shown.starts_with("Please wait") || shown == "burnt 200 ms\n", "{shown}");
        shown.starts_with("Please wait")
    };
    let users: Vec<usize> = (0..15).collect();
    let waiting = thread::scope(|scope| {
        let opened: Vec<_> = users.iter().map(|user| scope.spawn(|| waits(user))).collect();
        let waits = opened.into_iter().map(|opened| opened.join().expect("a page"));
        waits.zip(&users).filter_map(|(waits, user)| waits.then_some(user)).last()
    });
    let user = waiting.expect("a waiting page");
    wait_for("a page in w3m after a waiting page", || (!waits(user)).then_some(()));
    // A clone takes several requests: of files, and with bodies in the protocol of git.
    assert_eq!(programs.clone("192.0.2.4", "/text.git", "copy"), "a text\n");
    assert_eq!(programs.clone("192.0.2.6", "/smart/text.git", "smart"), "a text\n");
    drop(swarm);
}

#[test]
fn an_operator_sees_the_swarm_and_its_end() {
    let site = site();
    let gate = gate(&site);
    let swarm = Swarm::start(gate.port);
    wait_for_pressure(&gate);
    let mut visitor = Client::new("127.0.0.1", gate.port);
    let mut address = 0;
    wait_for("a visitor with a pass", || {
        address += 1;
        let served = walk_in(&mut visitor, PAGE, &format!("192.0.2.{address}"));
        served.header("set-cookie").map(|set| assert!(set.starts_with("evenkeel=")))
    });
    assert!(gate.metric("evenkeel_newcomer_wait_seconds_count", &[]) >= 1.0);
    let top: serde_json::Value = serde_json::from_str(&gate.admin_page("/api/top")).expect("JSON");
    let seen = &top["load"][0]["swarm"];
    assert!(seen["seconds"].as_f64().expect("a number") > 0.0, "{seen}");
    assert!(seen["strangers"].as_u64().expect("a number") > 0, "{seen}");
    assert!(seen["strangers_cost"].as_f64().expect("a number") > 0.0, "{seen}");
    assert!(seen["newcomer_wait"].as_f64().expect("a number") > 1.0, "{seen}");
    let doctor = gate.doctor();
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(text.contains("proxy: swarm for "), "{text}");
    drop(swarm);
    let logged = |text: &str| {
        let lines = lines(&gate.process.log());
        lines.into_iter().find(|line| line.text("message").starts_with(text))
    };
    let ends = wait_for("its end", || logged("swarm or crowd over"));
    assert!(ends.number("lasted") > 10.0 && ends.number("pages") > 1.0);
    assert!(logged("swarm or crowd: clients ask for more").is_some());
    assert_eq!(gate.metric("evenkeel_pressure_start_time_seconds", &[]), 0.0);
}

/// A visitor with cookies that comes back when the page says so, until it gets what it asked for.
fn walk_in(visitor: &mut Client, path: &str, address: &str) -> Answer {
    let mut cookie = String::new();
    wait_for("the page", || {
        let answer = ask(visitor, path, address, &format!("{BROWSER}{cookie}"));
        if answer.status == 200 {
            return Some(answer);
        }
        assert_eq!(answer.status, 503);
        assert!(answer.text().contains("<h1>Please wait</h1>"), "{}", answer.text());
        if let Some(set) = answer.header("set-cookie") {
            let pair = set.split(';').next().unwrap_or_default();
            cookie = format!("Cookie: {pair}\r\n");
        }
        let seconds = answer.header("refresh").expect("seconds").parse().expect("a number");
        let back = Instant::now() + Duration::from_secs(seconds);
        wait_for("the time to come back", || (Instant::now() >= back).then_some(()));
        None
    })
}

/// nginx in front, which keeps every answer that it may for ten minutes.
fn cache(site: &Site, gate: u16) -> (Program, u16) {
    let (home, port) = (site.folder.path(), free_port());
    let server = format!(
        "access_log off;\nproxy_cache_path {home}/cache keys_zone=all:1m;\n\
         server {{\nlisten 127.0.0.1:{port};\nlocation / {{\n\
         proxy_pass http://127.0.0.1:{gate};\nproxy_http_version 1.1;\n\
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n\
         proxy_read_timeout 100s;\nproxy_cache all;\nproxy_cache_valid any 10m;\n\
         add_header X-Cache $upstream_cache_status always;\n}}\n}}\n",
        home = home.display(),
    );
    (start_nginx(home, "cache", &server, port), port)
}

#[test]
fn a_cache_in_front_keeps_neither_the_waiting_page_nor_a_cookie() {
    let site = site();
    let gate = gate(&site);
    let (_cache, port) = cache(&site.site, gate.port);
    let swarm = Swarm::start(gate.port);
    wait_for_pressure(&gate);
    let mut first = Client::new("127.0.0.1", port);
    // A stranger may get its turn before two seconds have passed; then another one comes.
    let mut path = PAGE.to_owned();
    wait_for("a page and then the answer to a ticket", || {
        path += "&again";
        let page = ask(&mut first, &path, "192.0.2.1", BROWSER);
        assert_eq!(page.header("x-cache"), Some("MISS"));
        let served = walk_in(&mut first, &path, "192.0.2.2");
        (page.status == 503 && served.header("set-cookie").is_some()).then_some(())
    });
    // Neither was kept: the next visitor has an answer of its own, at once or by a ticket.
    let mut second = Client::new("127.0.0.1", port);
    let page = ask(&mut second, &path, "192.0.2.3", BROWSER);
    assert_eq!(page.header("x-cache"), Some("MISS"));
    assert_eq!(page.header("set-cookie").is_some(), page.status == 503);
    // What the backend answers to a program without cookies is kept as before.
    let mut program = Client::new("127.0.0.1", port);
    let answers = [(); 2].map(|()| ask(&mut program, &path, "192.0.2.4", ""));
    assert_eq!(answers.map(|answer| answer.status), [200, 200]);
    let hit = ask(&mut program, &path, "192.0.2.5", BROWSER);
    assert_eq!((hit.status, hit.header("x-cache")), (200, Some("HIT")));
    assert_eq!(hit.header("set-cookie"), None);
    drop(swarm);
    let kept = Command::new("grep")
        .args(["-rlE", "evenkeel=|Please wait"])
        .arg(site.site.folder.path().join("cache"))
        .output()
        .expect("grep");
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "");
}
