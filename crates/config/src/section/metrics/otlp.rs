//! The `traces` section and `metrics.otlp`: a collector and the signals that it gets.
//!
//! The keys are described in `rows::metrics`, the settings in `settings/otlp`; host names are not
//! resolved. The environment variables of the reference rate limit service and of OpenTelemetry are
//! converted into this section (`config/environment`).

use super::super::{std_time, tls};
use crate::reader::SectionReader;
use crate::rows::metrics as rows;
use crate::settings::otlp::{
    CollectorSettings, OtlpEndpoint, OtlpMetricsSettings, OtlpProtocol, TracesSettings,
};

/// Reads the `traces` section.
pub fn traces(section: &mut SectionReader<'_, '_>) -> TracesSettings {
    TracesSettings {
        collector: collector(section),
        service: section.key(&rows::SERVICE),
        attributes: section.key(&rows::ATTRIBUTES),
        sampling: section.key(&rows::SAMPLING),
        every: std_time(section.key(&rows::EVERY)),
        queue_max: section.key(&rows::QUEUE),
        batch_max: section.key(&rows::BATCH),
    }
}

/// Reads `metrics.otlp`.
pub fn figures(section: &mut SectionReader<'_, '_>) -> OtlpMetricsSettings {
    OtlpMetricsSettings {
        collector: collector(section),
        service: section.key(&rows::SERVICE),
        attributes: section.key(&rows::ATTRIBUTES),
        every: std_time(section.key(&rows::OTLP_EVERY)),
    }
}

fn collector(section: &mut SectionReader<'_, '_>) -> CollectorSettings {
    let protocol = section.key(&rows::PROTOCOL);
    let tls = section.section_if_written(&rows::COLLECTOR_TLS, tls::client);
    CollectorSettings {
        endpoint: endpoint(section, protocol),
        protocol,
        headers: section.key(&rows::HEADERS),
        gzip: section.key(&rows::COMPRESSION),
        timeout: std_time(section.key(&rows::TIMEOUT)),
        tls: tls.unwrap_or_default(),
    }
}

/// Reads `endpoint`, whose default port is that of the protocol.
fn endpoint(section: &mut SectionReader<'_, '_>, protocol: OtlpProtocol) -> OtlpEndpoint {
    let port = if protocol == OtlpProtocol::Grpc { 4317 } else { 4318 };
    let written = section.key_with("endpoint", |text| rows::endpoint(text, port));
    written.unwrap_or_else(|| {
        let authority = format!("127.0.0.1:{port}");
        let default = OtlpEndpoint { tls: false, authority, path: String::new() };
        section.show_default(&rows::ENDPOINT, &default);
        default
    })
}
