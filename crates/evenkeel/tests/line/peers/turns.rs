//! Instances that give out turns from one line.

use super::Peer;
use crate::turns::{Worker, waiting};
use rustix::process::Signal;

const ONE: &str = "turns: {slots: 1, shared: true}";

#[test]
fn instances_have_one_line_of_turns_and_a_killed_one_gives_its_turns_back() {
    let a = Peer::start(ONE, &[]);
    let b = Peer::start(ONE, &[&a]);
    a.meets(2);
    b.meets(2);
    let (mut of_a, mut of_b) = (Worker::new(&a.program), Worker::new(&b.program));
    let id = of_a.take("x");
    of_b.send("TAKE y");
    waiting(&b.program, 1);
    assert_eq!(Worker::new(&b.program).ask("TRY z"), "BUSY", "the slot is the other one's");
    of_a.done(&id);
    let id = of_b.turn();
    of_a.send("TAKE x");
    waiting(&a.program, 1);
    of_b.done(&id);
    let id = of_a.turn();
    of_b.send("TAKE y");
    waiting(&b.program, 1);
    of_a.done(&id);
    of_b.turn();
    of_a.send("TAKE x");
    waiting(&a.program, 1);
    b.program.signal(Signal::KILL);
    of_a.turn();
}
