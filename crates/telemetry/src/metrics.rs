//! The table of everything that is counted: name, kind, help and labels.
//!
//! `watch` makes handles from it; `observe` refers to it for values that are read from the engine;
//! a test checks the page of the guide against it; every output format walks it (`prometheus`,
//! `sample`). The values of the metrics are in `registry`, not here.

/// How the values of a metric behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value only grows, from zero at the start of the program.
    Counter,
    /// The value goes up and down.
    Gauge,
    /// The number of values at or below each of a list of bounds, the number of all values and
    /// their sum.
    Histogram,
}

impl MetricKind {
    /// The name that Prometheus uses for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name of the metric in every output format.
    pub name: &'static str,
    /// How its values behave.
    pub kind: MetricKind,
    /// The unit of the value: `seconds`, `bytes`, `requests` and so on.
    pub unit: &'static str,
    /// The help text: one sentence that says what the metric means.
    pub help: &'static str,
    /// The names of its labels, in the order in which their values are given.
    pub labels: &'static [&'static str],
}

macro_rules! table {
    ($(
        $id:ident = $kind:ident $name:literal [$($label:literal)*] $unit:literal $help:literal;
    )*) => {
        $(
            #[doc = $help]
            pub static $id: Metric = Metric {
                name: $name,
                kind: MetricKind::$kind,
                unit: $unit,
                help: $help,
                labels: &[$($label),*],
            };
        )*
        /// Every metric, in the order of output.
        pub static TABLE: &[&Metric] = &[$(&$id),*];
    };
}

table! {
    UP = Gauge "evenkeel_up" [] "state"
        "1 when every listener is open and nothing is being drained, else 0.";
    BUILD = Gauge "evenkeel_build_info" ["version"] "state"
        "Always 1; its label says which version runs.";
    STARTED = Gauge "evenkeel_start_time_seconds" [] "seconds"
        "When the program started, in seconds since the Unix epoch.";

    REQUESTS = Counter "evenkeel_requests_total" ["door"] "requests"
        "Requests that came in through a door, whatever became of them.";
    RESPONSES = Counter "evenkeel_responses_total" ["class" "from"] "responses"
        "Answers sent, by class of status code and by who made them: the backend or Evenkeel.";
    DECISIONS = Counter "evenkeel_decisions_total" ["verdict" "limit" "shadow"] "requests"
        "Decisions; allow: nothing held it up. Who waited for room and was held counts as both.";
    BLOCKS = Counter "evenkeel_blocks_total" [] "blocks"
        "Blocks that began because a client reached the most that a window allows.";
    WAITS = Histogram "evenkeel_wait_seconds" ["tier"] "seconds"
        "How long requests that waited did, for room, held or delayed; tier: credit or debt.";
    BACKEND_TIME = Histogram "evenkeel_backend_seconds" ["tier"] "seconds"
        "How long the backend worked for requests; tier: of clients in credit, or in debt.";
    COST = Histogram "evenkeel_request_cost_seconds" [] "CPU-seconds"
        "What requests were charged.";
    REQUEST_TOOK = Histogram "evenkeel_request_seconds" ["tier"] "seconds"
        "How long requests took, waits included; tier: of clients in credit, or in debt.";
    CHARGED = Counter "evenkeel_cost_seconds_total" [] "CPU-seconds"
        "What requests that passed have cost, those that only shadow let pass too.";
    HEADER_FAULTS = Counter "evenkeel_cost_header_faults_total" [] "headers"
        "Cost headers of the backend that could not be believed.";

    WORKING = Gauge "evenkeel_working_requests" ["door"] "requests"
        "Requests that the backend works on now.";
    WAITING = Gauge "evenkeel_waiting_requests" ["door"] "requests"
        "Requests that wait for room before the backend.";
    SLOTS = Gauge "evenkeel_slots" ["door"] "requests"
        "How many requests the backend is sent at once, reserved slots not counted.";
    SLOTS_USED = Gauge "evenkeel_slots_used" ["door"] "requests"
        "Requests that have a slot now, reserved ones included.";
    SLOTS_USEFUL = Gauge "evenkeel_slots_useful" ["door"] "requests"
        "How many requests at once the backend is seen to take in; absent while that is not known.";
    BUSY = Counter "evenkeel_cpu_busy_seconds_total" ["door"] "CPU-seconds"
        "CPU time that the virtual clock says the backend has worked; all charges add up to it.";
    UNPAID = Counter "evenkeel_cpu_unpaid_seconds_total" ["door"] "CPU-seconds"
        "CPU time that the backend's cgroup used while no request ran (`cost: cgroup`).";
    CAPACITY = Gauge "evenkeel_capacity_cpus" ["door"] "CPUs"
        "CPU-seconds per second that are shared out.";

    CONNECTIONS = Gauge "evenkeel_connections_open" ["door"] "connections"
        "Client connections that are open now.";
    RESTING = Gauge "evenkeel_connections_resting" ["door"] "connections"
        "Those of them that are idle for a second or more and hold 2 kB each (HTTP/1.1).";
    ACCEPTED = Counter "evenkeel_connections_accepted_total" ["door"] "connections"
        "Client connections accepted.";
    SHED = Counter "evenkeel_connections_shed_total" ["door"] "connections"
        "Closed for want of room: the longest idle, and requests that wait for their client.";
    TURNED_AWAY = Counter "evenkeel_connections_refused_total" ["door" "why"] "connections"
        "Connections closed at once: by address (too many), tls, resets (a flood), or preface.";
    BAD_REQUESTS = Counter "evenkeel_bad_requests_total" ["door"] "requests"
        "Requests that were not proper, came too slowly or were beyond a bound.";
    HEADS_REFUSED = Counter "evenkeel_heads_refused_total" [] "requests"
        "Streams of HTTP/2 answered 503 because the heads of all streams took up their room.";
    BACKEND_CONNECTIONS = Gauge "evenkeel_backend_connections_open" [] "connections"
        "Connections to the backend that are open now, idle ones included.";
    BACKEND_FAILURES = Counter "evenkeel_backend_failures_total" ["kind"] "requests"
        "Requests that the backend failed, by how.";
    ABORTED = Counter "evenkeel_requests_aborted_total" [] "requests"
        "Requests whose client went away before the answer was complete.";

    LOOKUPS = Counter "evenkeel_host_lookups_total" ["result"] "lookups"
        "Lookups of clients' names: confirmed, other, forged, failed, or left_out (too many).";

    CHECK_WAITING = Gauge "evenkeel_check_waiting" [] "questions"
        "Questions to the check door that are answered late, because the client has to wait.";
    CHECK_GONE = Counter "evenkeel_check_gone_total" [] "questions"
        "Questions whose front did not wait: the client went away, or its timeout is too short.";
    CHECK_OPEN = Gauge "evenkeel_check_open" [] "passes"
        "Passes of the check door that wait for their report.";
    CHECK_REPORTS = Counter "evenkeel_check_reports_total" ["result"] "reports"
        "Reports to the check door: settled, unknown, faulty, or unasked (without an id).";
    CHECK_UNREPORTED = Counter "evenkeel_check_unreported_total" [] "passes"
        "Passes of the check door of which nothing was told in time.";
    CHECK_CROWDED = Counter "evenkeel_check_crowded_total" ["what"] "requests"
        "Questions refused as too many waited, passes settled early as too many were open.";

    XDS_CONNECTED = Gauge "evenkeel_xds_connected" [] "state"
        "1 while there is a stream to the server that rules of the rate limit service come from.";
    XDS_UPDATES = Counter "evenkeel_xds_updates_total" ["result"] "updates"
        "Rules that came over xDS: ok, or failed (then what runs stays).";
    RLQS_STREAMS = Gauge "evenkeel_rlqs_streams" [] "streams"
        "Envoys that limits are shared out among by the rate limit quota service.";
    RLQS_BUCKETS = Gauge "evenkeel_rlqs_buckets" [] "buckets"
        "Buckets of all these Envoys.";
    RLQS_REPORTS = Counter "evenkeel_rlqs_reports_total" [] "reports"
        "Reports of buckets that these Envoys sent.";
    RLQS_LEFT_OUT = Counter "evenkeel_rlqs_left_out_total" ["what"] "streams"
        "Streams refused, and reports of buckets not tracked, for want of room or an odd name.";
    MASTER_MESSAGES = Counter "evenkeel_master_messages_total" ["status"] "messages"
        "What gatekeepers told: accepted, delayed, rejected, stale, unknown (domain), or faulty.";
    MASTER_ORDERS = Counter "evenkeel_master_orders_total" [] "messages"
        "How often gatekeepers were told to hold an identifier.";
    MASTER_DROPPED = Counter "evenkeel_master_orders_dropped_total" [] "messages"
        "Messages to single gatekeepers left out, because they read or subscribe beyond a bound.";
    MASTER_STRANGERS = Counter "evenkeel_master_strangers_total" [] "connections"
        "Connections closed because their address is not in `allow`.";
    MASTER_REFUSED = Counter "evenkeel_master_refused_total" ["why"] "connections"
        "Peers disconnected for their ZMTP version, mechanism, socket type, being late, or other.";
    MASTER_DELAYED = Histogram "evenkeel_master_delayed_seconds" [] "seconds"
        "By how much gatekeepers say that they delayed requests.";
    GATEKEEPER_CONNECTED = Gauge "evenkeel_gatekeeper_connected" ["domain" "socket"] "state"
        "1 while there is a connection to the master's accounting or control socket.";
    GATEKEEPER_REQUESTS = Counter "evenkeel_gatekeeper_requests_total" ["domain" "status"]
        "requests"
        "Requests by the master's orders: accepted, delayed, rejected, or crowded (no place).";
    GATEKEEPER_HELD = Gauge "evenkeel_gatekeeper_held" ["domain"] "requests"
        "Requests that are held now because the master says so.";
    GATEKEEPER_IDENTIFIERS = Gauge "evenkeel_gatekeeper_identifiers" ["domain"] "identifiers"
        "Identifiers that have to wait now, as of the last second.";
    GATEKEEPER_MESSAGES = Counter "evenkeel_gatekeeper_messages_total" ["domain" "result"]
        "messages"
        "Requests that the master is told of: sent, or dropped as it was away or its queue full.";
    GATEKEEPER_ORDERS = Counter "evenkeel_gatekeeper_orders_total" ["domain" "result"] "messages"
        "What the master told: orders that were taken, and what is faulty.";

    KEYS_MAX = Gauge "evenkeel_table_keys_max" ["door" "limit"] "keys"
        "Keys that a limit can remember.";
    KEYS_USED = Gauge "evenkeel_table_keys_used" ["door" "limit"] "keys"
        "Places of a limit's table in use, those of keys that owe nothing any more included.";
    KEYS_DROPPED = Counter "evenkeel_table_keys_dropped_total" ["door" "limit"] "keys"
        "Keys forgotten while they still owed something, because the table was full.";
    TABLE_BYTES = Gauge "evenkeel_table_bytes" ["door" "limit"] "bytes"
        "Memory of a limit's table; fixed at start.";

    CLIENTS_HELD = Gauge "evenkeel_clients_held" ["door" "limit"] "clients"
        "Clients of the last minute whose requests wait for longer than `metrics.held_above`.";

    STATE_WRITES = Counter "evenkeel_state_writes_total" ["result"] "snapshots"
        "Snapshots of all debts: ok, or failed (then the last good one stays).";
    STATE_WRITTEN = Gauge "evenkeel_state_written_time_seconds" [] "seconds"
        "When the last good snapshot was begun, in seconds since the Unix epoch; 0: none yet.";
    STATE_TOOK = Gauge "evenkeel_state_write_milliseconds" [] "milliseconds"
        "How long the last snapshot took to write.";
    STATE_KEYS = Gauge "evenkeel_state_keys" [] "keys"
        "Keys that owe something, in the last good snapshot.";
    STATE_BYTES = Gauge "evenkeel_state_bytes" [] "bytes"
        "Size of the last good snapshot.";
    STATE_RESTORED = Gauge "evenkeel_state_restored_keys" [] "keys"
        "Keys whose debts were taken over from a snapshot at the start.";

    RELOADS = Counter "evenkeel_config_reloads_total" ["result"] "reloads"
        "Reloads of the configuration: ok, or failed (then the old one stays).";
    PEER_BYTES = Counter "evenkeel_peer_bytes_total" ["direction"] "bytes"
        "What was read from and written to other instances.";
    PEER_FRAMES_DROPPED = Counter "evenkeel_peer_frames_dropped_total" ["direction"] "frames"
        "Frames to and from other instances for which there was no room, or nobody to take them.";
    PEERS = Gauge "evenkeel_peers" ["state"] "instances"
        "Other instances that count along: live, or silent for three periods.";
    PEER_LAG = Gauge "evenkeel_peer_lag_seconds" [] "seconds"
        "For how long the oldest report has waited that some live instance has not acknowledged.";
    PEER_FRAMES = Counter "evenkeel_peer_frames_total" ["direction"] "frames"
        "Frames that were read from and written to other instances.";
    PEER_ENTRIES = Counter "evenkeel_peer_entries_total" ["direction"] "entries"
        "Keys with amounts: charged here as others told, and told to others.";
    PEER_REPORTS_LOST = Counter "evenkeel_peer_reports_lost_total" ["direction"] "frames"
        "Frames of reports that never came, from others or to them: too little was counted.";
    PEER_REFUSED = Counter "evenkeel_peer_refused_total" [] "messages"
        "Messages that were not believed: of strangers, broken, too old, or too many.";
    PEER_UNCOUNTED = Counter "evenkeel_peer_uncounted_total" [] "charges"
        "Charges that others are not told of because there was no room to note them.";
    STORE_CONNECTIONS = Gauge "evenkeel_store_connections" ["state"] "connections"
        "Connections to the store: good, or failed (then what is known here decides).";
    STORE_ANSWERS = Counter "evenkeel_store_answers_total" ["result"] "counters"
        "Counters the store was to be asked for: ok, late, away, refused, or known (to be over).";
    STORE_TOOK = Histogram "evenkeel_store_seconds" [] "seconds"
        "How long the store took to answer a request.";
    STORE_OWED = Gauge "evenkeel_store_owed" [] "counters"
        "Counters whose hits were counted here alone and that the store has yet to be told of.";
    STORE_TOLD = Counter "evenkeel_store_told_total" [] "counters"
        "Counters whose hits the store was told of later.";
    STORE_LOST = Counter "evenkeel_store_lost_total" [] "counters"
        "Counters whose hits the store is never told of: no room, their window ended, or refused.";
    STORE_MOVED = Counter "evenkeel_store_redirections_total" [] "redirections"
        "Answers of a cluster's nodes that another node has the counter.";
    TLS_RELOADS = Counter "evenkeel_tls_reloads_total" ["of" "result"] "reloads"
        "Certificates taken over from files that changed: ok, or failed (the one before stays).";
    TLS_UNTIL = Gauge "evenkeel_tls_certificate_expiry_time_seconds" ["of"] "seconds"
        "When the certificate that is used expires, in seconds since the Unix epoch.";
    LINES_LEFT_OUT = Counter "evenkeel_log_lines_left_out_total" [] "lines"
        "Decisions and failures of the backend that were not logged: too many came at once.";
    ADMIN_REFUSED = Counter "evenkeel_admin_refused_total" ["why"] "requests"
        "Requests to the admin address refused: host, host_count, origin, token, method or body.";
    PUSHED = Counter "evenkeel_push_lines_total" ["to"] "lines"
        "Lines of metrics sent: to graphite, statsd, or otlp (points).";
    PUSH_DROPPED = Counter "evenkeel_push_lines_dropped_total" ["to"] "lines"
        "Lines of metrics that were never sent, because who should get them was away or too slow.";
    PUSH_FAILURES = Counter "evenkeel_push_failures_total" ["to"] "attempts"
        "Attempts to send metrics that failed.";
    TRACE_SPANS = Counter "evenkeel_trace_spans_total" ["result"] "spans"
        "Spans of traces: sent, dropped (the collector is away or too slow), or refused by it.";
    TRACE_FAILURES = Counter "evenkeel_trace_failures_total" [] "attempts"
        "Attempts to send spans that failed.";
    SERIES_FOLDED = Counter "evenkeel_series_folded_total" [] "series"
        "Label values counted under `other` because a metric had too many already.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_say_their_kind() {
        let names: HashSet<_> = TABLE.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), TABLE.len());
        for metric in TABLE {
            assert!(metric.name.starts_with("evenkeel_"), "{}", metric.name);
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == MetricKind::Counter, "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn the_guide_lists_every_metric_as_the_table_does() {
        let guide = include_str!("../../../docs/guide/seeing.md");
        for metric in TABLE {
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let row = format!(
                "| `{}` | {} | {} | {} | {} |",
                metric.name,
                metric.kind.name(),
                metric.unit,
                labels.join(" "),
                metric.help
            );
            assert!(guide.contains(&row), "docs/guide/seeing.md lacks this row:\n{row}");
        }
        let listed = guide.lines().filter(|line| line.starts_with("| `evenkeel_")).count();
        assert_eq!(listed, TABLE.len(), "docs/guide/seeing.md lists a metric that is gone");
    }
}
