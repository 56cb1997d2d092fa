//! The variables about rules from an xDS server.
//!
//! The reference's delays between attempts have separate keys here: the retry interval of the
//! connection (`retry`) and the back-off of the client (`retry_stream`, `retry_max`). How a
//! variable is read: `environment`.

use super::{EnvironmentReader, Variable, VariableForm, list};
use crate::tree::YamlNode;

/// The longest delay, in milliseconds.
const WAIT_MAX: u64 = 366 * 86_400_000;

/// Variables that correspond to one key each. The replacements for a delay of 0 are those of the
/// reference.
const PLAIN: [Variable; 5] = [
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "retry",
        VariableForm::Bounded(1, [1, WAIT_MAX]),
    ),
    (
        "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
        "retry_stream",
        VariableForm::Bounded(100, [1, WAIT_MAX]),
    ),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "retry_max", VariableForm::Bounded(10_000, [1, WAIT_MAX])),
    ("CONFIG_GRPC_XDS_NODE_ID", "node_id", VariableForm::Text),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "message_bytes", VariableForm::Text),
];

/// Variables of the section `tls`.
const TLS: [Variable; 4] = [
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "cert", VariableForm::Text),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "key", VariableForm::Text),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "ca", VariableForm::Text),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "server_name", VariableForm::Text),
];

impl EnvironmentReader<'_> {
    /// Sets the section `xds`.
    pub(super) fn xds(&mut self) {
        let name = "CONFIG_GRPC_XDS_SERVER_URL";
        let server = self.text_or(name, "localhost:18000");
        // The prefix asks gRPC to resolve the name, which happens here in any case.
        self.set("ratelimit.xds.server", name, server.strip_prefix("dns:///").unwrap_or(&server));
        for (key, name, sign) in [
            ("ratelimit.xds.metadata", "CONFIG_GRPC_XDS_NODE_METADATA", "="),
            ("ratelimit.xds.headers", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", ":"),
        ] {
            let pairs = list(&self.text_or(name, ""), |pair| pair.replacen(sign, ":", 1));
            self.put(key, pairs);
        }
        self.plain("ratelimit.xds", &PLAIN);
        let name = "XDS_CLIENT_BACKOFF_RANDOM_FACTOR";
        let spread = match self.truth("XDS_CLIENT_BACKOFF_JITTER", true) {
            true => self.text(name),
            false => Some("0".to_owned()),
        };
        if let Some(spread) = spread {
            self.set("ratelimit.xds.retry_spread", name, spread);
        }
        if self.truth("CONFIG_GRPC_XDS_SERVER_USE_TLS", false) {
            self.put("ratelimit.xds.tls", YamlNode::map([]));
            self.plain("ratelimit.xds.tls", &TLS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use std::time::Duration;

    #[test]
    fn rules_come_from_a_server_as_the_references_variables_say() {
        let xds = |variables: &[(&str, &str)]| {
            let all = [&[("CONFIG_TYPE", "GRPC_XDS_SOTW")], variables].concat();
            read(&all).map(|service| service.xds.expect("its section"))
        };
        let plain = xds(&[]).expect("sound");
        assert_eq!((plain.server.as_str(), plain.node_id.as_str()), ("localhost:18000", "default"));
        assert_eq!((plain.tls, plain.retry_spread), (None, 0.5));
        assert_eq!([plain.retry, plain.retry_stream], [Duration::from_secs(3); 2]);
        let all = xds(&[
            ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///rules.example:443"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "1"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/tls/me.crt"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/tls/me.key"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/tls/ca.crt"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "other.example"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "7s"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "2m"),
            ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.2"),
            ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "4096"),
        ]);
        let all = all.expect("sound");
        assert_eq!(all.server, "rules.example:443");
        let tls = all.tls.expect("on");
        assert_eq!(tls.identity, Some(("/tls/me.crt".into(), "/tls/me.key".into())));
        assert_eq!((tls.ca, tls.name), (Some("/tls/ca.crt".into()), Some("other.example".into())));
        let waits = [all.retry, all.retry_stream, all.retry_max].map(|wait| wait.as_secs());
        assert_eq!((waits, all.retry_spread, all.message_bytes_max), ([3, 7, 120], 0.2, 4096));
        let still = [("XDS_CLIENT_BACKOFF_JITTER", "false")];
        assert_eq!(xds(&still).expect("sound").retry_spread, 0.0);
        let lone = [
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/tls/me.crt"),
        ];
        let told = xds(&lone).expect_err("no key");
        assert!(told.contains("CONFIG_GRPC_XDS_CLIENT_TLS_CERT needs `key`"), "{told}");
    }
}
