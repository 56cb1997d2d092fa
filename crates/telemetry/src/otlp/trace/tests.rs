use super::*;
use evenkeel_fuzz::fuzz;
use http::{HeaderName, HeaderValue};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name: HeaderName = name.parse().expect("a name");
        headers.append(name, HeaderValue::from_str(value).expect("a value"));
    }
    headers
}

fn parent(pairs: &[(&str, &str)]) -> Option<TraceParent> {
    TraceParent::of(&headers(pairs))
}

fn of(sampled: Option<bool>) -> Option<TraceParent> {
    let state = String::new();
    Some(TraceParent { trace: hex(TRACE).expect("hex"), span: hex(SPAN), sampled, state })
}

#[test]
fn callers_say_in_several_ways_which_trace_they_are_part_of() {
    let standard = |version: &str, flags: &str| {
        parent(&[("traceparent", &format!("{version}-{TRACE}-{SPAN}-{flags}"))])
    };
    assert_eq!(standard("00", "01"), of(Some(true)));
    assert_eq!(standard("00", "02"), of(Some(false)));
    assert_eq!(standard("cc", "01-what-comes-later"), of(Some(true)));
    assert_eq!(standard("00", "01-more"), None);
    assert_eq!(standard("ff", "01"), None);
    assert_eq!(standard("00", "1"), None);
    let upper = format!("00-{}-{SPAN}-01", TRACE.to_uppercase());
    assert_eq!(parent(&[("traceparent", &upper)]), None);
    let nobody = format!("00-{}-{SPAN}-01", "0".repeat(32));
    assert_eq!(parent(&[("traceparent", &nobody)]), None);
    let both = format!("00-{TRACE}-{SPAN}-01");
    let with = parent(&[("traceparent", &both), ("tracestate", "a=1"), ("tracestate", "b=2")]);
    assert_eq!(with.expect("one").state, "a=1,b=2");
    let long = "x".repeat(STATE_BYTES_MAX + 1);
    let with = parent(&[("traceparent", &both), ("tracestate", &long)]);
    assert_eq!(with, of(Some(true)), "what is too long is left out");

    let single = |text: &str| parent(&[("b3", text)]);
    assert_eq!(single(&format!("{TRACE}-{SPAN}-1-{SPAN}")), of(Some(true)));
    assert_eq!(single(&format!("{TRACE}-{SPAN}-d")), of(Some(true)));
    assert_eq!(single(&format!("{TRACE}-{SPAN}")), of(None));
    let refuses = Some(TraceParent { sampled: Some(false), ..TraceParent::default() });
    assert_eq!(single("0"), refuses);
    assert_eq!(single("nonsense"), None);
    let several = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "0")];
    assert_eq!(parent(&several), of(Some(false)));
    assert_eq!(parent(&[&several[..], &[("x-b3-flags", "1")]].concat()), of(Some(true)));
    let short = parent(&[("x-b3-traceid", SPAN), ("x-b3-spanid", SPAN)]).expect("one");
    assert_eq!(short.trace[8..], short.span.expect("one"));
    assert_eq!(parent(&[]), None);
}

#[test]
fn fuzz_trace_headers() {
    fuzz().for_each(|bytes: &[u8]| {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let mut headers = HeaderMap::new();
        for name in ["traceparent", "tracestate", "b3", "x-b3-traceid", "x-b3-spanid"] {
            let value = lines.next().and_then(|line| HeaderValue::from_bytes(line).ok());
            value.map(|value| headers.insert(name, value));
        }
        if let Some(parent) = TraceParent::of(&headers) {
            assert!(parent.state.len() <= STATE_BYTES_MAX);
            assert!(parent.span.is_none() || parent.trace != [0; 16]);
        }
    });
}

#[test]
fn who_is_not_asked_decides_by_the_traces_number_and_never_waits() {
    let registry = Registry::default();
    let none = HeaderMap::new();
    let (tracer, mut spans) = Tracer::new(0.25, 2, &registry);
    let begun = (0..4_000).filter(|_| tracer.begin(&none, "x", Time(5)).is_some()).count();
    assert!((800..1_200).contains(&begun), "{begun} of 4000 are not about a quarter");
    let (never, _) = Tracer::new(0.0, 1, &registry);
    assert!((0..100).all(|_| never.begin(&none, "x", Time(5)).is_none()));
    // The decision of the caller has priority.
    let asked = headers(&[("traceparent", &format!("00-{TRACE}-{SPAN}-01"))]);
    assert!(never.begin(&asked, "x", Time(5)).is_some());
    let refused = headers(&[("b3", "0")]);
    let (always, _) = Tracer::new(1.0, 1, &registry);
    assert!(always.begin(&refused, "x", Time(5)).is_none());
    for at in 0..3 {
        let open = tracer.begin(&asked, "x", Time(5)).expect("asked for");
        tracer.end(open, Vec::new(), None, Time(at));
    }
    let first = spans.try_recv().expect("a span");
    assert_eq!(first.parent_span_id, hex::<8>(SPAN).expect("hex"));
    assert_eq!((first.start_time_unix_nano, first.end_time_unix_nano), (5, 5));
    assert_ne!(first.span_id, spans.try_recv().expect("a span").span_id);
    assert!(spans.try_recv().is_err());
    assert_eq!(registry.counter(&TRACE_SPANS, &["dropped"]).get(), 1);
}
