//! A request as it is handed to a connection.
//!
//! Its head is prepared for the backend (`headers.rs`), and its body is still with the client
//! (`body.rs`).

use crate::body::RequestBody;
use crate::headers::PeerFacts;
use http::request::Parts;

/// A request on its way to the backend.
pub(crate) struct UpstreamRequest<'a> {
    /// The head as it is written, without the fields that `headers::write_client_fields` adds. Its
    /// parts are taken out of it.
    pub(crate) head: &'a mut Parts,
    pub(crate) peer: PeerFacts<'a>,
    pub(crate) body: RequestBody,
}
