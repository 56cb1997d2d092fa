//! A rate limit service on tonic that answers OK to every request, on one thread.
//!
//! `noop-tonic PORT`. It only decodes the request and encodes an answer of the usual size, so it is
//! the baseline for the cost of a decision.

use prost_types::Duration;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};
use tonic::codegen::{Body, BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic_prost::ProstCodec;

mod messages {
    include!("../../../crates/ratelimit/src/wire/messages.in");
}

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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).ok_or("usage: noop-tonic PORT")?.parse()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = tonic::transport::Server::builder().add_service(Noop);
    Ok(runtime.block_on(server.serve(address))?)
}
