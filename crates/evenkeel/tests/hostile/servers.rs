//! Real servers behind the proxy, each with several ways of answering.
//!
//! None of them is as strict as the raw backend, so the tests check only the answers that clients
//! get. Each server repeats the token from the request's header. Servers that run a program also
//! repeat the token from the path and, where they read the body, report whether all of it matches
//! the path.

use crate::plan::Shape;
use crate::site::{open_folder, php, program, start_nginx};
use evenkeel_config::settings::{BackendAddress, BackendScheme};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

const PHP: &str = include_str!("servers/echo.php");
const NODE: &str = include_str!("servers/echo.js");
const PYTHON: &str = include_str!("servers/echo.py");

/// The maximum number of concurrent requests at each server.
const WORKERS: usize = 4;

/// Paths for all clients, and paths for hostile clients only, because an answer before the end of
/// an upload may end the client's connection.
type Ways = (&'static [&'static str], &'static [&'static str]);

/// A running server.
pub struct Server {
    pub name: &'static str,
    pub backend: BackendAddress,
    pub shape: Shape,
    // The order matters: a server ends before the servers that it calls, and before its files are
    // removed.
    _running: Vec<Program>,
    _folder: TempDir,
}

impl Server {
    /// nginx: texts of its own, files, errors, and another nginx as its backend.
    pub fn nginx(scheme: BackendScheme) -> Server {
        let (folder, port, behind) = (open_folder(), free_port(), free_port());
        let home = folder.path().display();
        fs::write(folder.path().join("file.txt"), "a file\n").expect("a file");
        // With this option, nginx understands HTTP/2 without TLS in addition to HTTP/1.1.
        let http2 = if scheme == BackendScheme::H2c { " http2" } else { "" };
        let token = "add_header x-token $http_x_token always;";
        let text = format!(
            "access_log off;\ntypes {{}}\n\
             server {{\nlisten 127.0.0.1:{port}{http2};\n{token}\n\
             location ~ ^/return/(?<asked>.*)$ {{ return 200 \"$asked;$http_x_token;\"; }}\n\
             location /refused/ {{\nlimit_except GET HEAD {{ deny all; }}\n\
             rewrite ^ /file.txt break; root {home};\n}}\n\
             location /file/ {{ rewrite ^ /file.txt break; root {home}; }}\n\
             location /proxied/ {{\nproxy_pass http://127.0.0.1:{behind}/return/;\n\
             proxy_http_version 1.1;\n}}\n\
             location /streamed/ {{\nproxy_pass http://127.0.0.1:{behind}/return/;\n\
             proxy_request_buffering off;\n}}\n\
             }}\nserver {{\nlisten 127.0.0.1:{behind};\n\
             location ~ ^/return/(?<asked>.*)$ {{ return 200 \"$asked;$http_x_token;\"; }}\n}}\n"
        );
        let running = start_nginx(folder.path(), "nginx", &text, port);
        let paths = &["/return", "/return", "/file", "/proxied", "/streamed", "/refused"];
        let ways = (&paths[..], &[][..]);
        let name = if scheme == BackendScheme::H2c { "nginx over HTTP/2" } else { "nginx" };
        Server::new(name, (scheme, port), ways, vec![running], folder)
    }

    /// PHP-FPM behind nginx, which buffers or streams request bodies.
    pub fn php() -> Server {
        let (folder, port, php_port) = (open_folder(), free_port(), free_port());
        let home = folder.path().display();
        fs::write(folder.path().join("echo.php"), PHP).expect("the page");
        let behind = php(folder.path(), php_port, WORKERS);
        let pass = format!(
            "include /etc/nginx/fastcgi_params;\nfastcgi_param SCRIPT_FILENAME {home}/echo.php;\n\
             fastcgi_pass 127.0.0.1:{php_port};\n"
        );
        let text = format!(
            "access_log off;\nserver {{\nlisten 127.0.0.1:{port};\n\
             location / {{\n{pass}}}\n\
             location /streamed/ {{\nfastcgi_request_buffering off;\n{pass}}}\n}}\n"
        );
        let running = start_nginx(folder.path(), "nginx", &text, port);
        let ways = (&["/read"][..], &["/early", "/streamed/read", "/streamed/early"][..]);
        Server::new("PHP-FPM", (BackendScheme::Http, port), ways, vec![running, behind], folder)
    }

    pub fn node() -> Server {
        let (folder, port) = (open_folder(), free_port());
        let file = folder.path().join("echo.js");
        fs::write(&file, NODE).expect("the program");
        let mut command = Command::new(program("node"));
        command.arg(file).arg(port.to_string());
        let running = Program::listening(command, port);
        let ways = (&["/read"][..], &["/early", "/early", "/head", "/close"][..]);
        Server::new("Node", (BackendScheme::Http, port), ways, vec![running], folder)
    }

    pub fn gunicorn() -> Server {
        let (folder, port) = (open_folder(), free_port());
        fs::write(folder.path().join("echo.py"), PYTHON).expect("the program");
        let mut command = Command::new(program("gunicorn"));
        let threads = WORKERS.to_string();
        // With threads, gunicorn keeps connections alive; its plain workers close each after one
        // request.
        command.args(["--worker-class", "gthread", "--threads", &threads, "--bind"]);
        command.arg(format!("127.0.0.1:{port}")).arg("--chdir").arg(folder.path());
        command.args(["--keep-alive", "60", "--worker-tmp-dir", "/dev/shm", "echo:answer"]);
        let running = Program::listening(command, port);
        let ways = (&["/read"][..], &["/early", "/early", "/head"][..]);
        Server::new("gunicorn", (BackendScheme::Http, port), ways, vec![running], folder)
    }

    /// Apache: files, errors and redirections, none of which need a body.
    pub fn apache() -> Server {
        let (folder, port) = (open_folder(), free_port());
        let home = folder.path().display();
        fs::write(folder.path().join("file.txt"), "a file\n").expect("a file");
        let modules = ["mpm_event", "authz_core", "alias", "headers", "rewrite"].map(|name| {
            format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n")
        });
        let root = rustix::process::geteuid().is_root();
        let text = format!(
            "ServerRoot {home}\nServerName site\nListen 127.0.0.1:{port}\n\
             PidFile {home}/apache.pid\n\
             ErrorLog {home}/apache-errors.log\nDocumentRoot {home}\n{}{}\
             Header always set x-token \"expr=%{{req:x-token}}\"\n\
             AliasMatch ^/file/ {home}/file.txt\nLimitRequestBody 60000\nKeepAliveTimeout 60\n\
             RewriteEngine on\nRewriteCond %{{REQUEST_METHOD}} !^(GET|HEAD)$\n\
             RewriteRule ^/refused/ - [F]\nRewriteRule ^/refused/ {home}/file.txt\n",
            modules.concat(),
            if root { "User www-data\nGroup www-data\n" } else { "" },
        );
        let file = folder.path().join("apache.conf");
        fs::write(&file, text).expect("Apache's configuration");
        let mut command = Command::new(program("apache2"));
        command.args(["-D", "FOREGROUND", "-f"]).arg(file);
        let running = Program::listening(command, port);
        let ways = (&["/file", "/file", "/refused"][..], &[][..]);
        Server::new("Apache", (BackendScheme::Http, port), ways, vec![running], folder)
    }

    fn new(
        name: &'static str,
        (scheme, port): (BackendScheme, u16),
        (paths, rude): Ways,
        running: Vec<Program>,
        folder: TempDir,
    ) -> Server {
        let backend = BackendAddress { scheme, place: format!("127.0.0.1:{port}") };
        // Without paths for hostile clients only, no path needs a body.
        let shape = Shape { paths, rude, bodies: !rude.is_empty() };
        Server { name, backend, shape, _running: running, _folder: folder }
    }
}
