//! Conversion of configurations of Tempomat and Smockron into native trees.
//!
//! Each kind is recognised by its keys. The resulting tree is checked by `section` and printed by
//! `show` like a native one. Keys without an equivalent cause a warning. Modules: `tempomat` (a
//! `tempomat.json`) and `smockron` (the configuration of Smockron's master).

mod smockron;
mod tempomat;

use super::fault::{Fault, Place};
use super::tree::Node;

/// Converts a foreign configuration into a native tree. `None` if the file is a native one. `cpus`
/// is the number of CPUs of the machine.
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

/// A text node at the place of the node from which it was made.
fn placed(text: impl Into<String>, place: Place) -> Node {
    Node { place, ..Node::text(text) }
}
