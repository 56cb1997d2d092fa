//! Splits a log line into words: bare, in brackets or in quotes.
//!
//! A quotation ends at the next quote without a backslash before it, or at the end of the line.
//! Words are not unescaped, because keys are only compared with each other.

/// One word of a line, without its delimiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogToken<'a> {
    /// A word that ends at the next space.
    Bare(&'a str),
    /// The text between brackets.
    Bracketed(&'a str),
    /// The text between quotes.
    Quoted(&'a str),
}

impl<'a> LogToken<'a> {
    /// The word, whatever its delimiters.
    pub fn text(self) -> &'a str {
        match self {
            LogToken::Bare(text) | LogToken::Bracketed(text) | LogToken::Quoted(text) => text,
        }
    }
}

/// An iterator over the words of a line.
#[derive(Clone, Copy, Debug)]
pub struct LogTokens<'a>(pub &'a str);

impl<'a> LogTokens<'a> {
    /// The next word, if it is bare.
    pub fn bare(&mut self) -> Option<&'a str> {
        match self.next()? {
            LogToken::Bare(text) => Some(text),
            _ => None,
        }
    }

    /// The next word, if it is in quotes.
    pub fn quoted(&mut self) -> Option<&'a str> {
        match self.next()? {
            LogToken::Quoted(text) => Some(text),
            _ => None,
        }
    }

    /// The next word, if it is in brackets.
    pub fn bracketed(&mut self) -> Option<&'a str> {
        match self.next()? {
            LogToken::Bracketed(text) => Some(text),
            _ => None,
        }
    }
}

impl<'a> Iterator for LogTokens<'a> {
    type Item = LogToken<'a>;

    fn next(&mut self) -> Option<LogToken<'a>> {
        let rest = self.0.trim_start_matches([' ', '\t']);
        let (token, rest) = match rest.as_bytes().first()? {
            b'"' => {
                let end = quote_end(&rest[1..]);
                (LogToken::Quoted(&rest[1..1 + end]), rest.get(end + 2..))
            }
            b'[' => {
                let end = rest.find(']').unwrap_or(rest.len());
                (LogToken::Bracketed(&rest[1..end]), rest.get(end + 1..))
            }
            _ => {
                let end = bare_end(rest);
                (LogToken::Bare(&rest[..end]), rest.get(end..))
            }
        };
        self.0 = rest.unwrap_or_default();
        Some(token)
    }
}

/// The position at which a quotation ends that began before `text`.
fn quote_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = memchr::memchr2(b'"', b'\\', &text.as_bytes()[from..]) {
        if text.as_bytes()[from + at] == b'"' {
            return from + at;
        }
        from += at + 2;
        if from > text.len() {
            break;
        }
    }
    text.len()
}

/// The position at which a bare word ends: a space, except one in quotes after an equals sign.
fn bare_end(text: &str) -> usize {
    let end = text.find([' ', '\t']).unwrap_or(text.len());
    match text[..end].find("=\"") {
        Some(at) => {
            let begun = at + 2;
            (begun + quote_end(&text[begun..]) + 1).min(text.len()).max(end.min(begun))
        }
        None => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_one_after_the_other() {
        let line = r#"1.2.3.4 - [10/Oct] "GET /\"x\" y" "" rt="0.1, 0.2" a=b "open"#;
        let words: Vec<_> = LogTokens(line).collect();
        assert_eq!(
            words,
            [
                LogToken::Bare("1.2.3.4"),
                LogToken::Bare("-"),
                LogToken::Bracketed("10/Oct"),
                LogToken::Quoted(r#"GET /\"x\" y"#),
                LogToken::Quoted(""),
                LogToken::Bare("rt=\"0.1, 0.2\""),
                LogToken::Bare("a=b"),
                LogToken::Quoted("open"),
            ]
        );
        assert_eq!(LogTokens("[open").next(), Some(LogToken::Bracketed("open")));
        assert_eq!(LogTokens("  ").next(), None);
    }
}
