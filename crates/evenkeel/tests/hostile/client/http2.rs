//! Parses the frames of an HTTP/2 connection, and returns the bytes to be sent in return.

use super::hpack;
use crate::law::Heard;
use crate::plan::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, stream_of,
};

#[derive(Default)]
pub struct Reader {
    unread: Vec<u8>,
    /// Whether the proxy's SETTINGS have arrived.
    pub greeted: bool,
    /// An incomplete head, and the flags of its first frame.
    block: Option<(u8, Vec<u8>)>,
}

impl Reader {
    pub fn hear(&mut self, bytes: &[u8], heard: &mut [Heard]) -> Result<Vec<u8>, String> {
        self.unread.extend_from_slice(bytes);
        let mut reply = Vec::new();
        while let Some((kind, flags, stream, payload)) = self.next() {
            match (kind, flags & ACK) {
                (SETTINGS, 0) => {
                    self.greeted = true;
                    reply.extend(frame(SETTINGS, ACK, 0, &[]));
                }
                (PING, 0) => reply.extend(frame(PING, ACK, 0, &payload)),
                (SETTINGS | PING | WINDOW_UPDATE | GOAWAY, _) => {}
                _ => {
                    let index = (0..heard.len()).find(|index| stream_of(*index) == stream);
                    let Some(index) = index else {
                        return Err(format!("a frame for stream {stream}, which is not there"));
                    };
                    self.take(kind, flags, payload, &mut heard[index])?;
                }
            }
        }
        Ok(reply)
    }

    /// The next frame, if it has arrived completely.
    fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let word =
            |at: usize| Some(u32::from_be_bytes(self.unread.get(at..at + 4)?.try_into().ok()?));
        let (length, stream) = ((word(0)? >> 8) as usize, word(5)?);
        let (kind, flags) = (self.unread[3], self.unread[4]);
        if self.unread.len() < 9 + length {
            return None;
        }
        let payload = self.unread.drain(..9 + length).skip(9).collect();
        Some((kind, flags, stream, payload))
    }

    fn take(
        &mut self,
        kind: u8,
        flags: u8,
        payload: Vec<u8>,
        heard: &mut Heard,
    ) -> Result<(), String> {
        match kind {
            DATA => {
                heard.body.extend(payload);
                heard.whole |= flags & END_STREAM != 0;
            }
            HEADERS | CONTINUATION => {
                let (first, mut block) = self.block.take().unwrap_or((flags, Vec::new()));
                block.extend(payload);
                if flags & END_HEADERS == 0 {
                    self.block = Some((first, block));
                    return Ok(());
                }
                let head = hpack::read(&block)?;
                // Trailers have no status.
                if let Some(status) = head.status.filter(|status| *status >= 200) {
                    (heard.status, heard.token) = (status, head.token);
                }
                heard.whole |= first & END_STREAM != 0;
            }
            RST_STREAM => heard.ended = true,
            _ => return Err(format!("a frame of kind {kind}")),
        }
        Ok(())
    }
}
