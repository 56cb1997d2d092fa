//! Tags and newlines, cut out of a stream of bytes.
//!
//! A tag is whatever stands before a newline: any bytes, none at all, a carriage return kept.
//! One that is too long is passed over as it comes, and known only by its end, so nobody makes us
//! remember more than a tag. No tag is decided on here, and nothing is read: see `talk`.

use memchr::memchr_iter;

/// Cuts tags out of one connection's bytes.
#[derive(Clone, Debug)]
pub struct Lines {
    tag_bytes_max: usize,
    /// Within a tag that is too long already.
    passing_over: bool,
}

impl Lines {
    /// For tags of at most so many bytes.
    #[must_use]
    pub fn new(tag_bytes_max: usize) -> Lines {
        Lines { tag_bytes_max, passing_over: false }
    }

    /// Gives every whole tag in `input` to `each`, in order; `None` for one that is too long. Says
    /// how many bytes are dealt with: what is left is the beginning of a tag, not longer than
    /// one, and is to be there again in front of what comes next.
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

    /// What comes out of `input` if it arrives in pieces of these sizes, by turns.
    fn cut(input: &[u8], max: usize, pieces: &[usize]) -> Vec<Option<Vec<u8>>> {
        let (mut lines, mut kept, mut out) = (Lines::new(max), Vec::new(), Vec::new());
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

    /// The same, obviously right.
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
        bolero::check!().with_type::<(Vec<u8>, Vec<u8>, u8)>().for_each(|(input, pieces, max)| {
            // Newlines often enough.
            let input: Vec<u8> =
                input.iter().map(|byte| if byte % 7 == 0 { b'\n' } else { *byte }).collect();
            let mut pieces: Vec<usize> = pieces.iter().map(|piece| usize::from(*piece)).collect();
            pieces.push(1);
            let max = usize::from(*max);
            assert_eq!(cut(&input, max, &pieces), split(&input, max));
        });
    }
}
