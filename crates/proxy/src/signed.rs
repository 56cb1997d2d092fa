//! The request as its client has signed it: what `identity::signature` verifies, taken from the
//! head before any field is removed or added.
//!
//! Behind a front that ends TLS, the client has signed the scheme and the host that it sees, so
//! those of a trusted front count (`X-Forwarded-Proto`, `X-Forwarded-Host`). Which robots there are
//! and what a signature must cover is not decided here.

use super::headers;
use evenkeel_identity::signature::SignedRequest;
use http::request::Parts;

/// The request that the client has signed. `secure`: it came over TLS; `trusted`: the forwarding
/// fields of the peer are believed.
pub(super) fn signed(head: &Parts, secure: bool, trusted: bool) -> SignedRequest<'_> {
    let secure = secure || (trusted && headers::came_by_tls(&head.headers));
    let forwarded = trusted.then(|| headers::forwarded_host(&head.headers)).flatten();
    SignedRequest {
        method: head.method.as_str(),
        scheme: if secure { "https" } else { "http" },
        authority: forwarded.unwrap_or_else(|| headers::host(&head.headers)),
        path: head.uri.path(),
        query: head.uri.query(),
        headers: &head.headers,
    }
}
