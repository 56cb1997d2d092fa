//! Streams of the rate limit quota service over real sockets, and hostile input on them.

use crate::program::{Grpc, Server, Stream, http};
use bucket_action::BucketAction as Action;
use bytes::Bytes;
use evenkeel_fuzz::fuzz;
use evenkeel_grpc::frames::FrameReader;
use evenkeel_ratelimit::wire::quota::rate_limit_quota_response::bucket_action;
use evenkeel_ratelimit::wire::quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
use evenkeel_ratelimit::wire::quota::{
    BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use evenkeel_ratelimit::wire::rate_limit_strategy::Strategy;
use evenkeel_ratelimit::wire::reports::UsageReports;
use evenkeel_testing::wait::wait_for;
use prost::Message;
use rustix::process::Signal;

const PATH: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

const RULES: &str = "
domain: d
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 10}}
";

fn report(domain: &str, used: &[(&str, u64)]) -> Vec<u8> {
    let usages = used.iter().map(|(user, allowed)| {
        let bucket = [("user".to_owned(), (*user).to_owned())].into();
        BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket }),
            time_elapsed: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
            num_requests_allowed: *allowed,
            num_requests_denied: 0,
        }
    });
    let domain = domain.to_owned();
    RateLimitQuotaUsageReports { domain, bucket_quota_usages: usages.collect() }.encode_to_vec()
}

/// The next message, with one line for each action.
fn told(stream: &mut Stream<'_>) -> Vec<String> {
    let bytes = stream.receive().expect("a message");
    let response = RateLimitQuotaResponse::decode(&*bytes).expect("a response");
    let actions = response.bucket_action.into_iter().map(|action| {
        let id = action.bucket_id.expect("a bucket");
        let user = &id.bucket["user"];
        match action.bucket_action.expect("an action") {
            Action::AbandonAction(_) => format!("{user} abandoned"),
            Action::QuotaAssignmentAction(assignment) => {
                let seconds = assignment.assignment_time_to_live.expect("a time").seconds;
                assert!((1..=60).contains(&seconds), "{seconds}");
                match assignment.rate_limit_strategy.and_then(|all| all.strategy) {
                    Some(Strategy::BlanketRule(0)) => format!("{user} all"),
                    Some(Strategy::BlanketRule(_)) => format!("{user} none"),
                    Some(Strategy::TokenBucket(bucket)) => format!("{user} {}", bucket.max_tokens),
                    other => format!("{user} {other:?}"),
                }
            }
        }
    });
    actions.collect()
}

#[test]
fn reports_are_answered_and_envoys_share() {
    let server = Server::start(RULES, &[]);
    let (a, b) = (server.grpc(), server.grpc());
    let (mut one, mut two) = (a.stream(PATH).expect("open"), b.stream(PATH).expect("open"));
    one.send(&report("d", &[("x", 1)]));
    assert_eq!(told(&mut one), ["x 9"]);
    // A second Envoy joins: each gets half of what is left, and the first one is informed at once.
    two.send(&report("d", &[("x", 1)]));
    assert_eq!(told(&mut two), ["x 4"]);
    assert_eq!(told(&mut one), ["x none", "x 4"]);
    one.send(&report("", &[("x", 4)]));
    assert_eq!(told(&mut one), ["x none"]);
    // An Envoy that leaves frees its share.
    drop(two);
    drop(b);
    one.send(&report("", &[("y", 1)]));
    // The limit is divided anew within a second, before or after the answer to the report.
    let mut both = told(&mut one);
    while both.len() < 2 {
        both.extend(told(&mut one));
    }
    both.sort();
    assert_eq!(both, ["x 4", "y 9"]);
    let stats = http(server.debug, "GET", "/stats", "").1;
    assert!(stats.contains("ratelimit.service.rate_limit.d.user.total_hits: 7"), "{stats}");
}

#[test]
fn reports_of_more_requests_than_there_can_be_end_no_stream() {
    let server = Server::start(RULES, &[]);
    let grpc = server.grpc();
    let mut streams = [PATH; 2].map(|path| grpc.stream(path).expect("open"));
    for stream in &mut streams {
        stream.send(&report("d", &[("x", u64::MAX), ("z", 1)]));
        assert!(!told(stream).is_empty());
    }
    let hits = 2 * (u64::from(u32::MAX) + 1);
    let line = format!("ratelimit.service.rate_limit.d.user.total_hits: {hits}\n");
    let stats = http(server.debug, "GET", "/stats", "").1;
    assert!(stats.contains(&line), "{stats}");
}

#[test]
fn streams_end_when_the_server_drains() {
    let server = Server::start(RULES, &[]);
    let grpc = server.grpc();
    let mut stream = grpc.stream(PATH).expect("open");
    stream.send(&report("d", &[("x", 1)]));
    assert_eq!(told(&mut stream), ["x 9"]);
    server.signal(Signal::TERM);
    assert_eq!(stream.receive(), Err(14));
}

#[test]
fn a_stream_that_says_all_is_ended() {
    let server = Server::start(RULES, &[]);
    let grpc = server.grpc();
    let mut stream = grpc.stream(PATH).expect("open");
    stream.send(&report("d", &[("x", 1)]));
    stream.finish();
    assert_eq!(told(&mut stream), ["x 9"]);
    assert_eq!(stream.receive(), Err(0));
}

#[test]
fn what_is_no_report_ends_its_stream_and_no_other() {
    let server = Server::start(RULES, &[]);
    let grpc = server.grpc();
    let ended = |grpc: &Grpc, bytes: &[u8]| {
        let mut stream = grpc.stream(PATH).expect("open");
        stream.send_raw(bytes);
        stream.receive().expect_err("an end")
    };
    assert_eq!(ended(&grpc, b"\0\0\0\0\x03\xff\xff\xff"), 3);
    assert_eq!(ended(&grpc, b"\x01\0\0\0\x01\0"), 12, "compressed");
    assert_eq!(ended(&grpc, b"\0\xff\xff\xff\xff"), 8, "too long");
    // A report without a domain.
    assert_eq!(ended(&grpc, b"\0\0\0\0\0"), 3);
    let mut stream = grpc.stream(PATH).expect("open");
    let long = "x".repeat(5_000);
    // A bucket with a too long name is left out, and the rest gets an answer.
    stream.send(&report("d", &[(&long, 1), ("", 1), ("x", 1)]));
    let mut all = told(&mut stream);
    all.sort();
    assert_eq!(all, [" 9", "x 9"]);
    // A report that arrives in pieces.
    let bytes = report("d", &[("z", 1)]);
    let framed = [&[0], &u32::try_from(bytes.len()).expect("short").to_be_bytes()[..], &bytes];
    framed.concat().chunks(3).for_each(|piece| stream.send_raw(piece));
    assert_eq!(told(&mut stream), ["z 9"]);
}

#[test]
fn many_streams_are_refused_and_their_places_come_back() {
    let server = Server::start(RULES, &[("EVENKEEL_RLQS_STREAMS", "2")]);
    let grpc = server.grpc();
    let (one, two) = (grpc.stream(PATH).expect("open"), grpc.stream(PATH).expect("open"));
    assert_eq!(grpc.stream(PATH).err(), Some(8));
    drop((one, two));
    wait_for("a place", || grpc.stream(PATH).ok().map(|_| ()));
}

/// This decoder reads the same reports from arbitrary bytes as the generated messages.
#[test]
fn fuzz_reports() {
    fuzz().for_each(|bytes: &[u8]| {
        let (view, message) =
            (UsageReports::decode(bytes), RateLimitQuotaUsageReports::decode(bytes));
        let Ok(view) = view else { return };
        // Compares known fields only: an unknown field may be malformed for one decoder and not for
        // the other.
        let Ok(message) = message else { return };
        assert_eq!(view.domain, message.domain);
        assert_eq!(view.usages.len() + view.left_out, message.bucket_quota_usages.len());
        let own = message.bucket_quota_usages.iter().filter(|usage| {
            let id = usage.bucket_id.as_ref();
            let mut name = id.map(|id| id.bucket.iter().collect::<Vec<_>>()).unwrap_or_default();
            name.sort();
            view.usages.iter().any(|read| {
                read.allowed == usage.num_requests_allowed
                    && read.denied == usage.num_requests_denied
                    && read
                        .name
                        .iter()
                        .map(|(k, v)| (*k, *v))
                        .eq(name.iter().map(|(k, v)| (k.as_str(), v.as_str())))
            })
        });
        assert!(own.count() >= view.usages.len());
    });
}

#[test]
fn fuzz_frames() {
    fuzz().with_type::<(Vec<Vec<u8>>, u8)>().for_each(|(messages, size)| {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.push(0);
            bytes.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
            bytes.extend(message);
        }
        let (mut frames, mut read) = (FrameReader::new(1 << 20), Vec::new());
        for piece in bytes.chunks(usize::from(*size) + 1) {
            frames.push(Bytes::copy_from_slice(piece));
            while let Some(message) = frames.take().expect("sound frames") {
                read.push(message.to_vec());
            }
        }
        assert_eq!(&read, messages);
        assert_eq!(frames.buffered_bytes(), 0);
    });
}
