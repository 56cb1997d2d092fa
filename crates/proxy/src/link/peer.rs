//! The other end of a link: the peer, and the client that it forwards for.
//!
//! Whether a peer is believed is not decided here: `identity::address`.

use http::HeaderValue;
use std::cell::{Cell, OnceCell};
use std::net::IpAddr;

/// The addresses of a link, and whether its client uses TLS.
pub(crate) struct LinkPeer {
    /// The peer's address in canonical form, or the client that it names (PROXY protocol).
    address: Cell<IpAddr>,
    /// The client behind trusted proxies; the peer until that is known.
    client: Cell<IpAddr>,
    /// The peer's address as a header value, for forwarding.
    value: OnceCell<HeaderValue>,
    /// Whether the client uses TLS, towards Evenkeel or a front that says so.
    secure: Cell<bool>,
}

impl LinkPeer {
    /// Creates the state for a peer at `address`, in any form.
    pub(crate) fn new(address: IpAddr, secure: bool) -> LinkPeer {
        let address = address.to_canonical();
        LinkPeer {
            address: Cell::new(address),
            client: Cell::new(address),
            value: OnceCell::new(),
            secure: Cell::new(secure),
        }
    }

    /// Returns the peer's address in canonical form.
    pub(crate) fn address(&self) -> IpAddr {
        self.address.get()
    }

    /// Returns the client of the running request.
    pub(crate) fn client(&self) -> IpAddr {
        self.client.get()
    }

    /// Returns the peer's address as it is forwarded.
    pub(crate) fn value(&self) -> &HeaderValue {
        self.value.get_or_init(|| {
            let text = HeaderValue::from_str(&self.address.get().to_string());
            text.unwrap_or(HeaderValue::from_static("unknown"))
        })
    }

    /// Whether requests come over TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.secure.get()
    }

    /// Makes `address` the peer, because the peer forwards for it, with TLS or not.
    pub(crate) fn replace(&self, address: IpAddr, secure: bool) {
        self.address.set(address.to_canonical());
        self.reset_client();
        self.secure.set(self.secure.get() || secure);
    }

    /// Records the client of the running request.
    pub(crate) fn set_client(&self, client: IpAddr) {
        self.client.set(client);
    }

    /// Forgets the client of the last request.
    pub(crate) fn reset_client(&self) {
        self.client.set(self.address.get());
    }
}
