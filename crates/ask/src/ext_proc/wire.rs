//! The messages of Envoy's external processing.
//!
//! The test `wire` generates them from `ask/proto` and checks that they are current. What they
//! mean: docs/guide/ext-proc.md. What Envoy sends is read by `view` instead.

#[expect(missing_docs, reason = "they are generated; the proto explains them")]
mod messages {
    include!("messages.in");
}

pub use messages::envoy::service::ext_proc::v3::*;
