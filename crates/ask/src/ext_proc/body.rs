//! The body of a request, held until the request is decided on.
//!
//! It is in memory as a whole or, beyond a bound, in its beginning. All such bodies together have a
//! bound too; beyond that, each is held for its beginning only. How Envoy sends bodies: its
//! `request_body_mode`.

use super::answer::PiecePassage;
use super::context::BEGINNING_BYTES;
use super::wire::{BodySendMode, HttpBody};
use bytes::{Bytes, BytesMut};
use evenkeel_grpc::held_bytes::{ByteBudget, HeldBytes};

/// The maximum length of a piece that is sent back, in bytes.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// How Envoy sends bodies, of requests or of responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyMode(pub BodySendMode);

impl BodyMode {
    /// Whether bodies are sent at all.
    pub fn is_sent(self) -> bool {
        self.0 != BodySendMode::None
    }

    /// Whether Envoy sends on only what it gets back, and needs no answer to each message.
    pub fn is_duplex(self) -> bool {
        self.0 == BodySendMode::FullDuplexStreamed
    }

    /// How a piece passes that stays as it is.
    pub fn passage(self) -> PiecePassage {
        if self.is_duplex() { PiecePassage::Back } else { PiecePassage::Same }
    }

    /// Whether Envoy accepts another body in answer to a message with the whole body.
    pub fn may_replace_request(self) -> bool {
        matches!(self.0, BodySendMode::FullDuplexStreamed | BodySendMode::Buffered)
    }

    /// Whether Envoy accepts other bytes in answer to a piece of a body.
    pub fn may_replace_pieces(self) -> bool {
        matches!(self.0, BodySendMode::FullDuplexStreamed | BodySendMode::Streamed)
    }

    /// Whether Envoy sends no more than one message with a body.
    pub fn is_single(self) -> bool {
        matches!(self.0, BodySendMode::Buffered | BodySendMode::BufferedPartial)
    }
}

/// The beginning of the body of one request.
pub struct HeldBody {
    data: BodyData,
    held: HeldBytes,
    /// The number of messages that it came in.
    pub messages: usize,
    /// Whether the last byte is here.
    pub is_whole: bool,
    /// Whether the last byte has arrived, even if it is forgotten.
    has_ended: bool,
    /// Whether trailers have followed it.
    pub has_trailers: bool,
    /// Whether all bodies together have taken their bound.
    is_crowded: bool,
}

/// The bytes of a body. Those of a single message are not copied.
enum BodyData {
    One(Bytes),
    Several(BytesMut),
}

impl HeldBody {
    pub fn new(bodies: &ByteBudget) -> HeldBody {
        HeldBody {
            data: BodyData::One(Bytes::new()),
            held: HeldBytes::new(bodies),
            messages: 0,
            is_whole: false,
            has_ended: false,
            has_trailers: false,
            is_crowded: false,
        }
    }

    /// Adds the next piece of the body.
    pub fn add(&mut self, piece: HttpBody) {
        let HttpBody { body, end_of_stream } = piece;
        match &mut self.data {
            // A short one would keep the larger buffer in which it came.
            BodyData::One(data) if data.is_empty() && body.len() >= BEGINNING_BYTES => *data = body,
            BodyData::One(data) => {
                let mut all = BytesMut::with_capacity(data.len() + body.len());
                all.extend_from_slice(data);
                all.extend_from_slice(&body);
                self.data = BodyData::Several(all);
            }
            BodyData::Several(all) => all.extend_from_slice(&body),
        }
        self.messages += 1;
        self.end(end_of_stream);
        self.is_crowded = !self.held.try_set(self.data().len());
    }

    /// Notes whether the last byte has arrived.
    pub fn end(&mut self, ended: bool) {
        (self.is_whole, self.has_ended) = (ended, ended);
    }

    /// Waits until all bodies together have room for what is here of this one.
    pub async fn wait_for_room(&mut self) {
        let length = self.data().len();
        self.held.set(length).await;
        self.is_crowded = false;
    }

    /// Whether the last byte has arrived, even if it is not here any more.
    pub fn is_complete(&self) -> bool {
        self.has_ended
    }

    /// Whether all bodies together have room for this one.
    pub fn is_counted(&self) -> bool {
        !self.is_crowded
    }

    /// Whether no more than this is to be held. `most`: the bound of one body, in bytes.
    pub fn is_full(&self, most: usize) -> bool {
        self.data().len() >= if self.is_crowded { BEGINNING_BYTES } else { most }
    }

    pub fn data(&self) -> &[u8] {
        match &self.data {
            BodyData::One(data) => data,
            BodyData::Several(data) => data,
        }
    }

    /// Forgets the data of a body that Envoy has as well.
    pub fn forget(&mut self) {
        self.data = BodyData::One(Bytes::new());
        self.is_whole = false;
        self.held.clear();
    }

    /// The pieces to send back: the data, or `other` in its place; and what they hold until they
    /// are sent.
    pub fn into_pieces(self, other: Option<Bytes>) -> (impl Iterator<Item = HttpBody>, HeldBytes) {
        let HeldBody { data, held, .. } = self;
        let ends = self.is_whole && !self.has_trailers;
        let mut rest = other.unwrap_or_else(|| match data {
            BodyData::One(data) => data,
            BodyData::Several(data) => data.freeze(),
        });
        let mut is_first = true;
        let pieces = std::iter::from_fn(move || {
            let body = rest.split_to(rest.len().min(PIECE_BYTES_MAX));
            let end_of_stream = ends && rest.is_empty();
            // The end is sent even if there is no data.
            let is_needed = !body.is_empty() || (is_first && end_of_stream);
            is_first = false;
            is_needed.then_some(HttpBody { body, end_of_stream })
        });
        (pieces, held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_grpc::held_bytes::PIECES_BYTES_MAX;

    fn held(pieces: &[&[u8]], ends: bool) -> HeldBody {
        held_among(&ByteBudget::default(), pieces, ends)
    }

    /// A body beside others of this budget.
    fn held_among(bodies: &ByteBudget, pieces: &[&[u8]], ends: bool) -> HeldBody {
        let mut body = HeldBody::new(bodies);
        for (place, piece) in pieces.iter().enumerate() {
            let end_of_stream = ends && place + 1 == pieces.len();
            body.add(HttpBody { body: Bytes::copy_from_slice(piece), end_of_stream });
        }
        body
    }

    fn sent(body: HeldBody, other: Option<Bytes>) -> Vec<(usize, bool)> {
        body.into_pieces(other).0.map(|piece| (piece.body.len(), piece.end_of_stream)).collect()
    }

    #[test]
    fn a_body_is_sent_back_in_pieces_and_its_end_once() {
        let long = vec![7; PIECE_BYTES_MAX + 1];
        assert_eq!(sent(held(&[&long], true), None), [(PIECE_BYTES_MAX, false), (1, true)]);
        assert_eq!(sent(held(&[b"ab", b"c"], true), None), [(3, true)]);
        assert_eq!(sent(held(&[b"ab", b"c"], false), None), [(3, false)]);
        assert_eq!(sent(held(&[b""], true), None), [(0, true)]);
        assert_eq!(sent(held(&[b""], false), None), []);
        let other = Some(Bytes::from_static(b"others"));
        assert_eq!(sent(held(&[b"ab"], true), other), [(6, true)]);
        let mut trailed = held(&[b"ab"], true);
        trailed.has_trailers = true;
        assert_eq!(sent(trailed, None), [(2, false)]);
    }

    #[test]
    fn a_body_is_held_up_to_its_bound_and_a_smaller_one_if_there_are_many() {
        let (bodies, most) = (ByteBudget::default(), 200_000);
        let mut body = held_among(&bodies, &[&[7; 100_000]], false);
        assert!(!body.is_full(most) && body.is_full(100_000));
        let mut others = HeldBytes::new(&bodies);
        assert!(others.try_set(PIECES_BYTES_MAX - 100_352));
        body.add(HttpBody { body: Bytes::from_static(&[7; 1_000]), end_of_stream: true });
        assert!(body.is_full(most) && !body.is_counted());
        body.forget();
        assert_eq!((body.data().len(), body.is_whole, body.is_complete()), (0, false, true));
        assert!(others.try_set(PIECES_BYTES_MAX));
    }

    #[test]
    fn what_is_sent_back_is_counted_until_it_is_sent() {
        let bodies = ByteBudget::default();
        let body = held_among(&bodies, &[&[7; 100_000]], true);
        let (pieces, held) = body.into_pieces(None);
        let mut others = HeldBytes::new(&bodies);
        assert_eq!(pieces.count(), 2);
        assert!(!others.try_set(PIECES_BYTES_MAX));
        drop(held);
        assert!(others.try_set(PIECES_BYTES_MAX));
    }
}
