//! The line door: a client sends a tag and a newline, and gets `OK` or `NO`. Clients that speak the
//! Redis protocol can ask the same.
//!
//! One thread per core with its own runtime, as in the proxy: a connection never leaves its thread,
//! and no query takes a lock that another thread wants. This file starts and stops. `listen` binds,
//! `worker` accepts, `connection` is one connection, `splitter` and `resp` are the two protocols,
//! `commands` are the commands of Redis clients, and `store_client` asks the store if there is one.
//! What is decided: `engine::tags`.

mod commands;
mod connection;
mod link;
mod listen;
mod outcome;
mod resp;
mod splitter;
mod store_client;
mod turns;
mod worker;

use evenkeel_config::settings::{LineSettings, Settings, StreamAddress};
use evenkeel_engine::tags::TagEngine;
use evenkeel_engine::turns::TurnEngine;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::handover::ListenSockets;
use evenkeel_serve::service::Service;
use evenkeel_serve::start::ServerStartError;
use evenkeel_serve::threads::{ServerOrders, ServerThreads, core_count};
use evenkeel_store::redis::RedisStore;
use evenkeel_telemetry::Watch;
use listen::SocketFile;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use store_client::TagStoreClient;
use tokio::task::JoinSet;
use worker::{LineShared, LineWorker};

/// The open door.
pub struct RunningLine {
    /// The addresses of the line protocol, in the order of the settings, with the ports that the
    /// system assigned.
    pub lines: Vec<StreamAddress>,
    /// The addresses for Redis clients, in the order of the settings.
    pub resp: Vec<SocketAddr>,
    threads: ServerThreads,
    files: Mutex<Vec<SocketFile>>,
    shared: Arc<LineShared>,
}

/// Binds everything, then starts one thread per core. Takes over the sockets of `sockets` that
/// match the settings; the others are bound and recorded there. If there is a `store`, tags are
/// counted in it.
///
/// # Errors
///
/// An address cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start(
    settings: &LineSettings,
    (tags, turns): (&Arc<TagEngine>, Option<&Arc<TurnEngine>>),
    store: Option<&Arc<RedisStore>>,
    clock: Clock,
    watch: &Watch,
    sockets: &ListenSockets,
) -> Result<RunningLine, ServerStartError> {
    let bound = listen::bind(settings, core_count(), sockets)?;
    let shared = Arc::new(LineShared::new(settings.clone(), watch.registry()));
    let each = bound.threads.into_iter().enumerate().map(|(index, listeners)| {
        let (lane, store, house) = (tags.lane(index), store.cloned(), Arc::clone(&shared));
        let (turns, passed) = (turns.map(|turns| turns.lane(index)), sockets.passed());
        async move |orders: ServerOrders| {
            let store = store.as_ref().map(TagStoreClient::new);
            let worker = LineWorker::new(lane, store, turns, clock, house);
            let mut accepting = JoinSet::new();
            tokio::task::spawn_local(Rc::clone(&worker).watch_turns());
            for listener in listeners {
                let ends = (orders.clone(), passed.clone());
                accepting.spawn_local(Rc::clone(&worker).accept(listener, ends));
            }
            orders.follow(&*worker, accepting).await;
            worker.open()
        }
    });
    let threads = ServerThreads::each("line", (&watch.beats, clock), each)?;
    let files = Mutex::new(bound.files);
    Ok(RunningLine { lines: bound.lines, resp: bound.resp, threads, files, shared })
}

impl Service for RunningLine {
    fn threads(&self) -> &ServerThreads {
        &self.threads
    }

    fn reload(&self, settings: &Settings) {
        if let Some(line) = &settings.line {
            self.shared.settings.store(Arc::new(line.clone()));
        }
    }

    fn connections(&self) -> usize {
        self.shared.connections.load(Relaxed)
    }

    fn drain(&self, settings: &Settings) {
        // A client that connects from now on must fail at once, not wait for this process.
        self.files.lock().clear();
        self.threads.drain(settings.line.as_ref().map_or(Duration::ZERO, |line| line.drain));
    }
}

#[cfg(test)]
mod tests;
