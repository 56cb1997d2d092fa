//! The networks that a pass is good in: where it was made, and a few that its visitor moved to.
//!
//! An address changes while a person reads: a telephone leaves the house, a provider gives out
//! another one, a browser takes IPv6 instead of IPv4. The first 16 bits of an IPv4 address and the
//! first 32 of an IPv6 address are mostly those of a provider, and change seldom. Each move is
//! written into the pass, so no table of moves is kept. A copy of the pass from before a move can
//! move elsewhere. That gains nothing, because all copies have one id and are one client.

use evenkeel_core::key::network;
use std::net::IpAddr;

/// The number of networks that a pass may be taken to, after the one where it was made.
pub const MOVES_MAX: usize = 3;
/// The number of networks that a pass has room for.
pub(super) const NETWORKS_MAX: usize = MOVES_MAX + 1;
/// The bits of an address that make its network.
const NETWORK_BITS_V4: u8 = 16;
const NETWORK_BITS_V6: u8 = 32;

/// The networks in which a pass is accepted: one to four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassNetworks {
    /// The networks, the first one first. Unused places are zero.
    pub(super) list: [u32; NETWORKS_MAX],
    /// The number of used places.
    pub(super) count: u8,
}

impl PassNetworks {
    /// The networks of a new pass: the one of `client`.
    #[must_use]
    pub fn of(client: IpAddr) -> PassNetworks {
        let mut list = [0; NETWORKS_MAX];
        list[0] = network_of(client);
        PassNetworks { list, count: 1 }
    }

    /// The networks as they are written in a token. `None` if no writer makes such a list.
    pub(super) fn read(list: [u32; NETWORKS_MAX], count: u8) -> Option<PassNetworks> {
        let (used, unused) = list.split_at_checked(usize::from(count))?;
        let is_good = !used.is_empty() && unused.iter().all(|network| *network == 0);
        is_good.then_some(PassNetworks { list, count })
    }

    pub(super) fn contains(self, network: u32) -> bool {
        self.list[..usize::from(self.count)].contains(&network)
    }

    /// These networks and one more. `None` if there is no place left.
    pub(super) fn with(mut self, network: u32) -> Option<PassNetworks> {
        *self.list.get_mut(usize::from(self.count))? = network;
        self.count += 1;
        Some(self)
    }
}

/// The network of an address as a number. Those of IPv4 have 16 bits. No IPv6 address in use
/// begins with enough zeros to have the same number.
pub(super) fn network_of(client: IpAddr) -> u32 {
    match network(client, NETWORK_BITS_V4, NETWORK_BITS_V6) {
        IpAddr::V4(v4) => v4.to_bits() >> (32 - NETWORK_BITS_V4),
        IpAddr::V6(v6) => (v6.to_bits() >> (128 - u32::from(NETWORK_BITS_V6))) as u32,
    }
}
