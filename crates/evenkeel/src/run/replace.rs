//! Replaces this process by another one without any effect on clients.
//!
//! SIGUSR2 starts the successor, from the program's current path, with the same arguments and the
//! sockets of this process. When the successor has opened its doors, this process accepts no more
//! clients, finishes its requests, and exits. The last snapshot is written before the successor
//! starts and reads it, so this process writes none afterwards. Debts of requests that end here
//! later are passed on only if there are peers, because the successor is one of them. Passing of
//! sockets: `handover`.

use super::RunningProcess;
use evenkeel_config::settings::peers::{PeerTransport, PeersSettings};
use evenkeel_peers::driver;
use evenkeel_serve::handover::successor::{ProcessOrigin, Successor, SuccessorError};
use evenkeel_serve::handover::{ListenSockets, READY_MESSAGE};
use evenkeel_store::snapshot;
use sd_notify::NotifyState;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Reports to systemd or the predecessor that all doors are open, and logs inherited sockets that
/// no door uses.
pub fn report_ready(sockets: &ListenSockets, herald: Option<&UnixDatagram>) {
    let rest = sockets.close_untaken();
    if !rest.is_empty() {
        tracing::warn!(
            listen = ?rest,
            "inherited sockets were closed because no listener is configured for them"
        );
    }
    let told = herald.map_or(Ok(0), |herald| herald.send(READY_MESSAGE));
    let told = told.and_then(|_| sd_notify::notify(&[NotifyState::Ready]));
    if let Err(error) = told {
        tracing::warn!(
            %error,
            "the parent process could not be notified that this process is ready"
        );
    }
}

/// Reports to systemd that the process is stopping, unless a successor continues the service.
pub fn report_stopping(replaced: bool) {
    if !replaced {
        // If the message is lost, systemd still sees the process end.
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    }
}

/// Time for clients that were accepted just before the successor took over to send their question.
/// The proxy handles this case itself.
pub(super) const LAST_QUESTION_TIME: Duration = Duration::from_secs(1);

/// The socket of a mesh, inherited or newly bound; `None` for the other transports.
pub(super) fn mesh_listener(
    peers: &PeersSettings,
    sockets: &ListenSockets,
) -> anyhow::Result<Option<TcpListener>> {
    let PeerTransport::Mesh { listen, .. } = &peers.via else { return Ok(None) };
    let listener = sockets.listen(*listen);
    listener.map(Some).map_err(|why| anyhow::anyhow!("peers: cannot listen on {listen}: {why}"))
}

impl RunningProcess {
    /// Why there can be no successor, if there cannot. Over a group, a successor cannot tell a
    /// late report that its snapshot contains from a new one, so it would count it twice.
    fn obstacle(&self) -> Option<&'static str> {
        let peers = self.config.settings.peers.as_ref()?;
        let is_mesh = matches!(peers.via, PeerTransport::Mesh { .. });
        (!is_mesh).then_some("peers.via: only a mesh can be handed over")
    }

    /// Keeps the reason for `evenkeel upgrade` and `evenkeel doctor`.
    fn note_not_replaced(&self, why: String) {
        self.watch.process.lock().not_replaced = Some((why, self.clock.now()));
    }

    /// Starts the successor.
    pub(super) fn replace(&mut self, origin: &io::Result<ProcessOrigin>) {
        if self.successor.is_some() {
            tracing::warn!("a successor has been started already");
            return;
        }
        if let Some(why) = self.obstacle() {
            tracing::error!(why, "not replaced: restart instead");
            self.note_not_replaced(format!("{why}; restart instead"));
            return;
        }
        let origin = match origin {
            Ok(origin) => origin,
            Err(error) => {
                tracing::error!(%error, "not replaced: the path of the program file is unknown");
                self.note_not_replaced(format!("the path of the program file is unknown: {error}"));
                return;
            }
        };
        self.peers.iter().for_each(|peers| driver::set_handover(peers, true));
        // Writes the last snapshot, which the successor reads.
        drop(self.state.take());
        match Successor::start(origin, &self.sockets) {
            Ok(successor) => {
                tracing::info!(pid = successor.id(), "a successor was started and opens its doors");
                self.successor = Some(successor);
            }
            Err(error) => self.not_replaced(&SuccessorError::Start(error)),
        }
    }

    /// Handles a successor that failed: this process continues as before.
    pub(super) fn not_replaced(&mut self, why: &SuccessorError) {
        tracing::error!(%why, "not replaced: this process continues to serve");
        self.note_not_replaced(why.to_string());
        self.successor = None;
        self.peers.iter().for_each(|peers| driver::set_handover(peers, false));
        let (seed, kept) = self.kept.clone();
        let state = &self.config.settings.state;
        self.state =
            snapshot::start(state, seed, kept, &self.watch, self.clock).unwrap_or_else(|error| {
                tracing::error!(%error, "cannot start a thread for snapshots: debts are not saved");
                None
            });
    }

    /// Handles a successor that has opened its doors.
    pub(super) fn replaced(&mut self) {
        let pid = self.successor.as_ref().map_or(0, Successor::id);
        self.sockets.pass();
        tracing::info!(pid, "replaced: the successor accepts all new clients");
        // Without systemd there is no receiver for this message.
        let _ = sd_notify::notify(&[NotifyState::MainPid(pid)]);
        drop(self.admin.take());
    }
}
