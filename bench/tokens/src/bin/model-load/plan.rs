//! The plan of a load: which clients send which requests, and when. It is JSON on standard input.

use model_bench::{Random, TOKEN_BYTES};
use serde_json::Value;

/// A range of numbers, both ends included.
pub type Range = (u64, u64);

/// One kind of client.
pub struct Client {
    /// What the engine knows it by, whatever key a proxy sends: the field `x_tenant`.
    pub name: String,
    /// The value of `Authorization`.
    pub authorization: String,
    /// Requests at once, each connection with one after the other. 0: `rate` counts.
    pub connections: u64,
    /// The mean number of requests per second, at random times, however long the answers take.
    pub rate: f64,
    /// Seconds between an answer and the next request of a connection.
    pub pause: f64,
    /// Seconds from the beginning of the load to that of this client.
    pub start: f64,
    /// The largest number of requests in all.
    pub count: u64,
    /// Tokens of a prompt.
    pub prompt: Range,
    /// Tokens of an output.
    pub output: Range,
    /// The value of `max_tokens`. `None`: the real length; 0: the field is absent.
    pub max_tokens: Option<u64>,
    /// Tokens at the beginning of the prompt that many requests have in common.
    pub prefix: u64,
    /// The number of different prefixes.
    pub prefixes: u64,
    pub is_stream: bool,
    pub includes_usage: bool,
    /// Tokens after which the client disconnects.
    pub hang_up: Option<Range>,
    /// The seed of the first stream of random pieces.
    pub random: Option<u64>,
}

/// All clients, and for how long they send requests.
pub struct Plan {
    pub seed: u64,
    pub seconds: f64,
    /// The time after that for requests that still run.
    pub drain: f64,
    pub clients: Vec<Client>,
}

impl Plan {
    /// Returns `None` if the text is not a plan.
    pub fn read(text: &str) -> Option<Plan> {
        let plan: Value = serde_json::from_str(text).ok()?;
        let clients = plan["clients"].as_array()?;
        Some(Plan {
            seed: plan["seed"].as_u64().unwrap_or(1),
            seconds: plan["seconds"].as_f64()?,
            drain: plan["drain"].as_f64().unwrap_or(0.0),
            clients: clients.iter().map(client).collect::<Option<_>>()?,
        })
    }
}

fn client(one: &Value) -> Option<Client> {
    let number = |name: &str| one[name].as_f64();
    let range = |name: &str| Some((one[name][0].as_u64()?, one[name][1].as_u64()?));
    let name = one["name"].as_str()?;
    Some(Client {
        name: name.to_owned(),
        authorization: one["authorization"]
            .as_str()
            .map_or_else(|| format!("Bearer {name}"), str::to_owned),
        connections: one["connections"].as_u64().unwrap_or(0),
        rate: number("rate").unwrap_or(0.0),
        pause: number("pause").unwrap_or(0.0),
        start: number("start").unwrap_or(0.0),
        count: one["count"].as_u64().unwrap_or(u64::MAX),
        prompt: range("prompt").unwrap_or((100, 100)),
        output: range("output").unwrap_or((100, 100)),
        max_tokens: one["max_tokens"].as_u64(),
        prefix: one["prefix"].as_u64().unwrap_or(0),
        prefixes: one["prefixes"].as_u64().unwrap_or(1).max(1),
        is_stream: one["stream"].as_bool().unwrap_or(true),
        includes_usage: one["include_usage"].as_bool().unwrap_or(false),
        hang_up: range("hang_up"),
        random: one["random"].as_u64(),
    })
}

/// The seconds until the next of events that come at random, so many a second.
pub fn random_wait(random: &mut Random, rate: f64) -> f64 {
    let part = ((random.number() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
    -part.ln() / rate
}

/// One request, as text.
pub struct Ask {
    pub text: String,
    /// Tokens after which the client disconnects.
    pub hang_up: u64,
}

impl Client {
    /// The request with this number, which does not depend on when it is sent.
    pub fn ask(&self, seed: u64, number: u64) -> Ask {
        let name =
            self.name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)) * 31 % (1 << 50));
        let mut random = Random(name.wrapping_mul(1_000_003).wrapping_add(number));
        let mut within =
            |(low, high): Range| low + random.number() % (high.saturating_sub(low) + 1);
        let (prompt, output) = (within(self.prompt), within(self.output));
        let hang_up = self.hang_up.map_or(u64::MAX, within);
        let body = self.body(number, prompt, output);
        let text = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.authorization,
            body.len()
        );
        Ask { text, hang_up }
    }

    fn body(&self, number: u64, prompt: u64, output: u64) -> String {
        let prefix = self.prefix.min(prompt);
        let content = filled(&format!("{} {} ", self.name, number % self.prefixes), prefix)
            + &filled(&format!("{} number {number} ", self.name), prompt - prefix);
        let mut body = format!(
            "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}],\
             \"x_tenant\":\"{}\",\"x_output\":{output}",
            self.name
        );
        if self.max_tokens != Some(0) {
            body += &format!(",\"max_tokens\":{}", self.max_tokens.unwrap_or(output));
        }
        if self.is_stream {
            body += ",\"stream\":true";
        }
        if self.includes_usage {
            body += ",\"stream_options\":{\"include_usage\":true}";
        }
        if let Some(seed) = self.random {
            body += &format!(",\"x_random\":{}", seed + number);
        }
        body + "}"
    }
}

/// A text of this number of tokens that begins with `begin`, as far as there is room.
fn filled(begin: &str, tokens: u64) -> String {
    let length = tokens as usize * TOKEN_BYTES;
    let mut text = begin.to_owned();
    while text.len() < length {
        text.push_str("word");
    }
    text.truncate(length);
    text
}
