//! The map from keys to servers.
//!
//! A single server has all keys. In a ring, the hash of a key's name chooses the server. In a
//! cluster, the nodes report their slots, and redirect a call for a key that they do not have. The
//! map of a cluster is read again when a node redirects a call or is lost.

use super::link::ServerLink;
use evenkeel_config::settings::store::{StoreAddress, StoreLayout, StoreServer, StoreServers};
use redis::Value;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Notify;

/// The number of slots of a cluster.
const SLOTS_COUNT: usize = 16_384;
/// The most nodes of a cluster to connect to.
const NODES_MAX: usize = 1_000;
/// The longest name of a host, in bytes (RFC 1035, 2.3.4).
const HOST_BYTES_MAX: usize = 255;
/// The entry of a slot without a known node.
const NO_NODE: u16 = u16::MAX;

/// The servers of one store, and which keys each has.
pub struct KeyRoute {
    place: Arc<StoreServers>,
    links: RefCell<Vec<Rc<ServerLink>>>,
    /// In a cluster, the index in `links` of each slot's node.
    slots: RefCell<Vec<u16>>,
    /// Notified when a node has redirected a call.
    pub stale: Notify,
}

impl KeyRoute {
    /// Makes links to the configured servers, without connections.
    pub fn new(place: &StoreServers) -> KeyRoute {
        let place = Arc::new(place.clone());
        let servers: Vec<Option<StoreServer>> = match place.layout {
            StoreLayout::Sentinel(_) => vec![None],
            _ => place.servers.iter().cloned().map(Some).collect(),
        };
        let links = servers.into_iter().map(|server| ServerLink::new(&place, server)).collect();
        let slots = match place.layout {
            StoreLayout::Cluster => vec![NO_NODE; SLOTS_COUNT],
            _ => Vec::new(),
        };
        let (links, slots) = (RefCell::new(links), RefCell::new(slots));
        KeyRoute { place, links, slots, stale: Notify::new() }
    }

    /// Whether the servers are a cluster, in which each call has one key.
    pub fn is_cluster(&self) -> bool {
        self.place.layout == StoreLayout::Cluster
    }

    /// The links to all known servers.
    pub fn links(&self) -> Vec<Rc<ServerLink>> {
        self.links.borrow().clone()
    }

    /// The link to the server that has the key `name`; `None` if that server is unknown.
    pub fn link(&self, name: &str) -> Option<Rc<ServerLink>> {
        let index = match self.place.layout {
            StoreLayout::Single | StoreLayout::Sentinel(_) => 0,
            StoreLayout::Ring => {
                crc32fast::hash(name.as_bytes()) as usize % self.links.borrow().len().max(1)
            }
            StoreLayout::Cluster => self.slots.borrow()[slot(name.as_bytes())].into(),
        };
        self.at(index)
    }

    /// The link at this index.
    fn at(&self, index: usize) -> Option<Rc<ServerLink>> {
        self.links.borrow().get(index).cloned()
    }

    /// Records that another node, at `host:port`, has the slot of `name`. Returns the link to it.
    pub fn moved(&self, name: &str, to: &str) -> Option<Rc<ServerLink>> {
        self.stale.notify_one();
        let index = self.index_of(to, None)?;
        self.slots.borrow_mut()[slot(name.as_bytes())] = index;
        self.at(index.into())
    }

    /// The link to the node at `host:port`.
    pub fn node(&self, at: &str) -> Option<Rc<ServerLink>> {
        self.at(self.index_of(at, None)?.into())
    }

    /// The index of a node among the links. An unknown node is added. A node without a host in the
    /// answer has the host of the node that was asked.
    fn index_of(&self, at: &str, asked: Option<&str>) -> Option<u16> {
        let (host, port) = at.rsplit_once(':')?;
        let host = match (host.trim_matches(['[', ']']), asked) {
            ("", asked) => asked?,
            (host, _) => host,
        };
        let port: u16 = port.parse().ok().filter(|_| host.len() <= HOST_BYTES_MAX)?;
        let tls =
            self.place.servers.iter().any(|s| matches!(s.end, StoreAddress::Tcp { tls: true, .. }));
        let end = StoreAddress::Tcp { host: host.to_owned(), port, tls };
        let mut links = self.links.borrow_mut();
        let found =
            links.iter().position(|link| link.server().is_some_and(|server| server.end == end));
        if found.is_none() && links.len() >= NODES_MAX {
            return None;
        }
        let index = found.unwrap_or_else(|| {
            let login = self.place.servers.first().and_then(|server| server.login.clone());
            let server = StoreServer { end, login, database: 0 };
            links.push(ServerLink::new(&self.place, Some(server)));
            links.len() - 1
        });
        u16::try_from(index).ok()
    }

    /// Replaces the map of slots by the answer of a node at `host`. Returns the links to nodes
    /// without slots, which are removed; `None` if the answer is malformed.
    pub fn learn(&self, answer: &Value, host: &str) -> Option<Vec<Rc<ServerLink>>> {
        let Value::Array(ranges) = answer else { return None };
        let ranges: Option<Vec<_>> = ranges.iter().map(range_of).collect();
        let mut slots = vec![NO_NODE; SLOTS_COUNT];
        for (first, last, node) in ranges? {
            let Some(index) = self.index_of(&node, Some(host)) else { continue };
            slots[first..=last].fill(index);
        }
        let gone = self.let_go(&mut slots);
        *self.slots.borrow_mut() = slots;
        Some(gone)
    }

    /// Removes the nodes without slots, and renumbers the others in `slots`.
    fn let_go(&self, slots: &mut [u16]) -> Vec<Rc<ServerLink>> {
        let mut links = self.links.borrow_mut();
        let mut places = vec![NO_NODE; links.len()];
        let (mut stay, mut gone) = (Vec::new(), Vec::new());
        for (index, link) in links.drain(..).enumerate() {
            if slots.iter().any(|slot| usize::from(*slot) == index) {
                places[index] = stay.len() as u16;
                stay.push(link);
            } else {
                gone.push(link);
            }
        }
        for slot in slots {
            *slot = places.get(usize::from(*slot)).copied().unwrap_or(NO_NODE);
        }
        *links = stay;
        gone
    }

    /// Adds the configured servers again, because none of the known nodes answers.
    pub fn ask_seeds(&self) {
        for server in &self.place.servers {
            let _ = self.index_of(&server.end.to_string(), None);
        }
    }
}

/// The range of slots in one entry of CLUSTER SLOTS, and the address of its master.
fn range_of(range: &Value) -> Option<(usize, usize, String)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else {
        return None;
    };
    let bound = |n: i64| usize::try_from(n).ok().filter(|slot| *slot < SLOTS_COUNT);
    let (first, last) = (bound(*first)?, bound(*last)?);
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) => host.clone(),
        _ => String::new(),
    };
    (first <= last).then(|| (first, last, format!("{host}:{port}")))
}

/// The slot of a name. If the name has a part between braces, only the first such part counts.
fn slot(name: &[u8]) -> usize {
    let tagged = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &name[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    usize::from(crc16(tagged.unwrap_or(name))) % SLOTS_COUNT
}

/// CRC-16/XMODEM, as Redis clusters use it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // As answered by redis-cli CLUSTER KEYSLOT.
        for (name, at) in [("foo", 12_182), ("{user1000}.following", 3_443), ("foo{}{bar}", 8_363)]
        {
            assert_eq!(slot(name.as_bytes()), at, "{name}");
        }
        assert_eq!(slot(b"a{x}b"), slot(b"x"));
    }

    fn unknown() -> KeyRoute {
        KeyRoute::new(&StoreServers {
            servers: Vec::new(),
            layout: StoreLayout::Cluster,
            login: None,
            credentials_file: None,
            tls: Default::default(),
        })
    }

    #[test]
    fn what_is_no_name_of_a_host_is_not_kept() {
        let route = unknown();
        let long = |bytes| format!("{}:7000", "a".repeat(bytes));
        assert!(route.moved("foo", &long(HOST_BYTES_MAX + 1)).is_none());
        assert!(route.node(&long(1 << 20)).is_none());
        assert!(route.links().is_empty());
        assert!(route.moved("foo", &long(HOST_BYTES_MAX)).is_some());
    }

    #[test]
    fn what_is_no_map_of_slots_changes_nothing() {
        let route = unknown();
        let range = |first, last| {
            let master = vec![Value::BulkString(b"127.0.0.1".to_vec()), Value::Int(7000)];
            Value::Array(vec![Value::Int(first), Value::Int(last), Value::Array(master)])
        };
        for wrong in [Value::Nil, Value::Array(vec![Value::Nil]), Value::Array(vec![range(5, 4)])] {
            assert!(route.learn(&wrong, "h").is_none());
        }
        assert!(route.learn(&Value::Array(vec![range(0, 16_384)]), "h").is_none());
        assert!(route.link("foo").is_none());
        assert!(route.learn(&Value::Array(vec![range(12_000, 13_000)]), "h").is_some());
        assert_eq!(route.link("foo").map(|link| link.name()).as_deref(), Some("127.0.0.1:7000"));
        assert!(route.link("bar").is_none());
    }
}
