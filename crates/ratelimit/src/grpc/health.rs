//! gRPC's health checking protocol.
//!
//! There are two names. The empty one is the process, which is serving while it answers.
//! `ratelimit` is the service. A watcher of an unknown name gets SERVICE_UNKNOWN and keeps its
//! stream, as the protocol demands. The conditions for a healthy service: `http::Health`.

use super::talk::{UNAVAILABLE, trailers};
use super::{Code, Failure};
use crate::wire::framed;
use crate::wire::health::health_check_response::ServingStatus;
use crate::wire::health::{HealthCheckRequest, HealthCheckResponse, HealthListResponse};
use bytes::Bytes;
use http_body::{Body, Frame};
use prost::Message;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::watch::Receiver;

/// The name of the service in health checks.
const NAME: &str = "ratelimit";

/// The health of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The service can be called.
    Serving,
    /// The service should not be called now, for example without rules or without a store.
    NotServing,
    /// The service shuts down and will not be healthy again; streams end.
    Ending,
}

/// The status of a name; `None` if the name is unknown.
fn status(name: &str, state: State) -> Option<ServingStatus> {
    match (name, state) {
        ("", _) | (NAME, State::Serving) => Some(ServingStatus::Serving),
        (NAME, State::NotServing | State::Ending) => Some(ServingStatus::NotServing),
        _ => None,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

/// The service name in a health check message.
pub(super) fn name(message: &[u8]) -> Result<String, Failure> {
    let request = HealthCheckRequest::decode(message);
    let wrong = |fault| Failure(Code::InvalidArgument, format!("not a health check: {fault}"));
    request.map(|request| request.service).map_err(wrong)
}

/// The answer to `Check`: a status, or NOT_FOUND for an unknown name.
pub(super) fn check(name: &str, state: State) -> Result<HealthCheckResponse, Failure> {
    let status = status(name, state);
    let unknown = || Failure(Code::NotFound, "unknown service".to_owned());
    status.map(response).ok_or_else(unknown)
}

/// The answer to `List`: the statuses of all names.
pub(super) fn list(state: State) -> HealthListResponse {
    let one = |name: &str| Some((name.to_owned(), response(status(name, state)?)));
    HealthListResponse { statuses: ["", NAME].into_iter().filter_map(one).collect() }
}

/// The answer to `Watch`: the status at once, and again whenever it changes.
pub struct Watching {
    name: String,
    said: Option<ServingStatus>,
    state: Look,
    /// Whether the trailers have been sent.
    closed: bool,
}

type Changed = Pin<Box<dyn Future<Output = Option<Receiver<State>>> + Send>>;

/// The progress of a watcher.
enum Look {
    At(Receiver<State>),
    Waiting(Changed),
    /// The last status has been sent.
    Ended,
}

impl Watching {
    /// Watches the status of the service `name`; the first status is sent at once.
    pub(super) fn new(name: String, state: Receiver<State>) -> Watching {
        Watching { name, said: None, state: Look::At(state), closed: false }
    }

    /// The next status; `None` if no further one will follow.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<ServingStatus>> {
        loop {
            self.state = match &mut self.state {
                Look::Ended => return Poll::Ready(None),
                Look::Waiting(changed) => {
                    ready!(changed.as_mut().poll(cx)).map_or(Look::Ended, Look::At)
                }
                Look::At(receiver) => {
                    let state = *receiver.borrow_and_update();
                    let status = status(&self.name, state).unwrap_or(ServingStatus::ServiceUnknown);
                    if self.said != Some(status) {
                        self.said = Some(status);
                        return Poll::Ready(Some(status));
                    }
                    match state {
                        State::Ending => Look::Ended,
                        _ => Look::Waiting(Box::pin(changed(receiver.clone()))),
                    }
                }
            }
        }
    }
}

/// Waits for a new state and returns the receiver; `None` if the sender is gone.
async fn changed(mut receiver: Receiver<State>) -> Option<Receiver<State>> {
    receiver.changed().await.ok().map(|()| receiver)
}

impl Body for Watching {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let watching = self.get_mut();
        if watching.closed {
            return Poll::Ready(None);
        }
        watching.poll(cx).map(|status| {
            watching.closed = status.is_none();
            Some(Ok(match status {
                Some(status) => Frame::data(framed(&response(status))),
                None => Frame::trailers(trailers(UNAVAILABLE, "the server is going away")),
            }))
        })
    }
}
