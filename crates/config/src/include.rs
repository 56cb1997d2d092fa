//! Files that a configuration includes, such as `conf.d/*.yaml`.
//!
//! Their trees are joined with that of the configuration before anything is interpreted. Sections
//! are joined key by key, lists are appended, and everything else may be set in one file only. Each
//! node keeps the number of its file, so that faults name it. An included file includes no others.

pub(crate) mod merge;

use crate::fault::{ConfigFault, TextPlace, quoted};
use crate::keys::{ConfigKey, ListKey, SectionTable, section};
use crate::source::included::{self, IncludedFile};
use crate::tree::{self, YamlKey, YamlNode, YamlValue};
use crate::values::Read;
use crate::variables;
use merge::FileMerger;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

section! {
    /// Files that are parts of this configuration ([details](#several-files)): paths, relative to
    /// the folder of this file, in which the name of the file may have `*`.
    INCLUDE: ListKey<Box<str>> = ConfigKey::text("include", pattern).list()
        .default_note("none").example("conf.d/*.yaml");
}

/// Maximum number of included files.
const FILES_MAX: usize = 256;
/// Maximum size of all included files together, in bytes.
const BYTES_MAX: usize = 4 << 20;
/// Maximum number of files in a folder from which some are included.
const FOLDER_MAX: usize = 10_000;

/// The files that a configuration includes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Includes {
    /// The files that were read, in the order of their numbers. The first one has number 1.
    pub files: Vec<IncludedFile>,
    /// The paths without `*`.
    pub named: Vec<PathBuf>,
    /// The paths with `*`.
    pub patterns: Vec<PathBuf>,
    /// Whether a file is missing or cannot be parsed, so that the joined tree lacks a part.
    pub is_incomplete: bool,
}

impl Includes {
    /// The names of the files, as messages have them.
    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.path.display().to_string()).collect()
    }
}

/// Joins the files that `root`, the tree of `file`, includes with it, and removes the key. Returns
/// the files.
pub(crate) fn join(
    file: &str,
    root: &mut YamlNode,
    table: &'static SectionTable,
    faults: &mut Vec<ConfigFault>,
) -> Includes {
    let mut reader = IncludeReader { file, table, faults, bytes: 0, includes: Includes::default() };
    let YamlValue::Map(entries) = &mut root.value else { return reader.includes };
    let keys: Vec<(YamlKey, YamlNode)> =
        entries.extract_if(.., |(key, _)| key.name == INCLUDE.key().name()).collect();
    for (key, _) in keys.iter().skip(1) {
        reader.fault(key.place, "`include` occurs twice; write one list");
    }
    let Some((_, node)) = keys.first() else { return reader.includes };
    let items = if node.value == YamlValue::Null { &[] } else { node.items() };
    for item in items {
        for path in reader.paths(item) {
            reader.add(&path, item.place, root);
        }
    }
    reader.includes
}

struct IncludeReader<'r> {
    /// Name of the configuration.
    file: &'r str,
    table: &'static SectionTable,
    faults: &'r mut Vec<ConfigFault>,
    /// Size of the files so far.
    bytes: usize,
    includes: Includes,
}

impl IncludeReader<'_> {
    fn fault(&mut self, place: TextPlace, what: impl Into<String>) {
        self.faults.push(ConfigFault::new(place, what));
    }

    /// Reports a part that cannot be read.
    fn lacks(&mut self, place: TextPlace, what: impl Into<String>) {
        self.includes.is_incomplete = true;
        self.fault(place, what);
    }

    /// The files that an entry of `include` names.
    fn paths(&mut self, item: &YamlNode) -> Vec<PathBuf> {
        let Some(text) = item.as_text() else {
            self.lacks(item.place, "an entry of `include` must be the path of a file");
            return Vec::new();
        };
        if let Err(why) = pattern(text) {
            self.lacks(item.place, format!("`include` is {}: {why}", quoted(text)));
            return Vec::new();
        }
        let path = folder(Path::new(self.file)).join(text);
        if !text.contains('*') {
            self.includes.named.push(path.clone());
            return vec![path];
        }
        self.includes.patterns.push(path.clone());
        matched(&path).unwrap_or_else(|error| {
            self.lacks(item.place, format!("{}: {error}", folder(&path).display()));
            Vec::new()
        })
    }

    /// Reads a file and joins it with `root`. A file that was read already, and the configuration
    /// itself, are skipped: several patterns may match one file.
    fn add(&mut self, path: &Path, place: TextPlace, root: &mut YamlNode) {
        let was_read = self.includes.files.iter().any(|file| is_same(&file.path, path));
        if was_read || is_same(Path::new(self.file), path) {
            return;
        }
        if self.includes.files.len() == FILES_MAX {
            return self.lacks(place, format!("more than {FILES_MAX} included files"));
        }
        let (bytes, read) = match included::read(path, tree::CONFIGURATION.bytes_max as u64) {
            Ok(read) => read,
            Err(why) => return self.lacks(place, why),
        };
        self.includes.files.push(read);
        self.bytes += bytes.len();
        if self.bytes > BYTES_MAX {
            let what = format!("the included files have more than {BYTES_MAX} bytes");
            return self.lacks(place, what);
        }
        let number = u16::try_from(self.includes.files.len()).unwrap_or(u16::MAX);
        let mut part = match tree::parse(&bytes) {
            Ok(part) => part,
            Err(fault) => {
                let place = TextPlace { file: number, ..fault.place };
                return self.lacks(place, fault.what);
            }
        };
        part.set_file(number);
        self.faults.extend(variables::expand(&mut part));
        self.join(part, root);
    }

    fn join(&mut self, mut part: YamlNode, root: &mut YamlNode) {
        let YamlValue::Map(entries) = &mut part.value else {
            if part.value != YamlValue::Null {
                let what = "an included file must be a section: keys with values, such as `proxy:`";
                self.lacks(part.place, what);
            }
            return;
        };
        let is_include = |(key, _): &mut (YamlKey, YamlNode)| key.name == INCLUDE.key().name();
        for (key, _) in entries.extract_if(.., is_include).collect::<Vec<_>>() {
            let what = format!("an included file includes no others; name them in {}", self.file);
            self.lacks(key.place, what);
        }
        let (main, names) = (self.file, self.includes.names());
        FileMerger { main, included: &names, faults: self.faults }
            .merge(self.table, "", root, part);
    }
}

/// The configuration beside a file, or in the folder above it, that includes the file.
pub(crate) fn includer(path: &Path) -> Option<PathBuf> {
    let own = folder(path);
    let above = own.canonicalize().ok()?.parent().map(Path::to_owned);
    let beside = entries(own).into_iter().flatten();
    let above = above.iter().filter_map(|folder| entries(folder).ok()).flatten();
    beside.chain(above).find(|candidate| !is_same(candidate, path) && includes(candidate, path))
}

fn includes(candidate: &Path, path: &Path) -> bool {
    let kind = candidate.extension().and_then(|kind| kind.to_str());
    if !kind.is_some_and(|kind| ["yaml", "yml", "json"].contains(&kind)) {
        return false;
    }
    let read = included::read(candidate, tree::CONFIGURATION.bytes_max as u64);
    let root = read.ok().and_then(|(bytes, _)| tree::parse(&bytes).ok());
    let Some(mut root) = root else { return false };
    variables::expand(&mut root);
    let listed = root.find(&[INCLUDE.key().name()]).map_or(&[][..], YamlNode::items);
    let texts = listed.iter().filter_map(YamlNode::as_text);
    texts.filter(|text| pattern(text).is_ok()).any(|text| {
        let named = folder(candidate).join(text);
        let is_close = folder(&named).canonicalize().ok() == folder(path).canonicalize().ok();
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str().map(String::from));
        is_close && name(path).zip(name(&named)).is_some_and(|(name, one)| has_form(&name, &one))
    })
}

/// Checks an entry of the list.
fn pattern(text: &str) -> Read<Box<str>> {
    let path = Path::new(text);
    let is_pattern = |path: &Path| path.to_string_lossy().contains('*');
    match path.file_name() {
        _ if text.contains(['?', '[', ']', '{', '}']) => {
            Err("only `*` stands for other characters".to_owned())
        }
        None => Err("name a file, or files such as conf.d/*.yaml".to_owned()),
        Some(_) if text.ends_with('/') => Err(format!("this is a folder; write {text}*.yaml")),
        Some(_) if path.parent().is_some_and(is_pattern) => {
            Err("only the name of the file may have `*`, not that of a folder".to_owned())
        }
        Some(_) => Ok(text.into()),
    }
}

/// The files that a path with `*` matches, in the order of their names. As in a shell, `*` does not
/// match names that begin with a dot.
///
/// # Errors
/// The folder is missing, cannot be read, or has too many files. A missing folder does not count as
/// an empty one: it may be about to be replaced, and a mistyped name must not drop limits.
pub(crate) fn matched(path: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(Vec::new()) };
    let is_matched = |path: &PathBuf| {
        let found = path.file_name().and_then(|name| name.to_str());
        found.is_some_and(|found| !found.starts_with('.') && has_form(found, name))
            && !path.is_dir()
    };
    Ok(entries(folder(path))?.into_iter().filter(is_matched).collect())
}

/// The paths of what is in a folder, in the order of their names.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let named = if folder == Path::new("") { Path::new(".") } else { folder };
    let mut paths = Vec::new();
    for entry in fs::read_dir(named)? {
        if paths.len() == FOLDER_MAX {
            return Err(io::Error::other(format!("more than {FOLDER_MAX} files in this folder")));
        }
        paths.push(folder.join(entry?.file_name()));
    }
    paths.sort();
    Ok(paths)
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().ok() == Some(one))
}

/// Whether a name has the form of a pattern, in which `*` stands for any characters.
fn has_form(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some((_, after)) = name.split_once(part) else { return false };
        name = after;
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (name, pattern) in
            [("a.yaml", "*.yaml"), ("a.yaml", "*"), ("a.yaml", "a*.y*l"), ("abab", "a*b*b")]
        {
            assert!(has_form(name, pattern), "{name} {pattern}");
        }
        for (name, pattern) in
            [("a.yml", "*.yaml"), ("b.yaml", "a*"), ("ab", "ab*b"), ("ab", "a*b*b"), ("a", "b")]
        {
            assert!(!has_form(name, pattern), "{name} {pattern}");
        }
    }

    #[test]
    fn only_names_of_files_have_a_star() {
        for good in ["a.yaml", "conf.d/*.yaml", "/etc/a/*", "../a*b.yaml"] {
            assert_eq!(pattern(good).as_deref(), Ok(good));
        }
        for (bad, told) in [
            ("", "name a file"),
            ("..", "name a file"),
            ("conf.d/", "this is a folder; write conf.d/*.yaml"),
            ("*/a.yaml", "only the name of the file"),
            ("**/a.yaml", "only the name of the file"),
            ("[0-9]*.yaml", "only `*` stands"),
        ] {
            let why = pattern(bad).expect_err(bad);
            assert!(why.starts_with(told), "{bad}: {why}");
        }
    }
}
