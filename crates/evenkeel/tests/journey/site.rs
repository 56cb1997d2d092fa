//! The site behind the gate: Debian's nginx and PHP-FPM, with a page that burns CPU.

use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// Journeys run one at a time, because they measure.
static TURN: Mutex<()> = Mutex::new(());

/// A running site. `/?ms=N` burns N ms of CPU, `?sleep=N` takes N ms without CPU, and `?bytes=N`
/// has N bytes.
pub struct Site {
    /// The port of the site, on loopback.
    pub port: u16,
    /// The port of PHP-FPM.
    pub php_port: u16,
    /// A folder for files of the test.
    pub folder: TempDir,
    // The order matters: nginx ends before PHP-FPM, which it calls, and the lock is released last.
    nginx: Option<Program>,
    _php: Program,
    _turn: MutexGuard<'static, ()>,
}

impl Site {
    /// Starts a site that works on `workers` requests at a time.
    pub fn start(workers: usize) -> Site {
        let turn = take_turn();
        let folder = open_folder();
        let page = folder.path().join("burn.php");
        fs::write(&page, include_str!("burn.php")).expect("the page");
        let (port, php_port) = (free_port(), free_port());
        let php = php(folder.path(), php_port, workers);
        let nginx = nginx(folder.path(), port, php_port);
        Site { port, php_port, folder, nginx: Some(nginx), _php: php, _turn: turn }
    }

    /// Stops nginx, so that the port has no listener.
    pub fn die(&mut self) {
        self.nginx = None;
    }
}

/// Waits until no other journey runs, and keeps others from running.
pub fn take_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that workers under another user can read.
pub fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open).expect("a folder that workers can read");
    folder
}

/// Starts PHP-FPM for `workers` requests at a time.
pub fn php(folder: &Path, port: u16, workers: usize) -> Program {
    let root = rustix::process::geteuid().is_root();
    let user = if root { "user = www-data\ngroup = www-data" } else { "" };
    let text = format!(
        "[global]\nerror_log = /dev/stderr\ndaemonize = no\n[site]\n{user}\n\
         listen = 127.0.0.1:{port}\npm = static\npm.max_children = {workers}\n"
    );
    let path = folder.join("fpm.conf");
    fs::write(&path, text).expect("php-fpm's configuration");
    let mut command = Command::new(program("php-fpm"));
    command.args(["--no-php-ini", "--nodaemonize", "--fpm-config"]).arg(path);
    Program::listening(command, port)
}

fn nginx(folder: &Path, port: u16, php_port: u16) -> Program {
    let home = folder.display();
    let server = format!(
        "access_log off;\nserver {{\nlisten 127.0.0.1:{port};\n\
         location / {{\nfastcgi_pass 127.0.0.1:{php_port};\n\
         fastcgi_param SCRIPT_FILENAME {home}/burn.php;\n\
         fastcgi_param REQUEST_METHOD $request_method;\n\
         fastcgi_param QUERY_STRING $query_string;\n}}\n}}\n"
    );
    start_nginx(folder, "nginx", &server, port)
}

/// Starts nginx with this text in its `http` section; its files in `folder` are named after `name`.
pub fn start_nginx(folder: &Path, name: &str, http: &str, port: u16) -> Program {
    let home = folder.display();
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temp: String =
        kinds.iter().map(|kind| format!("{kind}_temp_path {home}/{name}-{kind};\n")).collect();
    let text = format!(
        "daemon off;\nworker_processes 1;\npid {home}/{name}.pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 2000; }}\n\
         http {{\n{temp}{http}}}\n"
    );
    let path = folder.join(format!("{name}.conf"));
    fs::write(&path, text).expect("nginx's configuration");
    let mut command = Command::new(program("nginx"));
    command
        .arg("-p")
        .arg(folder)
        .arg("-e")
        .arg(folder.join(format!("{name}-early.log")))
        .arg("-c")
        .arg(path);
    Program::listening(command, port)
}

/// The path of a program, given the beginning of its name: Debian's php-fpm carries its version.
pub fn program(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"];
    let all = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let fits = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let version = file.strip_prefix(name);
        version.is_some_and(|rest| rest.chars().all(|c| c == '.' || c.is_ascii_digit()))
    };
    let found = all.filter_map(|entry| Some(entry.ok()?.path())).filter(fits).max();
    found.unwrap_or_else(|| {
        panic!("no {name} in {folders:?}; `ci/test` installs it (apt-get install {name})")
    })
}
