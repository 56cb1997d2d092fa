//! The protobuf messages of the rate limit service, and the descriptors for gRPC reflection.
//!
//! The test `wire` generates them from `evenkeel/proto` and checks that they are current. The older
//! packages (v2, and lyft's first) have the same encoding in the fields that they have, so one set
//! of messages serves all packages. How the messages are used: `decide`.

pub mod answer;
pub mod reports;
pub mod view;

#[expect(missing_docs, reason = "they are generated; the protos explain them")]
mod messages {
    include!("wire/messages.in");
}

pub use messages::envoy::config::core::v3::HeaderValue;
pub use messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor as Descriptor;
pub use messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride as Override,
};
pub use messages::envoy::service::rate_limit_quota::v3 as quota;
pub use messages::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus as Status, RateLimit as CurrentLimit,
};
pub use messages::envoy::service::ratelimit::v3::{
    RateLimitRequest as Request, RateLimitResponse as Response,
};
pub use messages::envoy::r#type::v3::{
    RateLimitStrategy, RateLimitUnit, TokenBucket, rate_limit_strategy,
};

pub use messages::envoy::config::core::v3::Node;
pub use messages::envoy::service::discovery::v3 as discovery;
pub use messages::google::rpc::Status as RpcStatus;
pub use messages::grpc::health::v1 as health;
pub use messages::ratelimit::config::ratelimit::v3 as conf;

/// The protobuf package that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtoPackage {
    /// `envoy.service.ratelimit.v3`.
    V3,
    /// `envoy.service.ratelimit.v2` and lyft's first package, which have fewer fields.
    Old,
}

/// The encoded descriptors of all served proto files, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("wire/descriptors.bin");
