//! Configurations of the programs whose place Evenkeel takes, made into native trees.
//!
//! Each is recognised by its keys, and the tree that comes out is checked once more by `section`
//! and printed by `show`. What means nothing here is told in a warning. Each kind has a module:
//! `tempomat` (a `tempomat.json`), `smockron` (the configuration of Smockron's master).

mod smockron;
mod tempomat;

use super::fault::{Fault, Place};
use super::tree::Node;

/// The native tree that means the same as the file; `None` if it is a native one. `cpus` is what
/// the machine has.
pub fn native(
    file: &str,
    root: &Node,
    cpus: f64,
    faults: &mut Vec<Fault>,
    notes: &mut Vec<Fault>,
) -> Option<Node> {
    if tempomat::is_one(file, root) {
        return Some(tempomat::native(root, cpus, faults, notes));
    }
    smockron::is_one(root).then(|| smockron::native(root, faults, notes))
}

/// A value in the place of what it was made from.
fn placed(text: impl Into<String>, place: Place) -> Node {
    Node { place, ..Node::text(text) }
}
