//! A rate limit service on tonic that uses Limitador's library for its decisions, in memory, on one
//! thread.
//!
//! `limitador-service PORT`. It has a limit of its own for the `user` of each of the first ten
//! descriptors, so ten descriptors are ten counters, as in Evenkeel. The additional work of
//! Limitador's own server (metrics, tracing) is left out in its favour.

use limitador::RateLimiter;
use limitador::limit::{Context as Values, Limit, Namespace};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::codegen::{Body, BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic_prost::ProstCodec;

mod messages {
    include!("../../../crates/ratelimit/src/wire/messages.in");
}

use messages::envoy::service::ratelimit::v3::rate_limit_response::Code;
use messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of descriptors with a limit.
const DESCRIPTORS: usize = 10;
/// The maximum number of counters; more than the load has.
const COUNTERS_MAX: u64 = 100_000;

type Fault = Box<dyn std::error::Error>;

#[derive(Clone)]
struct Limits(Arc<RateLimiter>);

impl Limits {
    fn new() -> Result<Limits, Fault> {
        let limiter = RateLimiter::new(COUNTERS_MAX);
        for index in 0..DESCRIPTORS {
            let user = format!("descriptors[{index}].user");
            let there = format!("size(descriptors) > {index}");
            let conditions = vec![there.as_str().try_into().map_err(|e| format!("{e:?}"))?];
            let variables = vec![user.as_str().try_into().map_err(|e| format!("{e:?}"))?];
            limiter.add_limit(Limit::new("bench", 1_000_000_000, 3_600, conditions, variables));
        }
        Ok(Limits(Arc::new(limiter)))
    }
}

impl UnaryService<RateLimitRequest> for Limits {
    type Response = RateLimitResponse;
    type Future = Ready<Result<tonic::Response<RateLimitResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let request = request.into_inner();
        let pairs = request.descriptors.into_iter().map(|descriptor| {
            descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
        });
        let mut values = Values::default();
        values.list_binding("descriptors".to_owned(), pairs.collect::<Vec<HashMap<_, _>>>());
        let namespace: Namespace = request.domain.into();
        let hits = u64::from(request.hits_addend.max(1));
        let decided = self.0.check_rate_limited_and_update(&namespace, &values, hits);
        ready(decided.map_err(|e| tonic::Status::unknown(e.to_string())).map(|decided| {
            let code = if decided.limited { Code::OverLimit } else { Code::Ok };
            tonic::Response::new(RateLimitResponse {
                overall_code: code.into(),
                ..Default::default()
            })
        }))
    }
}

impl NamedService for Limits {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl<B> Service<http::Request<B>> for Limits
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
        let limits = self.clone();
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(limits, request).await) })
    }
}

fn main() -> Result<(), Fault> {
    let port = std::env::args().nth(1).ok_or("usage: limitador-service PORT")?.parse()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = tonic::transport::Server::builder().add_service(Limits::new()?);
    Ok(runtime.block_on(server.serve(address))?)
}
