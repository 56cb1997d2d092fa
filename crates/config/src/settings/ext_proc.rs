//! The `ext_proc` section: external processing for Envoy.
//!
//! It has no limits and no queue of its own: those of `proxy` count for both doors together.

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey};
use crate::reader::settings;
use std::net::SocketAddr;

settings! {
    /// The external processing door: Envoy asks it about each request, which waits there for its
    /// turn, and says when the response has ended.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ExtProcSettings from read(ext_proc), TABLE = "ext_proc";

    /// Addresses to listen on, for gRPC (`envoy.service.ext_proc.v3`) without TLS.
    pub listen: Vec<SocketAddr>, LISTEN: ListKey<SocketAddr> =
        ConfigKey::text("listen", address::listen)
            .list_with(|| vec![SocketAddr::from(([127, 0, 0, 1], 9002))]);
    /// Connections at once. Envoy opens one for each of its threads, and more if there are many
    /// requests at once. Those beyond are closed.
    pub connections_max: usize, CONNECTIONS_MAX: DefaultedKey<usize> =
        ConfigKey::whole("connections_max").within(1, 1_000_000).default(1024)
            .low("Envoys get no answer, so `failure_mode_allow` decides").high("memory");
}
