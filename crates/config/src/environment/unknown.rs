//! Variables with the prefix `EVENKEEL_`: an unknown one causes a warning with the most similar
//! known name.
//!
//! The reference's variables have no prefix, so a misspelt one cannot be detected. Kubernetes sets
//! variables for each service that begin with the service's name; those cause no warning.

use crate::fault::nearest;

/// Prefix of Evenkeel's own variables.
const PREFIX: &str = "EVENKEEL_";

/// All variables of Evenkeel, for this command and others.
#[rustfmt::skip]
const KNOWN_VARIABLES: [&str; 15] = [
    "EVENKEEL_ADMIN", "EVENKEEL_COMPATIBLE_KEYS", "EVENKEEL_COMPAT_KEYS", "EVENKEEL_CONFIG",
    "EVENKEEL_HANDSHAKE_TIMEOUT", "EVENKEEL_KEYS_MAX", "EVENKEEL_RLQS_STREAMS", "EVENKEEL_RLQS_TTL",
    "EVENKEEL_STATE", "EVENKEEL_STORE_DEADLINE", "EVENKEEL_STORE_FAIL", "EVENKEEL_STORE_MODE",
    "EVENKEEL_STORE_OWED_MAX", "EVENKEEL_STORE_PERIOD", "EVENKEEL_TOKEN_FILE",
];

/// A warning if the variable has the prefix and is unknown.
pub(super) fn unknown_variable_warning(name: &str) -> Option<String> {
    if !name.starts_with(PREFIX) || KNOWN_VARIABLES.contains(&name) || of_kubernetes(name) {
        return None;
    }
    let nearest = nearest(name, &KNOWN_VARIABLES)
        .map(|known| format!("; did you mean {known}?"))
        .unwrap_or_default();
    Some(format!("unknown variable {}{nearest}", name.escape_debug()))
}

/// Whether the variable is one that Kubernetes sets: `..._SERVICE_HOST`, `..._SERVICE_PORT`,
/// `..._SERVICE_PORT_GRPC`, `..._PORT`, `..._PORT_8081_TCP_ADDR`.
fn of_kubernetes(name: &str) -> bool {
    let port = |rest: &str| rest.is_empty() || rest.starts_with('_');
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.rsplit_once("_PORT").is_some_and(|(_, rest)| port(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_variable_of_ours_is_told_with_the_nearest() {
        for (name, told) in [
            ("EVENKEEL_KEY_MAX", "EVENKEEL_KEY_MAX; did you mean EVENKEEL_KEYS_MAX?"),
            ("EVENKEEL_COMPAT_KEY", "EVENKEEL_COMPAT_KEY; did you mean EVENKEEL_COMPAT_KEYS?"),
            ("EVENKEEL_XYZ", "EVENKEEL_XYZ"),
            ("EVENKEEL_", "EVENKEEL_"),
        ] {
            assert_eq!(unknown_variable_warning(name), Some(format!("unknown variable {told}")));
        }
        for name in [
            "EVENKEEL_STATE",
            "NEAR_LIMIT_RATIOS",
            "EVENKEEL_SERVICE_HOST",
            "EVENKEEL_RATELIMIT_SERVICE_PORT_GRPC",
            "EVENKEEL_PORT",
            "EVENKEEL_PORT_8081_TCP_ADDR",
        ] {
            assert_eq!(unknown_variable_warning(name), None, "{name}");
        }
    }

    #[test]
    fn every_variable_that_is_read_is_known() {
        let sources = [
            include_str!("../environment.rs"),
            include_str!("redis.rs"),
            include_str!("metrics.rs"),
            include_str!("traces.rs"),
            include_str!("xds.rs"),
            include_str!("../source.rs"),
            include_str!("../../../evenkeel/src/cli.rs"),
        ];
        for source in sources {
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            for rest in code.split("\"EVENKEEL_").skip(1) {
                let name = format!("EVENKEEL_{}", rest.split('"').next().unwrap_or_default());
                assert!(KNOWN_VARIABLES.contains(&name.as_str()), "{name}");
            }
        }
    }
}
