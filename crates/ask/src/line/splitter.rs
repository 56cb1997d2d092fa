//! Splits a stream of bytes into tags at newlines.
//!
//! A tag is everything before a newline: any bytes, also none at all, and a carriage return is part
//! of it. A tag that is too long is discarded as it arrives, so a client cannot make the door
//! buffer more than one tag. This file decides about no tags and reads no socket: see `connection`.

use memchr::memchr_iter;

/// Splits the bytes of one connection into tags.
#[derive(Clone, Debug)]
pub struct TagSplitter {
    tag_bytes_max: usize,
    /// The bytes belong to a tag that is already too long.
    passing_over: bool,
}

impl TagSplitter {
    pub fn new(tag_bytes_max: usize) -> TagSplitter {
        TagSplitter { tag_bytes_max, passing_over: false }
    }

    /// The longest tag, in bytes.
    pub fn tag_bytes_max(&self) -> usize {
        self.tag_bytes_max
    }

    /// Whether the next byte begins a tag.
    pub fn begins_tag(&self) -> bool {
        !self.passing_over
    }

    /// Calls `each` for every complete tag in `input`, in order, with `None` for a tag that is too
    /// long. Returns the number of bytes consumed. The rest is the beginning of a tag, at most one
    /// tag long, and must be passed again in front of the next bytes.
    pub fn take<'a>(&mut self, input: &'a [u8], mut each: impl FnMut(Option<&'a [u8]>)) -> usize {
        let mut start = 0;
        for end in memchr_iter(b'\n', input) {
            let tag = &input[start..end];
            let long = std::mem::take(&mut self.passing_over) || tag.len() > self.tag_bytes_max;
            each((!long).then_some(tag));
            start = end + 1;
        }
        if self.passing_over || input.len() - start > self.tag_bytes_max {
            self.passing_over = true;
            return input.len();
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tags found in `input` if it arrives in pieces of these sizes, in turn.
    fn cut(input: &[u8], max: usize, pieces: &[usize]) -> Vec<Option<Vec<u8>>> {
        let (mut lines, mut kept, mut out) = (TagSplitter::new(max), Vec::new(), Vec::new());
        let mut rest = input;
        for size in pieces.iter().cycle() {
            if rest.is_empty() {
                return out;
            }
            let (piece, after) = rest.split_at((*size).clamp(1, rest.len()));
            rest = after;
            kept.extend_from_slice(piece);
            let used = lines.take(&kept, |tag| out.push(tag.map(<[u8]>::to_vec)));
            kept.drain(..used);
            assert!(kept.len() <= max, "no more than a tag is kept");
        }
        out
    }

    /// The same, in an obviously correct way.
    fn split(input: &[u8], max: usize) -> Vec<Option<Vec<u8>>> {
        let mut all: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
        all.pop();
        all.iter().map(|tag| (tag.len() <= max).then(|| tag.to_vec())).collect()
    }

    #[test]
    fn d13_d16_d17_d18_tags_are_bytes_up_to_a_newline() {
        let some = |tag: &str| Some(tag.as_bytes().to_vec());
        for (input, tags) in [
            ("C\nC\nD\n", vec![some("C"), some("C"), some("D")]),
            ("C\r\n", vec![some("C\r")]),
            ("\n\n", vec![some(""), some("")]),
            ("12345678\n123456789\nok\n", vec![some("12345678"), None, some("ok")]),
            ("C", vec![]),
        ] {
            for pieces in [&[1][..], &[2, 3], &[100]] {
                assert_eq!(cut(input.as_bytes(), 8, pieces), tags, "{input:?} by {pieces:?}");
            }
        }
    }

    #[test]
    fn fuzz_however_the_bytes_arrive_the_tags_are_the_same() {
        evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, Vec<u8>, u8)>().for_each(
            |(input, pieces, max)| {
                // Make newlines frequent.
                let input: Vec<u8> =
                    input.iter().map(|byte| if byte % 7 == 0 { b'\n' } else { *byte }).collect();
                let mut pieces: Vec<usize> =
                    pieces.iter().map(|piece| usize::from(*piece)).collect();
                pieces.push(1);
                let max = usize::from(*max);
                assert_eq!(cut(&input, max, &pieces), split(&input, max));
            },
        );
    }
}
