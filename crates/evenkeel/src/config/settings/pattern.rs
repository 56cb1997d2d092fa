//! Regular expressions over names of figures, for settings that rename them.
//!
//! They are written as the reference's language writes them (RE2), as far as names need it:
//! classes, groups, alternatives, repetitions, ends and edges of words. What is not known is
//! refused, never taken for something else. Of several ways to match, the one that begins first
//! and prefers as it is written counts, as there. All ways are followed at once, so no name takes
//! longer than its length times that of the pattern: names come from requests. How a pattern is
//! read: `syntax`.

pub mod rename;
mod syntax;

use std::fmt;

/// The longest pattern, in bytes.
const BYTES_MAX: usize = 1_024;
/// The most steps that a pattern may become: repetitions are written out.
const STEPS_MAX: usize = 10_000;

/// A regular expression.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    steps: Vec<Step>,
    groups: usize,
}

/// One step of following a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A character of these, or of none of these.
    One(Class),
    /// Both, the first preferred.
    Split(usize, usize),
    Go(usize),
    /// Notes where a group begins or ends.
    Note(usize),
    At(Edge),
    Done,
}

/// Characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Class {
    negated: bool,
    ranges: Vec<(char, char)>,
}

/// A place between characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    Begin,
    End,
    Word,
    NoWord,
}

/// A pattern, as it was read.
#[derive(Clone, Debug)]
enum Tree {
    One(Class),
    At(Edge),
    /// With its number, if it is noted.
    Group(Option<usize>, Box<Tree>),
    All(Vec<Tree>),
    Any(Vec<Tree>),
    Repeat {
        what: Box<Tree>,
        least: u32,
        most: Option<u32>,
        greedy: bool,
    },
}

impl Pattern {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Pattern, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("a pattern may have {BYTES_MAX} bytes"));
        }
        let (tree, groups) = syntax::read(text)?;
        let mut pattern = Pattern { text: text.to_owned(), steps: Vec::new(), groups };
        pattern.write(&Tree::Group(Some(0), Box::new(tree)))?;
        pattern.push(Step::Done)?;
        Ok(pattern)
    }

    /// How many groups it notes, itself included.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The first match: the whole, then each group, empty where it took no part.
    #[must_use]
    pub fn find<'t>(&self, text: &'t str) -> Option<Vec<&'t str>> {
        let mut found: Option<Notes> = None;
        let (mut now, mut next) = (Ways::new(self), Ways::new(self));
        let ends = text.char_indices().map(|(at, c)| (at, Some(c)));
        for (at, c) in ends.chain([(text.len(), None)]) {
            if found.is_none() {
                now.follow(self, 0, vec![None; 2 * self.groups], text, at);
            }
            next.clear();
            for (step, notes) in now.ways.drain(..) {
                match &self.steps[step] {
                    Step::Done => {
                        // What is preferred less does not count any more.
                        found = Some(notes);
                        break;
                    }
                    Step::One(class) if c.is_some_and(|c| class.has(c)) => {
                        let after = at + c.map_or(0, char::len_utf8);
                        next.follow(self, step + 1, notes, text, after);
                    }
                    _ => {}
                }
            }
            std::mem::swap(&mut now, &mut next);
            if now.ways.is_empty() && found.is_some() {
                break;
            }
        }
        let notes = found?;
        let part = |group: &[Option<usize>]| match group {
            [Some(begin), Some(end)] => &text[*begin..*end],
            _ => "",
        };
        Some(notes.chunks(2).map(part).collect())
    }

    fn push(&mut self, step: Step) -> Result<usize, String> {
        if self.steps.len() >= STEPS_MAX {
            return Err("it repeats too much".to_owned());
        }
        self.steps.push(step);
        Ok(self.steps.len() - 1)
    }

    fn write(&mut self, tree: &Tree) -> Result<(), String> {
        match tree {
            Tree::One(class) => _ = self.push(Step::One(class.clone()))?,
            Tree::At(edge) => _ = self.push(Step::At(*edge))?,
            Tree::Group(None, what) => self.write(what)?,
            Tree::Group(Some(number), what) => {
                self.push(Step::Note(2 * number))?;
                self.write(what)?;
                self.push(Step::Note(2 * number + 1))?;
            }
            Tree::All(parts) => parts.iter().try_for_each(|part| self.write(part))?,
            Tree::Any(ways) => self.any(ways)?,
            Tree::Repeat { what, least, most, greedy } => {
                for _ in 0..*least {
                    self.write(what)?;
                }
                match most {
                    None => self.for_ever(what, *greedy)?,
                    Some(most) => self.up_to(what, most - least, *greedy)?,
                }
            }
        }
        Ok(())
    }

    fn any(&mut self, ways: &[Tree]) -> Result<(), String> {
        let mut ends = Vec::new();
        for (index, way) in ways.iter().enumerate() {
            let split = match index + 1 < ways.len() {
                true => Some(self.push(Step::Split(self.steps.len() + 1, 0))?),
                false => None,
            };
            self.write(way)?;
            if let Some(split) = split {
                ends.push(self.push(Step::Go(0))?);
                self.steps[split] = Step::Split(split + 1, self.steps.len());
            }
        }
        for end in ends {
            self.steps[end] = Step::Go(self.steps.len());
        }
        Ok(())
    }

    fn for_ever(&mut self, what: &Tree, greedy: bool) -> Result<(), String> {
        let split = self.push(Step::Done)?;
        self.write(what)?;
        self.push(Step::Go(split))?;
        self.steps[split] = preferring(greedy, split + 1, self.steps.len());
        Ok(())
    }

    fn up_to(&mut self, what: &Tree, times: u32, greedy: bool) -> Result<(), String> {
        let mut splits = Vec::new();
        for _ in 0..times {
            splits.push(self.push(Step::Done)?);
            self.write(what)?;
        }
        for split in splits {
            self.steps[split] = preferring(greedy, split + 1, self.steps.len());
        }
        Ok(())
    }
}

fn preferring(greedy: bool, go_on: usize, leave: usize) -> Step {
    if greedy { Step::Split(go_on, leave) } else { Step::Split(leave, go_on) }
}

/// Where groups begin and end.
type Notes = Vec<Option<usize>>;

/// All ways through the pattern up to a place in the text, those preferred first.
struct Ways {
    ways: Vec<(usize, Notes)>,
    seen: Vec<bool>,
}

impl Ways {
    fn new(pattern: &Pattern) -> Ways {
        Ways { ways: Vec::new(), seen: vec![false; pattern.steps.len()] }
    }

    fn clear(&mut self) {
        self.ways.clear();
        self.seen.fill(false);
    }

    /// Adds all steps that can be reached from one without another character.
    fn follow(&mut self, pattern: &Pattern, from: usize, notes: Notes, text: &str, at: usize) {
        let mut open = vec![(from, notes)];
        while let Some((step, mut notes)) = open.pop() {
            if std::mem::replace(&mut self.seen[step], true) {
                continue;
            }
            match &pattern.steps[step] {
                Step::Go(to) => open.push((*to, notes)),
                Step::Split(first, second) => {
                    open.push((*second, notes.clone()));
                    open.push((*first, notes));
                }
                Step::Note(place) => {
                    notes[*place] = Some(at);
                    open.push((step + 1, notes));
                }
                Step::At(edge) if edge.is_at(text, at) => open.push((step + 1, notes)),
                Step::At(_) => {}
                Step::One(_) | Step::Done => self.ways.push((step, notes)),
            }
        }
    }
}

impl Class {
    fn has(&self, c: char) -> bool {
        let within = |(first, last): &(char, char)| (*first..=*last).contains(&c);
        self.ranges.iter().any(within) != self.negated
    }
}

impl Edge {
    fn is_at(self, text: &str, at: usize) -> bool {
        let word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        let turn = || word(text[..at].chars().next_back()) != word(text[at..].chars().next());
        match self {
            Edge::Begin => at == 0,
            Edge::End => at == text.len(),
            Edge::Word => turn(),
            Edge::NoWord => !turn(),
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
