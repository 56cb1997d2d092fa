//! Start, reload, drain, and the Unix socket.

use crate::stage::{Client, LineServer, ONCE};
use evenkeel_testing::evenkeel;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

#[test]
fn a_reload_changes_the_numbers_and_keeps_the_counts() {
    let mut program = LineServer::start("rate: 1 per 365d, burst: 3");
    let mut client = Client::tcp(program.lines);
    assert_eq!(client.ask("C\nC\nC\nC\n"), "OK\nOK\nOK\nNO\n");
    program
        .reload("rate: 1 per 365d, burst: 5, limits: [{prefix: 'C2', rate: 1 per 365d, burst: 1}]");
    assert_eq!(client.ask("C\nC\nC\nC2\nC2\n"), "OK\nOK\nNO\nOK\nNO\n");
}

#[test]
fn what_is_in_shadow_is_served_and_counted_as_what_it_would_have_been() {
    let limits = "limits: [{prefix: a, rate: 1 per 365d, burst: 1, shadow: true}]";
    let mut program = LineServer::start(&format!("rate: 1 per 365d, burst: 1, {limits}"));
    let mut client = Client::tcp(program.lines);
    assert_eq!(client.ask("a\na\na\nb\nb\n"), "OK\nOK\nOK\nOK\nNO\n");
    let refused = |limit: &str, shadow: &str| {
        let labels = format!("verdict=\"reject\",limit=\"{limit}\",shadow=\"{shadow}\"");
        format!("evenkeel_decisions_total{{{labels}}}")
    };
    assert_eq!(program.metric(&refused("a", "true")), 2);
    assert_eq!(program.metric(&refused("line", "false")), 1);
    assert!(program.told("request would be refused").contains("shadow=true"));

    program.reload(&format!("shadow: true, rate: 1 per 365d, burst: 1, {limits}"));
    assert_eq!(client.ask("b\n"), "OK\n");
    let mut cell = Client::tcp(program.resp);
    cell.send("CL.THROTTLE k 0 1 86400\r\nCL.THROTTLE k 0 1 86400\r\n");
    cell.half_close();
    assert_eq!(cell.rest().matches("*5\r\n:0\r\n").count(), 2, "served twice");
}

#[test]
fn a_restart_keeps_the_counts_where_they_are_kept() {
    let program = LineServer::start("rate: 1 per 365d, burst: 3");
    assert_eq!(Client::tcp(program.lines).ask("C\nC\nC\n"), "OK\nOK\nOK\n");
    let mut cell = Client::tcp(program.resp);
    cell.send("CL.THROTTLE k 0 1 86400\r\n");
    assert!(cell.take(8).ends_with(":0\r\n"));
    let program = program.again();
    assert_eq!(Client::tcp(program.lines).ask("C\nD\n"), "NO\nOK\n");
    let mut cell = Client::tcp(program.resp);
    cell.send("CL.THROTTLE k 0 1 86400\r\n");
    assert!(cell.take(8).ends_with(":1\r\n"), "keys with numbers of their own too");
}

#[test]
fn what_was_sent_is_answered_before_the_program_ends() {
    let mut program = LineServer::start("rate: 1/d, burst: 1000000");
    let mut silent = Client::tcp(program.lines);
    let mut busy = Client::unix(&program);
    assert_eq!(busy.ask("C\n"), "OK\n");
    busy.send("C\n".repeat(500));
    program.signal(Signal::TERM);
    assert_eq!(busy.rest(), "OK\n".repeat(500));
    assert_eq!(silent.rest(), "");
    program.told("stopped");
    assert_eq!(program.end().code(), Some(0));
    assert!(!program.socket().exists(), "its file is gone");
}

#[test]
fn a_client_that_does_not_read_is_cut_when_the_time_is_over() {
    let mut program = LineServer::start("rate: 1 per 365d, drain: 3s");
    let client = crate::abuse::stuck(program.lines);
    program.signal(Signal::TERM);
    program.told("stopped; 1 connections were cut off");
    assert_eq!(program.end().code(), Some(0));
    drop(client);
}

#[test]
fn a_sockets_file_has_the_permissions_it_was_given() {
    let program = LineServer::start(&format!("{ONCE}, socket_mode: 640"));
    let mode = fs::metadata(program.socket()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn a_file_left_over_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, config) = (folder.path().join("s"), folder.path().join("c.yaml"));
    let text = format!("admin: off\nline: {{listen: 'unix://{}'}}\n", socket.display());
    fs::write(&config, text).expect("saved");
    let fails = || {
        let mut command = evenkeel!();
        let done = command.args(["serve", "--config"]).arg(&config).output().expect("it runs");
        assert_eq!(done.status.code(), Some(1));
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    fs::write(&socket, "a file").expect("saved");
    assert!(fails().contains("a file that is not a socket exists there"));
    fs::remove_file(&socket).expect("there");
    let holder = UnixListener::bind(&socket).expect("a socket");
    assert!(fails().contains("another program uses it"));
    drop(holder);
    assert!(socket.exists(), "left over, as after a crash");
    fs::remove_file(&socket).expect("there");

    let mut program = LineServer::start(ONCE);
    program.signal(Signal::KILL);
    program.end();
    assert!(program.socket().exists());
    let path = program.folder.path().join("evenkeel.yaml");
    let mut again = evenkeel!();
    let again = again.args(["serve", "--config"]).arg(path).stderr(Stdio::null());
    let mut again = again.spawn().expect("it starts");
    let connected = |_: &u32| std::os::unix::net::UnixStream::connect(program.socket()).is_ok();
    assert!((0..u32::MAX).find(connected).is_some());
    again.kill().expect("it runs");
    again.wait().expect("its end");
}
