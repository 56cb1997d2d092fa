//! The API key that a request states.
//!
//! Clients of language models send their key in one of several headers: `Authorization: Bearer`
//! (OpenAI), `X-Api-Key` (Anthropic) or `Api-Key` (Azure). It is not known here which of them a
//! backend reads. So a request must not become another client by adding one of the others.

/// The headers that state an API key, in lower case.
pub(super) const HEADERS: [&str; 3] = ["authorization", "x-api-key", "api-key"];
/// Stands for all requests that state several different keys. No header has such a value.
const CONTRADICTION: &[u8] = b"\n";

/// The API key of a request with these values of [`HEADERS`]; empty if it states none. All requests
/// that state several different keys have the same one.
pub(super) fn api_key<'a>(values: impl Iterator<Item = &'a [u8]>) -> &'a [u8] {
    let mut found: &[u8] = b"";
    for value in values {
        let key = without_scheme(value).trim_ascii();
        if !key.is_empty() && !found.is_empty() && key != found {
            return CONTRADICTION;
        }
        found = if key.is_empty() { found } else { key };
    }
    found
}

/// The value of `Authorization` without the word `Bearer`.
fn without_scheme(value: &[u8]) -> &[u8] {
    const SCHEME: &[u8] = b"bearer ";
    match value.split_at_checked(SCHEME.len()) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(SCHEME) => key,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&'static str]) -> &'static [u8] {
        api_key(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn a_key_is_the_same_in_each_header() {
        for values in [
            &["Bearer sk-1"][..],
            &["bearer  sk-1"],
            &["sk-1"],
            &["Bearer sk-1", "sk-1"],
            &["", "sk-1"],
        ] {
            assert_eq!(of(values), b"sk-1", "{values:?}");
        }
        assert_eq!(of(&[]), b"");
        assert_eq!(of(&["Basic YTpi"]), b"Basic YTpi");
    }

    #[test]
    fn a_second_header_gives_no_other_name() {
        assert_eq!(of(&["Bearer a", "sk-1"]), of(&["Bearer b", "sk-1"]));
    }
}
