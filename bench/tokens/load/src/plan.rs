//! The plan of a load: which clients send which requests, and when. It is JSON on standard input.

use serde_json::Value;

/// A range of numbers, both ends included.
pub type Range = (u64, u64);

/// One kind of client.
pub struct Client {
    pub name: String,
    /// The value of `Authorization`; empty: none.
    pub authorization: String,
    /// The field `x_tenant`: the engine's name of the client, whatever key a proxy sends. Empty:
    /// none.
    pub tenant: String,
    pub path: String,
    /// Connections, each with one request after the other. 0: `rate` applies.
    pub connections: u64,
    /// The mean number of requests per second, at random times, however long the answers take.
    pub rate: f64,
    /// Seconds between an answer and the next request of a connection.
    pub pause: f64,
    /// Seconds from the start of the load to the start of this client, and to its end.
    pub start: f64,
    pub stop: f64,
    /// The maximum number of requests in total.
    pub count: u64,
    /// Tokens of a prompt, at four bytes each.
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
        let seconds = plan["seconds"].as_f64()?;
        let clients = plan["clients"].as_array()?;
        Some(Plan {
            seed: plan["seed"].as_u64().unwrap_or(1),
            seconds,
            drain: plan["drain"].as_f64().unwrap_or(0.0),
            clients: clients.iter().map(|one| client(one, seconds)).collect::<Option<_>>()?,
        })
    }
}

fn client(one: &Value, seconds: f64) -> Option<Client> {
    let text = |name: &str, or: &str| one[name].as_str().unwrap_or(or).to_owned();
    let number = |name: &str| one[name].as_f64();
    let range = |name: &str| Some((one[name][0].as_u64()?, one[name][1].as_u64()?));
    let name = one["name"].as_str()?;
    Some(Client {
        name: name.to_owned(),
        authorization: text("authorization", &format!("Bearer {name}")),
        tenant: text("tenant", name),
        path: text("path", "/v1/chat/completions"),
        connections: one["connections"].as_u64().unwrap_or(0),
        rate: number("rate").unwrap_or(0.0),
        pause: number("pause").unwrap_or(0.0),
        start: number("start").unwrap_or(0.0),
        stop: number("stop").unwrap_or(seconds),
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

/// A small generator of random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn within(&mut self, (low, high): Range) -> u64 {
        low + self.next() % (high.saturating_sub(low) + 1)
    }

    /// The seconds until the next event, if events are random with this mean number per second.
    pub fn wait(&mut self, rate: f64) -> f64 {
        let part = ((self.next() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        -part.ln() / rate
    }
}

/// One request, as text.
pub struct Ask {
    pub text: String,
    /// Tokens after which the client disconnects.
    pub hang_up: u64,
    pub prompt: u64,
    pub output: u64,
}

impl Client {
    /// The request with this number, which does not depend on when it is sent.
    pub fn ask(&self, seed: u64, number: u64) -> Ask {
        let name =
            self.name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)) * 31 % (1 << 50));
        let mut random = Random(name.wrapping_mul(1_000_003).wrapping_add(number));
        let (prompt, output) = (random.within(self.prompt), random.within(self.output));
        let hang_up = self.hang_up.map_or(u64::MAX, |range| random.within(range));
        let body = self.body(number, prompt, output);
        let authorization = match self.authorization.as_str() {
            "" => String::new(),
            value => format!("Authorization: {value}\r\n"),
        };
        let text = format!(
            "POST {} HTTP/1.1\r\nHost: bench\r\n{authorization}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.path,
            body.len()
        );
        Ask { text, hang_up, prompt, output }
    }

    fn body(&self, number: u64, prompt: u64, output: u64) -> String {
        let prefix = self.prefix.min(prompt);
        let content = filled(&format!("{} {} ", self.name, number % self.prefixes), prefix)
            + &filled(&format!("{} number {number} ", self.name), prompt - prefix);
        let input = match self.path.rsplit('/').next() {
            Some("completions") if self.path.contains("chat") => {
                format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}]")
            }
            Some("completions") => format!("\"prompt\":\"{content}\""),
            _ => format!("\"input\":\"{content}\""),
        };
        let mut body = format!("{{\"model\":\"m\",{input},\"x_output\":{output}");
        if self.max_tokens != Some(0) {
            body += &format!(",\"max_tokens\":{}", self.max_tokens.unwrap_or(output));
        }
        if !self.tenant.is_empty() {
            body += &format!(",\"x_tenant\":\"{}\"", self.tenant);
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
    let length = tokens as usize * 4;
    let mut text = String::with_capacity(length + 4);
    text.push_str(begin);
    while text.len() < length {
        text.push_str("word");
    }
    text.truncate(length);
    text
}
