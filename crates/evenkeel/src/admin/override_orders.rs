//! The changes that an operator may make to a single client: exempt it, weigh it, deny it, clear
//! its bucket; or to a group of strangers that burns: deny it, slow it down; and undo that.
//!
//! An order is a small JSON object in the body of a POST. It is checked completely before anything
//! changes, and every change is logged. Which requests are allowed: `guard`. How long a change
//! lasts and what it affects: `engine::view::overrides`.

use super::handlers::AdminShared;
use super::live::ClientKey;
use super::observe::{hash, id};
use super::sources::DoorEngine;
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::LimitAction;
use evenkeel_core::units::{Nanos, SECOND, Time, Weight};
use evenkeel_engine::HeavyClient;
use evenkeel_engine::view::overrides::{Override, OverrideEffect, StrangerGroup};
use evenkeel_telemetry::printable::printable;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The maximum duration of an override in seconds: a day. For longer, use the configuration.
const LENGTH_MAX_SECS: u64 = 86_400;
/// The duration of an override in seconds if the order contains none.
const LENGTH_DEFAULT_SECS: u64 = 3_600;
/// The range of weights that a client may have.
const WEIGHT_RANGE: std::ops::RangeInclusive<f64> = 0.01..=100.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverrideOrder {
    #[serde(rename = "do")]
    what: OrderKind,
    /// The id of the override, for `undo`.
    override_id: Option<u64>,
    door: Option<String>,
    limit: Option<String>,
    /// The client, by the `id` of its row, or by its name in `key`.
    id: Option<String>,
    key: Option<String>,
    /// The group of strangers, by the `id` of its row.
    group: Option<String>,
    for_seconds: Option<u64>,
    weight: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OrderKind {
    Exempt,
    Weigh,
    Clear,
    Deny,
    Slow,
    Undo,
}

/// Why an order is not carried out. Nothing has changed then.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("not an order: {0}")]
    Form(String),
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("no door has a limit with this name; /api/top lists them")]
    Limit,
    #[error("this limit lists no such client; send the `id` from /api/top")]
    Client,
    #[error(
        "no group of strangers with this id waits behind all others (any longer); send the `id` of \
         one from /api/top"
    )]
    Group,
    #[error("override {0} does not exist; it may have ended")]
    Override(u64),
    #[error("for_seconds must be from 1 to {LENGTH_MAX_SECS}; for longer, use the configuration")]
    Length,
    #[error("weight must be from {} to {}, and not 1", WEIGHT_RANGE.start(), WEIGHT_RANGE.end())]
    Weight,
    #[error("clients of this door cannot be exempted, weighed or denied, only cleared")]
    Door,
    #[error("a weight has an effect only with the action queue; this limit's action is {0}")]
    Action(LimitAction),
    #[error(transparent)]
    Full(#[from] evenkeel_engine::view::overrides::OverridesFullError),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownOverride {
    /// The id to undo it with.
    pub override_id: u64,
    pub door: &'static str,
    /// `null` for a group of strangers.
    pub limit: Option<String>,
    /// The name of the client, or what the requests of the group have in common.
    pub key: String,
    /// The client or the group, as the `id` of its rows.
    pub id: String,
    /// `exempt`, `weigh` or `deny`; for a group, `deny` or `slow`.
    #[serde(rename = "do")]
    pub what: &'static str,
    /// The weight of its requests, for `weigh`.
    pub weight: Option<f64>,
    /// Seconds until it ends.
    pub left: f64,
    /// The address that the order came from.
    pub by: String,
}

/// An override that is to be set.
struct ToSet<'a> {
    door: &'a DoorEngine,
    limit: Option<String>,
    hash: KeyHash,
    key: String,
    effect: OverrideEffect,
}

/// The client that an order is about.
struct OrderTarget<'a> {
    door: &'a DoorEngine,
    index: usize,
    limit: String,
    hash: KeyHash,
    key: String,
    action: LimitAction,
}

impl AdminShared {
    pub fn overrides(&self) -> Vec<ShownOverride> {
        let now = self.sources.clock.now();
        let mut all = Vec::new();
        for door in &self.sources.engines {
            let said = door.engine.overrides().unwrap_or_default();
            all.extend(said.into_iter().map(|said| shown(door.door, said, now)));
        }
        all
    }

    /// Carries out the order in `body`, sent by `peer`.
    ///
    /// # Errors
    /// [`OrderError`]; nothing has changed then.
    pub fn act(&self, body: &[u8], peer: IpAddr) -> Result<(), OrderError> {
        let order: OverrideOrder = serde_json::from_slice(body)
            .map_err(|why| OrderError::Form(printable(&why.to_string()).into_owned()))?;
        let said = match order.what {
            OrderKind::Undo => {
                let id = order.override_id.ok_or(OrderError::Missing("override_id"))?;
                return self.undo(id, peer);
            }
            OrderKind::Clear => return self.clear(&self.target(&order)?, peer),
            OrderKind::Exempt | OrderKind::Weigh => self.for_client(&order)?,
            OrderKind::Deny if order.group.is_none() && order.limit.is_none() => {
                return Err(OrderError::Missing("limit` or `group"));
            }
            OrderKind::Deny if order.group.is_none() => self.for_client(&order)?,
            OrderKind::Deny | OrderKind::Slow => self.for_group(&order)?,
        };
        self.set(said, order.for_seconds.unwrap_or(LENGTH_DEFAULT_SECS), peer)
    }

    fn for_client(&self, order: &OverrideOrder) -> Result<ToSet<'_>, OrderError> {
        let target = self.target(order)?;
        let effect = match order.what {
            OrderKind::Weigh => OverrideEffect::Weigh(weight(order, &target)?),
            OrderKind::Deny => OverrideEffect::Refuse,
            _ => OverrideEffect::Exempt,
        };
        let OrderTarget { door, limit, hash, key, .. } = target;
        Ok(ToSet { door, limit: Some(limit), hash, key, effect })
    }

    /// Finds the group among those that burn, and among those with an override, which may not burn
    /// for that reason.
    fn for_group(&self, order: &OverrideOrder) -> Result<ToSet<'_>, OrderError> {
        let id = order.group.as_deref().ok_or(OrderError::Missing("group"))?;
        let wanted = hash(id).ok_or(OrderError::Group)?;
        let asked = |door: &&DoorEngine| order.door.as_deref().is_none_or(|name| name == door.door);
        let mut doors = self.sources.engines.iter().filter(asked);
        let found = doors.find_map(|door| Some((door, group(door, wanted)?)));
        let (door, (strangers, key)) = found.ok_or(OrderError::Group)?;
        let effect = match order.what {
            OrderKind::Slow => OverrideEffect::Slow(strangers),
            _ => OverrideEffect::Deny(strangers),
        };
        Ok(ToSet { door, limit: None, hash: wanted, key, effect })
    }

    fn set(&self, said: ToSet<'_>, seconds: u64, peer: IpAddr) -> Result<(), OrderError> {
        if !(1..=LENGTH_MAX_SECS).contains(&seconds) {
            return Err(OrderError::Length);
        }
        let ToSet { door, limit, hash, key, effect } = said;
        door.engine.overrides().ok_or(OrderError::Door)?;
        let now = self.sources.clock.now();
        let said = door.engine.set_override(Override {
            id: 0,
            limit,
            key,
            hash,
            effect,
            since: now,
            until: now.plus(Nanos::from_secs(seconds)),
            by: peer.to_string(),
        })?;
        let (what, weight) = described(effect);
        let subject = if said.limit.is_some() { "a client" } else { "a group of strangers" };
        tracing::warn!(
            target: "evenkeel::admin", by = %peer, door = door.door,
            limit = said.limit.as_deref(), key = said.key, "do" = what, weight, seconds,
            override_id = said.id, "an operator has set an override for {subject}"
        );
        Ok(())
    }

    fn clear(&self, target: &OrderTarget<'_>, peer: IpAddr) -> Result<(), OrderError> {
        if !target.door.engine.held().forgive(target.index, target.hash) {
            return Err(OrderError::Limit);
        }
        tracing::warn!(
            target: "evenkeel::admin", by = %peer, door = target.door.door, limit = target.limit,
            key = target.key, "do" = "clear", "an operator has cleared a client's bucket"
        );
        Ok(())
    }

    fn undo(&self, id: u64, peer: IpAddr) -> Result<(), OrderError> {
        let mut undone = self.sources.engines.iter().filter_map(|door| {
            let said = door.engine.remove_override(id)?;
            Some((door.door, said))
        });
        let (door, said) = undone.next().ok_or(OrderError::Override(id))?;
        tracing::warn!(
            target: "evenkeel::admin", by = %peer, door, limit = said.limit.as_deref(),
            key = said.key, "do" = "undo", override_id = said.id,
            "an operator has undone an override"
        );
        Ok(())
    }

    fn target(&self, order: &OverrideOrder) -> Result<OrderTarget<'_>, OrderError> {
        let name = order.limit.as_deref().ok_or(OrderError::Missing("limit"))?;
        let (door, index, limit, action) = self
            .sources
            .engines
            .iter()
            .filter(|door| order.door.as_deref().is_none_or(|asked| asked == door.door))
            .find_map(|door| {
                let limiter = door.engine.held();
                let index = limiter.limits().iter().position(|limit| *limit.name == *name)?;
                let limit = &limiter.limits()[index];
                Some((door, index, limit.name.to_string(), limit.action(limiter.policy().action)))
            })
            .ok_or(OrderError::Limit)?;
        let (hash, key) = match (&order.id, &order.key) {
            (Some(id), _) => {
                let hash = hash(id).ok_or(OrderError::Client)?;
                (hash, self.name_of(door, index, &limit, hash).ok_or(OrderError::Client)?)
            }
            (None, Some(key)) => {
                let known = door.engine.top(index);
                let row = known.iter().find(|standing| standing.row.name == *key);
                (row.ok_or(OrderError::Client)?.row.hash, key.clone())
            }
            (None, None) => return Err(OrderError::Missing("id")),
        };
        Ok(OrderTarget { door, index, limit, hash, key, action })
    }

    /// Returns the client's name, its id if it has no name yet, or `None` if it was never seen. An
    /// override for an arbitrary id would only take the place of another.
    fn name_of(
        &self,
        door: &DoorEngine,
        index: usize,
        limit: &str,
        hash: KeyHash,
    ) -> Option<String> {
        let listed = door.engine.top(index).into_iter().find(|one| one.row.hash == hash);
        if let Some(HeavyClient { row, .. }) = listed {
            return Some(if row.name.is_empty() { id(hash) } else { row.name });
        }
        // The client may have left the list and still be shown.
        let said = door.engine.overrides().unwrap_or_default();
        let said = said.into_iter().find(|said| said.hash == hash).map(|said| said.key);
        said.or_else(|| self.remembers(&ClientKey::new(door.door, limit, hash)).then(|| id(hash)))
    }
}

/// The strangers of a group, with what they have in common in words.
fn group(door: &DoorEngine, wanted: KeyHash) -> Option<(StrangerGroup, String)> {
    let burning = door.engine.work().map(|work| work.burning).unwrap_or_default();
    if let Some(found) = burning.into_iter().find(|one| one.key() == wanted) {
        let strangers = StrangerGroup { group: found.group, pressure: found.pressure };
        return Some((strangers, found.name));
    }
    let mut said = door.engine.overrides().unwrap_or_default().into_iter();
    said.find_map(|said| match said.effect {
        OverrideEffect::Deny(group) | OverrideEffect::Slow(group) => {
            (said.hash == wanted).then_some((group, said.key))
        }
        OverrideEffect::Exempt | OverrideEffect::Weigh(_) | OverrideEffect::Refuse => None,
    })
}

fn weight(order: &OverrideOrder, target: &OrderTarget<'_>) -> Result<Weight, OrderError> {
    let weight = order.weight.ok_or(OrderError::Missing("weight"))?;
    if !WEIGHT_RANGE.contains(&weight) || weight == 1.0 {
        return Err(OrderError::Weight);
    }
    if target.action != LimitAction::Queue {
        return Err(OrderError::Action(target.action));
    }
    Ok(Weight::new((weight * 1_000.0).round() as u32))
}

fn described(effect: OverrideEffect) -> (&'static str, Option<f64>) {
    match effect {
        OverrideEffect::Exempt => ("exempt", None),
        OverrideEffect::Deny(_) | OverrideEffect::Refuse => ("deny", None),
        OverrideEffect::Slow(_) => ("slow", None),
        OverrideEffect::Weigh(weight) => ("weigh", Some(f64::from(weight.thousandths()) / 1_000.0)),
    }
}

fn shown(door: &'static str, said: Override, now: Time) -> ShownOverride {
    let (what, weight) = described(said.effect);
    ShownOverride {
        override_id: said.id,
        door,
        limit: said.limit,
        key: said.key,
        id: id(said.hash),
        what,
        weight,
        left: said.until.since(now).0 as f64 / SECOND as f64,
        by: said.by,
    }
}
