//! Makes untrusted text safe to print in a terminal and in a log line.
//!
//! Control characters could move the cursor, forge a line or colour a screen. Characters that
//! change the writing direction could make one name look like another. All of them are written as
//! JSON escapes (`\u001b`), which are harmless and keep a JSON line valid.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` with every character escaped that is not plainly visible.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) {
            // Writing to a String cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Whether a character is a control or formatting character, without a visible form.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_harmless_stays_and_what_is_not_is_escaped() {
        for plain in ["", "192.0.2.0/24", "Mozilla/5.0 (X11)", "größe 日本"] {
            assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
        }
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u001b[2Jb\\u000ac");
        assert_eq!(printable("\u{9b}31m\u{7f}"), "\\u009b31m\\u007f");
        assert_eq!(printable("x\u{202e}gnp.exe"), "x\\u202egnp.exe");
    }
}
