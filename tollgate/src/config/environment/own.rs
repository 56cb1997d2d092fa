//! Variables with our own prefix: an unknown one is a warning that names the nearest known one.
//!
//! The reference's variables have no prefix, so a misspelt one cannot be recognised. Kubernetes
//! sets variables for each service, which begin with the service's name: those are no mistakes.

use crate::config::fault::nearest;

/// What the names of our own variables begin with.
const PREFIX: &str = "TOLLGATE_";

/// Every variable of our own, of this command and of others.
const KNOWN: [&str; 15] = [
    "TOLLGATE_ADMIN",
    "TOLLGATE_COMPATIBLE_KEYS",
    "TOLLGATE_COMPAT_KEYS",
    "TOLLGATE_CONFIG",
    "TOLLGATE_HANDSHAKE_TIMEOUT",
    "TOLLGATE_KEYS_MAX",
    "TOLLGATE_RLQS_STREAMS",
    "TOLLGATE_RLQS_TTL",
    "TOLLGATE_STATE",
    "TOLLGATE_STORE_DEADLINE",
    "TOLLGATE_STORE_FAIL",
    "TOLLGATE_STORE_MODE",
    "TOLLGATE_STORE_OWED_MAX",
    "TOLLGATE_STORE_PERIOD",
    "TOLLGATE_TOKEN_FILE",
];

/// A warning, if the variable is one of ours by its prefix and not known.
pub(super) fn doubt(name: &str) -> Option<String> {
    if !name.starts_with(PREFIX) || KNOWN.contains(&name) || of_kubernetes(name) {
        return None;
    }
    let nearest =
        nearest(name, &KNOWN).map(|known| format!("; did you mean {known}?")).unwrap_or_default();
    Some(format!("unknown variable {}{nearest}", name.escape_debug()))
}

/// `..._SERVICE_HOST`, `..._SERVICE_PORT`, `..._SERVICE_PORT_GRPC`, `..._PORT`,
/// `..._PORT_8081_TCP_ADDR`.
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
            ("TOLLGATE_KEY_MAX", "TOLLGATE_KEY_MAX; did you mean TOLLGATE_KEYS_MAX?"),
            ("TOLLGATE_COMPAT_KEY", "TOLLGATE_COMPAT_KEY; did you mean TOLLGATE_COMPAT_KEYS?"),
            ("TOLLGATE_XYZ", "TOLLGATE_XYZ"),
            ("TOLLGATE_", "TOLLGATE_"),
        ] {
            assert_eq!(doubt(name), Some(format!("unknown variable {told}")));
        }
        for name in [
            "TOLLGATE_STATE",
            "NEAR_LIMIT_RATIOS",
            "TOLLGATE_SERVICE_HOST",
            "TOLLGATE_RATELIMIT_SERVICE_PORT_GRPC",
            "TOLLGATE_PORT",
            "TOLLGATE_PORT_8081_TCP_ADDR",
        ] {
            assert_eq!(doubt(name), None, "{name}");
        }
    }

    #[test]
    fn every_variable_that_is_read_is_known() {
        let sources = [
            include_str!("../environment.rs"),
            include_str!("redis.rs"),
            include_str!("figures.rs"),
            include_str!("traces.rs"),
            include_str!("xds.rs"),
            include_str!("../source.rs"),
            include_str!("../../cli.rs"),
        ];
        for source in sources {
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            for rest in code.split("\"TOLLGATE_").skip(1) {
                let name = format!("TOLLGATE_{}", rest.split('"').next().unwrap_or_default());
                assert!(KNOWN.contains(&name.as_str()), "{name}");
            }
        }
    }
}
