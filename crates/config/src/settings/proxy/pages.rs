//! The `proxy.pages` section: pages of the operator for requests that are refused or fail.
//!
//! The files are read with the configuration, and a change of one is a change of the configuration.
//! What a page may contain: `identity::waiting_page`.

use crate::keys::ConfigKey;
use crate::reader::{SectionReader, settings};
use crate::source::included::{self, IncludedFile};
use std::path::PathBuf;

/// Maximum size of a page, in bytes.
const PAGE_BYTES_MAX: u64 = 16 << 10;

settings! {
    /// Pages for browsers whose request is refused or fails, in HTML and UTF-8, at most 16 KiB
    /// each. Other programs get a line of text, JSON, or an error of the API that they use.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RefusalPages from read(section), TABLE = "proxy.pages";

    let read = [&DENIED, &OVER_RATE, &BAD_GATEWAY, &BUSY, &TOO_LATE].map(|key| page(section, key));
    let texts = read.clone().map(|page| page.map(|(text, _)| text));
    /// File with the page for status 403, of limits with `action: deny`.
    pub denied: Option<Box<str>>, DENIED: ConfigKey<PathBuf> =
        ConfigKey::path("403").example("/etc/evenkeel/denied.html").default_note("a short page")
        => texts[0].clone();
    /// File with the page for status 429, of limits with `rate`. In it, `{{seconds}}` becomes the
    /// number of seconds of `Retry-After`, and `{{wait}}` the same in English words.
    pub over_rate: Option<Box<str>>, OVER_RATE: ConfigKey<PathBuf> =
        ConfigKey::path("429").example("/etc/evenkeel/slower.html").default_note("a short page")
        => texts[1].clone();
    /// File with the page for status 502: the backend cannot be reached, or fails to answer.
    pub bad_gateway: Option<Box<str>>, BAD_GATEWAY: ConfigKey<PathBuf> =
        ConfigKey::path("502").example("/etc/evenkeel/down.html").default_note("a short page")
        => texts[2].clone();
    /// File with the page for status 503, of all other refusals, with the placeholders of `429`.
    pub busy: Option<Box<str>>, BUSY: ConfigKey<PathBuf> =
        ConfigKey::path("503").example("/etc/evenkeel/busy.html").default_note("a short page")
        => texts[3].clone();
    /// File with the page for status 504: the backend does not answer in time.
    pub too_late: Option<Box<str>>, TOO_LATE: ConfigKey<PathBuf> =
        ConfigKey::path("504").example("/etc/evenkeel/down.html").default_note("a short page")
        => texts[4].clone();
    /// The files that were read.
    pub files: Vec<IncludedFile> =
        read.into_iter().flatten().map(|(_, file)| file).collect();
}

/// Reads the file of a page.
fn page(
    section: &mut SectionReader<'_, '_>,
    key: &'static ConfigKey<PathBuf>,
) -> Option<(Box<str>, IncludedFile)> {
    let path = section.key(key)?;
    let read = included::read(&path, PAGE_BYTES_MAX).and_then(|(bytes, file)| {
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| format!("{} is not UTF-8", path.display()))?;
        Ok((text.into(), file))
    });
    read.map_err(|why| section.fault(key.name(), why)).ok()
}
