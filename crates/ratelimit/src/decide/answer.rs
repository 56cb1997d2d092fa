//! Makes the answer from the result of each limit.
//!
//! It sets the code of each status, decides which statuses determine the overall code (shadow mode,
//! quotas), and fills the response headers and Envoy's dynamic metadata. How a limit counts for the
//! metrics: `matching`.

use super::matching::{self, DescriptorMatch, LimitMatch};
use super::{RatelimitDecider, RequestLogForm};
use crate::rules::{RateUnit, merge_metadata};
use crate::wire::view::{DescriptorView, RequestView};
use crate::wire::{Code, CurrentLimit, HeaderValue, ProtoPackage, Response, Status};
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_core::units::Time;
use evenkeel_core::windows::Hit;
use prost_types::value::Kind;
use prost_types::{Duration, ListValue, Struct, Value};
use std::sync::atomic::Ordering::Relaxed;

struct AnswerBuilder<'a> {
    settings: &'a RatelimitAnswers,
    request: &'a RequestView<'a>,
    met: &'a [DescriptorMatch<'a>],
    hits: &'a [Hit],
    now: Time,
}

impl RatelimitDecider {
    /// Makes the answer after all hits have been counted, and updates the metrics.
    pub(super) fn conclude(
        &self,
        (met, hits): (&[DescriptorMatch<'_>], &[Hit]),
        request: &RequestView<'_>,
        package: ProtoPackage,
        settings: &RatelimitAnswers,
        now: Time,
    ) -> Response {
        let mut look = self.counters.look();
        for (met, part) in met.iter().zip(&request.descriptors) {
            if let DescriptorMatch::Limited(limited) = met {
                let (hit, entries) = (&hits[limited.hit_index], request.entries(part));
                let tally = self.tally(limited, request.domain, entries);
                tally.count(limited, hit, settings.near_limit_ratio);
                if let Some(look) = &mut look {
                    matching::sample(look, hit, request.domain, entries);
                }
            }
        }
        drop(look);
        let (response, shadowed) =
            AnswerBuilder { settings, request, met, hits, now }.response(package);
        if shadowed {
            self.events.global_shadow_mode.fetch_add(1, Relaxed);
        }
        tracing::debug!(
            target: "evenkeel::ratelimit", request = %RequestLogForm(request),
            code = response.overall_code().as_str_name(), "answered"
        );
        response
    }
}

impl AnswerBuilder<'_> {
    /// Returns the answer, and whether its code is OK only because of the global shadow mode.
    fn response(&self, package: ProtoPackage) -> (Response, bool) {
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
                let hit = &self.hits[limited.hit_index];
                let shadow = limited.rule.is_some_and(|rule| rule.shadow);
                let over = hit.is_over() && !shadow;
                let code = if over { Code::OverLimit } else { Code::Ok };
                Status {
                    code: code.into(),
                    current_limit: Some(current(limited)),
                    limit_remaining: hit.remaining(),
                    duration_until_reset: Some(Duration {
                        seconds: hit.reset_secs(self.now).into(),
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
        let mut merged = Struct::default();
        for (met, status) in self.met.iter().zip(statuses) {
            let metadata = met.rule().and_then(|rule| rule.metadata.as_ref());
            if let Some(metadata) = metadata.filter(|_| status.code() == Code::Ok) {
                merge_metadata(&mut merged, metadata);
            }
        }
        let hits = self.request.hits_addend;
        let descriptors = self.request.descriptors.iter();
        let descriptors = descriptors.map(|part| descriptor_metadata(self.request, part));
        message([
            ("domain", Some(Kind::StringValue(self.request.domain.to_owned()))),
            ("descriptors", Some(list(descriptors))),
            ("hitsAddend", (hits != 0).then(|| Kind::NumberValue(hits.into()))),
            ("metadata", (!merged.fields.is_empty()).then_some(Kind::StructValue(merged))),
        ])
    }
}

fn current(limited: &LimitMatch<'_>) -> CurrentLimit {
    CurrentLimit {
        name: limited.rule.and_then(|rule| rule.name.as_deref()).unwrap_or_default().to_owned(),
        requests_per_unit: limited.limit.requests,
        unit: limited.limit.unit as i32,
    }
}

fn descriptor_metadata(request: &RequestView<'_>, descriptor: &DescriptorView) -> Kind {
    let entries = request.entries(descriptor).iter();
    let entries = entries.map(|(key, value)| Kind::StringValue(format!("{key}={value}")));
    let limit = descriptor.limit.map(|limit| {
        let unit = RateUnit::from_wire(limit.unit).map_or("UNKNOWN", RateUnit::name);
        let requests = limit.requests_per_unit;
        Kind::StringValue(format!("requests_per_unit:{requests} unit:{unit}"))
    });
    let hits = descriptor.hits_addend.map(|hits| Kind::NumberValue(hits as f64));
    let fields = [("entries", Some(list(entries))), ("limit", limit), ("hitsAddend", hits)];
    Kind::StructValue(message(fields))
}

/// Makes a message of the fields that have a value.
fn message<const N: usize>(fields: [(&str, Option<Kind>); N]) -> Struct {
    let fields = fields.into_iter().filter(|(_, kind)| kind.is_some());
    Struct { fields: fields.map(|(name, kind)| (name.to_owned(), Value { kind })).collect() }
}

fn list(kinds: impl Iterator<Item = Kind>) -> Kind {
    Kind::ListValue(ListValue { values: kinds.map(|kind| Value { kind: Some(kind) }).collect() })
}
