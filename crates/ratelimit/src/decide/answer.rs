//! Makes the answer from the result of each limit.
//!
//! It sets the code of each status, decides which statuses determine the overall code (shadow mode,
//! quotas), and fills the response headers and Envoy's dynamic metadata. It counts nothing;
//! `matching` does that for the metrics.

use super::ProtoPackage;
use super::matching::{DescriptorMatch, LimitedDescriptor};
use crate::rules::{RateUnit, merge_metadata};
use crate::wire::view::{DescriptorView, RequestView};
use crate::wire::{Code, CurrentLimit, HeaderValue, Response, Status};
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_core::units::Time;
use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct};
use serde_json::{Map, Value, json};

/// Everything that an answer is made from.
pub struct AnswerBuilder<'a> {
    pub(super) settings: &'a RatelimitAnswers,
    pub(super) request: &'a RequestView<'a>,
    pub(super) met: &'a [DescriptorMatch<'a>],
    pub(super) now: Time,
}

impl AnswerBuilder<'_> {
    /// Returns the answer, and whether its code is OK only because of the global shadow mode.
    pub fn response(&self, package: ProtoPackage) -> (Response, bool) {
        let mut statuses: Vec<Status> = self.met.iter().map(|met| self.status(met)).collect();
        let over = self.is_over(&statuses);
        let shadowed = over && self.settings.shadow;
        let code = if over && !shadowed { Code::OverLimit } else { Code::Ok };
        let headers = self.headers(&statuses);
        let dynamic_metadata = match self.settings.dynamic_metadata && package == ProtoPackage::V3 {
            true => Some(self.metadata(&statuses)),
            false => None,
        };
        if package == ProtoPackage::Old {
            for status in &mut statuses {
                status.duration_until_reset = None;
                status.current_limit.iter_mut().for_each(|limit| limit.name.clear());
            }
        }
        let response = Response {
            overall_code: code.into(),
            statuses,
            response_headers_to_add: headers,
            dynamic_metadata,
            ..Response::default()
        };
        (response, shadowed)
    }

    fn status(&self, met: &DescriptorMatch<'_>) -> Status {
        let ok = Status { code: Code::Ok.into(), ..Status::default() };
        match met {
            DescriptorMatch::Free => ok,
            DescriptorMatch::Unlimited(_) => Status { limit_remaining: u32::MAX, ..ok },
            DescriptorMatch::Limited(limited) => {
                let shadow = limited.rule.is_some_and(|rule| rule.shadow);
                let over = limited.hit.is_over() && !shadow;
                let code = if over { Code::OverLimit } else { Code::Ok };
                Status {
                    code: code.into(),
                    current_limit: Some(current(limited)),
                    limit_remaining: limited.hit.remaining(),
                    duration_until_reset: Some(Duration {
                        seconds: limited.hit.reset_secs(self.now).into(),
                        nanos: 0,
                    }),
                }
            }
        }
    }

    fn is_quota(&self, met: &DescriptorMatch<'_>) -> bool {
        match met {
            DescriptorMatch::Unlimited(_) => false,
            DescriptorMatch::Free => self.settings.quota,
            DescriptorMatch::Limited(_) => {
                self.settings.quota || met.rule().is_some_and(|rule| rule.quota)
            }
        }
    }

    /// One exceeded limit makes the request over the limit, but limits in quota mode count only if
    /// all of them are exceeded.
    fn is_over(&self, statuses: &[Status]) -> bool {
        let (mut quotas, mut quotas_over, mut over) = (0, 0, false);
        for (met, status) in self.met.iter().zip(statuses) {
            let is_over = status.code() == Code::OverLimit;
            if self.is_quota(met) {
                quotas += 1;
                quotas_over += usize::from(is_over);
            } else {
                over |= is_over;
            }
        }
        over || (quotas > 0 && quotas == quotas_over)
    }

    /// The headers describe one limit: the last one that is exceeded and not in quota mode,
    /// otherwise the one with the fewest hits left.
    fn headers(&self, statuses: &[Status]) -> Vec<HeaderValue> {
        let Some(names) = &self.settings.headers else { return Vec::new() };
        let all = || self.met.iter().zip(statuses);
        let limited =
            all().filter_map(|(_, status)| status.current_limit.as_ref().zip(Some(status)));
        let over = all().rev().find(|(met, status)| {
            status.code() == Code::OverLimit
                && !self.is_quota(met)
                && status.current_limit.is_some()
        });
        let over = over.and_then(|(_, status)| status.current_limit.as_ref().zip(Some(status)));
        let told = over.or_else(|| limited.min_by_key(|(_, status)| status.limit_remaining));
        let Some((limit, status)) = told else { return Vec::new() };
        let reset = status.duration_until_reset.map_or(0, |reset| reset.seconds);
        let [limit_name, remaining_name, reset_name] = names;
        let header = |key: &str, value: String| HeaderValue {
            key: key.to_owned(),
            value,
            raw_value: Vec::new(),
        };
        vec![
            header(limit_name, limit.requests_per_unit.to_string()),
            header(remaining_name, status.limit_remaining.to_string()),
            header(reset_name, reset.to_string()),
        ]
    }

    fn metadata(&self, statuses: &[Status]) -> Struct {
        let mut all = Map::new();
        let descriptors = self.request.descriptors.iter().map(descriptor_metadata).collect();
        all.insert("domain".into(), self.request.domain.into());
        all.insert("descriptors".into(), Value::Array(descriptors));
        if self.request.hits_addend != 0 {
            all.insert("hitsAddend".into(), self.request.hits_addend.into());
        }
        let mut all = to_struct(&all);
        let mut merged = Struct::default();
        for (met, status) in self.met.iter().zip(statuses) {
            let metadata = met.rule().and_then(|rule| rule.metadata.as_ref());
            if let Some(metadata) = metadata.filter(|_| status.code() == Code::Ok) {
                merge_metadata(&mut merged, metadata);
            }
        }
        if !merged.fields.is_empty() {
            let kind = Some(Kind::StructValue(merged));
            all.fields.insert("metadata".into(), prost_types::Value { kind });
        }
        all
    }
}

fn current(limited: &LimitedDescriptor<'_>) -> CurrentLimit {
    CurrentLimit {
        name: limited.rule.and_then(|rule| rule.name.as_deref()).unwrap_or_default().to_owned(),
        requests_per_unit: limited.limit.requests,
        unit: limited.limit.unit as i32,
    }
}

fn descriptor_metadata(descriptor: &DescriptorView<'_>) -> Value {
    let entries = descriptor.entries.as_slice().iter();
    let entries = entries.map(|(key, value)| format!("{key}={value}"));
    let mut one = json!({"entries": entries.collect::<Vec<_>>()});
    if let Some(limit) = &descriptor.limit {
        let unit = RateUnit::from_wire(limit.unit).map_or("UNKNOWN", RateUnit::name);
        let text = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        one["limit"] = text.into();
    }
    if let Some(hits) = descriptor.hits_addend {
        one["hitsAddend"] = hits.into();
    }
    one
}

fn to_struct(map: &Map<String, Value>) -> Struct {
    Struct { fields: map.iter().map(|(key, value)| (key.clone(), to_value(value))).collect() }
}

fn to_value(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(truth) => Kind::BoolValue(*truth),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(to_value).collect() })
        }
        Value::Object(map) => Kind::StructValue(to_struct(map)),
    };
    prost_types::Value { kind: Some(kind) }
}
