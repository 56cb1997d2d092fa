//! One decision, as it is logged.

use std::net::IpAddr;
use tollgate_core::meter::Measure;
use tollgate_core::units::{Cost, Nanos};

/// Why a request was held, delayed or refused.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// `hold`, `delay` or `reject`.
    pub verdict: &'static str,
    /// The limit's name.
    pub limit: &'a str,
    /// The bucket's name.
    pub key: &'a str,
    /// Who asked.
    pub client: IpAddr,
    /// What was left, in nano-units of cost.
    pub level: Option<i64>,
    /// How long it has to wait.
    pub wait: Nanos,
    /// What the request cost so far, and how that was measured; `None` before it ran.
    pub cost: Option<(Cost, Measure)>,
    /// Decided but not enforced.
    pub shadow: bool,
}
