//! Aborted requests: if a client disconnects, the rest of its request runs on and is charged to it.
//!
//! If a client disconnects while the backend works for it, the rest of the exchange becomes a task
//! of its own. The task reads the answer and throws it away, for at most `timeouts.abort_linger`
//! and [`DRAIN_BYTES`], then closes the connection to the backend. Until then the request counts as
//! running. An answer that is only being held is not affected: its request is done. A stream that
//! is charged to its end is not read on, nor is the answer of a language model: the connection is
//! closed at once, so that the backend stops.

use super::account::RequestAccount;
use super::backends::lease::UpstreamLease;
use super::context::ThreadContext;
use evenkeel_engine::Charge;
use http::StatusCode;
use std::future::poll_fn;
use std::rc::Rc;

/// The maximum number of bytes of an unwanted answer that are read to save its connection. Reading
/// more costs more than a new connection.
const DRAIN_BYTES: usize = 1 << 20;

pub(super) enum AbandonedExchange {
    /// The backend has not begun its answer.
    Head(UpstreamLease),
    /// The backend has begun its answer.
    Body(UpstreamLease),
}

/// Lets an exchange without a client run to its end, as a task of its own.
pub(super) fn run_on(
    thread: &Rc<ThreadContext>,
    account: &RequestAccount,
    rest: AbandonedExchange,
) {
    if account.with_model(|_| ()).is_some() {
        drop(rest);
        return cut_off(thread, account);
    }
    thread.watch.proxy.aborted.increment(1);
    let limit = thread.settings().timeouts.abort_linger;
    let Some(lingering) = thread.linger() else { return account.cut(limit) };
    let (thread, account) = (Rc::clone(thread), account.clone());
    tokio::task::spawn_local(async move {
        match tokio::time::timeout(limit, end(rest, &thread, &account)).await {
            Ok(AbortOutcome::Through(lease)) => lease.keep(thread.now()),
            Ok(AbortOutcome::Left) => {}
            Ok(AbortOutcome::Broken) | Err(_) => account.cut(limit),
        }
        account.settle();
        drop(lingering);
    });
}

/// Closes the account of an exchange that ends with its client: the connection to the backend is
/// closed already.
pub(super) fn cut_off(thread: &ThreadContext, account: &RequestAccount) {
    thread.watch.proxy.aborted.increment(1);
    account.cut(thread.settings().timeouts.abort_linger);
    account.settle();
}

enum AbortOutcome {
    /// The whole answer has arrived; the connection can be used again.
    Through(UpstreamLease),
    /// The answer is an endless stream, so the request was done with its head.
    Left,
    Broken,
}

/// Reads and discards the answer to its end.
async fn end(
    rest: AbandonedExchange,
    thread: &ThreadContext,
    account: &RequestAccount,
) -> AbortOutcome {
    let mut lease = match rest {
        AbandonedExchange::Body(lease) => lease,
        AbandonedExchange::Head(mut lease) => {
            let answered = poll_fn(|cx| lease.wire.poll_answer(thread, cx)).await;
            let Ok((mut answer, _)) = answered else { return AbortOutcome::Broken };
            // Record the cost. No client is left to hold the answer from.
            let _ = account.head(answer.status(), answer.headers_mut(), true);
            let is_stream = evenkeel_models::is_stream(answer.headers());
            if is_stream && thread.settings().charge_streams {
                return AbortOutcome::Broken;
            }
            if is_stream || answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                account.with(Charge::leave);
                return AbortOutcome::Left;
            }
            lease
        }
    };
    if drain(&mut lease, account).await {
        AbortOutcome::Through(lease)
    } else {
        AbortOutcome::Broken
    }
}

/// Reads a body to its end. Returns false if it breaks off or is longer than [`DRAIN_BYTES`].
async fn drain(lease: &mut UpstreamLease, account: &RequestAccount) -> bool {
    let mut left = DRAIN_BYTES;
    loop {
        let frame = poll_fn(|cx| {
            let poll = lease.wire.poll_frame(cx);
            account.with(if poll.is_pending() { Charge::work } else { Charge::rest });
            poll
        });
        let length = match frame.await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => frame.data_ref().map_or(0, bytes::Bytes::len),
        };
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
}
