//! The messages of Envoy's external processing.
//!
//! The test `wire` generates them from `ask/proto` and checks that they are current. Their
//! meaning: docs/guide/ext-proc.md. Messages of Envoy are read by `view` instead.

#[expect(missing_docs, reason = "they are generated; the proto explains them")]
mod messages {
    include!("messages.in");
}

pub use messages::envoy::service::ext_proc::v3::*;
