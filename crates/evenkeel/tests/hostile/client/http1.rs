//! Parses the answers on an HTTP/1.1 connection, in the order of its requests.

use crate::law::Heard;

/// The position within the answers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Head,
    /// This number of body bytes is still to come.
    Length(usize),
    ChunkSize,
    Chunk(usize),
    ChunkEnd,
    Trailers,
    /// The body ends with the connection.
    ToTheEnd,
}

pub struct Reader {
    methods: Vec<&'static str>,
    unread: Vec<u8>,
    at: At,
    /// The index of the request that is being answered.
    index: usize,
}

impl Reader {
    pub fn new(methods: Vec<&'static str>) -> Reader {
        Reader { methods, unread: Vec::new(), at: At::Head, index: 0 }
    }

    pub fn hear(&mut self, bytes: &[u8], heard: &mut [Heard]) -> Result<(), String> {
        self.unread.extend_from_slice(bytes);
        while self.step(heard)? {}
        Ok(())
    }

    /// Notes that the connection has ended.
    pub fn end(&mut self, heard: &mut [Heard]) {
        if let (At::ToTheEnd, Some(heard)) = (self.at, heard.get_mut(self.index)) {
            heard.whole = true;
        }
    }

    /// Parses the next piece. Returns false if it has not arrived yet.
    fn step(&mut self, heard: &mut [Heard]) -> Result<bool, String> {
        if self.unread.is_empty() {
            return Ok(false);
        }
        // The proxy may report an error about the bytes after the last request.
        let mut none = Heard::default();
        let heard = heard.get_mut(self.index).unwrap_or(&mut none);
        self.at = match self.at {
            At::Head => {
                let Some(head) = self.until(b"\r\n\r\n") else { return Ok(false) };
                let head = String::from_utf8(head).map_err(|_| "a head that is no text")?;
                self.head(&head, heard)?
            }
            At::Length(left) | At::Chunk(left) => {
                let most = left.min(self.unread.len());
                heard.body.extend(self.unread.drain(..most));
                match (self.at, left - most) {
                    (At::Length(_), 0) => self.done(heard),
                    (At::Length(_), left) => At::Length(left),
                    (_, 0) => At::ChunkEnd,
                    (_, left) => At::Chunk(left),
                }
            }
            At::ChunkSize => {
                let Some(line) = self.until(b"\r\n") else { return Ok(false) };
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                match usize::from_str_radix(&line, 16) {
                    Ok(0) => At::Trailers,
                    Ok(size) => At::Chunk(size),
                    Err(_) => return Err(format!("`{line}` in place of a chunk's size")),
                }
            }
            At::ChunkEnd => match self.until(b"\r\n") {
                Some(line) if line.len() == 2 => At::ChunkSize,
                Some(_) => return Err("a chunk that does not end".to_owned()),
                None => return Ok(false),
            },
            At::Trailers => match self.until(b"\r\n") {
                Some(line) if line.len() == 2 => self.done(heard),
                Some(_) => At::Trailers,
                None => return Ok(false),
            },
            At::ToTheEnd => {
                heard.body.append(&mut self.unread);
                At::ToTheEnd
            }
        };
        Ok(true)
    }

    fn done(&mut self, heard: &mut Heard) -> At {
        heard.whole = true;
        self.index += 1;
        At::Head
    }

    /// Takes all bytes up to the first `end`.
    fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        let at = self.unread.windows(end.len()).position(|window| window == end)?;
        Some(self.unread.drain(..at + end.len()).collect())
    }

    fn head(&mut self, head: &str, heard: &mut Heard) -> Result<At, String> {
        let status = head.strip_prefix("HTTP/1.1 ").or(head.strip_prefix("HTTP/1.0 "));
        let status = status.and_then(|rest| rest.get(..3)?.parse::<u16>().ok());
        let Some(status) = status else { return Err(format!("`{head}` in place of an answer")) };
        let field = |name: &str| {
            let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
            let found = fields.find(|(n, _)| n.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim().to_owned())
        };
        if status < 200 && status != 101 {
            return Ok(At::Head);
        }
        (heard.status, heard.token) = (status, field("x-token"));
        let Some(method) = self.methods.get(self.index) else {
            return match &heard.token {
                Some(token) => Err(format!("an answer to {token} that was not asked for")),
                None => Ok(At::ToTheEnd),
            };
        };
        if status == 101 {
            return Ok(At::ToTheEnd);
        }
        if *method == "HEAD" || status == 204 || status == 304 {
            return Ok(self.done(heard));
        }
        if field("transfer-encoding").is_some() {
            return Ok(At::ChunkSize);
        }
        match field("content-length").map(|length| length.parse()) {
            Some(Ok(0)) => Ok(self.done(heard)),
            Some(Ok(length)) => Ok(At::Length(length)),
            Some(Err(_)) => Err(format!("no length in `{head}`")),
            None => Ok(At::ToTheEnd),
        }
    }
}
