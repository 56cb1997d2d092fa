//! nginx as a gatekeeper without a module: it asks the check door of an Evenkeel that receives a
//! master's orders, as in `examples/nginx/gatekeeper.conf`.

use crate::client::Client;
use crate::gate::{evenkeel, metric};
use crate::site::{Site, start_nginx};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use std::fs;

const NGINX: &str = include_str!("../../../../../examples/nginx/gatekeeper.conf");
const KEEPER: &str = include_str!("../../../../../examples/gatekeeper.yaml");

/// nginx, the Evenkeel that it asks, and the master of that Evenkeel.
struct Stage {
    port: u16,
    admin: u16,
    site: Site,
    ports: [u16; 3],
    _nginx: Program,
    keeper: Option<Program>,
    _master: Program,
}

impl Stage {
    fn start() -> Stage {
        let site = Site::start(1);
        let [port, check, backup, accounting, admin] = [(); 5].map(|()| free_port());
        let home = site.folder.path().display().to_string();
        fs::create_dir(format!("{home}/www")).expect("a folder");
        fs::copy(format!("{home}/burn.php"), format!("{home}/www/index.php")).expect("the page");
        let text = NGINX
            .replace("127.0.0.1:9971", &format!("127.0.0.1:{check}"))
            .replace("127.0.0.1:9972", &format!("127.0.0.1:{backup}"))
            .replace("listen 80;", &format!("listen 127.0.0.1:{port};"))
            .replace("/var/log/nginx", &home)
            .replace("/var/www/html", &format!("{home}/www"))
            .replace("include fastcgi_params;", "include /etc/nginx/fastcgi_params;")
            .replace("unix:/run/php/php-fpm.sock", &format!("127.0.0.1:{}", site.php_port));
        let nginx = start_nginx(site.folder.path(), "keeper", &text, port);
        let control = free_port();
        let master = format!(
            "admin: off\nmaster:\n  accounting: tcp://127.0.0.1:{accounting}\n  \
             control: tcp://127.0.0.1:{control}\n  domains: {{api: [{{rate: 1/h, burst: 3}}]}}\n"
        );
        let master = serve(&site, "master", &master, accounting);
        let ports = [check, accounting, control];
        let mut stage =
            Stage { port, admin, site, ports, _nginx: nginx, keeper: None, _master: master };
        stage.revive();
        stage
    }

    fn revive(&mut self) {
        let [check, accounting, control] = self.ports;
        let master = format!("tcp://127.0.0.1:{accounting}\n  control: tcp://127.0.0.1:{control}");
        let text = KEEPER
            .replace("127.0.0.1:9971", &format!("127.0.0.1:{check}"))
            .replace("tcp://127.0.0.1:10004", &master);
        let text = format!("admin: {{listen: 127.0.0.1:{}}}\n{text}", self.admin);
        self.keeper = Some(serve(&self.site, "keeper", &text, check));
        let connected = |socket: &str| {
            metric(self.admin, "evenkeel_gatekeeper_connected", &[("socket", socket)]) == 1.0
        };
        wait_for("the master", || {
            ["accounting", "control"].into_iter().all(connected).then_some(())
        });
    }

    fn client(&self, address: &str) -> Client {
        Client::new(address, self.port)
    }
}

fn serve(site: &Site, name: &str, text: &str, port: u16) -> Program {
    let path = site.folder.path().join(format!("{name}.yaml"));
    fs::write(&path, text).expect("saved");
    let mut command = evenkeel();
    command.args(["serve", "--config"]).arg(&path);
    Program::listening(command, port)
}

#[test]
fn nginx_keeps_the_gate_and_harms_nobody_when_its_gatekeeper_is_dead() {
    let mut stage = Stage::start();
    let held = "127.3.0.1";
    for n in 0..3 {
        assert_eq!(stage.client(held).get("/page?ms=1").status, 200, "{n}");
    }
    let refused = wait_for("the master's word", || {
        let answer = stage.client(held).get("/page?ms=1");
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(refused.status, 503);
    let after: u64 = refused.header("retry-after").expect("when").parse().expect("seconds");
    assert!((3_000..=3_601).contains(&after), "{after}");
    assert_eq!(stage.client("127.3.0.2").get("/page?ms=1").status, 200);
    stage.keeper.take().expect("it lives").kill();
    for client in [held, "127.3.0.2"] {
        assert_eq!(stage.client(client).get("/page?ms=1").status, 200, "{client}");
    }
    stage.revive();
    // The new process gets the orders in force, and nginx tries it again within five seconds.
    wait_for("a refusal", || (stage.client(held).get("/page?ms=1").status == 503).then_some(()));
}
