//! The variables about traces: those of the reference and those of OpenTelemetry's specification.
//!
//! The reference's variables define whether requests are traced and the name of the service. The
//! variables of OpenTelemetry's exporters define the collector; those for traces take precedence
//! over those for all signals. How a variable is read: `environment`.

use super::{EnvironmentReader, list};
use crate::tree::{YamlNode, YamlValue};
use percent_encoding::percent_decode_str;

/// Variables of the exporter, without their prefix; each exists for traces and for all signals. The
/// unit is appended to the value.
const EXPORTER: [(&str, &str, &str); 5] = [
    ("COMPRESSION", "traces.compression", ""),
    ("TIMEOUT", "traces.timeout", "ms"),
    ("CERTIFICATE", "traces.tls.ca", ""),
    ("CLIENT_CERTIFICATE", "traces.tls.cert", ""),
    ("CLIENT_KEY", "traces.tls.key", ""),
];
/// Variables of the batch processor.
const BATCHES: [(&str, &str, &str); 3] = [
    ("OTEL_BSP_SCHEDULE_DELAY", "traces.every", "ms"),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "traces.queue", ""),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "traces.batch", ""),
];

impl EnvironmentReader<'_> {
    /// Sets the `traces` section, if traces are enabled.
    pub(super) fn traces(&mut self) {
        if !self.truth("TRACING_ENABLED", false) {
            return;
        }
        let protocol = match self.text_or("TRACING_EXPORTER_PROTOCOL", "http").as_str() {
            "http" => "http",
            "grpc" => "grpc",
            other => {
                self.fault(format!("TRACING_EXPORTER_PROTOCOL={other}: must be http or grpc"));
                "http"
            }
        };
        self.put("traces.protocol", YamlNode::text(protocol));
        let service = self.text_or("OTEL_SERVICE_NAME", "RateLimit");
        let service = self.text_or("TRACING_SERVICE_NAME", &service);
        self.set("traces.service", "TRACING_SERVICE_NAME", service);
        let attributes = self.attributes();
        self.put("traces.attributes", attributes);
        if let Some(text) = self.endpoint(protocol) {
            self.set("traces.endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", text);
        }
        let name = "TRACING_SAMPLING_RATE";
        let sampling = self.text(name).map(|text| match text.parse::<f64>() {
            // Values above 1 mean all requests, values below 0 none.
            Ok(part) if !part.is_nan() => part.clamp(0.0, 1.0).to_string(),
            _ => text,
        });
        if let Some(text) = sampling {
            self.set("traces.sampling", name, text);
        }
        if let Some(text) = self.exporter("HEADERS") {
            self.put("traces.headers", pairs(&text));
        }
        for (name, key, unit) in EXPORTER {
            if let Some(text) = self.exporter(name) {
                self.set(key, &format!("OTEL_EXPORTER_OTLP_{name}"), text + unit);
            }
        }
        for (name, key, unit) in BATCHES {
            if let Some(text) = self.text(name) {
                self.set(key, name, text + unit);
            }
        }
    }

    /// A variable of the exporter: for traces, or else for all signals.
    fn exporter(&self, name: &str) -> Option<String> {
        let own = self.text(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
        own.or_else(|| self.text(&format!("OTEL_EXPORTER_OTLP_{name}")))
    }

    /// The endpoint for traces is used unchanged. With HTTP, `/v1/traces` is appended to the
    /// endpoint for all signals.
    fn endpoint(&self, protocol: &str) -> Option<String> {
        if let Some(own) = self.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
            return Some(own);
        }
        let all = self.text("OTEL_EXPORTER_OTLP_ENDPOINT")?;
        let all = all.trim_end_matches('/');
        Some(if protocol == "grpc" { all.to_owned() } else { format!("{all}/v1/traces") })
    }

    fn attributes(&self) -> YamlNode {
        let mut list = Vec::new();
        for (key, name) in [
            ("service.namespace", "TRACING_SERVICE_NAMESPACE"),
            ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID"),
        ] {
            list.extend(self.text(name).map(|text| YamlNode::text(format!("{key}:{text}"))));
        }
        if let YamlValue::List(more) = pairs(&self.text_or("OTEL_RESOURCE_ATTRIBUTES", "")).value {
            list.extend(more);
        }
        YamlNode::made(YamlValue::List(list))
    }
}

/// `a=b,c=d`, values escaped as in URLs, as a list of `a:b`. What is not escaped properly stays as
/// it is.
fn pairs(text: &str) -> YamlNode {
    list(text, |pair| {
        percent_decode_str(&pair.replacen('=', ":", 1)).decode_utf8_lossy().into_owned()
    })
}

#[cfg(test)]
mod tests {
    use crate::environment::tests::settings;
    use crate::settings::otlp::{OtlpProtocol, TracesSettings};
    use std::time::Duration;

    fn traces(variables: &[(&str, &str)]) -> Result<TracesSettings, String> {
        let all = [&[("TRACING_ENABLED", "true")], variables].concat();
        settings(&all).map(|settings| settings.traces.expect("its section"))
    }

    #[test]
    fn traces_go_where_the_specifications_variables_say() {
        assert_eq!(settings(&[]).expect("sound").traces, None);
        let plain = traces(&[]).expect("sound");
        assert_eq!(plain.collector.endpoint.to_string(), "http://127.0.0.1:4318");
        assert_eq!((plain.service.as_str(), plain.sampling), ("RateLimit", 1.0));
        assert_eq!((plain.queue_max, plain.batch_max), (2_048, 512));
        let all = traces(&[
            ("TRACING_SERVICE_NAME", "edge"),
            ("TRACING_SERVICE_NAMESPACE", "shop"),
            ("TRACING_SERVICE_INSTANCE_ID", "a-1"),
            ("TRACING_SAMPLING_RATE", "0.25"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone=a%20b,rack=7,odd=%+1%zz%"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example/otlp/"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/tls/ca.pem"),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ]);
        let all = all.expect("sound");
        let to = all.collector;
        assert_eq!(to.endpoint.to_string(), "https://collector.example:4318/otlp/v1/traces");
        assert_eq!(to.headers, [("authorization".to_owned(), "Bearer x".to_owned())]);
        assert_eq!((to.gzip, to.timeout), (true, Duration::from_millis(2_500)));
        assert_eq!(to.tls.ca, Some("/tls/ca.pem".into()));
        assert_eq!((all.service.as_str(), all.sampling), ("edge", 0.25));
        assert_eq!(all.every, Duration::from_millis(100));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let attributes = [
            pair("service.namespace", "shop"),
            pair("service.instance.id", "a-1"),
            pair("zone", "a b"),
            pair("rack", "7"),
            pair("odd", "%+1%zz%"),
        ];
        assert_eq!(all.attributes, attributes);
        let grpc = traces(&[
            ("TRACING_EXPORTER_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:9"),
        ]);
        let grpc = grpc.expect("sound").collector;
        assert_eq!(grpc.protocol, OtlpProtocol::Grpc);
        assert_eq!(grpc.endpoint.to_string(), "http://collector.example:9");
        for (variable, told) in [
            (("TRACING_EXPORTER_PROTOCOL", "udp"), "TRACING_EXPORTER_PROTOCOL=udp: must be http"),
            (("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"), "write http://host:port"),
            (("TRACING_SAMPLING_RATE", "all"), "TRACING_SAMPLING_RATE is `all`"),
        ] {
            let all = traces(&[variable]).expect_err("refused");
            assert!(all.contains(told), "{all}");
        }
    }
}
