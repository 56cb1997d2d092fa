//! A YAML document as a tree in which every key and value knows its place in the file.
//!
//! Built from the events of the parser, not through serde: serde stops at the first fault, forgets
//! which of two equal keys came first, and turns `off` into a truth value. Here every scalar stays
//! the text that was written. What the keys mean: `reader` and the files that use it; what a text
//! stands for where that is not known from its key: `scalar`. Bounds: see [`Dialect`]; a file
//! beyond one of them is a fault, whatever else it holds.

pub mod scalar;

use super::fault::{Fault, Place, quoted};
use granit_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};
use scalar::Kind;
use std::collections::HashMap;
use std::rc::Rc;

/// What a document may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The largest file, in bytes.
    pub bytes_max: usize,
    /// How deep sections may lie in each other.
    pub depth_max: usize,
    /// The most keys and values that are written.
    pub nodes_max: usize,
    /// The most keys and values that aliases repeat.
    pub repeated_max: usize,
    /// More documents may follow; they are not read.
    pub first_of_many: bool,
    /// `<<` is a key like any other, for the reader to make something of.
    pub merge_keys: bool,
    /// A tag says what a text stands for; one that is not of YAML's schema makes it a text.
    pub tags: bool,
}

/// Our own configuration.
pub const CONFIGURATION: Dialect = Dialect {
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
pub struct Node {
    /// Where it begins.
    pub place: Place,
    /// Written without quotes, so that a text may stand for a number or a truth value.
    pub plain: bool,
    /// What it is.
    pub value: Value,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing, or `null`.
    Null,
    /// A single value, as written.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values in the order written; a key may be there twice.
    Map(Vec<(Key, Node)>),
}

/// A key and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Where it begins.
    pub place: Place,
    /// Written without quotes.
    pub plain: bool,
    /// The name.
    pub name: String,
}

impl Node {
    /// A value that stands in no file.
    #[must_use]
    pub fn made(value: Value) -> Node {
        Node { place: Place::default(), plain: true, value }
    }

    /// The value at the end of a way through sections; the first if a key is there twice.
    #[must_use]
    pub fn find(&self, way: &[&str]) -> Option<&Node> {
        let [key, rest @ ..] = way else { return Some(self) };
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|(k, _)| k.name == *key)?.1.find(rest)
    }

    /// The same, to be changed.
    pub fn find_mut(&mut self, way: &[&str]) -> Option<&mut Node> {
        let [key, rest @ ..] = way else { return Some(self) };
        let Value::Map(entries) = &mut self.value else { return None };
        entries.iter_mut().find(|(k, _)| k.name == *key)?.1.find_mut(rest)
    }

    /// A text that stands in no file.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Node {
        Node::made(Value::Text(text.into()))
    }

    /// A section that stands in no file.
    #[must_use]
    pub fn map<'k>(entries: impl IntoIterator<Item = (&'k str, Node)>) -> Node {
        let key = |name: &str| Key { place: Place::default(), plain: true, name: name.to_owned() };
        Node::made(Value::Map(entries.into_iter().map(|(k, node)| (key(k), node)).collect()))
    }
}

/// Reads one document.
///
/// # Errors
/// The first fault of the text as YAML; a parser cannot go on after it.
pub fn parse(bytes: &[u8]) -> Result<Node, Fault> {
    parse_as(bytes, CONFIGURATION)
}

/// Reads one document of a dialect.
///
/// # Errors
/// As [`parse`].
pub fn parse_as(bytes: &[u8], dialect: Dialect) -> Result<Node, Fault> {
    let bytes_max = dialect.bytes_max;
    if bytes.len() > bytes_max {
        let what = format!("{} bytes are too many; at most {bytes_max} are read", bytes.len());
        return Err(Fault::new(START, what));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| not_text(bytes, e.valid_up_to()))?;
    let mut builder = Builder::new(dialect);
    for event in Parser::new_from_str(text.trim_start_matches('\u{feff}')) {
        let (event, span) = event.map_err(|error| {
            let what = match builder.root {
                Some(_) => "this belongs to nothing before it; check the indentation".to_owned(),
                None => error.info(),
            };
            Fault::new(place(error.marker()), format!("not YAML: {what}"))
        })?;
        let ended = match event {
            Event::DocumentStart(..) => true,
            // An end that is written takes up room.
            Event::DocumentEnd => span.start.index() < span.end.index(),
            _ => false,
        };
        if dialect.first_of_many && ended && builder.root.is_some() {
            break;
        }
        if builder.root.is_none() && builder.open.is_empty() && is_tab_before(text, &span) {
            let what = "not YAML: a tab before the first key; indent with spaces";
            return Err(Fault::new(place(&span.start), what));
        }
        builder.handle(event, &span)?;
    }
    let nothing = Node { place: START, plain: true, value: Value::Null };
    Ok(builder.root.unwrap_or(nothing))
}

/// Whether nothing but white space stands before it in its line, with a tab in it. Deeper in a
/// document the parser refuses that.
fn is_tab_before(text: &str, span: &Span) -> bool {
    let line = text.lines().nth(span.start.line().saturating_sub(1)).unwrap_or_default();
    let before = line.chars().take(span.start.col());
    before.clone().all(char::is_whitespace) && before.clone().any(|c| c == '\t')
}

const START: Place = Place { line: 1, column: 1 };

fn not_text(bytes: &[u8], at: usize) -> Fault {
    let before = &bytes[..at];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    Fault::new(Place { line, column }, "not UTF-8; save the file as UTF-8 text")
}

fn place(marker: &Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}

/// A list or section whose end has not come yet.
struct Open {
    node: Node,
    /// The key whose value comes next.
    key: Option<Key>,
    anchor: usize,
    /// Nodes that had been seen before it.
    nodes_before: usize,
}

/// What an alias stands for.
struct Anchor {
    node: Rc<Node>,
    /// How many nodes it is.
    size: usize,
}

struct Builder {
    dialect: Dialect,
    root: Option<Node>,
    open: Vec<Open>,
    /// What aliases may repeat.
    anchors: HashMap<usize, Anchor>,
    /// Written, and repeated by aliases.
    nodes: usize,
    repeated: usize,
}

impl Builder {
    fn new(dialect: Dialect) -> Builder {
        let (open, anchors) = (Vec::new(), HashMap::new());
        Builder { dialect, root: None, open, anchors, nodes: 0, repeated: 0 }
    }

    fn handle(&mut self, event: Event<'_>, span: &Span) -> Result<(), Fault> {
        let place = place(&span.start);
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(Fault::new(place, "a second document; one file holds one configuration"))
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(place)?;
                self.known_tag(tag.as_deref(), place)?;
                let (text, plain) = (text.into_owned(), style == ScalarStyle::Plain);
                let (text, plain) = match tag.filter(|_| self.dialect.tags) {
                    Some(tag) => tagged(&tag, text).map_err(|what| Fault::new(place, what))?,
                    None => (text, plain),
                };
                let null = plain && Kind::of(&text) == Kind::Null;
                let value = if null { Value::Null } else { Value::Text(text) };
                let node = Node { place, plain, value };
                self.keep(anchor, &node, 1);
                self.attach(node)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.begin(place, Value::List(Vec::new()), anchor, tag.as_deref())
            }
            Event::MappingStart(_, anchor, tag) => {
                self.begin(place, Value::Map(Vec::new()), anchor, tag.as_deref())
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.repeat(anchor, place),
            _ => Ok(()),
        }
    }

    fn begin(
        &mut self,
        place: Place,
        value: Value,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<(), Fault> {
        self.count(place)?;
        self.known_tag(tag, place)?;
        let depth_max = self.dialect.depth_max;
        if self.open.len() >= depth_max {
            return Err(Fault::new(place, format!("nested deeper than {depth_max} levels")));
        }
        let node = Node { place, plain: true, value };
        let nodes_before = self.all() - 1;
        self.open.push(Open { node, key: None, anchor, nodes_before });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        self.keep(open.anchor, &open.node, self.all() - open.nodes_before);
        self.attach(open.node)
    }

    /// An alias stands for a copy of what its anchor names.
    fn repeat(&mut self, anchor: usize, place: Place) -> Result<(), Fault> {
        let Some(named) = self.anchors.get(&anchor) else {
            return Err(Fault::new(place, "an alias inside of what it names"));
        };
        let (node, size) = (Rc::clone(&named.node), named.size);
        self.repeated += size;
        let repeated_max = self.dialect.repeated_max;
        if self.repeated > repeated_max {
            let what = format!("aliases repeat more than {repeated_max} keys and values");
            return Err(Fault::new(place, what));
        }
        let depth_max = self.dialect.depth_max;
        if self.open.len() + node.depth() > depth_max {
            return Err(Fault::new(place, format!("nested deeper than {depth_max} levels")));
        }
        self.attach(Node::clone(&node))
    }

    fn count(&mut self, place: Place) -> Result<(), Fault> {
        self.nodes += 1;
        let nodes_max = self.dialect.nodes_max;
        let what = || format!("more than {nodes_max} keys and values");
        if self.nodes > nodes_max { Err(Fault::new(place, what())) } else { Ok(()) }
    }

    /// Keys and values so far, with what aliases repeat.
    fn all(&self) -> usize {
        self.nodes + self.repeated
    }

    /// Our own configuration has no tags but those of YAML's own schema, which say nothing that
    /// matters there; others would be promises unkept.
    fn known_tag(&self, tag: Option<&Tag>, place: Place) -> Result<(), Fault> {
        match tag {
            Some(tag) if !self.dialect.tags && !tag.is_yaml_core_schema() => {
                let name = quoted(&tag.original());
                Err(Fault::new(
                    place,
                    format!("{name} is a tag, and none are known here; remove it"),
                ))
            }
            _ => Ok(()),
        }
    }

    fn keep(&mut self, anchor: usize, node: &Node, size: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, Anchor { node: Rc::new(node.clone()), size });
        }
    }

    /// Puts a finished node where it belongs: into what is open, or at the root.
    fn attach(&mut self, node: Node) -> Result<(), Fault> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.value, open.key.take()) {
            (Value::List(items), _) => items.push(node),
            (Value::Map(entries), Some(key)) => entries.push((key, node)),
            (_, _) => open.key = Some(key(node, self.dialect)?),
        }
        Ok(())
    }
}

impl Node {
    fn depth(&self) -> usize {
        let deepest = |nodes: &mut dyn Iterator<Item = &Node>| nodes.map(Node::depth).max();
        match &self.value {
            Value::Null | Value::Text(_) => 0,
            Value::List(items) => 1 + deepest(&mut items.iter()).unwrap_or(0),
            Value::Map(entries) => 1 + deepest(&mut entries.iter().map(|e| &e.1)).unwrap_or(0),
        }
    }
}

fn key(node: Node, dialect: Dialect) -> Result<Key, Fault> {
    let (place, plain) = (node.place, node.plain);
    match node.value {
        Value::Text(name) if name == "<<" && !dialect.merge_keys => {
            Err(Fault::new(node.place, "merge keys are not read; write the keys out"))
        }
        Value::Text(name) => Ok(Key { place, plain, name }),
        Value::Null if dialect.tags => Ok(Key { place, plain, name: "~".to_owned() }),
        _ => Err(Fault::new(node.place, "a key must be a plain word")),
    }
}

/// The text of a scalar with a tag, and whether it stands for a number, truth value or null.
fn tagged(tag: &Tag, text: String) -> Result<(String, bool), String> {
    scalar::tagged(&tag.suffix_in_namespace(SCHEMA).unwrap_or_default(), text)
}

/// What the names of YAML's own tags begin with.
const SCHEMA: &str = "tag:yaml.org,2002:";
