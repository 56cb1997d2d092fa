//! A server that keeps its own front: nginx, HAProxy, Caddy or Apache as configured in `examples`,
//! with PHP-FPM behind it and Evenkeel beside it, which it asks.

use crate::client::Client;
use crate::gate::{Line, decisions, evenkeel, lines, metric};
use crate::site::{Site, program, start_nginx};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use std::fs;
use std::process::Command;

const NGINX: &str = include_str!("../../../../examples/nginx/evenkeel.conf");
const HAPROXY: &str = include_str!("../../../../examples/haproxy/haproxy.cfg");
const HAPROXY_LUA: &str = include_str!("../../../../examples/haproxy/evenkeel.lua");
const APACHE: &str = include_str!("../../../../examples/apache/evenkeel.conf");
const APACHE_LUA: &str = include_str!("../../../../examples/apache/evenkeel.lua");
const CADDY: &str = include_str!("../../../../examples/caddy/Caddyfile");

const CHECK: &str = "    location = /.evenkeel/check {";
/// Static files of nginx that it asks Evenkeel about.
const FILES: &str = "    location /files/ {
        auth_request /.evenkeel/check;
        auth_request_set $evenkeel_id $upstream_http_x_evenkeel_id;
        access_log syslog:server=127.0.0.1:5514,tag=nginx evenkeel;
    }

";

/// A front, and its Evenkeel while it runs.
pub struct Front {
    /// The port for clients.
    pub port: u16,
    /// The port of the check door.
    pub check: u16,
    _site: Site,
    _server: Program,
    gate: Option<Program>,
    command: String,
    admin: u16,
}

/// The ports of all listeners, and the folder for files.
struct Ports {
    front: u16,
    check: u16,
    syslog: u16,
    home: String,
    /// Whether Evenkeel delays its answer if a client has to wait.
    waits: bool,
}

impl Ports {
    /// A configuration from `examples`, with these ports in place of its own.
    fn within(&self, text: &str) -> String {
        text.replace("127.0.0.1:9971", &format!("127.0.0.1:{}", self.check))
            .replace("127.0.0.1:5514", &format!("127.0.0.1:{}", self.syslog))
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = format!("{}/{name}", self.home);
        fs::write(&path, text).expect("a file");
        path
    }
}

fn nginx(ports: &Ports, site: &Site) -> Program {
    let (home, port) = (&ports.home, ports.front);
    let patience = if ports.waits { "proxy_read_timeout 60s" } else { "proxy_read_timeout 2s" };
    let text = ports
        .within(NGINX)
        .replace("listen 80;", &format!("listen 127.0.0.1:{port};"))
        .replace("127.0.0.1:9972", &format!("127.0.0.1:{}", free_port()))
        .replace("proxy_read_timeout 2s", patience)
        .replace("    location = /.evenkeel/check {", &format!("{}{CHECK}", ports.within(FILES)))
        .replace("/var/log/nginx", home)
        .replace("/var/www/html", &format!("{home}/www"))
        .replace("include fastcgi_params;", "include /etc/nginx/fastcgi_params;")
        .replace("unix:/run/php/php-fpm.sock", &format!("127.0.0.1:{}", site.php_port));
    fs::create_dir(format!("{home}/www")).expect("a folder");
    fs::copy(format!("{home}/burn.php"), format!("{home}/www/index.php")).expect("the page");
    ports.write("www/plain.txt", "plain\n");
    fs::create_dir(format!("{home}/www/files")).expect("a folder");
    ports.write("www/files/picture", &"x".repeat(12_000_000));
    start_nginx(site.folder.path(), "front", &text, port)
}

fn haproxy(ports: &Ports, site: &Site) -> Program {
    ports.write("evenkeel.lua", &ports.within(HAPROXY_LUA));
    let text = ports
        .within(HAPROXY)
        .replace("/etc/haproxy", &ports.home)
        .replace("bind :80\n", &format!("bind 127.0.0.1:{}\n", ports.front))
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", site.port));
    let mut command = Command::new(program("haproxy"));
    command.args(["-db", "-f", &ports.write("haproxy.cfg", &text)]);
    Program::listening(command, ports.front)
}

fn caddy(ports: &Ports, site: &Site) -> Program {
    let text = ports
        .within(CADDY)
        .replace(":80 {", &format!(":{} {{\n\tbind 127.0.0.1", ports.front))
        .replace(":9972", &format!(":{}", free_port()))
        .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", site.port));
    let text = format!("{{\n\tadmin off\n}}\n{text}");
    let mut command = Command::new(program("caddy"));
    // Caddy keeps files of its own in this folder.
    command.env("HOME", &ports.home).args(["run", "--adapter", "caddyfile", "--config"]);
    command.arg(ports.write("Caddyfile", &text));
    Program::listening(command, ports.front)
}

fn apache(ports: &Ports, site: &Site) -> Program {
    let (home, port) = (&ports.home, ports.front);
    let lua = APACHE_LUA.replace("9971, 5514", &format!("{}, {}", ports.check, ports.syslog));
    assert_ne!(lua, APACHE_LUA, "the ports stand where they are looked for");
    ports.write("evenkeel.lua", &lua);
    let ours = ports.write("evenkeel.conf", &APACHE.replace("/etc/apache2", home));
    let root = rustix::process::geteuid().is_root();
    fs::create_dir(format!("{home}/www")).expect("a folder");
    ports.write("www/index.html", "the start\n");
    let modules = ["mpm_event", "authz_core", "dir", "lua", "proxy", "proxy_http"]
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    let text = format!(
        "ServerRoot {home}\nServerName site\nListen 127.0.0.1:{port}\nPidFile {home}/apache.pid\n\
         ErrorLog /dev/stderr\nDocumentRoot {home}/www\nDirectoryIndex index.html\n{}{}\
         ErrorDocument 404 /index.html\nProxyPass /page {site}page\n\
         ProxyPass /login {site}login\nInclude {ours}\n",
        modules.concat(),
        if root { "User www-data\nGroup www-data\n" } else { "" },
        site = format_args!("http://127.0.0.1:{}/", site.port),
    );
    let mut command = Command::new(program("apache2"));
    command.args(["-D", "FOREGROUND", "-f", &ports.write("apache.conf", &text)]);
    Program::listening(command, port)
}

impl Front {
    /// nginx in front of PHP; Evenkeel has these lines in its section `proxy`.
    pub fn nginx(proxy: &str) -> Front {
        Front::start(nginx, proxy)
    }

    /// HAProxy in front of a complete site.
    pub fn haproxy(proxy: &str) -> Front {
        Front::start(haproxy, proxy)
    }

    /// Caddy in front of a complete site.
    pub fn caddy(proxy: &str) -> Front {
        Front::start(caddy, proxy)
    }

    /// Apache in front of a complete site.
    pub fn apache(proxy: &str) -> Front {
        Front::start(apache, proxy)
    }

    fn start(server: fn(&Ports, &Site) -> Program, proxy: &str) -> Front {
        let site = Site::start(2);
        let [front, check, admin, syslog] = [(); 4].map(|()| free_port());
        let home = site.folder.path().display().to_string();
        let ports = Ports { front, check, syslog, home, waits: proxy.contains("action: hold") };
        let text = format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\nlog: {{level: info, format: json}}\n\
             check: {{listen: 127.0.0.1:{check}, syslog: \"udp://127.0.0.1:{syslog}\", \
             headers: {}}}\nproxy:\n  listen: off\n{proxy}",
            if proxy.contains("fetch:") { "all" } else { "some" },
        );
        let command = ports.write("check.yaml", &text);
        let server = server(&ports, &site);
        let mut front =
            Front { port: front, check, _site: site, _server: server, gate: None, command, admin };
        front.revive();
        front
    }

    /// Kills Evenkeel with SIGKILL, so that it cannot finish anything.
    pub fn kill(&mut self) {
        self.gate.take().expect("it lives").kill();
    }

    /// Stops Evenkeel: its ports stay open, but it does not answer.
    pub fn stop(&self) {
        self.gate.as_ref().expect("it lives").signal(rustix::process::Signal::STOP);
    }

    /// Starts Evenkeel again.
    pub fn revive(&mut self) {
        let mut command = evenkeel();
        command.args(["serve", "--config", &self.command]);
        self.gate = Some(Program::listening(command, self.check));
    }

    /// A client at `address`.
    pub fn client(&self, address: &str) -> Client {
        Client::new(address, self.port)
    }

    /// The decisions about one client, once there are at least `count`.
    pub fn decisions_about(&self, client: &str, count: usize) -> Vec<Line> {
        wait_for("decisions in the log", || {
            let mut lines = decisions(&self.log());
            lines.retain(|line| line.text("client") == client);
            (lines.len() >= count).then_some(lines)
        })
    }

    /// The notices about blocked clients since the last start.
    pub fn notices(&self) -> Vec<Line> {
        let is = |line: &Line| line.text("message") == "client blocked";
        lines(&self.log()).into_iter().filter(is).collect()
    }

    /// Everything that Evenkeel has written.
    pub fn log(&self) -> String {
        self.gate.as_ref().map(Program::log).unwrap_or_default()
    }

    /// The current value of a metric of Evenkeel.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        metric(self.admin, name, labels)
    }

    /// Waits until this number of admitted requests is settled by reports.
    pub fn wait_for_reports(&self, count: f64) {
        let settled = || self.metric("evenkeel_check_reports_total", &[("result", "settled")]);
        wait_for("reports", || (settled() >= count).then_some(()));
    }
}
