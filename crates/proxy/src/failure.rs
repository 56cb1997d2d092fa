//! What can go wrong between a client and a backend: the errors that the layers below an exchange
//! report to it.
//!
//! A body breaks off ([`BodyError`], and [`UploadError`] if the client is at fault), a connection
//! to a backend fails ([`WireError`], [`StreamError`]), and so a request gets no answer
//! ([`UpstreamFailure`]). Failures are neither handled nor logged here. A request is sent
//! again in `exchange/ask.rs`, and answered in `exchange.rs`.

mod stream_error;

use evenkeel_telemetry::counts::BackendFault;
use http::StatusCode;
use std::error::Error;
use std::io;
use std::rc::Rc;
pub(super) use stream_error::{StreamError, StreamErrorKind};

/// Why there is no answer from the backend.
pub(super) struct UpstreamFailure {
    pub(super) fault: BackendFault,
    /// The error from the system or the parser, if any.
    pub(super) error: Option<Box<dyn Error>>,
    /// The name of the backend that failed, if one was chosen.
    by: Option<Rc<str>>,
}

impl UpstreamFailure {
    /// Creates a failure without an underlying error or a backend.
    pub(super) fn new(fault: BackendFault) -> UpstreamFailure {
        UpstreamFailure { fault, error: None, by: None }
    }

    pub(super) fn of(fault: BackendFault, error: impl Error + 'static) -> UpstreamFailure {
        UpstreamFailure { fault, error: Some(Box::new(error)), by: None }
    }

    /// Names the backend that failed.
    pub(super) fn by(self, backend: &Rc<str>) -> UpstreamFailure {
        UpstreamFailure { by: Some(Rc::clone(backend)), ..self }
    }

    /// Returns the name of the backend that failed, or an empty one if none was chosen.
    pub(super) fn backend(&self) -> &str {
        self.by.as_deref().unwrap_or_default()
    }

    /// Returns the status for the client. It is a client error if the client's body was at fault
    /// (`upload`).
    pub(super) fn status(&self, upload: Option<UploadError>) -> StatusCode {
        match self.fault {
            BackendFault::ConnectTimeout | BackendFault::AnswerTimeout | BackendFault::Idle => {
                StatusCode::GATEWAY_TIMEOUT
            }
            _ => upload.map_or(StatusCode::BAD_GATEWAY, UploadError::status),
        }
    }
}

impl From<WireError> for UpstreamFailure {
    fn from(fault: WireError) -> UpstreamFailure {
        let kind = if fault.is_syntax() { BackendFault::Protocol } else { BackendFault::Closed };
        UpstreamFailure::of(kind, fault)
    }
}

/// Why there is no answer, or no more of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("the backend closed the connection")]
    Closed,
    #[error(transparent)]
    Broken(#[from] io::Error),
    #[error("the response is not valid HTTP: {0}")]
    Answer(&'static str),
    #[error("the response is not valid HTTP: {0}{hint}", hint = hint(.0))]
    Syntax(#[from] httparse::Error),
    #[error(transparent)]
    Upload(BodyError),
    #[error("{0}")]
    Stream(StreamError),
}

impl WireError {
    /// Whether the backend sent something that cannot be parsed.
    pub(super) fn is_syntax(&self) -> bool {
        match self {
            WireError::Answer(_) | WireError::Syntax(_) => true,
            WireError::Stream(ended) => ended.is_syntax(),
            _ => false,
        }
    }
}

/// Suggests a likely configuration error if the answer is not HTTP/1.1.
fn hint(error: &httparse::Error) -> &'static str {
    match error {
        httparse::Error::Version => "; does it speak HTTP/2? write h2c://",
        _ => "",
    }
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the client sent nothing for too long")]
    ClientLate,
    #[error("the client ended the request's body early")]
    ClientEnded,
    #[error("the length of the request's body differs from its headers")]
    Length,
    #[error("the request's body is longer than bounds.body_bytes")]
    TooLong,
    #[error("the queue of the backend had no room for the rest of the request")]
    NoRoom,
    #[error("the backend sent nothing for too long")]
    BackendLate,
    #[error("the backend's response ended early")]
    BackendEnded,
    #[error("the body is sent on another connection")]
    TakenBack,
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Why a body did not get through, except for errors of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadError {
    /// It is longer than `bounds.body_bytes`.
    TooLong,
    /// The queue had no room for the rest of the request.
    Refused,
    /// The client sent nothing for too long.
    Late,
    /// The body broke off or could not be read.
    Broken,
}

impl UploadError {
    pub(super) fn status(self) -> StatusCode {
        match self {
            UploadError::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            UploadError::Refused => StatusCode::SERVICE_UNAVAILABLE,
            UploadError::Late => StatusCode::REQUEST_TIMEOUT,
            UploadError::Broken => StatusCode::BAD_REQUEST,
        }
    }
}
