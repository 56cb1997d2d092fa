//! A YAML document as a tree in which every key and value has its place in the file.
//!
//! The tree is built from the events of the parser. It does not use serde, because serde stops at
//! the first fault, loses duplicate keys, and turns `off` into a boolean. Here every scalar keeps
//! its original text. The meaning of keys is defined by `reader` and its users; `scalar` interprets
//! text if no key defines its type. A file beyond one of the bounds in [`YamlDialect`] is a fault.

pub mod scalar;

use super::fault::{ConfigFault, TextPlace, quoted};
use granit_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};
use scalar::ScalarKind;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// The bounds and the features of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YamlDialect {
    /// Maximum size of the file, in bytes.
    pub bytes_max: usize,
    /// Maximum nesting depth.
    pub depth_max: usize,
    /// Maximum number of keys and values in the text.
    pub nodes_max: usize,
    /// Maximum number of keys and values that aliases repeat.
    pub repeated_max: usize,
    /// Whether more documents may follow, which are ignored.
    pub first_of_many: bool,
    /// Whether `<<` is a normal key, which the reader interprets.
    pub merge_keys: bool,
    /// Whether tags define the type of a scalar. A tag outside of YAML's schema makes it a string.
    pub tags: bool,
}

/// The dialect of Evenkeel's own configuration.
pub const CONFIGURATION: YamlDialect = YamlDialect {
    bytes_max: 1 << 20,
    depth_max: 32,
    nodes_max: 50_000,
    repeated_max: 50_000,
    first_of_many: false,
    merge_keys: false,
    tags: false,
};

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlNode {
    /// Place where the value begins.
    pub place: TextPlace,
    /// Whether the value is written without quotes, so that it may stand for a number or a boolean.
    pub plain: bool,
    /// The flag or variable that the value comes from, as messages name it. `None`: a file.
    pub input: Option<Arc<str>>,
    /// The value itself.
    pub value: YamlValue,
}

/// A value of the tree.
#[derive(Clone, Debug, PartialEq)]
pub enum YamlValue {
    /// No value, or `null`.
    Null,
    /// A scalar, with its original text.
    Text(String),
    /// A list.
    List(Vec<YamlNode>),
    /// Keys and values in the order of the file. A key may occur twice.
    Map(Vec<(YamlKey, YamlNode)>),
}

/// A key and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlKey {
    /// Place where the key begins.
    pub place: TextPlace,
    /// Whether the key is written without quotes.
    pub plain: bool,
    /// The name of the key.
    pub name: String,
}

impl YamlNode {
    /// A value that does not come from a file.
    #[must_use]
    pub fn made(value: YamlValue) -> YamlNode {
        YamlNode { place: TextPlace::default(), plain: true, input: None, value }
    }

    /// Whether there is no value, or a list or a section without entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.value {
            YamlValue::Null => true,
            YamlValue::Text(_) => false,
            YamlValue::List(items) => items.is_empty(),
            YamlValue::Map(entries) => entries.is_empty(),
        }
    }

    /// The entries of a list; a single value is a list of one.
    #[must_use]
    pub fn items(&self) -> &[YamlNode] {
        match &self.value {
            YamlValue::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }

    /// The text of a scalar.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let YamlValue::Text(text) = &self.value { Some(text) } else { None }
    }

    /// The value at a path of keys. If a key occurs twice, the first one is used.
    #[must_use]
    pub fn find(&self, way: &[&str]) -> Option<&YamlNode> {
        let [key, rest @ ..] = way else { return Some(self) };
        let YamlValue::Map(entries) = &self.value else { return None };
        entries.iter().find(|(k, _)| k.name == *key)?.1.find(rest)
    }

    /// The mutable value at a path of keys, as [`YamlNode::find`] finds it.
    pub fn find_mut(&mut self, way: &[&str]) -> Option<&mut YamlNode> {
        let [key, rest @ ..] = way else { return Some(self) };
        let YamlValue::Map(entries) = &mut self.value else { return None };
        entries.iter_mut().find(|(k, _)| k.name == *key)?.1.find_mut(rest)
    }

    /// Sets the value at a path of keys. Sections that are missing on the way are created.
    pub fn put(&mut self, way: &[&str], node: YamlNode) {
        let [key, rest @ ..] = way else {
            *self = node;
            return;
        };
        if !matches!(self.value, YamlValue::Map(_)) {
            *self = YamlNode::map([]);
        }
        let YamlValue::Map(entries) = &mut self.value else { return };
        match entries.iter_mut().find(|(k, _)| k.name == *key) {
            Some((_, inner)) => inner.put(rest, node),
            None => {
                let mut inner = YamlNode::map([]);
                inner.put(rest, node);
                entries.push((YamlKey::made(key), inner));
            }
        }
    }

    /// Gives this place to the value and to all within it.
    pub(crate) fn move_to(&mut self, place: TextPlace) {
        self.place = place;
        match &mut self.value {
            YamlValue::Null | YamlValue::Text(_) => {}
            YamlValue::List(items) => items.iter_mut().for_each(|item| item.move_to(place)),
            YamlValue::Map(entries) => entries.iter_mut().for_each(|(key, node)| {
                key.place = place;
                node.move_to(place);
            }),
        }
    }

    /// States that the value and all within it are from the file with this number.
    pub(crate) fn set_file(&mut self, file: u16) {
        self.place.file = file;
        match &mut self.value {
            YamlValue::Null | YamlValue::Text(_) => {}
            YamlValue::List(items) => items.iter_mut().for_each(|item| item.set_file(file)),
            YamlValue::Map(entries) => entries.iter_mut().for_each(|(key, node)| {
                key.place.file = file;
                node.set_file(file);
            }),
        }
    }

    /// A scalar that does not come from a file.
    #[must_use]
    pub fn text(text: impl Into<String>) -> YamlNode {
        YamlNode::made(YamlValue::Text(text.into()))
    }

    /// The same value, from this flag or variable.
    #[must_use]
    pub fn from_input(self, input: &str) -> YamlNode {
        YamlNode { input: Some(input.into()), ..self }
    }

    /// A section that does not come from a file.
    #[must_use]
    pub fn map<'k>(entries: impl IntoIterator<Item = (&'k str, YamlNode)>) -> YamlNode {
        let entries = entries.into_iter().map(|(name, node)| (YamlKey::made(name), node));
        YamlNode::made(YamlValue::Map(entries.collect()))
    }
}

impl YamlKey {
    /// A key that does not come from a file.
    #[must_use]
    pub fn made(name: &str) -> YamlKey {
        YamlKey { place: TextPlace::default(), plain: true, name: name.to_owned() }
    }
}

/// Parses a configuration.
///
/// # Errors
/// The first fault of the YAML syntax; the parser cannot continue after it.
pub fn parse(bytes: &[u8]) -> Result<YamlNode, ConfigFault> {
    parse_as(bytes, CONFIGURATION)
}

/// Adds what to write to errors that patterns cause, since they begin like other things of YAML.
fn with_hint(info: String, line: &str) -> String {
    if line.contains("${") {
        return info + "; within brackets `${NAME}` needs quotes, as in [\"${NAME}\"]";
    }
    if info.contains("mapping values are not allowed") {
        return info
            + "; check the indentation of this line and of the one before it; a value that \
               contains `: ` needs quotes";
    }
    if info.contains("did not find expected key") {
        return info + "; begin this line in the same column as the other keys of its section";
    }
    if info.contains(" tab") || info.contains("tabs") {
        return info + "; indent with spaces";
    }
    if info.contains("unknown anchor") {
        return info + "; text that begins with `*` needs quotes, as in \"*bot*\"";
    }
    if info.contains("unknown escape") {
        return info + "; text with a backslash needs single quotes, as in 're:\\.php$'";
    }
    info
}

/// Parses one document of a dialect.
///
/// # Errors
/// As [`parse`].
pub fn parse_as(bytes: &[u8], dialect: YamlDialect) -> Result<YamlNode, ConfigFault> {
    let bytes_max = dialect.bytes_max;
    if bytes.len() > bytes_max {
        let what = format!("{} bytes are too many; at most {bytes_max} are read", bytes.len());
        return Err(ConfigFault::new(START, what));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| not_text(bytes, e.valid_up_to()))?;
    let mut builder = YamlBuilder::new(dialect);
    for event in Parser::new_from_str(text.trim_start_matches('\u{feff}')) {
        let (event, span) = event.map_err(|error| {
            let line = text.lines().nth(error.marker().line().saturating_sub(1));
            let line = line.unwrap_or_default();
            let what = match builder.root {
                Some(_) if line.contains(" = ") => {
                    "`=` is not of YAML; write `key: value`, and sections by indentation".to_owned()
                }
                Some(_) => "this has no parent; check the indentation".to_owned(),
                None => with_hint(error.info(), line) + &builder.unclosed(text),
            };
            ConfigFault::new(place(error.marker()), format!("not YAML: {what}"))
        })?;
        let ended = match event {
            Event::DocumentStart(..) => true,
            // A document end that is implied by the end of the text has an empty span.
            Event::DocumentEnd => span.start.index() < span.end.index(),
            _ => false,
        };
        if dialect.first_of_many && ended && builder.root.is_some() {
            break;
        }
        if builder.root.is_none() && builder.open.is_empty() && tab_precedes(text, &span) {
            let what = "not YAML: a tab before the first key; indent with spaces";
            return Err(ConfigFault::new(place(&span.start), what));
        }
        builder.handle(event, &span)?;
    }
    let nothing = YamlNode { place: START, ..YamlNode::made(YamlValue::Null) };
    Ok(builder.root.unwrap_or(nothing))
}

/// Whether there is only white space before the token in its line, and a tab in it. Deeper in a
/// document the parser itself rejects tabs.
fn tab_precedes(text: &str, span: &Span) -> bool {
    let line = text.lines().nth(span.start.line().saturating_sub(1)).unwrap_or_default();
    let before = line.chars().take(span.start.col());
    before.clone().all(char::is_whitespace) && before.clone().any(|c| c == '\t')
}

const START: TextPlace = TextPlace::at(1, 1);

fn not_text(bytes: &[u8], at: usize) -> ConfigFault {
    let before = &bytes[..at];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    ConfigFault::new(TextPlace::at(line, column), "not UTF-8; save the file as UTF-8 text")
}

fn place(marker: &Marker) -> TextPlace {
    TextPlace::at(marker.line(), marker.col() + 1)
}

/// A list or section that is not complete yet.
struct OpenNode {
    node: YamlNode,
    /// The key of the next value.
    key: Option<YamlKey>,
    anchor: usize,
    /// Number of nodes before this one.
    nodes_before: usize,
}

/// The node that an alias repeats.
struct AnchoredNode {
    node: Rc<YamlNode>,
    /// Number of nodes in it, including itself.
    size: usize,
}

struct YamlBuilder {
    dialect: YamlDialect,
    root: Option<YamlNode>,
    open: Vec<OpenNode>,
    /// The nodes that aliases can repeat, by the number of their anchor.
    anchors: HashMap<usize, AnchoredNode>,
    /// Number of nodes in the text. The next field counts the nodes that aliases repeat.
    nodes: usize,
    repeated: usize,
}

impl YamlBuilder {
    fn new(dialect: YamlDialect) -> YamlBuilder {
        let (open, anchors) = (Vec::new(), HashMap::new());
        YamlBuilder { dialect, root: None, open, anchors, nodes: 0, repeated: 0 }
    }

    /// Names the bracket that an error may come from: the innermost one that is still open.
    fn unclosed(&self, text: &str) -> String {
        let bracket = |open: &OpenNode| {
            let TextPlace { line, column, .. } = open.node.place;
            let sign = text.lines().nth(line.checked_sub(1)?)?.chars().nth(column.checked_sub(1)?);
            let end = if sign == Some('[') { ']' } else { '}' };
            let sign = sign.filter(|sign| "[{".contains(*sign))?;
            Some(format!("; the `{sign}` in line {line}, column {column} may lack its `{end}`"))
        };
        self.open.iter().rev().find_map(bracket).unwrap_or_default()
    }

    fn handle(&mut self, event: Event<'_>, span: &Span) -> Result<(), ConfigFault> {
        let place = place(&span.start);
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(ConfigFault::new(place, "a second document; one file holds one configuration"))
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(place)?;
                self.known_tag(tag.as_deref(), place)?;
                let (text, plain) = (text.into_owned(), style == ScalarStyle::Plain);
                let (text, plain) = match tag.filter(|_| self.dialect.tags) {
                    Some(tag) => {
                        tagged(&tag, text).map_err(|what| ConfigFault::new(place, what))?
                    }
                    None => (text, plain),
                };
                let null = plain && ScalarKind::of(&text) == ScalarKind::Null;
                let value = if null { YamlValue::Null } else { YamlValue::Text(text) };
                let node = YamlNode { place, plain, ..YamlNode::made(value) };
                self.keep(anchor, &node, 1);
                self.attach(node)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.begin(place, YamlValue::List(Vec::new()), anchor, tag.as_deref())
            }
            Event::MappingStart(_, anchor, tag) => {
                self.begin(place, YamlValue::Map(Vec::new()), anchor, tag.as_deref())
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.repeat(anchor, place),
            _ => Ok(()),
        }
    }

    fn begin(
        &mut self,
        place: TextPlace,
        value: YamlValue,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<(), ConfigFault> {
        self.count(place)?;
        self.known_tag(tag, place)?;
        let depth_max = self.dialect.depth_max;
        if self.open.len() >= depth_max {
            return Err(ConfigFault::new(place, format!("nested deeper than {depth_max} levels")));
        }
        let node = YamlNode { place, ..YamlNode::made(value) };
        let nodes_before = self.all() - 1;
        self.open.push(OpenNode { node, key: None, anchor, nodes_before });
        Ok(())
    }

    fn end(&mut self) -> Result<(), ConfigFault> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        self.keep(open.anchor, &open.node, self.all() - open.nodes_before);
        self.attach(open.node)
    }

    /// Replaces an alias by a copy of the node of its anchor.
    fn repeat(&mut self, anchor: usize, place: TextPlace) -> Result<(), ConfigFault> {
        let Some(named) = self.anchors.get(&anchor) else {
            return Err(ConfigFault::new(place, "an alias within its own anchor"));
        };
        let (node, size) = (Rc::clone(&named.node), named.size);
        self.repeated += size;
        let repeated_max = self.dialect.repeated_max;
        if self.repeated > repeated_max {
            let what = format!("aliases repeat more than {repeated_max} keys and values");
            return Err(ConfigFault::new(place, what));
        }
        let depth_max = self.dialect.depth_max;
        if self.open.len() + node.depth() > depth_max {
            return Err(ConfigFault::new(place, format!("nested deeper than {depth_max} levels")));
        }
        self.attach(YamlNode::clone(&node))
    }

    fn count(&mut self, place: TextPlace) -> Result<(), ConfigFault> {
        self.nodes += 1;
        let nodes_max = self.dialect.nodes_max;
        let what = || format!("more than {nodes_max} keys and values");
        if self.nodes > nodes_max { Err(ConfigFault::new(place, what())) } else { Ok(()) }
    }

    /// Number of all nodes so far, including those that aliases repeat.
    fn all(&self) -> usize {
        self.nodes + self.repeated
    }

    /// Reports a tag in a dialect without tags. Tags of YAML's core schema are accepted and
    /// ignored, because they make no difference there.
    fn known_tag(&self, tag: Option<&Tag>, place: TextPlace) -> Result<(), ConfigFault> {
        match tag {
            Some(tag) if !self.dialect.tags && !tag.is_yaml_core_schema() => {
                let name = quoted(&tag.original());
                Err(ConfigFault::new(
                    place,
                    format!("{name} is a tag, and tags are not supported; remove it"),
                ))
            }
            _ => Ok(()),
        }
    }

    fn keep(&mut self, anchor: usize, node: &YamlNode, size: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, AnchoredNode { node: Rc::new(node.clone()), size });
        }
    }

    /// Adds a finished node to the innermost open node, or makes it the root.
    fn attach(&mut self, node: YamlNode) -> Result<(), ConfigFault> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.value, open.key.take()) {
            (YamlValue::List(items), _) => items.push(node),
            (YamlValue::Map(entries), Some(key)) => entries.push((key, node)),
            (_, _) => open.key = Some(key(node, self.dialect)?),
        }
        Ok(())
    }
}

impl YamlNode {
    fn depth(&self) -> usize {
        let deepest = |nodes: &mut dyn Iterator<Item = &YamlNode>| nodes.map(YamlNode::depth).max();
        match &self.value {
            YamlValue::Null | YamlValue::Text(_) => 0,
            YamlValue::List(items) => 1 + deepest(&mut items.iter()).unwrap_or(0),
            YamlValue::Map(entries) => 1 + deepest(&mut entries.iter().map(|e| &e.1)).unwrap_or(0),
        }
    }
}

fn key(node: YamlNode, dialect: YamlDialect) -> Result<YamlKey, ConfigFault> {
    let (place, plain) = (node.place, node.plain);
    match node.value {
        YamlValue::Text(name) if name == "<<" && !dialect.merge_keys => {
            Err(ConfigFault::new(node.place, "merge keys are not supported; write the keys out"))
        }
        YamlValue::Text(name) => Ok(YamlKey { place, plain, name }),
        YamlValue::Null if dialect.tags => Ok(YamlKey { place, plain, name: "~".to_owned() }),
        _ => Err(ConfigFault::new(node.place, "a key must be a plain word")),
    }
}

/// The text of a scalar with a tag, and whether it may stand for a number, boolean or null.
fn tagged(tag: &Tag, text: String) -> Result<(String, bool), String> {
    scalar::tagged(&tag.suffix_in_namespace(SCHEMA).unwrap_or_default(), text)
}

/// Prefix of the names of YAML's own tags.
const SCHEMA: &str = "tag:yaml.org,2002:";
