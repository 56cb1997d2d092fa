//! The page that compares conditions with those of other servers: nginx, HAProxy and Caddy accept
//! its rules and behave as it says, and so does Evenkeel.

use super::root;
use evenkeel_testing::evenkeel;
use std::process::Command;

#[test]
fn every_server_does_what_the_page_says() {
    let program = evenkeel!().get_program().to_owned();
    let script = root().join("bench/conditions/run.py");
    let run = Command::new("python3").arg(script).arg("--evenkeel").arg(program).output();
    let run = run.expect("python3 runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
