//! Rules from a management server over xDS: aggregated discovery, with the whole state in each
//! message.
//!
//! One stream is kept open. Each message of the server is parsed like rule files and put in force
//! as a whole. The server gets an acknowledgement, or the error; after an error the rules in force
//! stay. They also stay while the server is unreachable. Rules are not stored on disk. How a
//! message becomes a tree of rules: `resource`. How bytes are sent: `stream`.

mod resource;
mod stream;

use super::RuleIntake;
use crate::wire::discovery::{DiscoveryRequest, DiscoveryResponse};
use crate::wire::{Node, RpcStatus};
use evenkeel_config::settings::XdsSettings;
use evenkeel_telemetry::metrics::{XDS_CONNECTED, XDS_UPDATES};
use evenkeel_telemetry::registry::{Counter, Gauge, Registry};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use std::time::Duration;
use stream::{XdsStream, XdsStreamError};

/// The type of the requested resources.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// gRPC's status code for an invalid message.
const INVALID_ARGUMENT_CODE: i32 = 3;
/// The maximum length of an error message to the server, in bytes.
const FAULT_BYTES_MAX: usize = 4_096;

/// The client of a management server.
pub struct XdsClient {
    settings: XdsSettings,
    intake: RuleIntake,
    connected: Gauge,
    /// The number of updates put in force, and of updates refused.
    updates: [Counter; 2],
    /// The version of the rules in force; empty before the first.
    version: String,
}

impl XdsClient {
    /// A client that has not connected yet; it passes rules to `intake`.
    pub fn new(settings: XdsSettings, intake: RuleIntake, registry: &Registry) -> XdsClient {
        let updates = ["ok", "failed"].map(|result| registry.counter(&XDS_UPDATES, &[result]));
        let connected = registry.gauge(&XDS_CONNECTED, &[]);
        XdsClient { settings, intake, connected, updates, version: String::new() }
    }

    /// Keeps a stream open and reconnects when it ends. It never returns.
    pub async fn run(mut self) {
        let mut attempts = 0;
        loop {
            let answers = &mut 0;
            let error = self.talk(answers).await;
            attempts = if *answers > 0 { 0 } else { attempts + 1 };
            let random = self.intake.decider.steady_now().0;
            let XdsSettings { server, retry, retry_stream, .. } = &self.settings;
            let least = if error.is_of_connecting() { *retry } else { *retry_stream };
            let wait = pause(least, &self.settings, attempts, random);
            tracing::warn!(
                target: "evenkeel::ratelimit", %server, %error, ?wait,
                "no rules arrive over xDS; the current rules stay in force"
            );
            tokio::time::sleep(wait).await;
        }
    }

    /// Runs one stream until it ends, and adds the number of messages received to `answers`.
    async fn talk(&mut self, answers: &mut u64) -> XdsStreamError {
        let mut stream = match XdsStream::open(&self.settings, &self.request(true)).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        let _connected = self.connected.hold();
        loop {
            let response = match stream.receive().await {
                Ok(response) => response,
                Err(error) => return error,
            };
            *answers += 1;
            if let Some(request) = self.process_response(&response)
                && let Err(error) = stream.send(&request).await
            {
                return error;
            }
        }
    }

    /// Puts a message's rules in force, and returns the acknowledgement or the error for the
    /// server. Messages with resources of another type get no answer.
    fn process_response(&mut self, response: &DiscoveryResponse) -> Option<DiscoveryRequest> {
        if response.type_url != TYPE_URL {
            return None;
        }
        let taken = resource::trees(&response.resources);
        let taken = taken.and_then(|trees| self.intake.take_trees(trees));
        self.updates[usize::from(taken.is_err())].increment(1);
        let error_detail = match taken {
            Ok(()) => {
                self.version.clone_from(&response.version_info);
                None
            }
            Err(mut message) => {
                let end = message.floor_char_boundary(FAULT_BYTES_MAX);
                message.truncate(end);
                Some(RpcStatus { code: INVALID_ARGUMENT_CODE, message })
            }
        };
        let response_nonce = response.nonce.clone();
        Some(DiscoveryRequest { response_nonce, error_detail, ..self.request(false) })
    }

    fn request(&self, first: bool) -> DiscoveryRequest {
        let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
        let pairs = self.settings.metadata.iter();
        let fields = pairs.map(|(key, value)| (key.clone(), text(value))).collect();
        let node = Node {
            id: self.settings.node_id.clone(),
            metadata: Some(Struct { fields }),
            user_agent_name: "evenkeel".to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        DiscoveryRequest {
            // The version may come from an earlier stream, which does not matter to the server.
            version_info: self.version.clone(),
            node: first.then_some(node),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }
}

/// The delay before the next attempt. It doubles with each attempt up to a maximum, and a random
/// part is added or removed so that many clients do not reconnect at once.
fn pause(least: Duration, settings: &XdsSettings, attempts: u32, random: u64) -> Duration {
    let most = settings.retry_max;
    let whole = least.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(most);
    // Between -1 and 1.
    let chance = (random % 1_000) as f64 / 500.0 - 1.0;
    whole.mul_f64(1.0 + settings.retry_spread * chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_ever_more_seldom_and_never_all_at_once() {
        let mut settings = XdsSettings {
            server: String::new(),
            node_id: String::new(),
            metadata: Vec::new(),
            headers: Vec::new(),
            tls: None,
            retry: Duration::from_secs(2),
            retry_stream: Duration::from_secs(5),
            retry_max: Duration::from_secs(60),
            retry_spread: 0.5,
            message_bytes_max: 1 << 20,
        };
        let wait = |settings: &XdsSettings, attempts, random| {
            pause(settings.retry, settings, attempts, random).as_secs_f64()
        };
        let waits = [0, 1, 2, 3].map(|attempts| wait(&settings, attempts, 500));
        assert_eq!(waits, [2.0, 2.0, 4.0, 8.0]);
        assert_eq!(wait(&settings, 40, 500), 60.0);
        assert_eq!(wait(&settings, 40, 0), 30.0);
        assert!((89.0..90.0).contains(&wait(&settings, 40, 999)));
        settings.retry_spread = 0.0;
        assert_eq!([0, 999].map(|random| wait(&settings, 1, random)), [2.0, 2.0]);
    }
}
