//! The messages of Envoy's external authorization.
//!
//! The test `wire` generates them from `ask/proto` and checks that they are current. Their
//! meaning: docs/guide/ext-proc.md.

mod messages {
    include!("authz_messages.in");
}

pub use messages::envoy::service::auth::v3::*;
