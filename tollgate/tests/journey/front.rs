//! A server that keeps its own front: nginx as examples/nginx has it, PHP-FPM behind it, and
//! Tollgate beside it, which it asks.

use crate::client::Client;
use crate::gate::{Line, decisions, lines, metric, tollgate};
use crate::process::{Running, free_port, wait_for};
use crate::site::{Site, start_nginx};
use std::fs;

const CONFIGURATION: &str = include_str!("../../../examples/nginx/tollgate.conf");

/// nginx, and Tollgate if it lives.
pub struct Front {
    /// Where clients come in.
    pub port: u16,
    /// Where Tollgate is asked.
    pub check: u16,
    pub site: Site,
    _nginx: Running,
    gate: Option<Running>,
    command: String,
    admin: u16,
}

impl Front {
    /// `tollgate serve` with these lines in its section `proxy`, and nginx in front of PHP.
    pub fn start(proxy: &str) -> Front {
        let site = Site::start(2);
        let [port, check, admin, syslog] = [(); 4].map(|()| free_port());
        let home = site.folder.path();
        let config = home.join("check.yaml");
        let text = format!(
            "admin: {{listen: 127.0.0.1:{admin}}}\nlog: {{level: info, format: json}}\n\
             check: {{listen: 127.0.0.1:{check}, syslog: \"udp://127.0.0.1:{syslog}\"}}\n\
             proxy:\n  listen: off\n{proxy}"
        );
        fs::write(&config, text).expect("a configuration");
        let command = config.display().to_string();
        let home = home.display().to_string();
        let nginx = CONFIGURATION
            .replace("listen 80;", &format!("listen 127.0.0.1:{port};"))
            .replace("127.0.0.1:9971", &format!("127.0.0.1:{check}"))
            .replace("127.0.0.1:5514", &format!("127.0.0.1:{syslog}"))
            .replace("/var/log/nginx", &home)
            .replace("/var/www/html", &format!("{home}/www"))
            .replace("include fastcgi_params;", "include /etc/nginx/fastcgi_params;")
            .replace("unix:/run/php/php-fpm.sock", &format!("127.0.0.1:{}", site.php_port));
        fs::create_dir(format!("{home}/www")).expect("a folder");
        fs::copy(format!("{home}/burn.php"), format!("{home}/www/index.php")).expect("the page");
        fs::write(format!("{home}/www/plain.txt"), "plain\n").expect("a file");
        let nginx = start_nginx(site.folder.path(), "front", &nginx, port);
        let mut front = Front { port, check, site, _nginx: nginx, gate: None, command, admin };
        front.revive();
        front
    }

    /// Tollgate dies, without time for a last word.
    pub fn kill(&mut self) {
        self.gate.take().expect("it lives").kill();
    }

    /// Tollgate starts.
    pub fn revive(&mut self) {
        let mut command = tollgate();
        command.args(["serve", "--config", &self.command]);
        let log = self.site.folder.path().join("gate.log");
        self.gate = Some(Running::start(command, &log, self.check));
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

    /// Notices of blocks so far, of this life.
    pub fn notices(&self) -> Vec<Line> {
        let is = |line: &Line| line.text("message") == "client blocked";
        lines(&self.log()).into_iter().filter(is).collect()
    }

    /// All that Tollgate has written.
    pub fn log(&self) -> String {
        self.gate.as_ref().map(Running::output).unwrap_or_default()
    }

    /// A metric of Tollgate now.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        metric(self.admin, name, labels)
    }

    /// Waits until so many passes are settled by reports.
    pub fn wait_for_reports(&self, count: f64) {
        let settled = || self.metric("tollgate_check_reports_total", &[("result", "settled")]);
        wait_for("reports", || (settled() >= count).then_some(()));
    }
}
