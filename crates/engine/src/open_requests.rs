//! The open requests of a lane, for display: what is with the backend, and what waits for it.
//!
//! A request has an entry from its arrival until its account is closed. The list is bounded: a
//! request that finds it full is not shown. Entries are used again with their texts, so a request
//! costs the copy of its path and no allocation. No decision uses the list. It is a part of the
//! lane's state, and locked with it.

use evenkeel_core::classify::{RequestAttributes, normal_path, readable};
use evenkeel_core::meter::estimate::fold;
use evenkeel_core::units::{Nanos, Time};
use std::net::{IpAddr, Ipv4Addr};

/// The maximum number of requests that a lane lists, at some 200 bytes each. Too low: the oldest
/// request may be missing. Too high: memory.
const OPEN_MAX: usize = 4_096;
/// The part of a path that is kept, in bytes.
const PATH_BYTES_MAX: usize = 120;

/// The stage of an open request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStage {
    /// It waits in the queue.
    Waiting,
    /// The backend works on it.
    Working,
    /// The backend has it and waits for its client, which sends the request or reads the answer
    /// too slowly.
    Stalled,
}

/// An open request.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRequest {
    /// The address of its client.
    pub client: IpAddr,
    /// The method and the path, with the parts that name single things left out.
    pub route: String,
    /// Its stage.
    pub stage: RequestStage,
    /// The time since when it waits, or since when the backend has it.
    pub age: Nanos,
}

/// A snapshot of the open requests of a door.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenRequestList {
    /// The oldest requests that are with the backend, the oldest first.
    pub running: Vec<OpenRequest>,
    /// The request that has waited for longest.
    pub waiting: Option<OpenRequest>,
}

/// The entries of a lane.
#[derive(Default)]
pub(crate) struct OpenRequests {
    entries: Vec<OpenEntry>,
    free: Vec<u32>,
}

struct OpenEntry {
    client: IpAddr,
    /// The method, a space and the path.
    asked: String,
    /// `None`: it has neither waited nor reached the backend, or its answer is held.
    stage: Option<RequestStage>,
    since: Time,
}

impl OpenEntry {
    fn is_running(&self) -> bool {
        matches!(self.stage, Some(RequestStage::Working | RequestStage::Stalled))
    }

    fn shown(&self, now: Time) -> Option<OpenRequest> {
        let (method, path) = self.asked.split_once(' ')?;
        let route = format!("{method} {}", fold(&normal_path(path)));
        let (client, age) = (self.client, now.since(self.since));
        Some(OpenRequest { client, route: readable(route.as_bytes()), stage: self.stage?, age })
    }
}

impl OpenRequests {
    /// Adds a request. Returns its place; `None` if the list is full.
    pub(crate) fn insert(&mut self, request: &impl RequestAttributes) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.entries.len() >= OPEN_MAX => return None,
            None => {
                let client = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                let asked = String::new();
                self.entries.push(OpenEntry { client, asked, stage: None, since: Time::ZERO });
                u32::try_from(self.entries.len() - 1).ok()?
            }
        };
        let entry = self.entries.get_mut(place as usize)?;
        let path = request.path();
        entry.client = request.address();
        entry.stage = None;
        entry.asked.clear();
        entry.asked.push_str(request.method());
        entry.asked.push(' ');
        entry.asked.push_str(&path[..path.floor_char_boundary(PATH_BYTES_MAX)]);
        Some(place)
    }

    pub(crate) fn remove(&mut self, place: u32) {
        if let Some(entry) = self.entries.get_mut(place as usize) {
            entry.stage = None;
            self.free.push(place);
        }
    }

    /// Changes the stage of a request. Its age begins anew, unless the backend has it before and
    /// after. A request that the backend has in part waits for a slot in its old stage.
    pub(crate) fn set(&mut self, place: u32, stage: Option<RequestStage>, now: Time) {
        let Some(entry) = self.entries.get_mut(place as usize) else { return };
        match (entry.is_running(), stage) {
            (true, Some(RequestStage::Waiting)) | (false, Some(RequestStage::Stalled)) => return,
            (true, _) => {}
            (false, _) => entry.since = now,
        }
        entry.stage = stage;
    }

    /// Adds the oldest requests to `list`, which gets at most `max` that are with the backend.
    pub(crate) fn collect(&self, list: &mut OpenRequestList, max: usize, now: Time) {
        let mut running: Vec<_> = self.entries.iter().filter(|entry| entry.is_running()).collect();
        running.sort_unstable_by_key(|entry| entry.since);
        list.running.extend(running.iter().take(max).filter_map(|entry| entry.shown(now)));
        list.running.sort_by_key(|request| std::cmp::Reverse(request.age));
        list.running.truncate(max);
        let waits = |entry: &&OpenEntry| entry.stage == Some(RequestStage::Waiting);
        let oldest = self.entries.iter().filter(waits).min_by_key(|entry| entry.since);
        let oldest = oldest.and_then(|entry| entry.shown(now)).into_iter();
        list.waiting = oldest.chain(list.waiting.take()).max_by_key(|request| request.age);
    }
}
