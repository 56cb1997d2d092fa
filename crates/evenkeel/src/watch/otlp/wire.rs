//! The messages of OpenTelemetry that are used here.
//!
//! Written from `evenkeel/proto` by the test `wire`, which also checks that they are current. Who
//! fills them: `trace`, `spans` and `figures`; who sends them: `client`.

#[expect(missing_docs, reason = "they are generated; the protos explain them")]
mod messages {
    include!("wire/messages.in");
}

/// Those of metrics, some of which are called as our own are.
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

/// An attribute that is a text.
#[must_use]
pub fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// An attribute that is a whole number.
#[must_use]
pub fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
