//! What is kept of a request in case it has to be sent again.
//!
//! A connection from the pool may have been closed by the backend just when the request was
//! written to it; nobody can know before. So the head of what may safely be sent twice is kept,
//! as a list, since nearly always it is only thrown away. Whether to send again: `exchange.rs`.

use super::body::Upload;
use http::{HeaderName, HeaderValue, Method, Request, Uri};

/// The head of a request that may be sent twice: idempotent, and without a body.
pub(super) struct Repeat {
    method: Method,
    uri: Uri,
    fields: Vec<(HeaderName, HeaderValue)>,
}

impl Repeat {
    pub(super) fn of(request: &Request<Upload>) -> Option<Repeat> {
        let idempotent = request.method().is_idempotent() && request.method() != Method::CONNECT;
        if !idempotent || !matches!(request.body(), Upload::Nothing) {
            return None;
        }
        let fields = request.headers().iter().map(|(name, value)| (name.clone(), value.clone()));
        let mut kept = Vec::with_capacity(request.headers().len());
        kept.extend(fields);
        let (method, uri) = (request.method().clone(), request.uri().clone());
        Some(Repeat { method, uri, fields: kept })
    }

    /// The request once more.
    pub(super) fn request(self) -> Request<Upload> {
        let mut request = Request::new(Upload::Nothing);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        for (name, value) in self.fields {
            request.headers_mut().append(name, value);
        }
        request
    }
}
