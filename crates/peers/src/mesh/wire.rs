//! The wire format of a mesh connection: frames with a length prefix, the first of which is a
//! greeting.
//!
//! A frame is four bytes of length, the most significant first, and that number of bytes. An empty
//! frame only shows that its sender is alive. The first frame of each side is the greeting: `TGM`,
//! a version, 16 bytes of the instance's name, 8 bytes of the connection's serial number at the
//! instance that made it, and the cluster's name. So an untrusted connection can send at most
//! [`HELLO_BYTES_MAX`] bytes. No socket is used here.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The longest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 16 * 1024;
/// The longest greeting, in bytes.
pub const HELLO_BYTES_MAX: usize = 96;
/// The size of the length prefix, in bytes.
const PREFIX_BYTES: usize = 4;
/// The first bytes of a greeting: three letters and the version.
const MAGIC: [u8; 4] = *b"TGM\x01";
/// The length of a greeting without the cluster's name.
const HELLO_HEAD_BYTES: usize = 4 + 16 + 8;

/// The name of an instance: random, and valid until the process ends.
pub type Instance = [u8; 16];

/// Why received bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshFrameError {
    #[error("a frame of {0} bytes is too long")]
    Long(usize),
    #[error("it does not follow the peer protocol")]
    Foreign,
}

/// The greeting that each side sends first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshHello {
    pub instance: Instance,
    /// The serial number of the connection among those that the sender made; 0 if the sender
    /// accepted the connection.
    pub serial: u64,
    pub cluster: String,
}

impl MeshHello {
    /// Encodes the greeting, with its length prefix.
    pub fn encode(&self) -> BytesMut {
        let mut frame = BytesMut::with_capacity(HELLO_BYTES_MAX);
        frame.put_slice(&MAGIC);
        frame.put_slice(&self.instance);
        frame.put_u64(self.serial);
        frame.put_slice(self.cluster.as_bytes());
        let mut out = BytesMut::with_capacity(HELLO_BYTES_MAX);
        put(&mut out, &frame);
        out
    }

    /// Decodes a greeting from the first frame.
    pub fn decode(mut frame: &[u8]) -> Result<MeshHello, MeshFrameError> {
        if frame.len() < HELLO_HEAD_BYTES
            || frame.len() > HELLO_BYTES_MAX
            || !frame.starts_with(&MAGIC)
        {
            return Err(MeshFrameError::Foreign);
        }
        frame.advance(MAGIC.len());
        let mut instance = Instance::default();
        frame.copy_to_slice(&mut instance);
        let serial = frame.get_u64();
        let cluster = str::from_utf8(frame).map_err(|_| MeshFrameError::Foreign)?.to_owned();
        Ok(MeshHello { instance, serial, cluster })
    }
}

/// Appends a frame, with its length prefix, to the output.
pub fn put(out: &mut BytesMut, frame: &[u8]) {
    out.put_u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
    out.put_slice(frame);
}

/// Takes the next whole frame out of the input; `None` if more input is needed. The connection is
/// useless after a frame of more than `max` bytes.
pub fn take(read: &mut BytesMut, max: usize) -> Result<Option<Bytes>, MeshFrameError> {
    let Some(prefix) = read.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*prefix) as usize;
    if length > max {
        return Err(MeshFrameError::Long(length));
    }
    if read.len() < PREFIX_BYTES + length {
        return Ok(None);
    }
    // Copied, because a waiting frame must not keep the whole input buffer alive.
    let frame = Bytes::copy_from_slice(&read[PREFIX_BYTES..PREFIX_BYTES + length]);
    read.advance(PREFIX_BYTES + length);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> MeshHello {
        MeshHello { instance: [7; 16], serial: 3, cluster: "default".to_owned() }
    }

    #[test]
    fn a_greeting_stands_as_documented() {
        let mut wire = hello().encode();
        assert_eq!(&wire[..8], b"\0\0\0\x23TGM\x01");
        let frame = take(&mut wire, HELLO_BYTES_MAX).expect("short").expect("whole");
        assert_eq!(MeshHello::decode(&frame), Ok(hello()));
        let longest = MeshHello { cluster: "x".repeat(63), ..hello() }.encode();
        assert!(longest.len() <= PREFIX_BYTES + HELLO_BYTES_MAX);
    }

    #[test]
    fn frames_come_out_whole_however_they_went_in() {
        let mut wire = BytesMut::new();
        for frame in [b"one".as_slice(), b"", b"three"] {
            put(&mut wire, frame);
        }
        let (mut read, mut frames) = (BytesMut::new(), Vec::new());
        for byte in wire {
            read.put_u8(byte);
            frames.extend(take(&mut read, 5).expect("short"));
        }
        assert_eq!(frames, [&b"one"[..], b"", b"three"]);
        assert_eq!(
            take(&mut BytesMut::from(&b"GET / HT"[..]), 5),
            Err(MeshFrameError::Long(0x4745_5420))
        );
    }

    #[test]
    fn fuzz_frames_and_greetings() {
        evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
            let mut read = BytesMut::from(bytes);
            while let Ok(Some(frame)) = take(&mut read, 64) {
                assert!(frame.len() <= 64);
            }
            if let Ok(hello) = MeshHello::decode(bytes) {
                let mut wire = hello.encode();
                let again = take(&mut wire, HELLO_BYTES_MAX).expect("short").expect("whole");
                assert_eq!(again, bytes);
            }
        });
    }
}
