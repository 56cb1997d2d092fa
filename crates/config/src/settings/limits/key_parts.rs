//! The words of `by`: each is one part of the key that a limit counts by.
//!
//! Some other spellings that users try are accepted too; messages, `show` and the guide have one.
//! What the parts of a request are: `evenkeel_core::classify`.

use crate::values::{Read, count, header_name, token, within};
use evenkeel_core::fact::ClientFact;
use evenkeel_core::limit::KeyPart;

/// The longest JSON pointer, in bytes.
const JSON_POINTER_BYTES_MAX: usize = 256;

/// One element of `by`.
#[derive(Clone, PartialEq)]
pub(crate) enum KeyTemplateWord {
    V4(u8),
    V6(u8),
    Part(KeyPart),
}

/// Reads one part of a key.
pub(crate) fn part(text: &str) -> Read<KeyTemplateWord> {
    let bits = |text: &str, max: u64, what: &str| match count(text)? {
        bits if bits <= max => Ok(bits as u8),
        _ => Err(format!("an {what} network has 0 to {max} bits")),
    };
    if text == "ip" {
        return Ok(KeyTemplateWord::V4(32));
    }
    if let Some(prefix) = text.strip_prefix("ip/") {
        return bits(prefix, 32, "IPv4").map(KeyTemplateWord::V4);
    }
    if let Some(prefix) = text.strip_prefix("ip6/") {
        return bits(prefix, 128, "IPv6").map(KeyTemplateWord::V6);
    }
    let part = match text.split_once(':') {
        Some(("header", name)) => KeyPart::Header(header_name(name)?),
        Some(("cookie", name)) => KeyPart::Cookie(token(name)?),
        Some(("json", at)) => KeyPart::Json(json_pointer(at)?),
        Some(("path", n)) => KeyPart::Path(Some(within(count(n)?, 1..=255)? as u8)),
        _ => plain_part(text)?,
    };
    Ok(KeyTemplateWord::Part(part))
}

/// Reads a JSON pointer (RFC 6901) to a value below the root.
fn json_pointer(text: &str) -> Read<Box<str>> {
    let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if text.len() > 1 && text.starts_with('/') && text.len() <= JSON_POINTER_BYTES_MAX && escapes {
        return Ok(text.into());
    }
    Err("is not a JSON pointer to a value in the body; write json:/user or json:/metadata/team"
        .to_owned())
}

fn plain_part(text: &str) -> Read<KeyPart> {
    Ok(match text {
        "user-agent" | "user_agent" => KeyPart::UserAgent,
        "api-key" | "api_key" => KeyPart::ApiKey,
        "apikey" | "key" => return Err("must be written api-key".to_owned()),
        "method" => KeyPart::Method,
        "path" => KeyPart::Path(None),
        "vhost" => KeyPart::Vhost,
        "host" => KeyPart::Host,
        "all" => KeyPart::All,
        _ => match ClientFact::named(text) {
            Some(fact) => KeyPart::Fact(fact),
            None => {
                let facts = ClientFact::ALL.map(ClientFact::name).join(", ");
                return Err(format!(
                    "must be ip/N, ip6/N, user-agent, api-key, header:NAME, cookie:NAME, \
                     json:/NAME, method, path, path:N, vhost, host, {facts} or all"
                ));
            }
        },
    })
}
