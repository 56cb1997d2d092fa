//! The messages of Envoy's external processing.
//!
//! The test `wire` generates them from `ask/proto` and checks that they are current. What they
//! mean: docs/guide/ext-proc.md.

#[expect(clippy::enum_variant_names, reason = "they are generated; the names are Envoy's")]
mod messages {
    include!("messages.in");
}

pub use messages::envoy::service::ext_proc::v3::*;
