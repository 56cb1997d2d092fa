//! The OpenTelemetry messages that Evenkeel uses.
//!
//! The test `wire` generates them from `evenkeel/proto` and checks that they are current. `trace`,
//! `spans` and `figures` fill them; `client` sends them.

#[expect(missing_docs, reason = "they are generated; the protos explain them")]
mod messages {
    include!("wire/messages.in");
}

/// The messages for metrics. They are in a module of their own because some have the same names as
/// Evenkeel's own types.
pub mod metrics {
    pub use super::messages::opentelemetry::proto::collector::metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
    };
    pub use super::messages::opentelemetry::proto::metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
    };
}

use any_value::Value;
pub use messages::opentelemetry::proto::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
pub use messages::opentelemetry::proto::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value,
};
pub use messages::opentelemetry::proto::resource::v1::Resource;
pub use messages::opentelemetry::proto::trace::v1::span::SpanKind;
pub use messages::opentelemetry::proto::trace::v1::status::StatusCode;
pub use messages::opentelemetry::proto::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

/// An attribute with a text value.
pub fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// An attribute with an integer value.
pub fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
