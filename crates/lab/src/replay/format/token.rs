//! Splits a log line into words: bare, in brackets or in quotes.
//!
//! A quotation ends at the next quote without a backslash before it, or at the end of the line.
//! Words are not unescaped, because keys are only compared with each other.

/// One word of a line, without its delimiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A word that ends at the next space.
    Bare(&'a str),
    /// The text between brackets.
    Bracketed(&'a str),
    /// The text between quotes.
    Quoted(&'a str),
}

impl<'a> Token<'a> {
    /// The word, whatever its delimiters.
    pub fn text(self) -> &'a str {
        match self {
            Token::Bare(text) | Token::Bracketed(text) | Token::Quoted(text) => text,
        }
    }
}

/// An iterator over the words of a line.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a>(pub &'a str);

impl<'a> Tokens<'a> {
    /// The next word, if it is bare.
    pub fn bare(&mut self) -> Option<&'a str> {
        match self.next()? {
            Token::Bare(text) => Some(text),
            _ => None,
        }
    }

    /// The next word, if it is in quotes.
    pub fn quoted(&mut self) -> Option<&'a str> {
        match self.next()? {
            Token::Quoted(text) => Some(text),
            _ => None,
        }
    }

    /// The next word, if it is in brackets.
    pub fn bracketed(&mut self) -> Option<&'a str> {
        match self.next()? {
            Token::Bracketed(text) => Some(text),
            _ => None,
        }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let rest = self.0.trim_start_matches([' ', '\t']);
        let (token, rest) = match rest.as_bytes().first()? {
            b'"' => {
                let end = quote_end(&rest[1..]);
                (Token::Quoted(&rest[1..1 + end]), rest.get(end + 2..))
            }
            b'[' => {
                let end = rest.find(']').unwrap_or(rest.len());
                (Token::Bracketed(&rest[1..end]), rest.get(end + 1..))
            }
            _ => {
                let end = bare_end(rest);
                (Token::Bare(&rest[..end]), rest.get(end..))
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
        let words: Vec<_> = Tokens(line).collect();
        assert_eq!(
            words,
            [
                Token::Bare("1.2.3.4"),
                Token::Bare("-"),
                Token::Bracketed("10/Oct"),
                Token::Quoted(r#"GET /\"x\" y"#),
                Token::Quoted(""),
                Token::Bare("rt=\"0.1, 0.2\""),
                Token::Bare("a=b"),
                Token::Quoted("open"),
            ]
        );
        assert_eq!(Tokens("[open").next(), Some(Token::Bracketed("open")));
        assert_eq!(Tokens("  ").next(), None);
    }
}
