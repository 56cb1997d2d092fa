//! gRPC over HTTP/2: the rate limit methods and health checks by hand, reflection by its crate.
//!
//! A decision takes about a microsecond, so the code around it must not take ten. The methods are
//! therefore served on HTTP/2 directly, which is cheaper than a framework. How a request is
//! decided: `decide`. How connections are accepted: the crate `grpc`. Quota streams:
//! `quota_stream`.

pub mod health;
mod quota_stream;

use super::decide::{DecisionBuffers, DecisionError, RatelimitDecider};
use super::metrics::traces::TracedCall as Traced;
use super::quota::QuotaService;
use super::wire::view::RequestView;
use super::wire::{self, ProtoPackage, Response as Answer, answer};
use evenkeel_grpc::body::{self, GrpcBody, failed, response};
use evenkeel_grpc::call::CallBody;
use evenkeel_grpc::held_bytes::{ByteBudget, read_message};
use evenkeel_grpc::worker::GrpcService;
use evenkeel_store::redis::{RedisStore, StoreLane};
use evenkeel_telemetry::otlp::trace::Tracer;
use futures_util::stream::poll_fn;
use health::ServingState;
use http::{Request, Response, request};
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use quota_stream::QuotaStream;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::watch;
use tonic::Status;
use tonic::codegen::{BoxFuture, Service};

/// The paths of `ShouldRateLimit` in the three packages that clients use.
const DECISION_METHODS: [(&str, ProtoPackage); 3] = [
    ("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", ProtoPackage::V3),
    ("/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit", ProtoPackage::Old),
    ("/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit", ProtoPackage::Old),
];

/// The path of the method of the rate limit quota service.
const QUOTA_METHOD: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// The maximum size of a question of reflection, in bytes: it has the name of a symbol or a file.
/// Its messages do not count towards the budget of `held_bytes`, and have no time limit.
const REFLECTION_BYTES_MAX: usize = 4 << 10;

/// A service that another crate implements.
type ForeignService = Arc<
    dyn Fn(Request<CallBody>) -> BoxFuture<Response<tonic::body::Body>, std::convert::Infallible>
        + Send
        + Sync,
>;

/// All gRPC services.
pub struct GrpcServices {
    decider: Arc<RatelimitDecider>,
    quotas: Arc<QuotaService>,
    pieces: ByteBudget,
    tracer: Option<Tracer>,
    health: watch::Receiver<ServingState>,
    reflection: [ForeignService; 2],
    /// The store that counts for all instances, if there is one.
    store: Option<Arc<RedisStore>>,
}

impl GrpcService for GrpcServices {
    type ThreadState = WorkerBuffers;

    fn thread_state(&self) -> WorkerBuffers {
        let lane = self.store.as_ref().map(StoreLane::open);
        WorkerBuffers { lane, ..WorkerBuffers::default() }
    }

    async fn answer(
        &self,
        head: &request::Parts,
        mut body: CallBody,
        room: &WorkerBuffers,
        _: Option<IpAddr>,
    ) -> Response<GrpcBody> {
        let path = head.uri.path();
        if let Some((method, package)) = DECISION_METHODS.iter().find(|(method, _)| *method == path)
        {
            let traced = self.tracer.as_ref().and_then(|tracer| {
                Traced::begin(tracer, &head.headers, &method[1..], self.decider.now())
            });
            let took = self.decider.events.response_time.as_ref();
            let took = took.map(|took| (took, self.decider.steady_now()));
            let outcome = self.should_rate_limit(&mut body, *package, room, traced.as_ref()).await;
            if let Some((took, began)) = took {
                took.record(self.decider.steady_now().since(began).0);
            }
            if let Some(traced) = traced {
                let ended = outcome.as_ref().err();
                let ended = ended
                    .map_or((0, ""), |status| (i64::from(status.code() as i32), status.message()));
                traced.end_grpc(&method[1..], ended, self.decider.now());
            }
            return match outcome {
                Ok(answer) => response(GrpcBody::Message(answer::encode(answer))),
                Err(failure) => failed(&failure),
            };
        }
        if path == QUOTA_METHOD {
            return self.stream_quotas(body);
        }
        if let Some(method) = path.strip_prefix("/grpc.health.v1.Health/") {
            let answer = self.health(method, &mut body).await;
            return answer.unwrap_or_else(|failure| failed(&failure));
        }
        let other = match path.split('/').nth(1) {
            Some("grpc.reflection.v1.ServerReflection") => &self.reflection[0],
            Some("grpc.reflection.v1alpha.ServerReflection") => &self.reflection[1],
            _ => return failed(&body::no_method()),
        };
        match other(Request::from_parts(head.clone(), body)).await {
            Ok(response) => response.map(|body| until_ending(body, self.health.clone())),
            Err(never) => match never {},
        }
    }
}

impl GrpcServices {
    /// Makes all services. `health` is the state that health checks report, and `tracer` records
    /// traces of decisions. If there is a `store`, hits are counted in it.
    pub fn new(
        decider: Arc<RatelimitDecider>,
        quotas: Arc<QuotaService>,
        health: watch::Receiver<ServingState>,
        (tracer, store): (Option<Tracer>, Option<Arc<RedisStore>>),
    ) -> Result<GrpcServices, tonic_reflection::server::Error> {
        let builder = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(wire::DESCRIPTORS)
        };
        let reflection = [
            other(builder().build_v1()?.max_decoding_message_size(REFLECTION_BYTES_MAX)),
            other(builder().build_v1alpha()?.max_decoding_message_size(REFLECTION_BYTES_MAX)),
        ];
        Ok(GrpcServices {
            decider,
            quotas,
            pieces: ByteBudget::default(),
            tracer,
            health,
            reflection,
            store,
        })
    }

    async fn should_rate_limit(
        &self,
        body: &mut CallBody,
        package: ProtoPackage,
        room: &WorkerBuffers,
        traced: Option<&Traced<'_>>,
    ) -> Result<Answer, Status> {
        let message = read_message(body, &self.pieces).await?;
        let request = RequestView::decode(&message).map_err(|fault| {
            Status::invalid_argument(format!("not a rate limit request: {fault}"))
        })?;
        let began = traced.map(|traced| (traced, self.decider.now()));
        let decided = match &room.lane {
            Some(lane) => self.decider.ask(&request, package, lane).await,
            None => self.decider.decide(&request, package, &mut room.room.borrow_mut()),
        };
        if let Some((traced, began)) = began {
            traced.decided(&request, &decided, (began, self.decider.now()));
        }
        decided.map_err(|refusal| match refusal {
            DecisionError::TooMany => Status::invalid_argument(refusal.to_string()),
            _ => Status::unknown(refusal.to_string()),
        })
    }

    async fn health(
        &self,
        method: &str,
        body: &mut CallBody,
    ) -> Result<Response<GrpcBody>, Status> {
        let state = || *self.health.borrow();
        if !["Check", "List", "Watch"].contains(&method) {
            return Err(body::no_method());
        }
        let message = read_message(body, &self.pieces).await?;
        Ok(response(match method {
            "Check" => GrpcBody::message(&health::check(&health::name(&message)?, state())?),
            "List" => GrpcBody::message(&health::list(state())),
            _ => health::watch(health::name(&message)?, self.health.clone()),
        }))
    }

    fn stream_quotas(&self, incoming: CallBody) -> Response<GrpcBody> {
        let Some(part) = self.quotas.open_stream() else {
            return failed(&Status::resource_exhausted("too many Envoys are connected"));
        };
        response(QuotaStream::new(part, incoming, &self.pieces).into_body())
    }
}

/// Everything that a thread keeps for its decisions.
#[derive(Default)]
pub struct WorkerBuffers {
    /// Buffers for decisions in memory.
    room: std::cell::RefCell<DecisionBuffers>,
    pub lane: Option<Rc<StoreLane>>,
}

/// Passes a stream on until the service shuts down.
fn until_ending(body: tonic::body::Body, mut state: watch::Receiver<ServingState>) -> GrpcBody {
    let mut body = Box::pin(body);
    let mut ending = Box::pin(async move {
        // An error says that there is no server any more.
        let _ = state.wait_for(|state| *state == ServingState::Ending).await;
    });
    GrpcBody::stream(StreamBody::new(poll_fn(move |cx| match body.as_mut().poll_frame(cx) {
        Poll::Ready(frame) => Poll::Ready(frame),
        Poll::Pending => {
            let end = || Some(Ok(Frame::trailers(body::trailers(&body::shutting_down()))));
            ending.as_mut().poll(cx).map(|()| end())
        }
    })))
}

fn other<S>(service: S) -> ForeignService
where
    S: Service<
            Request<CallBody>,
            Response = Response<tonic::body::Body>,
            Error = std::convert::Infallible,
            Future = BoxFuture<Response<tonic::body::Body>, std::convert::Infallible>,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    Arc::new(move |request| service.clone().call(request))
}
