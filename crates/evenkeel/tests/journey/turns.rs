//! Turns of pages in PHP-FPM: the recipe in `examples/turns`, behind a real nginx.

use crate::client::Client;
use crate::gate::evenkeel;
use crate::site::{open_folder, php, start_nginx};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::{Program, addresses};
use evenkeel_testing::wait::until;
use evenkeel_testing::{admin, examples};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;

/// A door with one slot, and its addresses for lines and for the admin page.
fn door(folder: &Path, wait_max: &str) -> (Program, SocketAddr, SocketAddr) {
    let path = folder.join(format!("{wait_max}.yaml"));
    let text = format!(
        "admin: {{listen: '127.0.0.1:0'}}\nline: {{listen: ['tcp://127.0.0.1:0'], \
         turns: {{slots: 1, wait_max: {wait_max}}}}}\n"
    );
    fs::write(&path, text).expect("a configuration");
    let mut command = evenkeel();
    let mut process = Program::start(command.args(["serve", "--config"]).arg(path));
    let line = process.told("line open");
    let [lines, admin] = addresses(&line)[..] else { panic!("{line}") };
    (process, lines, admin)
}

/// Takes the turn of a door; it ends with the connection.
fn take(lines: SocketAddr) -> BufReader<TcpStream> {
    let mut stream = BufReader::new(TcpStream::connect(lines).expect("it listens"));
    stream.get_mut().write_all(b"TRY other\n").expect("sent");
    let mut reply = String::new();
    stream.read_line(&mut reply).expect("a reply");
    assert!(reply.starts_with("TURN "), "{reply}");
    stream
}

/// The page and its functions in a folder below `home`, which ask the door on this port.
fn page(home: &Path, name: &str, port: u16) {
    let folder = home.join(name);
    fs::create_dir(&folder).expect("a folder");
    for file in ["turn.php", "report.php"] {
        let text = fs::read_to_string(examples::path("turns").join(file)).expect("the example");
        let text = text.replace("7070", &port.to_string());
        fs::write(folder.join(file), text).expect("a page");
    }
}

#[test]
fn pages_in_php_fpm_take_turns() {
    let folder = open_folder();
    let (home, port, php_port) = (folder.path(), free_port(), free_port());
    let (mut patient, lines, admin) = door(home, "1h");
    let (_hurried, hurried_lines, _) = door(home, "1ms");
    page(home, "patient", lines.port());
    page(home, "hurried", hurried_lines.port());
    let _php = php(home, php_port, 4);
    let server = format!(
        "access_log off;\nserver {{\nlisten 127.0.0.1:{port};\nlocation / {{\n\
         fastcgi_pass 127.0.0.1:{php_port};\n\
         fastcgi_param SCRIPT_FILENAME {}$uri;\n\
         fastcgi_param REMOTE_ADDR $remote_addr;\n\
         fastcgi_param REQUEST_METHOD GET;\n}}\n}}\n",
        home.display()
    );
    let _nginx = start_nginx(home, "turns", &server, port);

    let held = take(hurried_lines);
    let refused = Client::new("127.0.0.1", port).get("/hurried/report.php");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("10")));
    drop(held);

    let held = take(lines);
    let waiting = || admin::metric(admin, "evenkeel_waiting_requests{door=\"turns\"}");
    let users = ["127.0.0.2", "127.0.0.3", "127.0.0.3"];
    let pages = users.map(|user| {
        thread::spawn(move || Client::new(user, port).get("/patient/report.php").text())
    });
    until("the pages wait", || waiting() == 3);
    drop(held);
    for (user, page) in users.iter().zip(pages) {
        assert_eq!(page.join().expect("no panic"), format!("the report of {user}\n"));
    }

    patient.kill();
    let alone = Client::new("127.0.0.4", port).get("/patient/report.php");
    assert_eq!((alone.status, &*alone.text()), (200, "the report of 127.0.0.4\n"));
}
