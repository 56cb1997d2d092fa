//! Environment variables in the values of a configuration: `${NAME}` and `${NAME:-default}`.
//!
//! They are expanded in the tree, after the YAML has been parsed. So a variable is always part of
//! one value, whatever it contains: it cannot add keys, end a text or become a comment. Keys and
//! comments are never expanded, and what a variable contains is not expanded again. `$${` stands
//! for `${`. `$NAME` without braces and all other dollars are text.

use crate::fault::{ConfigFault, quoted};
use crate::tree::{CONFIGURATION, YamlNode, YamlValue};
use std::ffi::OsString;

/// Maximum size of all expanded values together, in bytes: that of a configuration.
const EXPANDED_BYTES_MAX: usize = CONFIGURATION.bytes_max;

/// Finds a variable by its name.
type Lookup<'l> = &'l dyn Fn(&str) -> Option<OsString>;

/// The device and inode of the journal that systemd has connected the process to
/// (`systemd.exec(5)`).
#[must_use]
pub fn journal_stream() -> Option<String> {
    std::env::var("JOURNAL_STREAM").ok()
}

/// Expands the variables of this process in all values. Returns the faults; a value with a fault
/// stays as it is.
pub(crate) fn expand(root: &mut YamlNode) -> Vec<ConfigFault> {
    expand_with(root, &|name| std::env::var_os(name))
}

fn expand_with(root: &mut YamlNode, variables: Lookup<'_>) -> Vec<ConfigFault> {
    let mut expander = Expander { variables, bytes: 0, faults: Vec::new() };
    expander.node(root);
    expander.faults
}

/// Text in which `${` is not the beginning of a variable, for a file that is read again.
pub(crate) fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

struct Expander<'l> {
    variables: Lookup<'l>,
    /// Size of what was expanded so far.
    bytes: usize,
    faults: Vec<ConfigFault>,
}

impl Expander<'_> {
    fn node(&mut self, node: &mut YamlNode) {
        match &mut node.value {
            YamlValue::Null => {}
            YamlValue::Text(text) if text.contains("${") => match self.text(text) {
                Ok(expanded) => *text = expanded,
                Err(what) => self.faults.push(ConfigFault::new(node.place, what)),
            },
            YamlValue::Text(_) => {}
            YamlValue::List(items) => items.iter_mut().for_each(|item| self.node(item)),
            YamlValue::Map(entries) => entries.iter_mut().for_each(|(_, node)| self.node(node)),
        }
    }

    fn text(&mut self, text: &str) -> Result<String, String> {
        let (mut out, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            if let Some(before) = before.strip_suffix('$') {
                out.push_str(before);
                out.push_str("${");
                rest = after;
                continue;
            }
            let (inner, after) = after
                .split_once('}')
                .ok_or("`${` has no `}`; add it, or write `$${` for the text `${`")?;
            out.push_str(before);
            out.push_str(&value(inner, self.variables)?);
            rest = after;
        }
        out.push_str(rest);
        self.bytes += out.len();
        if self.bytes > EXPANDED_BYTES_MAX {
            return Err(format!("variables expand to more than {EXPANDED_BYTES_MAX} bytes"));
        }
        Ok(out)
    }
}

/// The value of what stands between the braces.
fn value(inner: &str, variables: Lookup<'_>) -> Result<String, String> {
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    if !is_name(name) {
        return Err(format!(
            "{} is not the name of a variable; write `${{NAME}}` or `${{NAME:-default}}`, or \
             `$${{` for the text `${{`",
            quoted(name)
        ));
    }
    let value = variables(name).filter(|value| default.is_none() || !value.is_empty());
    let value = match (value, default) {
        (Some(value), _) => value,
        (None, Some(default)) => return Ok(default.to_owned()),
        (None, None) => {
            return Err(format!(
                "the environment variable `{name}` is not set; set it, or write \
                 `${{{name}:-default}}`"
            ));
        }
    };
    value.into_string().map_err(|_| format!("the environment variable `{name}` is not UTF-8 text"))
}

/// A name as shells have it.
fn is_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && name.bytes().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree;

    fn expanded(text: &str) -> Result<YamlNode, String> {
        let mut root = tree::parse(text.as_bytes()).expect("YAML");
        let variables = |name: &str| match name {
            "HOST" => Some(OsString::from("10.0.0.5:80")),
            "EVIL" => Some(OsString::from("a, b: {c: 1} # d\n- ${HOST}")),
            "NULL" => Some(OsString::from("null")),
            "EMPTY" => Some(OsString::new()),
            _ => None,
        };
        let faults = expand_with(&mut root, &variables);
        let told =
            |fault: &ConfigFault| format!("{}:{}: {fault}", fault.place.line, fault.place.column);
        if faults.is_empty() { Ok(root) } else { Err(faults.iter().map(told).collect()) }
    }

    fn value_of(text: &str) -> String {
        let root = expanded(&format!("a: {text}")).expect(text);
        root.find(&["a"]).and_then(YamlNode::as_text).expect("text").to_owned()
    }

    #[test]
    fn values_are_expanded() {
        for (text, expected) in [
            ("http://${HOST}", "http://10.0.0.5:80"),
            ("'${HOST}'", "10.0.0.5:80"),
            ("${HOST:-x}/${NONE:-y:-z}", "10.0.0.5:80/y:-z"),
            ("${NONE:-}", ""),
            ("${EMPTY}", ""),
            ("${EMPTY:-full}", "full"),
            ("${NULL}", "null"),
            ("$${HOST}", "${HOST}"),
            ("$$${HOST}", "$${HOST}"),
            ("$HOST $$ {HOST} $", "$HOST $$ {HOST} $"),
        ] {
            assert_eq!(value_of(text), expected, "{text}");
        }
    }

    #[test]
    fn a_variable_cannot_change_the_structure() {
        assert_eq!(value_of("${EVIL}"), "a, b: {c: 1} # d\n- ${HOST}");
        let root = expanded("a: [\"${EVIL}\", b] # ${NONE}\n${NONE}: c").expect("good");
        assert_eq!(root.find(&["a"]).map(|list| list.items().len()), Some(2));
        assert_eq!(root.find(&["${NONE}"]).and_then(YamlNode::as_text), Some("c"));
    }

    #[test]
    fn faults_say_what_to_write() {
        for (text, told) in [
            (
                "a: b${NONE}",
                "1:4: the environment variable `NONE` is not set; set it, or write \
                             `${NONE:-default}`",
            ),
            ("a: ${HOST", "1:4: `${` has no `}`"),
            ("a: ${a b}", "1:4: `a b` is not the name of a variable"),
            ("a: ${HOST-x}", "1:4: `HOST-x` is not the name"),
            ("a: ${}", "1:4: `` is not the name"),
            ("a: ${1}", "1:4: `1` is not the name"),
        ] {
            let faults = expanded(text).expect_err(text);
            assert!(faults.starts_with(told), "{text}: {faults}");
        }
        let many = format!("[{}]", "\"${HOST}${HOST}${HOST}${HOST}${HOST}\",".repeat(20_000));
        assert!(expanded(&many).expect_err("too much").contains("more than 1048576 bytes"));
    }

    #[test]
    fn what_is_escaped_is_itself_again() {
        for text in ["${HOST}", "$${HOST}", "a$${", "$", "${"] {
            let mut node = YamlNode::text(escaped(text));
            assert_eq!(expand_with(&mut node, &|_| None), []);
            assert_eq!(node.as_text(), Some(text));
        }
    }
}
