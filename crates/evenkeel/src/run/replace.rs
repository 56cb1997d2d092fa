//! Another process takes the place of this one, with no client noticing.
//!
//! SIGUSR2 starts it, from where this program lies by now, with the same arguments and our sockets.
//! When its doors are open we take in nobody more, let what runs end, and go. What is kept on the
//! disk is written before it starts, and it reads that: so from then on we write nothing. Debts
//! that requests run up here after that are not passed on. How sockets are handed over: `handover`.

use super::Program;
use crate::run::handover::successor::{Failure, Origin, Successor};
use crate::run::handover::{READY, Sockets};
use crate::store::snapshot;
use sd_notify::NotifyState;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Tells who has started us that all doors are open, and the log which sockets nobody wanted.
pub fn tell_ready(sockets: &Sockets, herald: Option<&UnixDatagram>) {
    let rest = sockets.refuse_rest();
    if !rest.is_empty() {
        tracing::warn!(
            listen = ?rest, "closed: sockets were handed in for which no door is configured"
        );
    }
    let told = herald.map_or(Ok(0), |herald| herald.send(READY));
    let told = told.and_then(|_| sd_notify::notify(&[NotifyState::Ready]));
    if let Err(error) = told {
        tracing::warn!(%error, "who has started this program could not be told that it is ready");
    }
}

/// Tells systemd that we are about to end, unless somebody else goes on.
pub fn tell_stopping(replaced: bool) {
    if !replaced {
        // Whoever does not hear it sees us end.
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    }
}

/// How long clients whom our doors have taken in just now have for their question, when others are
/// taken in by the successor. (The proxy sees to that by itself.)
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

impl Program {
    /// What cannot be handed over: to the others, two processes at one address would be one that
    /// contradicts itself.
    fn bound_to_stay(&self) -> Vec<&'static str> {
        let settings = &self.config.settings;
        settings.peers.iter().map(|_| "peers").collect()
    }

    /// Starts the process that is to take over.
    pub(super) fn replace(&mut self, origin: &io::Result<Origin>) {
        if self.successor.is_some() {
            tracing::warn!("a successor has been started already");
            return;
        }
        let stay = self.bound_to_stay();
        if !stay.is_empty() {
            let stay = stay.join(", ");
            tracing::error!(stay, "not replaced: these cannot be handed over; restart instead");
            return;
        }
        let origin = match origin {
            Ok(origin) => origin,
            Err(error) => {
                tracing::error!(%error, "not replaced: it is not known where the program lies");
                return;
            }
        };
        // Its last snapshot is what the successor begins with.
        drop(self.state.take());
        match Successor::start(origin, &self.sockets) {
            Ok(successor) => {
                tracing::info!(pid = successor.id(), "a successor opens its doors");
                self.successor = Some(successor);
            }
            Err(error) => self.not_replaced(&Failure::Start(error)),
        }
    }

    /// It did not come so far: everything stays.
    pub(super) fn not_replaced(&mut self, why: &Failure) {
        tracing::error!(%why, "not replaced: this process goes on");
        self.successor = None;
        let (seed, kept) = self.kept.clone();
        let state = &self.config.settings.state;
        self.state =
            snapshot::start(state, seed, kept, &self.watch, self.clock).unwrap_or_else(|error| {
                tracing::error!(%error, "no thread for snapshots: debts are not kept");
                None
            });
    }

    /// Its doors are open.
    pub(super) fn replaced(&mut self) {
        let pid = self.successor.as_ref().map_or(0, Successor::id);
        self.sockets.pass();
        tracing::info!(pid, "replaced: the successor takes clients in from now on");
        // Whoever is not run by systemd has nobody to tell.
        let _ = sd_notify::notify(&[NotifyState::MainPid(pid)]);
        drop(self.admin.take());
    }
}
