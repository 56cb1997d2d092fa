//! Event streams (`text/event-stream`), cut into parts as they arrive.
//!
//! Lines end with CR, LF or both. A blank line ends an event. Each part is reported when it
//! arrives, and is not kept.

use memchr::memchr2;

/// The kind of the next bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SsePart {
    /// A line of data begins: `data:`, which is not part of the data. With a line of data before it
    /// in the same event, a line break stands between the two.
    DataLine,
    /// A piece of the data.
    Data,
    /// Bytes of an event that are not data: other fields, and the ends of lines.
    Field,
    /// A comment, without the end of its line if no event is open.
    Comment,
    /// The blank line that ends an event. If it is a CR, its LF may follow.
    End,
    /// The LF that belongs to the CR before it.
    LineFeed,
    /// Bytes between events.
    Between,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SseLine {
    /// At the beginning of a line.
    Begin,
    /// In the name of a field, which so far is this many bytes of `data`.
    Name(usize),
    /// After `data:`, where one space does not belong to the data.
    Space,
    Data,
    /// In a field that does not matter.
    Ignored,
    Comment,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The state of a stream between two pieces.
#[derive(Clone, Debug)]
pub(crate) struct SseParts {
    line: SseLine,
    after_cr: bool,
    /// Whether the event has begun.
    is_open: bool,
    /// How many bytes of a byte order mark the stream has begun with; afterwards, its length.
    mark: usize,
}

impl SseParts {
    pub(crate) fn new() -> SseParts {
        SseParts { line: SseLine::Begin, after_cr: false, is_open: false, mark: 0 }
    }

    /// The kind of the first bytes of `rest`, and their number, which is at least one. `rest` is
    /// not empty.
    pub(crate) fn next(&mut self, rest: &[u8]) -> (usize, SsePart) {
        let byte = rest[0];
        if std::mem::take(&mut self.after_cr) && byte == b'\n' {
            return (1, SsePart::LineFeed);
        }
        if self.mark < BYTE_ORDER_MARK.len() {
            if byte == BYTE_ORDER_MARK[self.mark] {
                self.mark += 1;
                return (1, SsePart::Between);
            }
            self.mark = BYTE_ORDER_MARK.len();
        }
        if byte == b'\n' || byte == b'\r' {
            self.after_cr = byte == b'\r';
            return (1, self.end_line());
        }
        match self.line {
            SseLine::Begin if byte == b':' => {
                self.line = SseLine::Comment;
                (1, SsePart::Comment)
            }
            SseLine::Begin => self.begin_field(rest),
            SseLine::Name(known) => (1, self.name(known, byte)),
            SseLine::Space if byte == b' ' => {
                self.line = SseLine::Data;
                (1, SsePart::Field)
            }
            SseLine::Space | SseLine::Data => {
                self.line = SseLine::Data;
                (length_of_line(rest), SsePart::Data)
            }
            SseLine::Ignored => (length_of_line(rest), SsePart::Field),
            SseLine::Comment => (length_of_line(rest), SsePart::Comment),
        }
    }

    fn end_line(&mut self) -> SsePart {
        match std::mem::replace(&mut self.line, SseLine::Begin) {
            SseLine::Begin if std::mem::take(&mut self.is_open) => SsePart::End,
            SseLine::Begin => SsePart::Between,
            SseLine::Comment if !self.is_open => SsePart::Comment,
            _ => SsePart::Field,
        }
    }

    fn begin_field(&mut self, rest: &[u8]) -> (usize, SsePart) {
        self.is_open = true;
        if rest.starts_with(b"data:") {
            self.line = SseLine::Space;
            return (5, SsePart::DataLine);
        }
        (1, self.name(0, rest[0]))
    }

    /// A byte of a field's name, after `known` bytes of `data`.
    fn name(&mut self, known: usize, byte: u8) -> SsePart {
        const NAME: &[u8] = b"data:";
        self.line = match NAME.get(known) {
            Some(b':') if byte == b':' => {
                self.line = SseLine::Space;
                return SsePart::DataLine;
            }
            Some(expected) if *expected == byte => SseLine::Name(known + 1),
            _ => SseLine::Ignored,
        };
        SsePart::Field
    }
}

fn length_of_line(rest: &[u8]) -> usize {
    memchr2(b'\n', b'\r', rest).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::{SsePart, SseParts};
    use proptest::prelude::{ProptestConfig, any, proptest};

    /// The data of each complete event.
    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let (mut parts, mut events, mut data) = (SseParts::new(), Vec::new(), None::<Vec<u8>>);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let (used, part) = parts.next(rest);
                match part {
                    SsePart::DataLine => match &mut data {
                        Some(data) => data.push(b'\n'),
                        None => data = Some(Vec::new()),
                    },
                    SsePart::Data => {
                        data.as_mut().expect("a line of data").extend(&rest[..used]);
                    }
                    SsePart::End => events.extend(data.take()),
                    _ => {}
                }
                rest = &rest[used..];
            }
        }
        events.into_iter().map(|data| String::from_utf8_lossy(&data).into_owned()).collect()
    }

    const STREAM: &[u8] = b"\xef\xbb\xbf: hi\n\nevent: a\r\ndata: 1\r\n\r\ndata:2\rdata: 3\r\r\
        id: 4\n\ndatas: 5\ndat: 6\ndata\n\n\ndata:  7: 8\n\nda";

    #[test]
    fn events_are_found_whatever_ends_their_lines() {
        assert_eq!(events(&[STREAM]), ["1", "2\n3", " 7: 8"]);
    }

    #[test]
    fn cuts_change_nothing() {
        for cut in 0..STREAM.len() {
            let (one, two) = STREAM.split_at(cut);
            assert_eq!(events(&[one, two]), events(&[STREAM]), "{cut}");
        }
        let single: Vec<_> = STREAM.chunks(1).collect();
        assert_eq!(events(&single), events(&[STREAM]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn odd_streams_are_cut_alike(text in "[data: \r\n\u{feff}x]{0,40}", cut in any::<u16>()) {
            let (one, two) = text.as_bytes().split_at(usize::from(cut) % (text.len() + 1));
            assert_eq!(events(&[one, two]), events(&[text.as_bytes()]));
        }
    }
}
