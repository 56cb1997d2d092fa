//! The cookie that carries a ticket or a pass.
//!
//! It is for the proxy alone: scripts of the page do not see it (`HttpOnly`), other sites do not
//! send it along (`SameSite=Lax`), and it is removed before the backend gets the request, where it
//! would keep a cache from answering. A sibling domain can set a cookie of this name too, so
//! several are examined.

use evenkeel_core::units::Nanos;
use http::HeaderValue;

/// The name of the cookie.
pub const NAME: &str = "evenkeel";
/// The maximum number of cookies of this name that are examined: each may cost a hash.
pub const CANDIDATES_MAX: usize = 3;

/// The values of the cookies of this name on all lines, in their order.
pub(super) fn values<'a>(lines: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    lines.flat_map(pairs).filter_map(value).take(CANDIDATES_MAX)
}

fn pairs(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b';')
}

/// The value of a pair, if it is a cookie of this name.
fn value(pair: &[u8]) -> Option<&[u8]> {
    pair.trim_ascii().strip_prefix(NAME.as_bytes())?.strip_prefix(b"=")
}

/// The `Cookie` line without the cookies of this name. `None` if it has none and stays as it is. An
/// empty line has to be left out.
#[must_use]
pub fn without(line: &[u8]) -> Option<Vec<u8>> {
    if !pairs(line).any(|pair| value(pair).is_some()) {
        return None;
    }
    let others = pairs(line).filter(|pair| value(pair).is_none()).map(<[u8]>::trim_ascii);
    Some(others.filter(|pair| !pair.is_empty()).collect::<Vec<_>>().join(&b"; "[..]))
}

/// The `Set-Cookie` line for a token that is good for `age`. `secure`: the client uses TLS, and the
/// cookie is never sent without it.
#[must_use]
pub fn set(token: &str, age: Nanos, secure: bool) -> Option<HeaderValue> {
    let (seconds, end) = (age.retry_after_secs(), if secure { "; Secure" } else { "" });
    let text = format!("{NAME}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{end}");
    HeaderValue::try_from(text).ok()
}
