//! How a regular expression is read.
//!
//! By descent: alternatives, sequences, repetitions, and what can be repeated. What RE2 knows and
//! names of figures do not need (flags, Unicode classes, literal blocks) is refused by name. What
//! is done with the tree: `pattern`.

use super::{Class, Edge, Tree};
use std::iter::Peekable;
use std::str::Chars;

/// How deep groups may lie in each other.
const DEPTH_MAX: usize = 50;
/// How often something may be repeated, as there.
const REPEATS_MAX: u32 = 1_000;

/// Reads a pattern; also says how many groups it notes, itself included.
pub fn read(text: &str) -> Result<(Tree, usize), String> {
    let mut reader = Reader { rest: text.chars().peekable(), groups: 1, depth: 0 };
    let tree = reader.any()?;
    match reader.rest.next() {
        None => Ok((tree, reader.groups)),
        Some(_) => Err("a `)` closes nothing".to_owned()),
    }
}

struct Reader<'t> {
    rest: Peekable<Chars<'t>>,
    groups: usize,
    depth: usize,
}

impl Reader<'_> {
    fn any(&mut self) -> Result<Tree, String> {
        let mut ways = vec![self.all()?];
        while self.rest.next_if_eq(&'|').is_some() {
            ways.push(self.all()?);
        }
        Ok(Tree::Any(ways))
    }

    fn all(&mut self) -> Result<Tree, String> {
        let mut parts = Vec::new();
        while self.rest.peek().is_some_and(|c| !"|)".contains(*c)) {
            let what = self.one()?;
            parts.push(self.repeated(what)?);
        }
        Ok(Tree::All(parts))
    }

    fn repeated(&mut self, what: Tree) -> Result<Tree, String> {
        let Some((least, most)) = self.times()? else { return Ok(what) };
        let greedy = self.rest.next_if_eq(&'?').is_none();
        if self.times()?.is_some() {
            return Err("a repetition of a repetition; put the first into a group".to_owned());
        }
        Ok(Tree::Repeat { what: Box::new(what), least, most, greedy })
    }

    /// How often, at least and at most; `None`: once, nothing is said.
    fn times(&mut self) -> Result<Option<(u32, Option<u32>)>, String> {
        let times = match self.rest.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted().map(Some),
            _ => return Ok(None),
        };
        self.rest.next();
        Ok(Some(times))
    }

    /// `{2}`, `{2,}` or `{2,5}`.
    fn counted(&mut self) -> Result<(u32, Option<u32>), String> {
        let wrong = || format!("write {{2}}, {{2,}} or {{2,5}}, up to {REPEATS_MAX}; or \\{{");
        let inner: String = self.rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
        let number = |text: &str| {
            let number = text.parse::<u32>().ok().filter(|number| *number <= REPEATS_MAX);
            number.ok_or_else(wrong)
        };
        let (least, most) = match inner.split_once(',') {
            None => (number(&inner)?, Some(number(&inner)?)),
            Some((least, "")) => (number(least)?, None),
            Some((least, most)) => (number(least)?, Some(number(most)?)),
        };
        match most.is_none_or(|most| most >= least) {
            true => Ok((least, most)),
            false => Err(wrong()),
        }
    }

    fn one(&mut self) -> Result<Tree, String> {
        Ok(match self.rest.next().unwrap_or_default() {
            '.' => Tree::One(Class { negated: true, ranges: vec![('\n', '\n')] }),
            '^' => Tree::At(Edge::Begin),
            '$' => Tree::At(Edge::End),
            '(' => self.group()?,
            '[' => Tree::One(self.class()?),
            '\\' => self.escaped()?,
            c @ ('*' | '+' | '?' | '{') => return Err(format!("`{c}` repeats nothing")),
            c => Tree::One(only(c)),
        })
    }

    fn group(&mut self) -> Result<Tree, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("groups nested deeper than {DEPTH_MAX}"));
        }
        let mut number = None;
        if self.rest.next_if_eq(&'?').is_none() {
            number = Some(self.groups);
        } else if self.rest.next_if_eq(&':').is_none() {
            // (?P<name>..) or (?<name>..); the name is not looked at.
            self.rest.next_if_eq(&'P');
            if self.rest.next() != Some('<') || self.rest.by_ref().all(|c| c != '>') {
                return Err("of groups with a `?` only (?:..) and (?P<name>..) are read".into());
            }
            number = Some(self.groups);
        }
        self.groups += usize::from(number.is_some());
        let inner = self.any()?;
        self.depth -= 1;
        match self.rest.next() {
            Some(')') => Ok(Tree::Group(number, Box::new(inner))),
            _ => Err("a `(` is not closed".to_owned()),
        }
    }

    fn escaped(&mut self) -> Result<Tree, String> {
        let c = self.rest.next().ok_or("a `\\` at the end")?;
        Ok(match c {
            'A' => Tree::At(Edge::Begin),
            'z' => Tree::At(Edge::End),
            'b' => Tree::At(Edge::Word),
            'B' => Tree::At(Edge::NoWord),
            _ => Tree::One(escape(c)?),
        })
    }

    fn class(&mut self) -> Result<Class, String> {
        let open = || "a `[` is not closed".to_owned();
        let mut class = Class { negated: self.rest.next_if_eq(&'^').is_some(), ..Class::default() };
        let mut first = true;
        loop {
            let c = self.rest.next().ok_or_else(open)?;
            match c {
                ']' if !first => return Ok(class),
                '[' if self.rest.peek() == Some(&':') => class.ranges.extend(self.named()?),
                _ => self.range(c, &mut class)?,
            }
            first = false;
        }
    }

    /// A character of a class, or the first of a range.
    fn range(&mut self, c: char, class: &mut Class) -> Result<(), String> {
        let open = "a `[` is not closed";
        let begin = match c {
            '\\' => escape(self.rest.next().ok_or(open)?)?,
            _ => only(c),
        };
        let mut ahead = self.rest.clone();
        let [(first, last)] = begin.ranges[..] else {
            return begin.add_to(class);
        };
        if begin.negated || first != last || ahead.next() != Some('-') {
            return begin.add_to(class);
        }
        let Some(end) = ahead.next().filter(|c| *c != ']') else { return begin.add_to(class) };
        self.rest = ahead;
        let end = match end {
            '\\' => escape(self.rest.next().ok_or(open)?)?,
            _ => only(end),
        };
        match end.ranges[..] {
            [(last, other)] if last == other && first <= last && !end.negated => {
                class.ranges.push((first, last));
                Ok(())
            }
            _ => Err(format!("the range that begins with `{first}` ends before it begins")),
        }
    }

    /// `[:alpha:]` within a class.
    fn named(&mut self) -> Result<Vec<(char, char)>, String> {
        let name: String = self.rest.by_ref().skip(1).take_while(|c| *c != ':').collect();
        let ranges: &[(char, char)] = match name.as_str() {
            "alpha" => &[('a', 'z'), ('A', 'Z')],
            "digit" => &[('0', '9')],
            "alnum" => &[('a', 'z'), ('A', 'Z'), ('0', '9')],
            "lower" => &[('a', 'z')],
            "upper" => &[('A', 'Z')],
            "xdigit" => &[('a', 'f'), ('A', 'F'), ('0', '9')],
            "word" => WORD,
            "space" => &[('\t', '\r'), (' ', ' ')],
            "punct" => &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')],
            _ => return Err(format!("there is no class [:{name}:]")),
        };
        match self.rest.next() {
            Some(']') => Ok(ranges.to_vec()),
            _ => Err(format!("[:{name}:] is not closed")),
        }
    }
}

const WORD: &[(char, char)] = &[('a', 'z'), ('A', 'Z'), ('0', '9'), ('_', '_')];

fn only(c: char) -> Class {
    Class { negated: false, ranges: vec![(c, c)] }
}

/// What stands behind a `\`.
fn escape(c: char) -> Result<Class, String> {
    let (negated, ranges): (bool, &[(char, char)]) = match c {
        'd' => (false, &[('0', '9')]),
        'D' => (true, &[('0', '9')]),
        'w' => (false, WORD),
        'W' => (true, WORD),
        's' => (false, &[('\t', '\n'), ('\u{c}', '\r'), (' ', ' ')]),
        'S' => (true, &[('\t', '\n'), ('\u{c}', '\r'), (' ', ' ')]),
        't' => return Ok(only('\t')),
        'n' => return Ok(only('\n')),
        'r' => return Ok(only('\r')),
        c if c.is_ascii_punctuation() => return Ok(only(c)),
        c => return Err(format!("`\\{c}` is not read")),
    };
    Ok(Class { negated, ranges: ranges.to_vec() })
}

impl Class {
    /// Adds these characters to a class.
    fn add_to(self, class: &mut Class) -> Result<(), String> {
        if !self.negated {
            class.ranges.extend(self.ranges);
            return Ok(());
        }
        // What lies between the ranges.
        let mut ranges = self.ranges;
        ranges.sort_unstable();
        let mut from = 0;
        for (first, last) in ranges {
            class.ranges.extend(between(from, u32::from(first)));
            from = u32::from(last) + 1;
        }
        class.ranges.extend(between(from, u32::from(char::MAX) + 1));
        Ok(())
    }
}

/// The characters from one number up to another.
fn between(from: u32, to: u32) -> Option<(char, char)> {
    let first = char::from_u32(from)?;
    let last = char::from_u32(to.checked_sub(1)?)?;
    (first <= last).then_some((first, last))
}
