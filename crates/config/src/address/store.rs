//! Addresses of Redis servers: `redis://user:password@host:port/database`.
//!
//! `rediss://` uses TLS, `unix:///path` is a Unix socket, and `host:port` alone is enough. Special
//! characters in a user or a password are percent-encoded. Host names are not resolved.

use crate::settings::store::{StoreAddress, StoreLogin, StoreServer};
use crate::values::Read;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::borrow::Cow;

/// Default port of a server.
const DEFAULT_PORT: u16 = 6379;
const ADDRESS_ADVICE: &str = "write redis://127.0.0.1:6379, rediss://user:password@host:6379/0 or \
                     unix:///run/redis.sock";

/// What [`escaped`] escapes; `***` stays as it is.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'*');

/// Reads an address.
pub fn server(text: &str) -> Read<StoreServer> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("redis", text));
    let tls = match scheme {
        "redis" => false,
        "rediss" => true,
        "unix" | "redis+unix" => return socket(rest),
        _ => return Err(ADDRESS_ADVICE.to_owned()),
    };
    let (rest, database) = match rest.split_once('/') {
        None | Some((_, "")) => (rest.trim_end_matches('/'), 0),
        Some((rest, number)) => (rest, number.parse().map_err(|_| ADDRESS_ADVICE.to_owned())?),
    };
    let (login, authority) = match rest.rsplit_once('@') {
        None => (None, rest),
        Some((login, authority)) => (Some(self::login(login)?), authority),
    };
    let authority: http::uri::Authority =
        authority.parse().map_err(|_| ADDRESS_ADVICE.to_owned())?;
    let host = authority.host().trim_matches(['[', ']']);
    let port = match authority.port_u16() {
        Some(port) => port,
        None if authority.host().len() == authority.as_str().len() => DEFAULT_PORT,
        None => 0,
    };
    if host.is_empty() || port == 0 {
        return Err(ADDRESS_ADVICE.to_owned());
    }
    Ok(StoreServer { end: StoreAddress::Tcp { host: host.to_owned(), port, tls }, login, database })
}

fn socket(rest: &str) -> Read<StoreServer> {
    let (login, path) = match rest.rsplit_once('@') {
        Some((login, path)) if path.starts_with('/') => (Some(self::login(login)?), path),
        _ => (None, rest),
    };
    match path.starts_with('/') && path.len() > 1 {
        true => Ok(StoreServer { end: StoreAddress::Unix(path.into()), login, database: 0 }),
        false => Err(ADDRESS_ADVICE.to_owned()),
    }
}

/// Reads `user:password` or `:password`. A password is required.
fn login(text: &str) -> Read<StoreLogin> {
    let (user, password) = text.split_once(':').ok_or_else(|| ADDRESS_ADVICE.to_owned())?;
    let (user, password) = (plain(user)?, plain(password)?);
    Ok(StoreLogin { user: (!user.is_empty()).then_some(user), password })
}

/// Decodes percent-encoded text.
fn plain(text: &str) -> Read<String> {
    let hex = |code: &[u8]| code.iter().all(u8::is_ascii_hexdigit);
    let mut codes = text.split('%').skip(1).map(|after| after.as_bytes().get(..2));
    if !codes.all(|code| code.is_some_and(hex)) {
        return Err("a percent sign is written %25".to_owned());
    }
    let plain = percent_decode_str(text).decode_utf8();
    plain.map(Cow::into_owned).map_err(|_| "a user and a password are text".to_owned())
}

/// Percent-encodes text, so that [`plain`] decodes it again.
pub fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Formats an address as [`server`] reads it, with `password` instead of the real one.
pub fn shown(server: &StoreServer, password: &str) -> String {
    let login = server.login.as_ref().map_or(String::new(), |login| {
        let user = login.user.as_deref().map(escaped).unwrap_or_default();
        format!("{user}:{}@", escaped(password))
    });
    match &server.end {
        StoreAddress::Unix(path) => format!("unix://{login}{}", path.display()),
        StoreAddress::Tcp { tls, .. } => {
            let scheme = if *tls { "rediss" } else { "redis" };
            let database = match server.database {
                0 => String::new(),
                number => format!("/{number}"),
            };
            format!("{scheme}://{login}{}{database}", server.end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("127.0.0.1:6380", "redis://127.0.0.1:6380"),
            ("redis://store.example", "redis://store.example:6379"),
            ("rediss://ann:p%40ss@store.example:7000/3", "rediss://ann:***@store.example:7000/3"),
            ("redis://:secret@[::1]:6379/", "redis://:***@[::1]:6379"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ] {
            let read = server(text).expect(text);
            assert_eq!(super::shown(&read, "***"), shown, "{text}");
            let again = super::shown(&read, read.login.as_ref().map_or("", |l| &l.password));
            assert_eq!(server(&again), Ok(read), "{again}");
        }
        let login = server("redis://a:p%40ss@h").expect("read").login.expect("a login");
        assert_eq!((login.user.as_deref(), &*login.password), (Some("a"), "p@ss"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "redis://",
            "http://h:1",
            "h:0",
            "h:70000",
            "h:x",
            "redis://user@h",
            "unix://",
            "unix:///",
            "redis://h/x",
            "redis://h/-1",
            "redis://a:%zz@h",
            "redis://a:%f@h",
            "redis://a:%ff@h",
            "redis://a:%+1@h",
            "redis://a:%4%31@h",
            "redis://h:1:2",
        ] {
            assert!(server(text).is_err(), "{text}");
        }
    }
}
