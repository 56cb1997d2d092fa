//! The visitor behind a request: what its cookie proves, the waiting page with a ticket, and the
//! pass that follows.
//!
//! A cookie is set on the waiting page and on the first answer to a ticket, and never on an answer
//! that a shared cache may keep. When a visitor waits elsewhere, the queue decides. The cookie and
//! its signature: `identity::visit`; the text of the page: `identity::waiting_page`.

use super::context::ThreadContext;
use super::context::settings::ThreadSettings;
use super::download::AnswerBody;
use super::headers;
use super::link::ClientLink;
use aws_lc_rs::rand;
use bytes::Bytes;
use evenkeel_core::queue::standing::{TICKET_AGE_MAX, VisitPass, VisitTicket, WaitingRoomEntry};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_identity::answer::AnswerFormat;
use evenkeel_identity::visit::{PASS_AGE_MAX, PassProof, VisitProof, cookie};
use evenkeel_identity::waiting_page;
use evenkeel_identity::waiting_room::WaitingRoomAssets;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use std::net::IpAddr;

const REFRESH: HeaderName = HeaderName::from_static("refresh");

/// Cache directives with which no shared cache keeps an answer.
const NOT_SHARED: [&str; 2] = ["private", "no-store"];
/// Cache directives that let a shared cache keep an answer.
const SHARED: [&str; 3] = ["public", "s-maxage", "max-age"];

/// The visitor behind a request to a door with a waiting room.
#[derive(Clone, Copy)]
pub(super) struct Visitor {
    pub(super) proof: VisitProof,
    /// Whether the request may be answered with a page.
    pub(super) accepts_page: bool,
    client: IpAddr,
    /// Whether the client uses TLS, towards Evenkeel or a trusted proxy.
    secure: bool,
}

impl Visitor {
    /// Reads the cookies of a request. `None` if there is no waiting room.
    pub(super) fn of(
        thread: &ThreadContext,
        link: &ClientLink,
        settings: &ThreadSettings,
        head: &Parts,
    ) -> Option<Visitor> {
        let room = settings.waiting_room.as_ref()?.load();
        let (client, fields) = (link.peer.client(), &head.headers);
        let lines = fields.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
        let proof = room.keys.proof(lines, client, thread.clock.now());
        let trusted = settings.trust.trusts_headers(link.peer.address());
        let secure = link.peer.is_secure() || trusted && headers::came_by_tls(fields);
        let accepts_page = waiting_page::accepts_page(&head.method, fields);
        Some(Visitor { proof, accepts_page, client, secure })
    }

    /// Makes the answer to a visitor that is sent to the waiting room. `None` if the system gives
    /// no random numbers.
    pub(super) fn page(
        self,
        room: &WaitingRoomAssets,
        entry: WaitingRoomEntry,
    ) -> Option<Response<AnswerBody>> {
        let mut random = [0; 10];
        rand::fill(&mut random).ok()?;
        let (id, spread) = random.split_first_chunk::<8>()?;
        let id = u64::from_le_bytes(*id);
        let wait = spread_wait(entry.come_back_after, spread.first_chunk()?);
        let page = Bytes::from(room.page.render(entry.expected_wait, wait));
        let mut response = Response::new(AnswerBody::Whole(Some(page)));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_TYPE, AnswerFormat::Html.content_type());
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for name in [header::RETRY_AFTER, REFRESH] {
            fields.insert(name, HeaderValue::from(wait.retry_after_secs()));
        }
        if let Some(cookie) = self.page_cookie(room, entry, id) {
            fields.insert(header::SET_COOKIE, cookie);
        }
        Some(response)
    }

    /// The cookie that comes with the page, if the visitor does not keep the one that it has.
    fn page_cookie(
        self,
        room: &WaitingRoomAssets,
        entry: WaitingRoomEntry,
        id: u64,
    ) -> Option<HeaderValue> {
        if let VisitProof::Moved(pass) = self.proof {
            return cookie::set(&room.keys.pass(pass), PASS_AGE_MAX, self.secure);
        }
        if !entry.needs_ticket {
            return None;
        }
        let ticket = VisitTicket { id, first_came: entry.first_came };
        cookie::set(&room.keys.ticket(ticket), TICKET_AGE_MAX, self.secure)
    }

    /// Sets the pass on an answer, unless a shared cache may keep it.
    pub(super) fn set_pass(
        self,
        room: &WaitingRoomAssets,
        answer: &mut HeaderMap,
        pass: VisitPass,
        now: Time,
    ) {
        let pass = PassProof::new(pass, self.client, now);
        let cookie = cookie::set(&room.keys.pass(pass), PASS_AGE_MAX, self.secure);
        if let Some(cookie) = cookie.filter(|_| keep_from_shared_caches(answer)) {
            answer.append(header::SET_COOKIE, cookie);
        }
    }
}

/// The time after which a visitor asks again: up to half a second later than the queue says, and in
/// whole seconds, as `Refresh` has them. Rounded up or down at random, so that on average it is
/// right.
fn spread_wait(come_back_after: Nanos, [spread, round]: &[u8; 2]) -> Nanos {
    let part = |byte: u8, of: u64| Nanos(of / 256 * u64::from(byte));
    let exact = come_back_after.plus(part(*spread, 500_000_000));
    let whole = exact.plus(part(*round, 1_000_000_000)).0 / 1_000_000_000;
    Nanos::from_secs(whole.max(1))
}

/// Whether no shared cache keeps an answer with these headers. If they do not say, `private` is
/// added. An answer that is meant for shared caches stays as it is.
fn keep_from_shared_caches(answer: &mut HeaderMap) -> bool {
    let lines = answer.get_all(header::CACHE_CONTROL).iter().map(HeaderValue::as_bytes);
    let directives = lines.flat_map(|line| line.split(|byte| *byte == b','));
    let names = directives.map(|one| one.split(|byte| *byte == b'=').next().unwrap_or_default());
    let (mut shared, mut checked) = (false, false);
    for name in names.map(<[u8]>::trim_ascii) {
        let is = |one: &&str| name.eq_ignore_ascii_case(one.as_bytes());
        if NOT_SHARED.iter().any(is) {
            return true;
        }
        shared |= SHARED.iter().any(is);
        checked |= is(&"no-cache");
    }
    shared |= !checked && answer.contains_key(header::EXPIRES);
    if !shared {
        answer.append(header::CACHE_CONTROL, HeaderValue::from_static("private"));
    }
    !shared
}

/// Removes the cookie of the waiting room from a request, because it is for the proxy alone.
pub(super) fn remove_cookie(headers: &mut HeaderMap) {
    let Some(line) = headers.get(header::COOKIE) else { return };
    let Some(rest) = cookie::without(line.as_bytes()) else { return };
    match HeaderValue::from_bytes(&rest) {
        Ok(rest) if !rest.is_empty() => _ = headers.insert(header::COOKIE, rest),
        _ => _ = headers.remove(header::COOKIE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visitors_do_not_come_back_in_step() {
        let secs = |nanos, bytes| spread_wait(nanos, &bytes).retry_after_secs();
        assert_eq!(secs(Nanos::ZERO, [0, 0]), 1);
        assert_eq!(secs(Nanos::from_secs(3), [0, 0]), 3);
        assert_eq!(secs(Nanos::from_secs(3), [255, 255]), 4);
        assert_eq!(secs(Nanos::from_millis(3_400), [0, 255]), 4);
        assert_eq!(secs(Nanos::from_secs(15), [255, 255]), 16);
    }

    #[test]
    fn no_cookie_is_set_where_a_shared_cache_keeps_the_answer() {
        for (lines, sets, after) in [
            (&[][..], true, "private"),
            (&["must-revalidate"], true, "must-revalidate|private"),
            (&["private"], true, "private"),
            (&["no-cache, No-Store"], true, "no-cache, No-Store"),
            (&["max-age=60"], false, "max-age=60"),
            (&["PUBLIC"], false, "PUBLIC"),
            (&["max-age=60", "private=\"set-cookie\""], true, "max-age=60|private=\"set-cookie\""),
            (&["s-maxage = 5"], false, "s-maxage = 5"),
        ] {
            let mut answer = HeaderMap::new();
            for line in lines {
                answer.append(header::CACHE_CONTROL, HeaderValue::from_static(line));
            }
            assert_eq!(keep_from_shared_caches(&mut answer), sets, "{lines:?}");
            let all = answer.get_all(header::CACHE_CONTROL).iter();
            let all: Vec<&str> = all.map(|line| line.to_str().expect("text")).collect();
            assert_eq!(all.join("|"), after);
        }
        let mut answer = HeaderMap::new();
        answer.insert(header::EXPIRES, HeaderValue::from_static("0"));
        assert!(!keep_from_shared_caches(&mut answer));
        answer.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        assert!(keep_from_shared_caches(&mut answer));
    }
}
