//! The `proxy.queue.waiting_room` section: the page and the cookie of visitors that have to wait.
//!
//! The files are read by `identity::waiting_room`, which also follows their changes.

use crate::keys::{ConfigKey, SubsectionKey};
use crate::reader::{SectionReader, settings};
use crate::tree::{YamlNode, YamlValue};
use crate::values::truth;
use std::path::PathBuf;

settings! {
    /// The page and the cookie of visitors that have to wait. Without files, the page is the
    /// built-in one and the key follows from the seed of this instance.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct WaitingRoomSettings from keys(section), TABLE = "proxy.queue.waiting_room";

    /// File with one to four secrets of 16 to 1024 visible characters, one on each line. The first
    /// one signs the cookies, and all are accepted. Instances with the same file accept each
    /// other's cookies. A file that changes is read again without a restart.
    pub secret_file: Option<PathBuf>, SECRET_FILE: ConfigKey<PathBuf> =
        ConfigKey::path("secret_file").example("/etc/evenkeel/visitors")
            .default_note("a key that [state](#state) keeps; with the `secret_file` of \
                           [peers](#peers), one that all of them have");
    /// File with the page, in HTML and UTF-8, at most 16 KiB. In it, `{{wait}}` becomes the
    /// expected time until the visitor's turn in English words (`12 seconds`, `2 minutes`), and
    /// `{{seconds}}` the number of seconds until the browser asks again. A file that changes is
    /// read again without a restart.
    pub page: Option<PathBuf>, PAGE: ConfigKey<PathBuf> = ConfigKey::path("page")
        .example("/etc/evenkeel/wait.html").default_note("a built-in page, in English");
}

/// Reads the section, or `true` or `false` in its place. `None`: there is no waiting room.
pub(super) fn read(
    queue: &mut SectionReader<'_, '_>,
    key: &'static SubsectionKey,
) -> Option<WaitingRoomSettings> {
    let is_word = |node: &YamlNode| matches!(node.value, YamlValue::Text(_));
    if queue.node(key.name()).is_some_and(is_word) {
        let on = queue.key_with(key.name(), truth).unwrap_or(true);
        return on.then(WaitingRoomSettings::default);
    }
    let settings = queue.section(key, keys);
    if settings == WaitingRoomSettings::default() {
        queue.show(key.name(), YamlNode::text("true"));
    }
    Some(settings)
}
