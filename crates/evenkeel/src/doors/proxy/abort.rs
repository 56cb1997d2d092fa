//! Aborts are not free: what a client leaves behind runs on at its charge.
//!
//! When a client goes away while the backend works for it, the rest of the exchange becomes a task
//! of its own: the answer is awaited and thrown away, for at most `timeouts.abort_linger` and
//! [`DRAIN_BYTES`]; then the connection to the backend is closed. Until then the request counts.
//! An answer that is only held is none of this: its request is done.

use super::account::Account;
use super::headers;
use super::wire::Wire;
use super::worker::Worker;
use http::StatusCode;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// How much of an answer that nobody wants is read to save its connection, in bytes. More is
/// dearer than a connection.
const DRAIN_BYTES: usize = 1 << 20;

/// What is left of an exchange.
pub(super) enum Rest {
    /// The backend has not answered.
    Head(Wire),
    /// It has begun to.
    Body(Wire),
}

/// Lets an exchange without a client run to its end.
pub(super) fn run_on(worker: &Rc<Worker>, account: &Account, rest: Rest) {
    worker.watch.proxy.aborted.increment(1);
    let limit = worker.site().timeouts.abort_linger;
    let Some(lingering) = worker.linger() else { return account.cut(limit) };
    let (worker, account) = (Rc::clone(worker), account.clone());
    tokio::task::spawn_local(async move {
        match tokio::time::timeout(limit, end(rest, &worker, &account)).await {
            Ok(Ended::Through(wire)) => worker.keep(wire),
            Ok(Ended::Left) => {}
            Ok(Ended::Broken) | Err(_) => account.cut(limit),
        }
        account.settle();
        drop(lingering);
    });
}

/// How an exchange without a client has ended.
enum Ended {
    /// All of the answer has come: its connection can be used again.
    Through(Wire),
    /// The answer is one without an end, so the request is done with its head.
    Left,
    Broken,
}

/// Runs to the end of the answer.
async fn end(rest: Rest, worker: &Worker, account: &Account) -> Ended {
    let mut wire = match rest {
        Rest::Body(wire) => wire,
        Rest::Head(mut wire) => {
            let answered = poll_fn(|cx| wire.poll_answer(worker, cx)).await;
            let Ok((mut answer, _)) = answered else { return Ended::Broken };
            // What it costs is taken down; there is nobody to hold the answer from.
            let _ = account.head(answer.headers_mut(), true);
            if answer.status() == StatusCode::SWITCHING_PROTOCOLS
                || headers::is_stream(answer.headers())
            {
                account.leave();
                return Ended::Left;
            }
            wire
        }
    };
    if drain(&mut wire, account).await { Ended::Through(wire) } else { Ended::Broken }
}

/// Reads a body to its end. False if it breaks off or is too long.
async fn drain(wire: &mut Wire, account: &Account) -> bool {
    let mut left = DRAIN_BYTES;
    loop {
        let frame = poll_fn(|cx| {
            let poll = wire.poll_frame(cx);
            match &poll {
                Poll::Pending => account.work(),
                Poll::Ready(_) => account.rest(),
            }
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
