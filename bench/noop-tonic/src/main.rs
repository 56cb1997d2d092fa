//! A rate limit service and an external processing service on tonic that let every request pass, on
//! one thread.
//!
//! `noop-tonic PORT`. They only decode requests and encode answers of the usual size, so they are
//! the baseline for the cost of a decision.

use prost_types::Duration;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::codegen::{Body, BoxFuture, Service, StdError};
use tokio_stream::{Stream, StreamExt};
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic_prost::ProstCodec;

mod messages {
    include!("../../../crates/ratelimit/src/wire/messages.in");
}

mod ext_proc {
    include!("../../../crates/ask/src/ext_proc/messages.in");
}

use ext_proc::envoy::service::ext_proc::v3 as wire;
use messages::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Answer;

impl UnaryService<RateLimitRequest> for Answer {
    type Response = RateLimitResponse;
    type Future = Ready<Result<tonic::Response<RateLimitResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let status = |_| DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                name: String::new(),
                requests_per_unit: 1_000_000_000,
                unit: 3,
            }),
            limit_remaining: 999_999_999,
            duration_until_reset: Some(Duration { seconds: 1_800, nanos: 0 }),
        };
        let statuses = request.get_ref().descriptors.iter().map(status).collect();
        let answer =
            RateLimitResponse { overall_code: Code::Ok.into(), statuses, ..Default::default() };
        ready(Ok(tonic::Response::new(answer)))
    }
}

#[derive(Clone)]
struct Noop;

impl NamedService for Noop {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl<B> Service<http::Request<B>> for Noop
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(Answer, request).await) })
    }
}

/// Lets each message of Envoy pass.
struct Pass;

impl StreamingService<wire::ProcessingRequest> for Pass {
    type Response = wire::ProcessingResponse;
    type ResponseStream =
        Pin<Box<dyn Stream<Item = Result<wire::ProcessingResponse, tonic::Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, tonic::Status>>;

    fn call(
        &mut self,
        request: tonic::Request<tonic::Streaming<wire::ProcessingRequest>>,
    ) -> Self::Future {
        let answers = request.into_inner().map(|message| message.map(answer));
        ready(Ok(tonic::Response::new(Box::pin(answers))))
    }
}

fn answer(message: wire::ProcessingRequest) -> wire::ProcessingResponse {
    use wire::processing_request::Request;
    use wire::processing_response::Response;
    let response = message.request.map(|request| match request {
        Request::RequestHeaders(_) => Response::RequestHeaders(Default::default()),
        Request::ResponseHeaders(_) => Response::ResponseHeaders(Default::default()),
        Request::RequestBody(_) => Response::RequestBody(Default::default()),
        Request::ResponseBody(_) => Response::ResponseBody(Default::default()),
        Request::RequestTrailers(_) => Response::RequestTrailers(Default::default()),
        Request::ResponseTrailers(_) => Response::ResponseTrailers(Default::default()),
    });
    wire::ProcessingResponse { response, ..Default::default() }
}

#[derive(Clone)]
struct NoopProcessor;

impl NamedService for NoopProcessor {
    const NAME: &'static str = "envoy.service.ext_proc.v3.ExternalProcessor";
}

impl<B> Service<http::Request<B>> for NoopProcessor
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).streaming(Pass, request).await) })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).ok_or("usage: noop-tonic PORT")?.parse()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = tonic::transport::Server::builder().add_service(Noop).add_service(NoopProcessor);
    Ok(runtime.block_on(server.serve(address))?)
}
