//! The messages of the rate limit service, and what reflection shows of it.
//!
//! Written from `tollgate/proto` by the test `wire`, which also checks that they are current. The
//! older packages (v2, and lyft's first) are the same on the wire as far as they go, so one set
//! of messages serves all. What is done with them: `decide`.

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
pub use messages::envoy::r#type::v3::{RateLimitStrategy, TokenBucket, rate_limit_strategy};

/// Every file of the protos, as reflection shows them.
pub const DESCRIPTORS: &[u8] = include_bytes!("wire/descriptors.bin");
