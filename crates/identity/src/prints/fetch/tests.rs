//! Requests of real browsers, which never differ, and of programs that claim to be one.

use super::*;

const CHROME: &str = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/131.0.0.0 Safari/537.36";
const FIREFOX: &str =
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:128.0) Gecko/20100101 Firefox/128.0";
const SAFARI: &str = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 \
    (KHTML, like Gecko) Version/17.5 Mobile/15E148 Safari/604.1";

type Fields<'a> = &'a [(&'a str, &'a str)];

const PAGE: Fields<'_> = &[
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("accept-language", "en-GB,en;q=0.5"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
];
const METADATA: Fields<'_> = &[
    ("sec-fetch-site", "none"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-user", "?1"),
    ("sec-fetch-dest", "document"),
];
const HINTS: Fields<'_> = &[
    ("sec-ch-ua", "\"Google Chrome\";v=\"131\", \"Chromium\";v=\"131\", \"Not_A Brand\";v=\"24\""),
    ("sec-ch-ua-mobile", "?0"),
];

fn judged(method: &str, secure: bool, agent: &str, parts: &[Fields<'_>]) -> FetchVerdict {
    let mut fields: Vec<_> = parts.concat();
    if !agent.is_empty() {
        fields.push(("user-agent", agent));
    }
    let header = |name: &str| {
        let found = fields.iter().find(|(field, _)| *field == name);
        found.map(|(_, value)| value.as_bytes())
    };
    FetchRequest { method, secure, repeats_agent: false, header }.verdict()
}

fn page(agent: &str, parts: &[Fields<'_>]) -> FetchVerdict {
    judged("GET", true, agent, parts)
}

fn without<'a>(fields: Fields<'a>, name: &str) -> Vec<(&'a str, &'a str)> {
    fields.iter().filter(|(field, _)| *field != name).copied().collect()
}

#[test]
fn several_lines_of_user_agent_differ() {
    let header = |name: &str| (name == "user-agent").then_some(&b"curl/8"[..]);
    let of = |repeats_agent| {
        FetchRequest { method: "GET", secure: true, repeats_agent, header }.verdict()
    };
    assert_eq!((of(false), of(true)), (FetchVerdict::Other, FetchVerdict::Differs));
}

#[test]
fn browsers_agree() {
    use FetchVerdict::Agrees;
    assert_eq!(page(CHROME, &[PAGE, METADATA, HINTS]), Agrees);
    assert_eq!(page(CHROME, &[PAGE, METADATA]), Agrees, "hints are switched off");
    assert_eq!(page(FIREFOX, &[PAGE, METADATA]), Agrees);
    assert_eq!(page(SAFARI, &[PAGE, METADATA]), Agrees);
    let edge = format!("{CHROME} Edg/131.0.0.0");
    assert_eq!(page(&edge, &[PAGE, METADATA, HINTS]), Agrees);
    let headless = CHROME.replace("Chrome/", "HeadlessChrome/");
    assert_eq!(page(&headless, &[&without(PAGE, "accept-language"), METADATA]), Agrees);
    for agent in [CHROME, FIREFOX, SAFARI] {
        assert_eq!(judged("GET", false, agent, &[PAGE]), Agrees, "an insecure origin: {agent}");
    }
    for old in [
        CHROME.replace("131", "79"),
        FIREFOX.replace("128", "89"),
        SAFARI.replace("17.5", "16.3"),
        SAFARI.replace("17.5", "9.1"),
    ] {
        assert_eq!(page(&old, &[PAGE]), Agrees, "{old}");
    }
}

#[test]
fn requests_that_are_no_pages_agree_with_less() {
    use FetchVerdict::Agrees;
    let socket: Fields<'_> =
        &[("upgrade", "websocket"), ("sec-websocket-version", "13"), ("accept-encoding", "gzip")];
    assert_eq!(page(CHROME, &[socket]), Agrees);
    let video = [("accept", "*/*"), ("accept-language", "de"), ("range", "bytes=0-")];
    assert_eq!(page(CHROME, &[&video]), Agrees);
    let report: Fields<'_> = &[("content-type", "application/reports+json")];
    assert_eq!(judged("POST", true, CHROME, &[report]), Agrees);
    assert_eq!(judged("OPTIONS", true, CHROME, &[&[("accept", "*/*")]]), Agrees);
    let kept = CHROME.replace("131.0", "99.131");
    assert_eq!(page(&kept, &[PAGE, METADATA, HINTS]), Agrees, "a policy keeps the version at 99");
}

#[test]
fn programs_that_claim_a_browser_differ() {
    use FetchVerdict::Differs;
    let curl: Fields<'_> = &[("accept", "*/*")];
    let python: Fields<'_> = &[("accept", "*/*"), ("accept-encoding", "gzip, deflate")];
    let go: Fields<'_> = &[("accept-encoding", "gzip")];
    for agent in [CHROME, FIREFOX, SAFARI] {
        for fields in [curl, go, &[]] {
            assert_eq!(page(agent, &[fields]), Differs, "{agent} {fields:?}");
            assert_eq!(judged("GET", false, agent, &[fields]), Differs, "{agent} {fields:?}");
        }
        assert_eq!(page(agent, &[python]), Differs);
        assert_eq!(page(agent, &[PAGE]), Differs, "no Fetch Metadata");
        assert_eq!(judged("POST", true, agent, &[PAGE]), Differs, "no Fetch Metadata");
        let partial = without(METADATA, "sec-fetch-dest");
        assert_eq!(page(agent, &[PAGE, &partial]), Differs);
        let odd =
            [&without(METADATA, "sec-fetch-site")[..], &[("sec-fetch-site", "same")]].concat();
        assert_eq!(page(agent, &[PAGE, &odd]), Differs);
    }
    assert_eq!(page(FIREFOX, &[PAGE, METADATA, HINTS]), Differs, "hints of Chromium");
    assert_eq!(page(SAFARI, &[PAGE, METADATA, HINTS]), Differs, "hints of Chromium");
    let other = CHROME.replace("131", "120");
    assert_eq!(page(&other, &[PAGE, METADATA, HINTS]), Differs, "another version");
}

#[test]
fn what_claims_no_known_browser_is_other() {
    for agent in [
        "",
        "curl/8.5.0",
        "python-requests/2.32",
        "Mozilla/5.0",
        "Mozilla/4.0 (compatible; MSIE 8.0; Windows NT 6.1)",
        "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
        "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; \
         +https://openai.com/gptbot) Chrome/131.0.0.0 Safari/537.36",
        "Mozilla/5.0 (Linux; Android 14; Pixel 8 Build/1; wv) AppleWebKit/537.36 (KHTML, like \
         Gecko) Version/4.0 Chrome/131.0.0.0 Mobile Safari/537.36",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
         QtWebEngine/6.5 Chrome/108.0.0.0 Safari/537.36",
        "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like \
         Gecko) CriOS/131.0 Mobile/15E148 Safari/604.1",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.0 \
         Safari/605.1.15",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/x",
    ] {
        assert_eq!(page(agent, &[]), FetchVerdict::Other, "{agent}");
    }
}

#[test]
fn fuzz_every_user_agent_has_a_verdict() {
    evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, Vec<u8>, u8)>().for_each(|(agent, hint, form)| {
        let start: &[u8] = if form & 1 == 0 { b"Mozilla/5.0 (X11) Chrome/1" } else { b"" };
        let agent = [start, agent].concat();
        let header = |name: &str| match name {
            "user-agent" => Some(&agent[..]),
            "sec-ch-ua" if form & 2 == 0 => Some(&hint[..]),
            "accept" | "accept-language" if form & 4 == 0 => Some(&hint[..]),
            _ => None,
        };
        let secure = form & 8 == 0;
        let verdict =
            FetchRequest { method: "GET", secure, repeats_agent: false, header }.verdict();
        assert!(!verdict.as_str().is_empty());
    });
}
