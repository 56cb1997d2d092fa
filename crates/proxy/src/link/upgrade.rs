//! A switch of a link to another protocol: asked for by a request, done by its backend.
//!
//! The way from one to the other is the exchange's (`exchange/hold.rs`).

use crate::room::TunnelRoom;
use crate::wire::halves::UpstreamTunnel;
use std::cell::Cell;

/// A connection to a backend that has switched protocols, and the room that the tunnel holds if it
/// is a stream.
pub(crate) type SwitchedConnection = (UpstreamTunnel, Option<TunnelRoom>);

#[derive(Default)]
pub(crate) struct UpgradeState {
    /// The running request asks for another protocol.
    requested: Cell<bool>,
    /// The connection to the backend that has switched.
    switched: Cell<Option<Box<SwitchedConnection>>>,
}

impl UpgradeState {
    /// Records whether the request that begins asks for another protocol.
    pub(crate) fn begin(&self, requested: bool) {
        self.requested.set(requested);
    }

    /// Whether the backend may switch protocols.
    pub(crate) fn may_switch(&self) -> bool {
        self.requested.get()
    }

    /// Hands over the connection to a backend that has switched.
    pub(crate) fn finish(&self, backend: UpstreamTunnel, room: Option<TunnelRoom>) {
        self.switched.set(Some(Box::new((backend, room))));
    }

    /// Takes that connection, once.
    pub(crate) fn take(&self) -> Option<SwitchedConnection> {
        self.switched.take().map(|switched| *switched)
    }
}
