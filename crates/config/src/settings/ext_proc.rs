//! The sections `ext_proc` and `ext_authz`: external processing and external authorization for
//! Envoy.
//!
//! They have no limits and no queue of their own: those of `proxy` count for all doors together.

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
    /// Whether Evenkeel chooses the [backend](ext-proc.md#choose-the-backend) of each request from
    /// `proxy.backend` and names it to Envoy in `x-gateway-destination-endpoint`. The backends must
    /// have numeric addresses.
    pub endpoint: bool, ENDPOINT: DefaultedKey<bool> = ConfigKey::truth("endpoint").default(false);
}

/// `ext_authz`.
pub mod authz {
    use super::{SocketAddr, address};
    use crate::keys::{ConfigKey, DefaultedKey, ListKey};
    use crate::reader::settings;

    settings! {
        /// The external authorization door: Envoy asks it about each request, which is decided at
        /// once.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct ExtAuthzSettings from read(ext_authz), TABLE = "ext_authz";

        /// Addresses to listen on, for gRPC (`envoy.service.auth.v3`) without TLS.
        pub listen: Vec<SocketAddr>, LISTEN: ListKey<SocketAddr> =
            ConfigKey::text("listen", address::listen)
                .list_with(|| vec![SocketAddr::from(([127, 0, 0, 1], 9003))]);
        /// Connections at once. Envoy opens one for each of its threads. Those beyond are closed.
        pub connections_max: usize, CONNECTIONS_MAX: DefaultedKey<usize> =
            ConfigKey::whole("connections_max").within(1, 1_000_000).default(1024)
                .low("Envoys get no answer, so `failure_mode_allow` decides").high("memory");
    }
}
