//! Several things to wait for at once.
//!
//! For the few servers that one request may concern; nothing is spawned, and nothing goes on when
//! who waits has gone.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// One of them, and what came of it.
type Part<F> = (Pin<Box<F>>, Option<<F as Future>::Output>);

/// All of them at once; their results in order.
pub async fn together<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<Part<F>> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(move |cx| {
        for (future, output) in all.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(cx) {
                *output = Some(ready);
            }
        }
        match all.iter().all(|(_, output)| output.is_some()) {
            true => Poll::Ready(all.iter_mut().filter_map(|(_, output)| output.take()).collect()),
            false => Poll::Pending,
        }
    })
    .await
}
