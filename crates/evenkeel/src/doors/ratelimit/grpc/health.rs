//! gRPC's health checking protocol: is the service to be asked?
//!
//! There are two names: the empty one is the process, which serves as long as it answers, and
//! `ratelimit` is the service. A watcher of an unknown name gets SERVICE_UNKNOWN and keeps its
//! stream, as the protocol demands. What makes the service healthy: `http::Health`.

use super::talk::{UNAVAILABLE, trailers};
use super::{Code, Failure};
use crate::doors::ratelimit::wire::framed;
use crate::doors::ratelimit::wire::health::health_check_response::ServingStatus;
use crate::doors::ratelimit::wire::health::{
    HealthCheckRequest, HealthCheckResponse, HealthListResponse,
};
use bytes::Bytes;
use http_body::{Body, Frame};
use prost::Message;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::watch::Receiver;

/// The name of the service.
const NAME: &str = "ratelimit";

/// How the service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is to be asked.
    Serving,
    /// It is not to be asked.
    NotServing,
    /// Nor will it be again: streams end.
    Ending,
}

/// The status of a name; `None`: it is not known.
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

/// The name that a message asks about.
pub(super) fn name(message: &[u8]) -> Result<String, Failure> {
    let request = HealthCheckRequest::decode(message);
    let wrong = |fault| Failure(Code::InvalidArgument, format!("not a health check: {fault}"));
    request.map(|request| request.service).map_err(wrong)
}

/// The answer to `Check`.
pub(super) fn check(name: &str, state: State) -> Result<HealthCheckResponse, Failure> {
    let status = status(name, state);
    let unknown = || Failure(Code::NotFound, "unknown service".to_owned());
    status.map(response).ok_or_else(unknown)
}

/// The answer to `List`.
pub(super) fn list(state: State) -> HealthListResponse {
    let one = |name: &str| Some((name.to_owned(), response(status(name, state)?)));
    HealthListResponse { statuses: ["", NAME].into_iter().filter_map(one).collect() }
}

/// The answer to `Watch`: a status at once, and again whenever it is another.
pub struct Watching {
    name: String,
    said: Option<ServingStatus>,
    state: Look,
    /// That it has ended has been said too.
    closed: bool,
}

type Changed = Pin<Box<dyn Future<Output = Option<Receiver<State>>> + Send>>;

/// How far it is with looking.
enum Look {
    At(Receiver<State>),
    Waiting(Changed),
    /// The last word has been said.
    Ended,
}

impl Watching {
    /// Watches a name.
    pub(super) fn new(name: String, state: Receiver<State>) -> Watching {
        Watching { name, said: None, state: Look::At(state), closed: false }
    }

    /// The next status, or nothing when there will be none.
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

/// The receiver, once it has another state; nothing if it never will.
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
