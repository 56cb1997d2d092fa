//! What Graphite, StatsD and collectors receive, and what happens while they are unreachable.

mod grpc;

use super::*;
use crate::graphite::GraphiteTimeouts;
use evenkeel_config::settings::otlp::{
    CollectorSettings, OtlpEndpoint, OtlpMetricsSettings, OtlpProtocol,
};
use evenkeel_config::settings::tls::ClientTls;
use evenkeel_config::settings::{GraphiteSelection, StatsdLabels, StatsdSink};
use evenkeel_core::units::Cost;
use evenkeel_telemetry::counts::tiers::Tier;
use evenkeel_telemetry::metrics::{CLIENTS_HELD, MASTER_DELAYED};
use evenkeel_telemetry::otlp::wire::metrics::{
    ExportMetricsServiceRequest, metric, number_data_point,
};
use evenkeel_telemetry::otlp::wire::text;
use evenkeel_testing::wait::{until, until_async};
use prost::Message;
use socket2::{Domain, Socket, Type};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Instant;

/// A deadline that is longer than any step on a slow machine.
const LONG: Duration = Duration::from_secs(30);

fn settings() -> MetricsSettings {
    MetricsSettings {
        otlp: None,
        statsd: None,
        graphite: None,
        graphite_prefix: "a.host".into(),
        graphite_lines: GraphiteSelection::Limits,
        held_above: Nanos::from_secs(3),
    }
}

fn statsd(address: SocketAddr, tcp: bool, labels: StatsdLabels) -> Option<StatsdSink> {
    Some(StatsdSink { address: address.to_string(), tcp, labels, smockron: None })
}

fn look() -> ObserveMetrics {
    let held = |limit: &str, value| {
        let labels = vec!["proxy".into(), limit.into()];
        ObservedMetric { metric: &CLIENTS_HELD, labels, value }
    };
    Box::new(move || {
        let names = [("Slash32", 3.0), ("Slash24", 2.0), ("Slash16", 1.0), ("UserAgent", 0.0)];
        names.map(|(limit, value)| held(limit, value)).to_vec()
    })
}

fn watch() -> (Arc<Watch>, Clock) {
    let clock = Clock::start();
    (Arc::new(Watch::new(clock.now())), clock)
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

/// Reserves a port on which nothing listens yet. Another socket can listen on it beside this one.
fn bound() -> (Socket, String) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_port(true).expect("a mode");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let address = socket.local_addr().ok().and_then(|at| at.as_socket()).expect("an address");
    (socket, address.to_string())
}

/// A listener, and a second socket on the same port. The second socket keeps the port reserved
/// while the first is closed, and listens when the server comes back.
fn comes_back() -> (TcpListener, Socket, String) {
    let (again, address) = bound();
    let first = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    first.set_reuse_port(true).expect("a mode");
    first.bind(&again.local_addr().expect("an address")).expect("the same port");
    first.listen(16).expect("it listens");
    (first.into(), again, address)
}

fn lines_of(listener: &TcpListener) -> impl Iterator<Item = String> + use<> {
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(LONG)).expect("a socket");
    BufReader::new(stream).lines().map(|line| line.expect("a line in time"))
}

#[test]
fn t27_graphite_gets_four_lines_each_second_under_tempomats_names() {
    let (listener, address) = listener();
    let (watch, clock) = watch();
    let begun = clock.now().second();
    let settings = MetricsSettings { graphite: Some(address), ..settings() };
    let running = start(&settings, &watch, clock, look()).expect("a thread");
    let lines: Vec<String> = lines_of(&listener).take(12).collect();
    drop(running);
    let ended = clock.now().second();
    let mut seconds = Vec::new();
    for four in lines.chunks(4) {
        let second: u64 = four[0].rsplit(' ').next().expect("three words").parse().expect("unix");
        let names = ["Slash32 3", "Slash24 2", "Slash16 1", "UserAgent 0"];
        assert_eq!(four, names.map(|name| format!("a.host.{name} {second}")));
        seconds.push(second);
    }
    assert!(seconds.is_sorted() && begun <= seconds[0] && seconds[2] <= ended, "{seconds:?}");
    assert_eq!(PushCounts::new(watch.registry(), "graphite").dropped.get(), 0);
}

#[test]
fn what_graphite_missed_it_gets_when_it_is_there() {
    let (socket, address) = bound();
    let (watch, clock) = watch();
    let settings = MetricsSettings {
        graphite: Some(address),
        graphite_lines: GraphiteSelection::All,
        ..settings()
    };
    let begun = clock.now().second();
    let _running = start(&settings, &watch, clock, look()).expect("a thread");
    let counts = PushCounts::new(watch.registry(), "graphite");
    until("a failure", || counts.failures.get() > 0);
    let failed = clock.now().second();
    socket.listen(16).expect("it listens");
    let listener = socket.into();
    let first = lines_of(&listener).find(|line| line.starts_with("a.host.start_time_seconds "));
    let second: u64 =
        first.expect("a line").rsplit(' ').next().expect("a word").parse().expect("unix");
    assert!((begun..=failed).contains(&second), "from the beginning: {begun} {second} {failed}");
}

/// This Graphite accepts connections and reads nothing. Handing over lines never waits, the queue
/// is bounded, and lost lines are counted.
#[test]
fn a_graphite_that_takes_nothing_costs_lines_and_nothing_else() {
    let (black_hole, address) = listener();
    let (watch, clock) = watch();
    let counts = PushCounts::new(watch.registry(), "graphite");
    let millis = Duration::from_millis;
    let patience = GraphiteTimeouts { connect: millis(500), write: millis(20), pause: millis(1) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    // The long text is more than the buffers of the system hold; the short ones only wait.
    let (long, short) = ("x".repeat(8 << 20), "x".to_owned());
    runtime.block_on(async {
        let (batches, queue) = mpsc::channel(QUEUE_SECONDS_MAX);
        tokio::spawn(graphite::send(address, queue, counts.clone(), clock, patience));
        for n in 0..QUEUE_SECONDS_MAX + 5 {
            let text = if n % 10 == 0 || n % 10 == 9 { long.clone() } else { short.clone() };
            hand_over(&batches, GraphiteBatch { text, lines: 10 }, &counts);
        }
        assert_eq!(counts.dropped.get(), 50, "what does not fit goes at once");
        let oldest_made_room = || counts.dropped.get() >= 60 && counts.failures.get() >= 2;
        until_async("room made by the oldest", oldest_made_room).await;
        assert_eq!(counts.lines.get(), 0);
        assert!(batches.capacity() > 0, "there is room for the next");
    });
    drop(black_hole);
}

#[test]
fn statsd_gets_what_came_since_the_last_time() {
    let sink = UdpSocket::bind("127.0.0.1:0").expect("a port");
    sink.set_read_timeout(Some(LONG)).expect("a socket");
    let (watch, clock) = watch();
    watch.proxy.requests.increment(5);
    let statsd = statsd(sink.local_addr().expect("an address"), false, StatsdLabels::Name);
    let running = start(&MetricsSettings { statsd, ..settings() }, &watch, clock, look());
    let running = running.expect("a thread");
    let next = |starts: &str| loop {
        let mut datagram = [0; 2_000];
        let count = match sink.recv(&mut datagram) {
            Ok(count) => count,
            // The process was stopped for a while.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => panic!("a datagram in time: {error}"),
        };
        assert!(count <= 1_432);
        let text = String::from_utf8_lossy(&datagram[..count]).into_owned();
        if let Some(found) = text.lines().find(|line| line.starts_with(starts)) {
            return found.to_owned();
        }
    };
    assert_eq!(
        next("evenkeel.clients_held.proxy.Slash32:"),
        "evenkeel.clients_held.proxy.Slash32:3|g"
    );
    watch.proxy.requests.increment(7);
    let counted = "evenkeel.requests_total.proxy:";
    assert_eq!(next(counted), "evenkeel.requests_total.proxy:7|c");
    watch.proxy.requests.increment(2);
    assert_eq!(next(counted), "evenkeel.requests_total.proxy:2|c");
    drop(running);
}

/// Each single value is sent once; if there are too many, the lines have a sampling rate.
#[test]
fn statsd_gets_timers_where_single_values_are_kept() {
    let registry = Registry::default();
    let delayed = registry.timer(&MASTER_DELAYED, &[]);
    [540, 3].into_iter().for_each(|ms| delayed.record(ms * 1_000_000));
    let found = timings(&registry);
    let [one] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (one.name.as_str(), &one.values[..], one.rate),
        ("master_delayed", &[540.0, 3.0][..], 1.0)
    );
    assert_eq!(timings(&registry), [], "they are told once");
    (0..4_000).for_each(|_| delayed.record(1_000_000));
    let found = timings(&registry);
    assert_eq!((found[0].values.len(), found[0].rate), (1_000, 0.25));
    assert_eq!(delayed.counts().iter().sum::<u64>(), 4_002);
}

/// Over TCP, with tags. After an interruption, StatsD receives the missed growth of a counter.
#[test]
fn statsd_over_tcp_gets_tags_and_loses_no_count() {
    let (listener, again, _) = comes_back();
    let at = listener.local_addr().expect("an address");
    let (watch, clock) = watch();
    let settings = MetricsSettings { statsd: statsd(at, true, StatsdLabels::Tags), ..settings() };
    let running = start(&settings, &watch, clock, look()).expect("a thread");
    let counted = "evenkeel.requests_total:";
    let held = "evenkeel.clients_held:3|g|#door:proxy,limit:Slash32";
    // The first reading has arrived, so growth is sent from here on.
    let mut lines = lines_of(&listener);
    assert!(lines.any(|line| line == held), "what has labels has tags");
    watch.proxy.requests.increment(7);
    let found = lines.find(|line| line.starts_with(counted));
    assert_eq!(found.as_deref(), Some("evenkeel.requests_total:7|c|#door:proxy"));
    drop((lines, listener));
    let counts = PushCounts::new(watch.registry(), "statsd");
    until("a failure", || counts.failures.get() > 0);
    watch.proxy.requests.increment(2);
    let failures = counts.failures.get();
    until("another look", || counts.failures.get() > failures);
    assert!(counts.dropped.get() > 0);
    again.listen(16).expect("it listens");
    let found = lines_of(&again.into()).find(|line| line.starts_with(counted));
    assert_eq!(found.as_deref(), Some("evenkeel.requests_total:2|c|#door:proxy"));
    drop(running);
}

#[test]
fn nobody_is_sent_anything_who_does_not_want_it() {
    let (watch, clock) = watch();
    assert!(start(&settings(), &watch, clock, look()).expect("nothing").is_none());
}

#[test]
fn a_connection_that_hangs_is_not_waited_for_at_the_end() {
    let (watch, clock) = watch();
    let address: SocketAddr = "192.0.2.1:2003".parse().expect("an address that is nobody's");
    let settings = MetricsSettings { graphite: Some(address.to_string()), ..settings() };
    let begun = Instant::now();
    drop(start(&settings, &watch, clock, look()).expect("a thread"));
    assert!(begun.elapsed() < LONG);
}

/// Answers one HTTP request to the collector; returns its path and its body.
fn told(listener: &TcpListener) -> (String, Vec<u8>) {
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(LONG)).expect("a socket");
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).expect("a head");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a head");
        let line = line.trim().to_ascii_lowercase();
        if let Some(said) = line.strip_prefix("content-length: ") {
            length = said.parse().expect("a length");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("sent");
    (first, body)
}

/// Settings for a collector at that address over HTTP.
fn figures(authority: String) -> OtlpMetricsSettings {
    OtlpMetricsSettings {
        collector: CollectorSettings {
            endpoint: OtlpEndpoint { tls: false, authority, path: String::new() },
            protocol: OtlpProtocol::Http,
            headers: Vec::new(),
            gzip: false,
            timeout: LONG,
            tls: ClientTls::default(),
        },
        service: "a".into(),
        attributes: vec![("site".into(), "b".into())],
        every: Duration::from_secs(1),
    }
}

#[test]
fn a_collector_gets_the_whole_table_and_what_it_missed_besides() {
    let (listener, again, address) = comes_back();
    let (watch, clock) = watch();
    watch.proxy.requests.increment(5);
    watch.record_charge(Cost(2_000_000_000), Nanos::ZERO, Nanos::from_secs(3), Tier::Debt);
    let otlp = Some(figures(address));
    let running = start(&MetricsSettings { otlp, ..settings() }, &watch, clock, look());
    let running = running.expect("a thread");
    let (path, body) = told(&listener);
    assert_eq!(path, "POST /v1/metrics HTTP/1.1\r\n");
    let request = ExportMetricsServiceRequest::decode(&*body).expect("a message");
    let [resource] = &request.resource_metrics[..] else { panic!("{request:?}") };
    let said = &resource.resource.as_ref().expect("a resource").attributes;
    assert_eq!(said[..], [text("service.name", "a"), text("site", "b")]);
    let metrics = &resource.scope_metrics[0].metrics;
    let found = |name: &str| metrics.iter().find(|metric| metric.name == name).expect("a metric");
    let requests = found("evenkeel_requests_total");
    assert!(requests.description.starts_with("Requests received") && requests.unit == "{requests}");
    let Some(metric::Data::Sum(sum)) = &requests.data else { panic!("{requests:?}") };
    assert!(sum.is_monotonic);
    assert_eq!(sum.data_points[0].attributes, [text("door", "proxy")]);
    assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsDouble(5.0)));
    assert_eq!(sum.data_points[0].start_time_unix_nano, watch.started.0);
    let Some(metric::Data::Histogram(spread)) = &found("evenkeel_backend_seconds").data else {
        panic!("no histogram")
    };
    let debt = spread.data_points.iter().find(|p| p.attributes == [text("tier", "debt")]);
    let debt = debt.expect("a tier");
    assert_eq!((debt.count, debt.sum), (1, Some(3.0)));
    assert_eq!(debt.bucket_counts.len(), debt.explicit_bounds.len() + 1);
    let at = debt.explicit_bounds.iter().position(|bound| *bound >= 3.0).expect("a bound");
    assert_eq!(debt.bucket_counts[at], 1);
    let Some(metric::Data::Gauge(held)) = &found("evenkeel_clients_held").data else {
        panic!("no gauge")
    };
    assert_eq!(held.data_points.len(), 4, "what is looked up is told, too");
    // The collector is unreachable and comes back: sums count since the start.
    drop(listener);
    let counts = PushCounts::new(watch.registry(), "otlp");
    until("a failure", || counts.failures.get() > 0);
    watch.proxy.requests.increment(1);
    again.listen(16).expect("it listens");
    let listener = again.into();
    let five = Some(number_data_point::Value::AsDouble(5.0));
    let sum = loop {
        let request = ExportMetricsServiceRequest::decode(&*told(&listener).1).expect("a message");
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let requests = metrics.iter().find(|metric| metric.name == "evenkeel_requests_total");
        if let Some(metric::Data::Sum(sum)) = &requests.expect("a metric").data {
            // A message that was on its way at the sixth increment may not include it.
            match sum.data_points[0].value {
                before if before == five => {}
                after => break after,
            }
        }
    };
    assert_eq!(sum, Some(number_data_point::Value::AsDouble(6.0)));
    assert!(counts.dropped.get() > 0);
    drop(running);
}
