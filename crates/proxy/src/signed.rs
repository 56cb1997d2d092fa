//! The request as its client has signed it: what `identity::signature` verifies, taken from the
//! head before any field is removed or added.
//!
//! Behind a front that ends TLS, the client has signed the scheme and the host that it sees, so
//! those of a trusted front count (`X-Forwarded-Proto`, `X-Forwarded-Host`). Which robots there are
//! and what a signature must cover is not decided here.

use super::headers::{self, AbsoluteForm};
use evenkeel_identity::signature::SignedRequest;
use http::request::Parts;

/// The request that the client has signed. `secure`: it came over TLS; `trusted`: the forwarding
/// fields of the peer are believed.
pub(super) fn signed(head: &Parts, secure: bool, trusted: bool) -> SignedRequest<'_> {
    let secure = secure || (trusted && headers::came_by_tls(&head.headers));
    let forwarded = trusted.then(|| headers::forwarded_host(&head.headers)).flatten();
    let absolute = head.extensions.get::<AbsoluteForm>();
    SignedRequest {
        method: head.method.as_str(),
        scheme: if secure { "https" } else { "http" },
        authority: forwarded.unwrap_or_else(|| headers::host(&head.headers)),
        path: head.uri.path(),
        query: head.uri.query(),
        absolute: absolute.map(|form| (form.scheme, headers::host(&head.headers))),
        headers: &head.headers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Version};

    #[test]
    fn the_form_of_the_target_is_kept_for_http1() {
        for (target, version, absolute) in [
            ("http://Site.test:80/a?b", Version::HTTP_11, Some(("http", "Site.test:80"))),
            ("http://Site.test:80/a?b", Version::HTTP_2, None),
            ("/a?b", Version::HTTP_11, None),
        ] {
            let request = Request::builder().uri(target).version(version).body(());
            let mut head = request.expect("a request").into_parts().0;
            if absolute.is_none() && version == Version::HTTP_11 {
                head.headers.insert("host", http::HeaderValue::from_static("site.test"));
            }
            headers::normalise(&mut head, false).expect("valid");
            let signed = signed(&head, false, false);
            assert_eq!(signed.absolute, absolute, "{target} {version:?}");
            assert_eq!((signed.path, signed.query), ("/a", Some("b")));
        }
    }
}
