//! The `traces` section and `metrics.otlp`: a collector and the signals that it gets.
//!
//! Each key is read with its default and its range; host names are not resolved. The settings are
//! described in `settings/otlp`. The environment variables of the reference rate limit service and
//! of OpenTelemetry are converted into this section (`config/environment`).

use super::super::proxy::duration;
use super::super::{limits, tls};
use crate::reader::{Read, SectionReader, one_of, within};
use crate::settings::otlp::{
    CollectorSettings, OtlpEndpoint, OtlpMetricsSettings, OtlpProtocol, TracesSettings,
};
use evenkeel_core::units::Nanos;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Reads the `traces` section.
pub fn traces(section: &mut SectionReader<'_, '_>) -> TracesSettings {
    let part = |text: &str| {
        let number = text.parse::<f64>().map_err(|_| "not a number from 0 to 1".to_owned());
        within(number?, 0.0..=1.0)
    };
    TracesSettings {
        collector: collector(section),
        service: section.value("service", "evenkeel".to_owned(), named),
        attributes: section.values("attributes", |text| pair(text, "an attribute is key:value")),
        sampling: section.value("sampling", 1.0, part),
        every: time(section, "every", Nanos::from_secs(5)),
        queue_max: section.value("queue", 2_048, number(1..=1_000_000)),
        batch_max: section.value("batch", 512, number(1..=10_000)),
    }
}

/// Reads `metrics.otlp`.
pub fn figures(section: &mut SectionReader<'_, '_>) -> OtlpMetricsSettings {
    let range = Nanos::from_secs(1)..=Nanos::from_secs(3_600);
    let every = |text: &str| within(duration(text)?, range.clone());
    OtlpMetricsSettings {
        collector: collector(section),
        service: section.value("service", "evenkeel".to_owned(), named),
        attributes: section.values("attributes", |text| pair(text, "an attribute is key:value")),
        every: Duration::from_nanos(section.value("every", Nanos::from_secs(10), every).0),
    }
}

fn collector(section: &mut SectionReader<'_, '_>) -> CollectorSettings {
    let protocol = |text: &str| one_of(text, &OtlpProtocol::WORDS);
    let protocol = section.value("protocol", OtlpProtocol::Http, protocol);
    let port = if protocol == OtlpProtocol::Grpc { 4317 } else { 4318 };
    let default =
        OtlpEndpoint { tls: false, authority: format!("127.0.0.1:{port}"), path: "".into() };
    let endpoint = section.value("endpoint", default, |text| endpoint(text, port));
    let compression = |text: &str| one_of(text, &[("none", "none"), ("gzip", "gzip")]);
    let header = |text: &str| {
        let (name, value) = pair(text, "a header is name:value")?;
        limits::header_name(&name)?;
        let sound = http::HeaderValue::from_str(&value).is_ok();
        if sound { Ok((name, value)) } else { Err("this is no header".to_owned()) }
    };
    let tls = match section.written("tls") {
        true => section.section("tls", tls::client),
        false => {
            section.allow("tls");
            Default::default()
        }
    };
    CollectorSettings {
        endpoint,
        protocol,
        headers: section.values("headers", header),
        gzip: section.value("compression", "none", compression) == "gzip",
        timeout: time(section, "timeout", Nanos::from_secs(10)),
        tls,
    }
}

/// Reads `http://host:port/path`. The defaults of port and path are those of the protocol.
fn endpoint(text: &str, port: u16) -> Read<OtlpEndpoint> {
    let wrong = || "write http://host:port or https://host:port".to_owned();
    let uri: http::Uri = text.parse().map_err(|_| wrong())?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong()),
    };
    let authority = uri.authority().ok_or_else(wrong)?;
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err("it may have a host, a port and a path; use `headers` for a secret".to_owned());
    }
    let port = authority.port_u16().unwrap_or(port);
    let path = if uri.path() == "/" { "" } else { uri.path() };
    Ok(OtlpEndpoint {
        tls,
        authority: format!("{}:{port}", authority.host()),
        path: path.to_owned(),
    })
}

fn pair(text: &str, form: &str) -> Read<(String, String)> {
    let (key, value) = text.split_once(':').ok_or(form)?;
    let (key, value) = (key.trim(), value.trim());
    match !key.is_empty() && !text.contains(char::is_control) {
        true => Ok((key.to_owned(), value.to_owned())),
        false => Err(form.to_owned()),
    }
}

fn named(text: &str) -> Read<String> {
    if text.is_empty() { Err("write a name".to_owned()) } else { Ok(text.to_owned()) }
}

fn time(section: &mut SectionReader<'_, '_>, key: &'static str, default: Nanos) -> Duration {
    let range = Nanos::from_millis(1)..=Nanos::from_secs(3_600);
    let nanos = section.value(key, default, |text| within(duration(text)?, range.clone()));
    Duration::from_nanos(nanos.0)
}

fn number(range: RangeInclusive<u64>) -> impl Fn(&str) -> Read<usize> {
    move |text| within(super::super::proxy::count(text)?, range.clone()).map(|n| n as usize)
}
