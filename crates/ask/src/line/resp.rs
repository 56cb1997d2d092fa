//! The Redis protocol, as far as a server needs it: parses commands and writes replies.
//!
//! A command is an array of bulk strings, or words on a line for people with a terminal (separated
//! by spaces, without quotes). Replies are written in version 2 or 3 of the protocol, as the client
//! asked. A command that is too long or invalid ends the connection, since the beginning of the
//! next command is then unknown. The meaning of commands is in `commands`.

use memchr::memchr;

/// The maximum size of one command in bytes, including its framing.
pub const COMMAND_BYTES_MAX: usize = 16 * 1024;
/// The maximum number of words of one command.
const WORDS_MAX: usize = 256;

/// Why bytes are not a command. The text is sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RespError(pub &'static str);

const TOO_LONG: RespError = RespError("Protocol error: command is longer than 16384 bytes");
const BAD_COUNT: RespError = RespError("Protocol error: invalid multibulk length");
const BAD_LENGTH: RespError = RespError("Protocol error: invalid bulk length");
const NO_BULK: RespError = RespError("Protocol error: expected '$'");
const NO_END: RespError = RespError("Protocol error: a string does not end where it says");

/// Parses the command at the beginning of `input` into `words` and returns its length in bytes, or
/// `None` if it is incomplete. An empty `words` means an empty line, which is not a command.
///
/// # Errors
/// The bytes are not the beginning of a command, or it is too long.
pub fn command<'a>(input: &'a [u8], words: &mut Vec<&'a [u8]>) -> Result<Option<usize>, RespError> {
    words.clear();
    let found = match input.first() {
        None => return Ok(None),
        Some(b'*') => framed(input, words)?,
        Some(_) => inline(input, words)?,
    };
    match found {
        Some(used) if used > COMMAND_BYTES_MAX => Err(TOO_LONG),
        None if input.len() >= COMMAND_BYTES_MAX => Err(TOO_LONG),
        found => Ok(found),
    }
}

/// Parses an array of bulk strings.
fn framed<'a>(input: &'a [u8], words: &mut Vec<&'a [u8]>) -> Result<Option<usize>, RespError> {
    let Some((count, mut at)) = number(input, 1, BAD_COUNT)? else { return Ok(None) };
    // Clients send no negative count, and servers have always accepted it.
    let count = usize::try_from(count).unwrap_or(0);
    if count > WORDS_MAX {
        return Err(BAD_COUNT);
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(NO_BULK),
        }
        let Some((length, begin)) = number(input, at + 1, BAD_LENGTH)? else { return Ok(None) };
        let length = usize::try_from(length).map_err(|_| BAD_LENGTH)?;
        if length > COMMAND_BYTES_MAX {
            return Err(BAD_LENGTH);
        }
        let end = begin + length;
        match input.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => words.push(&input[begin..end]),
            Some(_) => return Err(NO_END),
        }
        at = end + 2;
    }
    Ok(Some(at))
}

fn inline<'a>(input: &'a [u8], words: &mut Vec<&'a [u8]>) -> Result<Option<usize>, RespError> {
    let Some(end) = memchr(b'\n', input) else { return Ok(None) };
    let line = input[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.extend(line);
    if words.len() > WORDS_MAX { Err(BAD_COUNT) } else { Ok(Some(end + 1)) }
}

/// Parses the number on the line that begins at `at`. Returns it and the beginning of the next
/// line.
fn number(input: &[u8], at: usize, fault: RespError) -> Result<Option<(i64, usize)>, RespError> {
    /// The maximum length of a number: a sign, and more digits than any length has.
    const DIGITS_MAX: usize = 20;
    let rest = &input[at..];
    let Some(end) = memchr(b'\r', &rest[..rest.len().min(DIGITS_MAX + 1)]) else {
        return if rest.len() > DIGITS_MAX { Err(fault) } else { Ok(None) };
    };
    match rest.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => {
            let number = integer(&rest[..end]).ok_or(fault)?;
            Ok(Some((number, at + end + 2)))
        }
        Some(_) => Err(fault),
    }
}

/// Parses an integer as clients write it: digits with an optional minus, and nothing else.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| plain)?.parse().ok()
}

/// Writes replies in the protocol version of the client.
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    version: u8,
}

impl<'a> ReplyWriter<'a> {
    /// Creates a writer that appends to `out`. `version`: 2 or 3.
    pub fn new(out: &'a mut Vec<u8>, version: u8) -> ReplyWriter<'a> {
        ReplyWriter { out, version }
    }

    /// Uses another protocol version from now on.
    pub fn speak(&mut self, version: u8) {
        self.version = version;
    }

    /// Returns the buffer that replies are appended to.
    pub fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Writes a simple string, such as `OK`. It must not contain line breaks.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error. Control characters are removed, because a line break would end it early.
    pub fn error(&mut self, text: &str) {
        let plain: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_control()).collect();
        self.line(b'-', &plain);
    }

    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// Writes a bulk string of any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', i64::try_from(bytes.len()).unwrap_or(0));
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn null(&mut self) {
        self.out.extend_from_slice(if self.version >= 3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    pub fn array(&mut self, len: usize) {
        self.number(b'*', i64::try_from(len).unwrap_or(0));
    }

    /// Begins a map of `pairs` pairs. Version 2 has no maps, so there it is an array of twice that
    /// length.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            3 => self.number(b'%', i64::try_from(pairs).unwrap_or(0)),
            _ => self.array(2 * pairs),
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a command, and its length in bytes.
    type Read = (Vec<Vec<u8>>, usize);

    fn read(input: &[u8]) -> Result<Option<Read>, RespError> {
        let mut words = Vec::new();
        let used = command(input, &mut words)?;
        Ok(used.map(|used| (words.iter().map(|word| word.to_vec()).collect(), used)))
    }

    fn words(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn golden_commands_are_read_and_each_beginning_of_one_waits_for_the_rest() {
        for (input, read_as) in [
            ("*1\r\n$4\r\nPING\r\n", words(&["PING"])),
            ("*2\r\n$4\r\nECHO\r\n$6\r\na\r\nb\nc\r\n", words(&["ECHO", "a\r\nb\nc"])),
            ("*2\r\n$3\r\nGET\r\n$0\r\n\r\n", words(&["GET", ""])),
            ("*0\r\n", words(&[])),
            ("*-1\r\n", words(&[])),
            ("PING\r\n", words(&["PING"])),
            ("  CL.THROTTLE  k 15 30 60\n", words(&["CL.THROTTLE", "k", "15", "30", "60"])),
            ("\r\n", words(&[])),
        ] {
            let bytes = input.as_bytes();
            assert_eq!(read(bytes), Ok(Some((read_as.clone(), bytes.len()))), "{input:?}");
            let followed = [bytes, b"*1\r\n"].concat();
            assert_eq!(read(&followed), Ok(Some((read_as, bytes.len()))), "{input:?}");
            for end in 0..bytes.len() {
                assert_eq!(read(&bytes[..end]), Ok(None), "{:?}", &input[..end]);
            }
        }
    }

    #[test]
    fn what_is_no_command_is_refused_at_once() {
        for (input, fault) in [
            ("*x\r\n", BAD_COUNT),
            ("*257\r\n", BAD_COUNT),
            ("*1\rx", BAD_COUNT),
            ("*000000000000000000001\r\n", BAD_COUNT),
            ("*1\r\n:4\r\n", NO_BULK),
            ("*1\r\n$-1\r\n", BAD_LENGTH),
            ("*1\r\n$99999999999\r\n", BAD_LENGTH),
            ("*1\r\n$4\r\nPINGxx", NO_END),
        ] {
            assert_eq!(read(input.as_bytes()), Err(fault), "{input:?}");
        }
        let endless = [b'a'; COMMAND_BYTES_MAX];
        assert_eq!(read(&endless), Err(TOO_LONG));
        assert_eq!(read(&endless[1..]), Ok(None));
    }

    #[test]
    fn golden_replies() {
        let written = |version, write: fn(&mut ReplyWriter<'_>)| {
            let mut out = Vec::new();
            write(&mut ReplyWriter::new(&mut out, version));
            String::from_utf8(out).expect("text")
        };
        assert_eq!(written(2, |reply| reply.simple("OK")), "+OK\r\n");
        assert_eq!(written(2, |reply| reply.error("ERR a\r\n+OK")), "-ERR a+OK\r\n");
        assert_eq!(written(2, |reply| reply.integer(-1)), ":-1\r\n");
        assert_eq!(written(2, |reply| reply.integer(0)), ":0\r\n");
        assert_eq!(written(2, |reply| reply.integer(i64::MIN)), ":-9223372036854775808\r\n");
        assert_eq!(written(2, |reply| reply.bulk(b"a\r\n")), "$3\r\na\r\n\r\n");
        assert_eq!(
            (written(2, |reply| reply.null()), written(3, |reply| reply.null())),
            ("$-1\r\n".into(), "_\r\n".into())
        );
        assert_eq!(written(2, |reply| reply.map(2)), "*4\r\n");
        assert_eq!(written(3, |reply| reply.map(2)), "%2\r\n");
    }

    #[test]
    fn fuzz_any_bytes_are_commands_or_a_fault_and_never_half_read() {
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            let mut words = Vec::new();
            let mut rest = bytes;
            while let Ok(Some(used)) = command(rest, &mut words) {
                assert!(used > 0 && used <= rest.len());
                assert!(words.iter().map(|word| word.len()).sum::<usize>() <= used);
                rest = &rest[used..];
            }
        });
    }

    #[test]
    fn fuzz_what_a_client_frames_is_read_back() {
        evenkeel_fuzz::fuzz().with_type::<Vec<Vec<u8>>>().for_each(|sent| {
            let mut frame = Vec::new();
            let mut reply = ReplyWriter::new(&mut frame, 2);
            reply.array(sent.len());
            sent.iter().for_each(|word| reply.bulk(word));
            if sent.len() <= WORDS_MAX && frame.len() < COMMAND_BYTES_MAX {
                assert_eq!(read(&frame), Ok(Some((sent.clone(), frame.len()))));
            }
        });
    }
}
