//! The driver's part in a replacement: prepares for a successor, or continues without one.
//!
//! The successor is one more instance, at the same address. So this instance accepts no more
//! connections, connects to the successor, and asks the others to do so too. Everything that it has
//! charged until then is reported before, because the successor reads it from the snapshot as well.
//! After that its queue, reports and state continue as before, until it is dropped. Its CPUs count
//! as the successor's.

use super::{PeerDriver, PeersThread, TransportOrder};
use evenkeel_core::units::Time;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// The time that the driver has for an order. It needs less than a millisecond. If it is late, some
/// charges may count twice at the successor.
const DONE_TIMEOUT: Duration = Duration::from_secs(1);

/// The order to prepare for a successor, or to continue without one.
pub struct HandoverOrder {
    has_successor: bool,
    done: SyncSender<()>,
}

/// Prepares for a successor before the last snapshot is written, or continues without one because
/// it has failed. Waits until that is done.
pub fn set_handover(peers: &PeersThread, has_successor: bool) {
    let (done, is_done) = sync_channel(1);
    // If there is no driver any more, this instance counts alone.
    if peers.orders.try_send(HandoverOrder { has_successor, done }).is_ok() {
        let _ = is_done.recv_timeout(DONE_TIMEOUT);
    }
}

impl PeerDriver {
    pub(super) fn hand_over(&mut self, order: &HandoverOrder, now: Time) {
        self.has_successor = order.has_successor;
        self.orders.push_back(TransportOrder::Accept(!order.has_successor));
        match order.has_successor {
            true => {
                self.collect(now);
                self.replica.hand_over(now);
            }
            false => self.replica.cancel_handover(),
        }
        let _ = order.done.send(());
    }
}
