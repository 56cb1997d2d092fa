//! The table of everything that is counted: name, kind, help and labels.
//!
//! `Watch` makes handles from it; `observe` refers to it for values that are read from the engine;
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
        "1 if all listeners are open and the process is not draining, else 0.";
    BUILD = Gauge "evenkeel_build_info" ["version"] "state"
        "Always 1; the label is the running version.";
    STARTED = Gauge "evenkeel_start_time_seconds" [] "seconds"
        "Start time of the process, in seconds since the Unix epoch.";

    REQUESTS = Counter "evenkeel_requests_total" ["door"] "requests"
        "Requests received, by listener (`door`), whatever their outcome.";
    RESPONSES = Counter "evenkeel_responses_total" ["class" "from"] "responses"
        "Responses sent, by class of status code and by origin: the backend or Evenkeel.";
    DECISIONS = Counter "evenkeel_decisions_total" ["verdict" "limit" "shadow"] "requests"
        "Decisions; allow: no delay. A request that was queued and then held counts as both.";
    BLOCKS = Counter "evenkeel_blocks_total" [] "blocks"
        "Blocks that began because a client reached the maximum of a window.";
    WAITS = Histogram "evenkeel_wait_seconds" ["tier"] "seconds"
        "Waiting time of requests that were queued, held or delayed; tier: credit or debt.";
    BACKEND_TIME = Histogram "evenkeel_backend_seconds" ["tier"] "seconds"
        "Time that the backend worked for each request; tier: client in credit or in debt.";
    COST = Histogram "evenkeel_request_cost_seconds" [] "CPU-seconds"
        "Charge of each request.";
    REQUEST_TOOK = Histogram "evenkeel_request_seconds" ["tier"] "seconds"
        "Duration of requests, including waits; tier: client in credit or in debt.";
    CHARGED = Counter "evenkeel_cost_seconds_total" [] "CPU-seconds"
        "Cost of all admitted requests, including those that only shadow mode admitted.";
    TOKENS = Counter "evenkeel_tokens_total" ["kind"] "tokens"
        "Tokens of models, stated or counted: prompt, cached (prompt in the cache) or output.";
    MONEY = Counter "evenkeel_money_total" [] "money"
        "Money charged for tokens by `proxy.tokens.prices`, in the currency of the prices.";
    MODEL_REQUESTS = Counter "evenkeel_model_requests_total" ["source"] "requests"
        "Requests to models, by source of the tokens: stated, counted, assumed, or none used.";
    FIRST_BYTE = Histogram "evenkeel_first_byte_seconds" ["tier"] "seconds"
        "Time from a request to a model to the start of its answer, including waits; by tier.";
    HEADER_FAULTS = Counter "evenkeel_cost_header_faults_total" [] "headers"
        "Invalid cost headers of the backend.";

    WORKING = Gauge "evenkeel_working_requests" ["door"] "requests"
        "Requests of this instance that the backend is working on.";
    WAITING = Gauge "evenkeel_waiting_requests" ["door"] "requests"
        "Requests of this instance that wait in the queue for a free slot of the backend.";
    WORKING_AGE = Gauge "evenkeel_working_age_seconds" ["door"] "seconds"
        "Time since the backend got the oldest running request of this instance; 0: none.";
    WAITING_AGE = Gauge "evenkeel_waiting_age_seconds" ["door"] "seconds"
        "Waiting time of the oldest waiting request of this instance; 0: none.";
    SLOTS = Gauge "evenkeel_slots" ["door"] "requests"
        "Slots of all instances that share the queue, without reserved slots.";
    SLOTS_USED = Gauge "evenkeel_slots_used" ["door"] "requests"
        "Requests of this instance that occupy a slot, reserved slots included.";
    SLOTS_USEFUL = Gauge "evenkeel_slots_useful" ["door"] "requests"
        "Requests that the backend accepts at once, configured or measured; absent if unknown.";
    ENGINE_UP = Gauge "evenkeel_backend_engine_up" ["backend"] "state"
        "1 if the backend reports its own queue, else 0; absent if it is not asked.";
    ENGINE_REQUESTS = Gauge "evenkeel_backend_engine_requests" ["backend" "state"] "requests"
        "Requests running or waiting inside a backend, as reported by the backend.";
    ENGINE_CACHE = Gauge "evenkeel_backend_engine_cache_used" ["backend"] "ratio"
        "Used part of a backend's KV cache, from 0 to 1, as reported by the backend.";
    ENGINE_ROOM = Gauge "evenkeel_backend_engine_room" ["backend"] "requests"
        "Maximum of requests sent to a backend because others waited inside; absent: no maximum.";
    QUEUE_OWNER = Gauge "evenkeel_queue_owner" ["door"] "state"
        "1 if this instance owns the queue that instances share, else 0; absent if none is shared.";
    QUEUE_INSTANCES = Gauge "evenkeel_queue_instances" ["door"] "instances"
        "Known instances that share the queue, including this one.";
    QUEUE_WAITING = Gauge "evenkeel_queue_waiting_requests" ["door"] "requests"
        "Known waiting requests of all instances that share the queue.";
    QUEUE_SLOTS_USED = Gauge "evenkeel_queue_slots_used" ["door"] "requests"
        "Known requests of all instances that occupy a slot.";
    QUEUE_TAKEOVERS = Counter "evenkeel_queue_takeovers_total" ["door"] "takeovers"
        "Number of times that this instance has taken over the shared queue.";
    PRESSURE_STARTED = Gauge "evenkeel_pressure_start_time_seconds" ["door"] "seconds"
        "Start of the current swarm or crowd, in seconds since the Unix epoch; 0: none.";
    STRANGERS_WAITING = Gauge "evenkeel_waiting_strangers" ["door"] "requests"
        "Waiting requests of strangers.";
    STRANGERS_COST = Counter "evenkeel_strangers_cost_seconds_total" ["door"] "CPU-seconds"
        "Cost of strangers' requests while returning clients go first.";
    IN_WAITING_ROOM = Gauge "evenkeel_waiting_room_visitors" ["door" "visit"] "visitors"
        "Visitors with a waiting page that is due to reload: new, or returned before.";
    QUEUE_REFUSALS = Counter "evenkeel_queue_refusals_total" ["cause"] "requests"
        "Requests that the queue refused, by cause: wait_max, len_max or waiting_page.";
    WAITING_PAGES = Counter "evenkeel_waiting_room_pages_total" ["door"] "pages"
        "Waiting pages sent.";
    NEWCOMER_WAITS = Histogram "evenkeel_newcomer_wait_seconds" [] "seconds"
        "Time between the first request and the turn of visitors that had a waiting page.";
    BUSY = Counter "evenkeel_cpu_busy_seconds_total" ["door"] "CPU-seconds"
        "CPU time of the backend by the virtual clock; equals the sum of all charges.";
    UNPAID = Counter "evenkeel_cpu_unpaid_seconds_total" ["door"] "CPU-seconds"
        "CPU time that the backend's cgroup used while no request ran (`cost: cgroup`).";
    CAPACITY = Gauge "evenkeel_capacity_cpus" ["door"] "CPUs"
        "CPU-seconds per second that are shared among clients.";

    CONNECTIONS = Gauge "evenkeel_connections_open" ["door"] "connections"
        "Open client connections.";
    RESTING = Gauge "evenkeel_connections_resting" ["door"] "connections"
        "Open HTTP/1.1 connections that are idle for a second or more and use 2 kB each.";
    ACCEPTED = Counter "evenkeel_connections_accepted_total" ["door"] "connections"
        "Accepted client connections.";
    SHED = Counter "evenkeel_connections_shed_total" ["door"] "connections"
        "Connections closed to make room: the longest idle, or those waiting for their client.";
    TURNED_AWAY = Counter "evenkeel_connections_refused_total" ["door" "why"] "connections"
        "Connections refused, by reason: address (too many), tls, resets (a flood) or preface.";
    BAD_REQUESTS = Counter "evenkeel_bad_requests_total" ["door"] "requests"
        "Requests that were malformed, too slow or beyond a bound.";
    HEADS_REFUSED = Counter "evenkeel_heads_refused_total" [] "requests"
        "HTTP/2 streams answered with 503 because the headers of all streams filled their memory.";
    BACKEND_CONNECTIONS = Gauge "evenkeel_backend_connections_open" [] "connections"
        "Open connections to the backend, including idle ones.";
    BACKEND_FAILURES = Counter "evenkeel_backend_failures_total" ["kind"] "requests"
        "Requests that failed at the backend, by kind of failure.";
    BACKEND_AFFINITY = Counter "evenkeel_backend_affinity_total" ["result"] "requests"
        "Prompts by the choice of their backend: hit (has the prefix), over_bound or unknown.";
    PREFIXES_FORGOTTEN = Counter "evenkeel_prefixes_forgotten_total" [] "prefixes"
        "Prefixes of prompts evicted because the table was full.";
    ABORTED = Counter "evenkeel_requests_aborted_total" [] "requests"
        "Requests of clients that disconnected before the response was complete.";

    CLIENT_ADDRESSES = Counter "evenkeel_client_addresses_total" ["peer" "header"] "requests"
        "Requests by peer (trusted or other) and whether a header names their client (yes or no).";
    LOOKUPS = Counter "evenkeel_host_lookups_total" ["result"] "lookups"
        "Lookups of clients' host names: confirmed, other, forged, failed or left_out (too many).";

    ROBOT_REQUESTS = Counter "evenkeel_robot_requests_total" ["robot" "proof"] "requests"
        "Requests by robots or claimed to be, by proof: signature, address, host or none.";
    SIGNATURE_FAULTS = Counter "evenkeel_signature_faults_total" ["fault"] "requests"
        "Requests with an invalid signature (Web Bot Auth), by fault.";

    CHECK_WAITING = Gauge "evenkeel_check_waiting" [] "questions"
        "Questions to `check` that wait for their answer because the client is delayed.";
    CHECK_GONE = Counter "evenkeel_check_gone_total" [] "questions"
        "Questions that the web server abandoned: client disconnected, or its timeout is short.";
    CHECK_OPEN = Gauge "evenkeel_check_open" [] "passes"
        "Requests admitted by `check` that wait for their report.";
    CHECK_REPORTS = Counter "evenkeel_check_reports_total" ["result"] "reports"
        "Reports to `check`: settled, unknown, faulty or unasked (without an id).";
    CHECK_UNREPORTED = Counter "evenkeel_check_unreported_total" [] "passes"
        "Requests admitted by `check` without a report in time.";
    CHECK_CROWDED = Counter "evenkeel_check_crowded_total" ["what"] "requests"
        "Questions refused because too many wait; passes settled early because too many are open.";

    XDS_CONNECTED = Gauge "evenkeel_xds_connected" [] "state"
        "1 while a stream to the xDS server for the rate limit rules is open.";
    XDS_UPDATES = Counter "evenkeel_xds_updates_total" ["result"] "updates"
        "Updates of rules over xDS: ok, or failed (the current rules stay in force).";
    RLQS_STREAMS = Gauge "evenkeel_rlqs_streams" [] "streams"
        "Envoys that receive shares of limits from the rate limit quota service.";
    RLQS_BUCKETS = Gauge "evenkeel_rlqs_buckets" [] "buckets"
        "Buckets of all Envoys of the rate limit quota service.";
    RLQS_REPORTS = Counter "evenkeel_rlqs_reports_total" [] "reports"
        "Bucket reports that Envoys sent to the rate limit quota service.";
    RLQS_LEFT_OUT = Counter "evenkeel_rlqs_left_out_total" ["what"] "streams"
        "Streams refused and bucket reports ignored: no room, or an invalid name.";
    MASTER_MESSAGES = Counter "evenkeel_master_messages_total" ["status"] "messages"
        "Messages of gatekeepers: accepted, delayed, rejected, stale, unknown (domain) or faulty.";
    MASTER_ORDERS = Counter "evenkeel_master_orders_total" [] "messages"
        "Orders to gatekeepers to hold an identifier.";
    MASTER_DROPPED = Counter "evenkeel_master_orders_dropped_total" [] "messages"
        "Messages not sent to a gatekeeper that reads too slowly or subscribes too much.";
    MASTER_STRANGERS = Counter "evenkeel_master_strangers_total" [] "connections"
        "Connections closed because their address is not in `allow`.";
    MASTER_REFUSED = Counter "evenkeel_master_refused_total" ["why"] "connections"
        "Peers disconnected, by reason: ZMTP version, mechanism, socket type, late or other.";
    MASTER_DELAYED = Histogram "evenkeel_master_delayed_seconds" [] "seconds"
        "Delay of requests as reported by gatekeepers.";
    GATEKEEPER_CONNECTED = Gauge "evenkeel_gatekeeper_connected" ["domain" "socket"] "state"
        "1 while the accounting or control socket of the master is connected.";
    GATEKEEPER_REQUESTS = Counter "evenkeel_gatekeeper_requests_total" ["domain" "status"]
        "requests"
        "Requests under the master's orders: accepted, delayed, rejected or crowded (no room).";
    GATEKEEPER_HELD = Gauge "evenkeel_gatekeeper_held" ["domain"] "requests"
        "Requests that are being held by order of the master.";
    GATEKEEPER_IDENTIFIERS = Gauge "evenkeel_gatekeeper_identifiers" ["domain"] "identifiers"
        "Identifiers that must wait, as of the last second.";
    GATEKEEPER_MESSAGES = Counter "evenkeel_gatekeeper_messages_total" ["domain" "result"]
        "messages"
        "Reports of requests: sent, or dropped (master unreachable or its queue full).";
    GATEKEEPER_ORDERS = Counter "evenkeel_gatekeeper_orders_total" ["domain" "result"] "messages"
        "Messages of the master: valid orders and faulty messages.";

    KEYS_MAX = Gauge "evenkeel_table_keys_max" ["door" "limit"] "keys"
        "Maximum of keys in a limit's table.";
    KEYS_USED = Gauge "evenkeel_table_keys_used" ["door" "limit"] "keys"
        "Used entries of a limit's table, including keys that have paid off their debt.";
    KEYS_DROPPED = Counter "evenkeel_table_keys_dropped_total" ["door" "limit"] "keys"
        "Keys evicted while they still had debt, because the table was full.";
    TABLE_BYTES = Gauge "evenkeel_table_bytes" ["door" "limit"] "bytes"
        "Memory of a limit's table; fixed at the start.";

    CLIENTS_HELD = Gauge "evenkeel_clients_held" ["door" "limit"] "clients"
        "Clients of the last minute with requests that wait longer than `metrics.held_above`.";

    STATE_WRITES = Counter "evenkeel_state_writes_total" ["result"] "snapshots"
        "Snapshots of all debts: ok, or failed (the last good one stays).";
    STATE_WRITTEN = Gauge "evenkeel_state_written_time_seconds" [] "seconds"
        "Start of the last good snapshot, in seconds since the Unix epoch; 0: none yet.";
    STATE_TOOK = Gauge "evenkeel_state_write_milliseconds" [] "milliseconds"
        "Time that writing the last snapshot took.";
    STATE_KEYS = Gauge "evenkeel_state_keys" [] "keys"
        "Keys with debt in the last good snapshot.";
    STATE_BYTES = Gauge "evenkeel_state_bytes" [] "bytes"
        "Size of the last good snapshot.";
    STATE_RESTORED = Gauge "evenkeel_state_restored_keys" [] "keys"
        "Keys with debts that were restored from a snapshot at the start.";

    RELOADS = Counter "evenkeel_config_reloads_total" ["result"] "reloads"
        "Reloads of the configuration: ok, or failed (the current one stays in force).";
    RULE_LOADS = Counter "evenkeel_rule_loads_total" ["result"] "loads"
        "Loads of the rules of the rate limit service: ok, or failed (the current ones stay).";
    PEER_BYTES = Counter "evenkeel_peer_bytes_total" ["direction"] "bytes"
        "Bytes read from and written to other instances.";
    PEER_FRAMES_DROPPED = Counter "evenkeel_peer_frames_dropped_total" ["direction"] "frames"
        "Frames to and from other instances that were dropped: no room, or no receiver.";
    PEERS = Gauge "evenkeel_peers" ["state"] "instances"
        "Other instances in the cluster: live, or silent for three periods.";
    PEER_LAG = Gauge "evenkeel_peer_lag_seconds" [] "seconds"
        "Age of the oldest report that a live instance has not acknowledged.";
    PEER_FRAMES = Counter "evenkeel_peer_frames_total" ["direction"] "frames"
        "Frames read from and written to other instances.";
    PEER_ENTRIES = Counter "evenkeel_peer_entries_total" ["direction"] "entries"
        "Keys with amounts: received from others and charged here, and sent to others.";
    PEER_QUEUE_MESSAGES = Counter "evenkeel_peer_queue_messages_total" ["direction"] "messages"
        "Messages about shared queues, read from and written to other instances.";
    PEER_REPORTS_LOST = Counter "evenkeel_peer_reports_lost_total" ["direction"] "frames"
        "Report frames lost on the way from or to others: their amounts are not counted.";
    PEER_REFUSED = Counter "evenkeel_peer_refused_total" [] "messages"
        "Messages refused: not authenticated, malformed, too old or too many.";
    PEER_UNCOUNTED = Counter "evenkeel_peer_uncounted_total" [] "charges"
        "Charges not reported to other instances because the record was full.";
    STORE_CONNECTIONS = Gauge "evenkeel_store_connections" ["state"] "connections"
        "Connections to the store: good, or failed (decisions then use local counts).";
    STORE_ANSWERS = Counter "evenkeel_store_answers_total" ["result"] "counters"
        "Lookups of counters in the store: ok, late, away, refused or known (to be over).";
    STORE_TOOK = Histogram "evenkeel_store_seconds" [] "seconds"
        "Response time of the store.";
    STORE_OWED = Gauge "evenkeel_store_owed" [] "counters"
        "Counters with local hits that are not yet sent to the store.";
    STORE_TOLD = Counter "evenkeel_store_told_total" [] "counters"
        "Counters with local hits that were sent to the store later.";
    STORE_LOST = Counter "evenkeel_store_lost_total" [] "counters"
        "Counters with local hits that the store never gets: no room, window ended or refused.";
    STORE_MOVED = Counter "evenkeel_store_redirections_total" [] "redirections"
        "Redirections by nodes of a cluster to the node that has the counter.";
    TLS_RELOADS = Counter "evenkeel_tls_reloads_total" ["of" "result"] "reloads"
        "Reloads of changed certificate files: ok, or failed (the previous one stays in use).";
    TLS_UNTIL = Gauge "evenkeel_tls_certificate_expiry_time_seconds" ["of"] "seconds"
        "Expiry time of the certificate in use, in seconds since the Unix epoch.";
    ACME_ORDERS = Counter "evenkeel_acme_orders_total" ["result"] "orders"
        "Orders of certificates from an authority: ok, or failed (the previous one stays in use).";
    NETWORK_FILE_ENTRIES = Gauge "evenkeel_network_file_entries" ["of"] "networks"
        "Number of networks in a file: asn, country, or the path of an address list.";
    NETWORK_FILE_TIME = Gauge "evenkeel_network_file_time_seconds" ["of"] "seconds"
        "Time of a file about networks, in seconds since the Unix epoch.";
    NETWORK_FILE_RELOADS = Counter "evenkeel_network_file_reloads_total" ["of" "result"] "reloads"
        "Reloads of changed files about networks: ok, or failed (the previous one stays in use).";
    LINES_LEFT_OUT = Counter "evenkeel_log_lines_left_out_total" [] "lines"
        "Decisions and backend failures omitted from the log because of their rate.";
    ADMIN_REFUSED = Counter "evenkeel_admin_refused_total" ["why"] "requests"
        "Requests refused at the admin address: host, host_count, origin, token, method or body.";
    PUSHED = Counter "evenkeel_push_lines_total" ["to"] "lines"
        "Lines of metrics sent to graphite, statsd or otlp (points).";
    PUSH_DROPPED = Counter "evenkeel_push_lines_dropped_total" ["to"] "lines"
        "Lines of metrics dropped because the receiver was unreachable or too slow.";
    PUSH_FAILURES = Counter "evenkeel_push_failures_total" ["to"] "attempts"
        "Failed attempts to send metrics.";
    TRACE_SPANS = Counter "evenkeel_trace_spans_total" ["result"] "spans"
        "Spans of traces: sent, dropped (collector unreachable or too slow) or refused by it.";
    TRACE_FAILURES = Counter "evenkeel_trace_failures_total" [] "attempts"
        "Failed attempts to send spans.";
    SERIES_FOLDED = Counter "evenkeel_series_folded_total" [] "series"
        "Label values counted under `other` because the metric already had too many.";
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
