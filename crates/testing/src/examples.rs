//! The files that configurations in the guide name, such as groups and pages.
//!
//! The guide names them where an installation has them; the sources have them in `examples`.

use std::path::{Path, PathBuf};

/// Folders of an installation, with the folders that have their files here.
const FOLDERS: [(&str, &str); 2] =
    [("/etc/evenkeel/groups/", "groups"), ("/etc/evenkeel/pages/", "pages")];

/// The folder `examples`, or a folder or file in it.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// A configuration of the guide that names the files of `examples`.
#[must_use]
pub fn beside_its_files(text: &str) -> String {
    FOLDERS.iter().fold(text.to_owned(), |text, (installed, here)| {
        text.replace(installed, &format!("{}/", path(here).display()))
    })
}
