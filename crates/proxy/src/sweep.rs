//! The sweep of a thread: it updates the coarse time and enforces all timeouts, a few times a
//! second.
//!
//! A link that has waited too long is handled in `link.rs`. The choice of streams that make room
//! for others is in `context/parked.rs`.

use super::context::parked::check_upload;
use super::link::TRICKLE_AFTER;
use super::worker::ProxyWorker;
use evenkeel_core::units::Nanos;
use std::rc::Rc;
use std::time::Duration;

/// The longest interval of the sweep while there are streams, of which some may have to make room,
/// or while requests wait for a slot that a stalled upload holds.
const BUSY_TICK_MAX: Duration = Duration::from_millis(50);

/// If no request has ended for this time although some run, they may be waiting for a worker that
/// an upload occupies. Shorter: an upload that pauses ends where requests take long.
const HANG_AFTER: Nanos = Nanos::from_secs(TRICKLE_AFTER.as_secs());

impl ProxyWorker {
    /// Updates the coarse time and enforces all timeouts, until the thread ends.
    pub(super) async fn sweep(self: Rc<ProxyWorker>) {
        let thread = &self.thread;
        loop {
            let site = self.site();
            let tick = site.settings.tick();
            let often = !thread.streams.is_empty() || self.lane.is_crowded(HANG_AFTER);
            tokio::time::sleep(if often { tick.min(BUSY_TICK_MAX) } else { tick }).await;
            thread.update_time();
            let now = thread.now();
            // A time may have been stored before there were streams, when the interval was longer.
            let slack = u64::try_from(tick.as_millis()).unwrap_or(0);
            let crowded = self.lane.is_crowded(HANG_AFTER);
            for link in thread.links.all().iter().chain(thread.streams.all().iter()) {
                if !link.is_closed() && link.sweep(&site.settings.timeouts, now, slack) {
                    thread.watch.proxy.bad_requests.increment(1);
                    let client = link.peer.client();
                    tracing::debug!(target: "evenkeel::proxy", %client, "closed: too slow");
                }
                if link.is_slow_stream(now) {
                    thread.set_aside(link);
                }
                check_upload(link, crowded, now);
                // Not at once: a client that is about to send a request would lose it.
                if thread.is_draining() && link.is_long_silent(now) {
                    link.close();
                }
            }
            self.lane.expire();
            site.backends.prune(now);
            thread.shed_if_wanted();
        }
    }
}
