//! The choice of a backend, and which backends are left out for a while.
//!
//! Each thread counts for itself how many requests it runs on each backend and which backends
//! failed. It picks the backend with the fewest requests, in turn among equals, and leaves out
//! those that fail (`BackendHealth`). With `cost: tokens` the requests of all threads count, and a
//! prompt prefers a backend that has its beginning in its cache (`evenkeel_models::choice`).
//! Connections: `pool.rs`, `sessions.rs`, `connector.rs`. Whether a request is sent again:
//! `exchange/ask.rs`.

pub(super) mod connector;
pub(super) mod lease;
mod pool;
mod sessions;

use super::wire::{StreamCall, UpstreamWire};
use evenkeel_config::settings::{self, BACKENDS_MAX, BackendScheme};
use evenkeel_engine::{SharedBackend, SharedBackends};
use evenkeel_models::affinity::{PrefixChoice, PrefixedPrompt};
use evenkeel_models::choice::{BackendHealth, BackendLoad};
use http::HeaderValue;
use pool::Http1Pool;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sessions::Http2Pool;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

/// The TLS configuration for backends, and the server name to verify if the settings override it.
/// `None` if no backend uses TLS.
pub(super) type UpstreamTls = Option<(Arc<ClientConfig>, Option<Arc<str>>)>;

/// How requests share a connection to a backend.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionSharing {
    /// Each request has a connection to itself while it runs (HTTP/1.1).
    Alone,
    /// Each request is a stream of a shared connection (HTTP/2).
    Streams,
    /// Negotiated with the backend during the TLS handshake (ALPN).
    Agreed,
}

impl ConnectionSharing {
    fn of(at: &settings::BackendAddress, secured: Option<&ClientConfig>) -> ConnectionSharing {
        let offered = secured.map_or(&[][..], |config| &config.alpn_protocols);
        let offers = |name: &[u8]| offered.iter().any(|offered| offered == name);
        match (at.scheme, offers(b"h2"), offers(b"http/1.1")) {
            (BackendScheme::H2c | BackendScheme::UnixH2c, ..) | (_, true, false) => {
                ConnectionSharing::Streams
            }
            (_, true, true) => ConnectionSharing::Agreed,
            _ => ConnectionSharing::Alone,
        }
    }
}

/// The needs of a request for the connection that carries it.
#[derive(Clone, Copy)]
pub(super) struct ConnectionNeeds {
    /// The request asks for another protocol, so the connection must not be shared.
    pub(super) switches: bool,
    /// The request can be sent again on another connection if this one turns out to be closed.
    pub(super) may_repeat: bool,
}

/// One backend, with the state that this thread keeps about it.
pub(super) struct UpstreamBackend {
    at: settings::BackendAddress,
    /// The name of the backend in logs and metrics.
    pub(super) name: Rc<str>,
    /// The address, if the host is an IP address and needs no resolving.
    address: Option<SocketAddr>,
    /// The TLS configuration and the server name to verify; `None` without TLS.
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    manner: ConnectionSharing,
    /// Whether the last connection that the backend could choose the protocol for was HTTP/2.
    shares: Cell<bool>,
    pool: Http1Pool,
    sessions: Http2Pool,
    /// Cloned by each request that this thread has on the backend, so that the references count
    /// them. Only a request knows when it ends.
    running: Rc<()>,
    /// The state of the backend that all threads share.
    shared: Arc<SharedBackend>,
    /// Its failures, in the worker's milliseconds.
    health: Cell<BackendHealth>,
    /// The backend is no longer in the settings, or the thread stops: no connection is kept.
    retired: Cell<bool>,
}

impl UpstreamBackend {
    fn new(
        at: &settings::BackendAddress,
        secured: &UpstreamTls,
        shared: Arc<SharedBackend>,
    ) -> UpstreamBackend {
        let tls = secured.as_ref().filter(|_| at.is_secured());
        let tls = tls.and_then(|(config, name)| {
            let name = name.as_deref().unwrap_or(at.host()).to_owned();
            Some((Arc::clone(config), ServerName::try_from(name).ok()?))
        });
        let config = tls.as_ref().map(|(config, _): &(Arc<ClientConfig>, _)| &**config);
        UpstreamBackend {
            manner: ConnectionSharing::of(at, config),
            shares: Cell::new(true),
            sessions: Http2Pool::default(),
            name: at.place.as_str().into(),
            address: at.place.parse().ok(),
            at: at.clone(),
            tls,
            pool: Http1Pool::default(),
            running: Rc::default(),
            shared,
            health: Cell::default(),
            retired: Cell::new(false),
        }
    }

    /// Returns a connection that is ready now, for the task of `cx`.
    fn idle(&self, cx: &mut Context<'_>, needs: ConnectionNeeds) -> Option<UpstreamWire> {
        if self.may_share(needs.switches) {
            let session = self.sessions.with_room()?;
            return Some(UpstreamWire::Stream(StreamCall::new(&session, &self.running)));
        }
        self.pool.take(cx, needs.may_repeat).map(UpstreamWire::Whole)
    }

    /// Whether a connection made for a request may also carry other requests. `switches`: the
    /// request asks for another protocol.
    fn may_share(&self, switches: bool) -> bool {
        match self.manner {
            ConnectionSharing::Alone => false,
            ConnectionSharing::Streams => true,
            ConnectionSharing::Agreed => !switches && self.shares.get(),
        }
    }

    /// Whether a connection to this backend can switch to another protocol.
    fn may_switch(&self) -> bool {
        self.manner != ConnectionSharing::Streams
    }

    /// Returns a connection to the pool.
    fn keep(&self, wire: UpstreamWire, now: u64) {
        if let (UpstreamWire::Whole(connection), false) = (wire, self.retired.get()) {
            self.pool.put(connection, now);
        }
    }

    /// The backend has answered: forgets its failures.
    pub(super) fn note_success(&self) {
        self.health.set(BackendHealth::default());
    }

    /// The backend has failed a request. `unreachable`: no connection could be made.
    pub(super) fn note_failure(&self, unreachable: bool, now: u64) {
        let mut health = self.health.get();
        health.note_failure(unreachable, now);
        self.health.set(health);
    }

    /// Returns zero if the backend may be used, else the time until which it is left out.
    fn out_until(&self, now: u64) -> u64 {
        self.health.get().out_until(now)
    }

    fn is(&self, at: &settings::BackendAddress, secured: &UpstreamTls) -> bool {
        let config = |tls: &Arc<ClientConfig>| Arc::as_ptr(tls);
        let known = self.tls.as_ref().map(|(tls, _)| config(tls));
        let wanted = secured.as_ref().filter(|_| at.is_secured());
        self.at == *at && known == wanted.map(|(tls, _)| config(tls))
    }
}

/// All backends of the settings, with the state that one thread keeps about them.
pub(super) struct UpstreamPool {
    all: Vec<Rc<UpstreamBackend>>,
    /// The index of the backend to prefer among equals.
    next: Cell<usize>,
    /// The `Host` for HTTP/1.0 requests that name none.
    pub(super) host: HeaderValue,
}

/// The backends that one request has been sent to, one bit each. A bit is an index into the `all`
/// of this one [`UpstreamPool`], so it is not valid after a reload.
#[derive(Clone, Copy, Default)]
pub(super) struct TriedBackends(u64);

impl TriedBackends {
    /// Whether the request has been sent to none yet.
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn has(self, place: usize) -> bool {
        self.0 & (1 << place) != 0
    }
}

const _: () = assert!(BACKENDS_MAX <= u64::BITS as usize, "a bit for each");

impl UpstreamPool {
    /// Creates the backends of the settings. Backends that exist in `before` keep their state; the
    /// others of `before` are retired.
    pub(super) fn new(
        settings: &[settings::BackendAddress],
        secured: &UpstreamTls,
        before: Option<&UpstreamPool>,
        shared: &SharedBackends,
    ) -> UpstreamPool {
        let mut left: Vec<Rc<UpstreamBackend>> = before.map(|b| b.all.clone()).unwrap_or_default();
        let all = settings.iter().take(BACKENDS_MAX).map(|at| {
            let known = left.iter().position(|backend| backend.is(at, secured));
            known.map_or_else(
                || Rc::new(UpstreamBackend::new(at, secured, shared.at(at))),
                |known| left.remove(known),
            )
        });
        let all: Vec<Rc<UpstreamBackend>> = all.collect();
        left.iter().for_each(|backend| backend.retire());
        let host = settings.first().and_then(|at| HeaderValue::from_str(at.host_header()).ok());
        let host = host.unwrap_or(HeaderValue::from_static("backend"));
        UpstreamPool { all, next: Cell::new(0), host }
    }

    /// Chooses a backend and adds it to `tried`. Returns `None` if all have been tried. If the
    /// request asks for another protocol (`switches`), backends that can switch come first.
    pub(super) fn choose(
        &self,
        tried: &mut TriedBackends,
        now: u64,
        switches: bool,
    ) -> Option<&Rc<UpstreamBackend>> {
        let place = self.least(*tried, |backend| {
            let cannot = switches && !backend.may_switch();
            // Less the reference of the backend itself.
            let running = Rc::strong_count(&backend.running) - 1;
            (cannot, backend.out_until(now), running)
        })?;
        Some(self.take(place, tried))
    }

    /// Chooses a backend for a prompt by its prefixes and by the load of all threads, and adds it
    /// to `tried`. Returns `None` if all have been tried. Also returns the result for the prefixes,
    /// and the number of other prefixes that were forgotten for them.
    pub(super) fn choose_for(
        &self,
        prompt: &PrefixedPrompt<'_>,
        tried: &mut TriedBackends,
        now: u64,
    ) -> Option<(&Rc<UpstreamBackend>, PrefixChoice, u64)> {
        let free = *tried;
        let (best, choice) = prompt.choose_backend(self.all.len(), self.next.get(), |place| {
            let backend = &self.all[place];
            let load = || BackendLoad::of(&backend.shared, backend.out_until(now));
            (!free.has(place)).then(load)
        })?;
        let backend = self.take(best, tried);
        Some((backend, choice, prompt.note(backend.shared.id())))
    }

    /// The place of the backend with the least `load` of those that have not been tried: whether
    /// it cannot serve the request, until when it is left out, and how many requests it runs. The
    /// first backend without any load is chosen at once.
    fn least(
        &self,
        tried: TriedBackends,
        load: impl Fn(&UpstreamBackend) -> (bool, u64, usize),
    ) -> Option<usize> {
        let (before, after) = (0..self.next.get(), self.next.get()..self.all.len());
        let mut least = None;
        for place in after.chain(before).filter(|place| !tried.has(*place)) {
            let load = load(&self.all[place]);
            if load == (false, 0, 0) {
                return Some(place);
            }
            if least.is_none_or(|(known, _)| load < known) {
                least = Some((load, place));
            }
        }
        least.map(|(_, place)| place)
    }

    fn take(&self, place: usize, tried: &mut TriedBackends) -> &Rc<UpstreamBackend> {
        tried.0 |= 1 << place;
        self.next.set((place + 1) % self.all.len());
        &self.all[place]
    }

    /// Whether any backend may be used over HTTP/2.
    pub(super) fn speak_http2(&self) -> bool {
        self.all.iter().any(|backend| backend.may_share(false))
    }

    pub(super) fn has_more(&self, tried: TriedBackends) -> bool {
        (tried.0.count_ones() as usize) < self.all.len()
    }

    /// Drops connections that are old or closed.
    pub(super) fn prune(&self, now: u64) {
        for backend in &self.all {
            backend.pool.prune(now);
            backend.sessions.prune(now);
        }
    }

    /// Drops all connections, and keeps none from now on.
    pub(super) fn retire(&self) {
        self.all.iter().for_each(|backend| backend.retire());
    }
}

impl UpstreamBackend {
    fn retire(&self) {
        self.retired.set(true);
        self.pool.clear();
        self.sessions.clear();
    }
}

#[cfg(test)]
mod tests;
