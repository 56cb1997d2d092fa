//! The `proxy.tokens` section: the weights and prices of the tokens of language models.
//!
//! How tokens are read from requests and answers: `evenkeel_usage`.

use crate::fault::TextPlace;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, ValueSyntax, section};
use crate::reader::{SectionReader, settings};
use crate::settings::conditions::pattern;
use crate::tree::YamlNode;
use crate::values::Read;
use evenkeel_core::condition::patterns::{EXPRESSION, Patterns};
use evenkeel_core::limit::UnitCosts;
use evenkeel_core::units::Cost;

/// Maximum number of entries of `prices`.
const PRICES_MAX: usize = 1_000;

settings! {
    /// The weights and prices of the tokens of language models, with `cost: tokens`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TokenSettings from read(section), TABLE = "proxy.tokens";

    /// Weighted tokens per second that the backends process when they are busy. The `share` of a
    /// limit refers to it, as it does to `cpus` with other costs. By default it is measured while
    /// requests wait. Set it if several instances have the same backends.
    pub per_second: Option<f64>, PER_SECOND: ConfigKey<f64> =
        ConfigKey::new("per_second", ValueSyntax::Number, capacity)
        .within(1.0, 1e9).default_note("measured").example("20000")
        .low("clients are in debt while the backend is idle").high("no client is ever in debt");
    /// Weight of a token of the prompt.
    pub prompt: f64, PROMPT: DefaultedKey<f64> = number("prompt").within(0.0, 1_000.0).default(1.0)
        .low("long prompts are cheap").high("long prompts are dear");
    /// Weight of a token of the prompt that the backend has in its cache.
    pub cached: f64, CACHED: DefaultedKey<f64> =
        number("cached").within(0.0, 1_000.0).default(0.25);
    /// Weight of a token of the output.
    pub output: f64, OUTPUT: DefaultedKey<f64> = number("output").within(0.0, 1_000.0).default(4.0)
        .low("long answers are cheap").high("long answers are dear");
    /// Whether streams of the OpenAI API that do not ask for their usage are made to report it:
    /// `stream_options.include_usage` is added to the request, and the event with the usage is
    /// removed from the answer. Otherwise the pieces of such a stream are counted.
    pub include_usage: bool, INCLUDE_USAGE: DefaultedKey<bool> =
        ConfigKey::truth("include_usage").default(true);
    /// The prices of models, for limits with `unit: money`: a list of [prices](#proxytokensprices),
    /// at most 1000. The first one with a matching pattern applies. Other models cost nothing. If
    /// the model of a request cannot be read, the highest price applies.
    pub prices: Vec<ModelPrice>, PRICES: SubsectionKey =
        SubsectionKey::list("prices", &PRICE).default_note("none") => prices(section);
    /// With [several backends](models.md#several-backends), a prompt goes to one that has its
    /// beginning in its cache, provided that this backend then has at most this many more requests
    /// than the least loaded one, and no more than one and a half times its even share of
    /// `concurrency`. `0`: backends are chosen by load alone.
    pub prefix_lead: usize, PREFIX_LEAD: DefaultedKey<usize> = ConfigKey::whole("prefix_lead")
        .within(0, 1_000_000).default(8).low("prompts are computed again on another backend")
        .high("requests crowd at one backend while others have little to do");
}

section! {
    PRICE = "proxy.tokens.prices";

    /// The name of the model as requests state it, or several; `*` stands for any characters.
    MODEL: ListKey<Box<str>> = ConfigKey::text("model", pattern).list().required()
        .example("gpt-4o*");
    /// The price of a million tokens of the prompt, in the currency of the limits.
    PRICE_PROMPT: ConfigKey<f64> = number("prompt").within(0.0, 1e6).required().example("2.50");
    /// The price of a million tokens of the prompt that the backend has in its cache.
    PRICE_CACHED: ConfigKey<f64> =
        number("cached").within(0.0, 1e6).default_note("as `prompt`").example("1.25");
    /// The price of a million tokens of the output.
    PRICE_OUTPUT: ConfigKey<f64> = number("output").within(0.0, 1e6).required().example("10");
}

/// The prices of a million tokens of some models.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPrice {
    /// The names of the models.
    pub model: Patterns,
    /// The price of a million tokens of the prompt.
    pub prompt: f64,
    /// The price of a million tokens of the prompt that the backend has in its cache.
    pub cached: f64,
    /// The price of a million tokens of the output.
    pub output: f64,
}

impl ModelPrice {
    /// Whether it is for all models, as far as one name can tell.
    pub(super) fn is_for_all(&self) -> bool {
        self.model.matches(UNNAMED)
    }

    /// Whether all models of `later` have this price. `false` if expressions make it hard to tell.
    fn hides(&self, later: &ModelPrice) -> bool {
        let mut given = self.model.given().iter().chain(later.model.given());
        let is_plain = given.all(|one| !one.starts_with(EXPRESSION));
        // What matches a pattern as a text also matches what the pattern matches.
        let all = || later.model.given().iter().all(|one| self.model.matches(one.as_bytes()));
        self.model.given().iter().any(|one| is_any(one)) || (is_plain && all())
    }
}

/// Whether a pattern is `*`.
fn is_any(pattern: &str) -> bool {
    !pattern.is_empty() && pattern.trim_matches('*').is_empty()
}

/// The name of a model that only patterns for all names match.
const UNNAMED: &[u8] = b"\x01";

/// Weighted tokens per second that are assumed until they are measured. They are so high that no
/// client is in debt.
const PER_SECOND_UNKNOWN: f64 = 1e6;

impl Default for TokenSettings {
    fn default() -> TokenSettings {
        SectionReader::defaults(&TABLE, read)
    }
}

impl TokenSettings {
    /// The capacity that shares refer to, as a number of CPUs: thousands of weighted tokens per
    /// second.
    #[must_use]
    pub fn cpus(&self) -> f64 {
        self.per_second.unwrap_or(PER_SECOND_UNKNOWN) / 1e3
    }

    /// The cost of a request to `model` with these numbers of tokens. `cached` are part of
    /// `prompt`.
    #[must_use]
    pub fn cost(&self, model: &str, prompt: u64, cached: u64, output: u64) -> UnitCosts {
        let cached = cached.min(prompt);
        let counts = [prompt - cached, cached, output].map(|count| count as f64);
        let sum = |rates: [f64; 3]| counts.iter().zip(rates).map(|(n, rate)| n * rate).sum::<f64>();
        let token = Cost::tokens(1).0 as f64;
        let rates = |price: &ModelPrice| [price.prompt, price.cached, price.output];
        let price = match model {
            // A model that cannot be read must not be cheaper than one that can.
            "" => self.prices.iter().map(rates).max_by(|a, b| sum(*a).total_cmp(&sum(*b))),
            _ => self.prices.iter().find(|price| price.model.matches(model.as_bytes())).map(rates),
        };
        let price = price.unwrap_or([0.0; 3]);
        UnitCosts {
            work: Cost((sum([self.prompt, self.cached, self.output]) * token) as u64),
            tokens: Cost::tokens(prompt.saturating_add(output)),
            money: Cost((sum(price) * 1e-6 * Cost::hits(1).0 as f64) as u64),
        }
    }
}

fn prices(tokens: &mut SectionReader<'_, '_>) -> Vec<ModelPrice> {
    let Some(nodes) = tokens.nodes_of(&PRICES) else { return Vec::new() };
    if nodes.len() > PRICES_MAX {
        tokens.fault("prices", format!("more than {PRICES_MAX} entries; remove some"));
    }
    let read = tokens.sections(&PRICES, nodes, |section| {
        section.require(&["model", "prompt", "output"], |key| format!("a price needs `{key}`"));
        let model = Patterns::new(section.key(&MODEL)).ok()?;
        let (prompt, output) = (section.key(&PRICE_PROMPT)?, section.key(&PRICE_OUTPUT)?);
        let cached = section.key_or(&PRICE_CACHED, prompt);
        Some(ModelPrice { model, prompt, cached, output })
    });
    hidden(tokens, nodes, &read);
    read.into_iter().flatten().collect()
}

/// Warns of prices that never apply: for each price that hides others, of the first of these.
fn hidden(tokens: &mut SectionReader<'_, '_>, nodes: &[YamlNode], prices: &[Option<ModelPrice>]) {
    let mut reported = Vec::new();
    for (at, price) in prices.iter().enumerate() {
        let Some(price) = price else { continue };
        let hides = |one: &Option<ModelPrice>| one.as_ref().is_some_and(|one| one.hides(price));
        let Some(first) = prices[..at].iter().position(hides) else { continue };
        if reported.contains(&first) {
            continue;
        }
        reported.push(first);
        let TextPlace { file, line, column } = nodes[first].place;
        let of_file = if file == nodes[at].place.file { "" } else { " of another file" };
        let what = format!(
            "this price never applies: the one in line {line}, column {column}{of_file} is for all \
             of its models, and the first one counts; move that one below it, or remove this one"
        );
        tokens.warn(nodes[at].place, what);
    }
}

fn capacity(text: &str) -> Read<f64> {
    match text {
        "auto" | "measured" => Err("leave it out, then it is measured".to_owned()),
        _ => decimal(text),
    }
}

const fn number(name: &'static str) -> ConfigKey<f64> {
    ConfigKey::new(name, ValueSyntax::Number, decimal)
}

fn decimal(text: &str) -> Read<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = text.parse().ok().filter(|_| plain);
    number.ok_or_else(|| "not a number; write 4 or 0.25".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_costs_weighted_tokens_tokens_and_money() {
        let price = ModelPrice {
            model: Patterns::new(["dear-*"]).expect("a pattern"),
            prompt: 2.5,
            cached: 1.25,
            output: 10.0,
        };
        let settings = TokenSettings { prices: vec![price], ..TokenSettings::default() };
        let cost = settings.cost("dear-1", 1_000, 400, 200);
        assert_eq!(cost.work, Cost::tokens(600 + 100 + 800));
        assert_eq!(cost.tokens, Cost::tokens(1_200));
        let money = 600.0 * 2.5e-6 + 400.0 * 1.25e-6 + 200.0 * 1e-5;
        assert!((cost.money.as_units() - money).abs() < 1e-8, "{:?}", cost.money);
        assert_eq!(settings.cost("other", 1_000, 400, 200).money, Cost::ZERO);
        assert_eq!(settings.cost("", 1_000, 400, 200).money, cost.money, "the dearest");
    }

    #[test]
    fn a_reload_takes_what_was_taken_at_the_start() {
        for cost in ["preset: openai", "cost: tokens", "cost: tokens, tokens: {per_second: 20000}"]
        {
            let text = format!("proxy: {{listen: '127.0.0.1:1', {cost}}}");
            let config = crate::parse("a.yaml", text.as_bytes(), 2.0).expect("a configuration");
            let (reloaded, kept) = config.reloaded(&config).expect("the same");
            assert_eq!((&reloaded, kept.len()), (&config, 0), "{cost}");
            crate::parse("a.yaml", config.native.as_bytes(), 2.0)
                .expect("what `show` prints can be read");
        }
    }
}
