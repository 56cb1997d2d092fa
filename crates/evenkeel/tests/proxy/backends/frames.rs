//! An HTTP/2 backend that can write arbitrary frames.

use crate::front::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, fields, frame,
};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::{BackendScheme, ProxySettings};
use evenkeel_testing::wait::until;

/// Makes the proxy use HTTP/2 to the stage's backend.
pub fn streams(settings: &mut ProxySettings) {
    settings.backends[0].scheme = BackendScheme::H2c;
}

/// A frame sent by the proxy.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn ends(&self) -> bool {
        self.flags & END_STREAM != 0
    }

    /// The error code of a RST_STREAM frame.
    pub fn code(&self) -> u32 {
        u32::from_be_bytes(self.payload[..4].try_into().expect("a code"))
    }
}

/// A connection opened by the proxy, seen from the backend.
pub struct Behind(pub Wire);

impl Behind {
    /// Accepts the next connection, and announces the maximum number of streams, if any.
    pub fn accept(stage: &Stage, streams: Option<u32>) -> Behind {
        Behind::on(stage.backend(), streams)
    }

    pub fn on(mut wire: Wire, streams: Option<u32>) -> Behind {
        wire.expect("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut settings = Vec::new();
        if let Some(streams) = streams {
            settings.extend(3_u16.to_be_bytes());
            settings.extend(streams.to_be_bytes());
        }
        wire.send(frame(SETTINGS, 0, 0, &settings));
        Behind(wire)
    }

    /// The next frame that belongs to a stream; `None` when the connection ends.
    pub fn try_next(&mut self) -> Option<Frame> {
        loop {
            let header = self.0.try_take(9)?;
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four"));
            let payload = self.0.try_take((word(0) >> 8) as usize)?;
            let frame = Frame { kind: header[3], flags: header[4], stream: word(5), payload };
            if matches!(frame.kind, HEADERS | DATA | RST_STREAM) {
                return Some(frame);
            }
        }
    }

    pub fn next(&mut self) -> Frame {
        self.try_next().expect("the connection stays")
    }

    /// The stream of the next request's head.
    pub fn request(&mut self) -> u32 {
        let head = self.next();
        assert_eq!(head.kind, HEADERS, "{head:?}");
        head.stream
    }

    /// The stream of the next request's head, after skipping frames of streams that have ended.
    pub fn next_request(&mut self) -> u32 {
        loop {
            let frame = self.next();
            if frame.kind == HEADERS {
                return frame.stream;
            }
            assert!(matches!(frame.kind, RST_STREAM | DATA), "{frame:?}");
        }
    }

    /// The rest of a request's body. No frame of another stream may arrive in the meantime.
    pub fn body(&mut self, stream: u32) -> String {
        let mut body = Vec::new();
        loop {
            let data = self.next();
            assert_eq!((data.kind, data.stream), (DATA, stream), "{data:?}");
            body.extend(&data.payload);
            if data.ends() {
                return String::from_utf8(body).expect("text");
            }
        }
    }

    pub fn head(&mut self, stream: u32) -> &mut Behind {
        self.send(&[head(stream, 0, &[])])
    }

    /// Sends frames in one write.
    pub fn send(&mut self, frames: &[Vec<u8>]) -> &mut Behind {
        self.0.send(frames.concat());
        self
    }

    pub fn data(&mut self, stream: u32, data: &str, ends: bool) -> &mut Behind {
        let flags = if ends { END_STREAM } else { 0 };
        self.0.send(frame(DATA, flags, stream, data.as_bytes()));
        self
    }

    pub fn answer(&mut self, stream: u32, body: &str) {
        self.head(stream).data(stream, body, true);
    }

    pub fn reset(&mut self, stream: u32, code: u32) {
        self.0.send(frame(RST_STREAM, 0, stream, &code.to_be_bytes()));
    }

    /// Sends GOAWAY with the last stream that was processed.
    pub fn goes_away(&mut self, last: u32) {
        self.0.send(frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat()));
    }
}

/// The head of an answer with status 200 and these additional fields.
pub fn head(stream: u32, flags: u8, lines: &[(&str, &str)]) -> Vec<u8> {
    let lines = fields(&[&[(":status", "200")], lines].concat());
    frame(HEADERS, END_HEADERS | flags, stream, &lines)
}

/// Waits until the proxy has no open connection to any backend.
pub fn all_closed(stage: &Stage) {
    until("it is closed", || stage.watch.proxy.backend_connections.get() == 0);
}
