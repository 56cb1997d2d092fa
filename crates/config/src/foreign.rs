//! Conversion of configurations of Tempomat and Smockron into native trees.
//!
//! Each kind is recognised by its keys. The resulting tree is checked by `settings` and printed by
//! `show` like a native one. Keys without an equivalent cause a warning. Modules: `tempomat` (a
//! `tempomat.json`) and `smockron` (the configuration of Smockron's master).

mod smockron;
mod tempomat;

use super::fault::{ConfigFault, TextPlace};
use super::tree::{YamlKey, YamlNode, YamlValue};

/// Converts a foreign configuration into a native tree. `None` if the file is a native one. `cpus`
/// is the number of CPUs of the machine.
pub fn native(
    file: &str,
    root: &YamlNode,
    cpus: f64,
    faults: &mut Vec<ConfigFault>,
    notes: &mut Vec<ConfigFault>,
) -> Option<YamlNode> {
    if tempomat::is_tempomat(file, root) {
        return Some(tempomat::native(root, cpus, faults, notes));
    }
    smockron::is_smockron(root).then(|| smockron::native(root, faults, notes))
}

/// Whether a file is a configuration of another program.
pub fn is_foreign(file: &str, root: &YamlNode) -> bool {
    tempomat::is_tempomat(file, root) || smockron::is_smockron(root)
}

/// Keys and values of a section; none for anything else.
fn entries(node: &YamlNode) -> &[(YamlKey, YamlNode)] {
    match &node.value {
        YamlValue::Map(entries) => entries,
        _ => &[],
    }
}

/// A text node at the place of the node from which it was made.
fn placed(text: impl Into<String>, place: TextPlace) -> YamlNode {
    YamlNode { place, ..YamlNode::text(text) }
}
