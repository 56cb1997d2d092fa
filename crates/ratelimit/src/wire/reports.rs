//! Reads usage reports of the rate limit quota service without copying texts.
//!
//! Unknown fields are skipped. A bucket with an empty or too long name is left out and counted, and
//! the rest of the message is read nevertheless: one odd bucket must not cost an Envoy all its
//! others. How reports are used: `quota`.

use super::view::{ViewResult, pair};
use evenkeel_grpc::protobuf::{ProtobufSource, ProtobufTexts};

/// The maximum number of buckets in one message; further ones are left out.
pub const USAGES_MAX: usize = 10_000;
/// The maximum number of pairs in the name of a bucket.
pub const PAIRS_MAX: usize = 16;
/// The maximum length of a bucket's name, in bytes over all its keys and values.
pub const NAME_BYTES_MAX: usize = 1_024;

/// The maximum number of requests in one report of a bucket. More count as that many. No limit is
/// higher, and sums of such numbers never exceed 64 bits.
pub const USAGE_REQUESTS_MAX: u64 = u32::MAX as u64;

/// One message: the usage of some buckets since their last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageReports<'a> {
    /// The domain. It may be empty in all messages of a stream but the first.
    pub domain: &'a str,
    /// The usage of each bucket.
    pub usages: Vec<UsageReport<'a>>,
    /// The number of buckets left out for their names, or because there were too many.
    pub left_out: usize,
}

/// The usage of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageReport<'a> {
    /// The name of the bucket: pairs of key and value, sorted by key; each key occurs once.
    pub name: Vec<(&'a str, &'a str)>,
    /// Requests that passed, at most [`USAGE_REQUESTS_MAX`].
    pub allowed: u64,
    /// Requests that were refused, at most [`USAGE_REQUESTS_MAX`].
    pub denied: u64,
}

impl<'a> UsageReports<'a> {
    /// Reads a message.
    pub fn decode(bytes: &'a [u8]) -> ViewResult<UsageReports<'a>> {
        let mut reports = UsageReports::default();
        let (texts, mut source) = (ProtobufTexts::of(bytes), ProtobufSource(bytes));
        while let Some((field, kind)) = source.tag()? {
            match field {
                1 => reports.domain = texts.read(source.bytes(kind)?)?,
                2 => {
                    let usage = usage(source.bytes(kind)?, texts)?;
                    match usage.filter(|_| reports.usages.len() < USAGES_MAX) {
                        Some(usage) => reports.usages.push(usage),
                        None => reports.left_out += 1,
                    }
                }
                _ => source.skip(field, kind)?,
            }
        }
        Ok(reports)
    }
}

/// Reads the usage of one bucket; `None` if its name is empty or too long.
fn usage<'a>(bytes: &'a [u8], texts: ProtobufTexts<'a>) -> ViewResult<Option<UsageReport<'a>>> {
    let mut usage = UsageReport::default();
    let (mut pairs, mut source) = (0, ProtobufSource(bytes));
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => pairs += name(source.bytes(kind)?, texts, &mut usage.name)?,
            3 => usage.allowed = source.number(kind)?.min(USAGE_REQUESTS_MAX),
            4 => usage.denied = source.number(kind)?.min(USAGE_REQUESTS_MAX),
            _ => source.skip(field, kind)?,
        }
    }
    // If a key occurs twice, its last value counts. The sort keeps the order of equal keys.
    usage.name.sort_by_key(|(key, _)| *key);
    usage.name.reverse();
    usage.name.dedup_by_key(|(key, _)| *key);
    usage.name.reverse();
    let length: usize = usage.name.iter().map(|(key, value)| key.len() + value.len()).sum();
    let good = (1..=PAIRS_MAX).contains(&pairs) && length <= NAME_BYTES_MAX;
    Ok(good.then_some(usage))
}

/// Adds the pairs of a name up to [`PAIRS_MAX`], and returns how many pairs the message has.
fn name<'a>(
    bytes: &'a [u8],
    texts: ProtobufTexts<'a>,
    name: &mut Vec<(&'a str, &'a str)>,
) -> ViewResult<usize> {
    let (mut pairs, mut source) = (0, ProtobufSource(bytes));
    while let Some((field, kind)) = source.tag()? {
        if field != 1 {
            source.skip(field, kind)?;
            continue;
        }
        let pair = pair(source.bytes(kind)?, texts)?;
        pairs += 1;
        if name.len() < PAIRS_MAX {
            name.push(pair);
        }
    }
    Ok(pairs)
}

/// The maximum length of a message of the quota service, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
