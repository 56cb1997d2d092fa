//! Writes the answer to `ShouldRateLimit`.
//!
//! Its statuses are messages of messages, one for each descriptor, so they are most of an answer.
//! Generated code measures each of them several times before it writes it.

use super::{Response, Status};
use bytes::Bytes;
use evenkeel_grpc::frames::write_frame;
use evenkeel_grpc::protobuf::ProtobufSink;

/// The usual length of a status, in bytes.
const STATUS_BYTES: usize = 32;
/// The usual length of everything else, in bytes.
const OTHER_BYTES: usize = 16;

/// Encodes an answer in a gRPC frame.
#[must_use]
pub fn encode(mut answer: Response) -> Bytes {
    let code = std::mem::take(&mut answer.overall_code);
    let statuses = std::mem::take(&mut answer.statuses);
    write_frame(OTHER_BYTES + statuses.len() * STATUS_BYTES, |sink| {
        sink.number(1, extended(code));
        for status in &statuses {
            sink.message(2, |sink| write_status(sink, status));
        }
        // The fields after these.
        sink.fields_of(&answer);
    })
}

fn write_status(sink: &mut ProtobufSink, status: &Status) {
    sink.number(1, extended(status.code));
    if let Some(limit) = &status.current_limit {
        sink.message(2, |sink| {
            sink.number(1, limit.requests_per_unit.into());
            sink.number(2, extended(limit.unit));
            sink.text(3, &limit.name);
        });
    }
    sink.number(3, status.limit_remaining.into());
    if let Some(left) = status.duration_until_reset {
        sink.message(4, |sink| {
            sink.number(1, left.seconds as u64);
            sink.number(2, extended(left.nanos));
        });
    }
}

/// A number of 32 bits with its sign extended, as fields contain it.
fn extended(number: i32) -> u64 {
    i64::from(number) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CurrentLimit, HeaderValue};
    use evenkeel_grpc::frames::encode_frame;
    use proptest::option;
    use proptest::prelude::*;
    use prost_types::{Duration, Struct};

    fn status() -> impl Strategy<Value = Status> {
        let limit = (any::<u32>(), any::<i32>(), "[a-zä]{0,150}").prop_map(
            |(requests_per_unit, unit, name)| CurrentLimit { requests_per_unit, unit, name },
        );
        let left =
            (any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Duration { seconds, nanos });
        (any::<i32>(), option::of(limit), any::<u32>(), option::of(left)).prop_map(
            |(code, current_limit, limit_remaining, duration_until_reset)| Status {
                code,
                current_limit,
                limit_remaining,
                duration_until_reset,
            },
        )
    }

    proptest! {
        #[test]
        fn an_answer_has_the_bytes_that_generated_code_writes(
            overall_code in any::<i32>(),
            statuses in prop::collection::vec(status(), 0..20),
            header in option::of("[a-z]{0,9}"),
            has_metadata in any::<bool>(),
        ) {
            let header = header.map(|key| HeaderValue { key, ..HeaderValue::default() });
            let answer = Response {
                overall_code,
                statuses,
                response_headers_to_add: header.into_iter().collect(),
                dynamic_metadata: has_metadata.then(Struct::default),
                ..Response::default()
            };
            prop_assert_eq!(encode(answer.clone()), encode_frame(&answer));
        }
    }
}
