//! Whether the headers of a request agree with the browser that its `User-Agent` claims.
//!
//! Programs that take over a browser's `User-Agent` rarely send what the browser sends beside it:
//! `Accept`, `Accept-Language`, `Accept-Encoding`, and over HTTPS the fields of Fetch Metadata
//! (`Sec-Fetch-*`) and of client hints (`Sec-CH-UA`). Only what the claimed browser does with
//! certainty is evidence: an old version, an insecure origin, a WebSocket or a field that privacy
//! settings remove is none. A program that copies all headers of a browser agrees with it.

use std::fmt::{self, Display, Formatter};

/// The verdict of the headers on the claimed browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchVerdict {
    /// Nothing contradicts the claim.
    Agrees,
    /// The claimed browser does not send such headers.
    Differs,
    /// The request claims no browser with known headers. It is of a program, a robot, an app, or a
    /// browser that names itself in another way.
    Other,
}

impl FetchVerdict {
    /// The value of the fact `fetch`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            FetchVerdict::Agrees => "agrees",
            FetchVerdict::Differs => "differs",
            FetchVerdict::Other => "other",
        }
    }
}

impl Display for FetchVerdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request, as far as the verdict depends on it.
pub struct FetchRequest<'a, F: Fn(&str) -> Option<&'a [u8]>> {
    /// The method.
    pub method: &'a str,
    /// Whether the browser certainly sees the origin as secure. It sends `Sec-Fetch-*` to no others
    /// but `localhost`.
    pub secure: bool,
    /// Whether it has several lines of `User-Agent`, which no browser sends. Programs do, to show a
    /// robot's name to the backend and another one to what reads the first line.
    pub repeats_agent: bool,
    /// Looks up a field by its name in small letters.
    pub header: F,
}

impl<'a, F: Fn(&str) -> Option<&'a [u8]>> FetchRequest<'a, F> {
    /// Compares the headers with the claim.
    pub fn verdict(&self) -> FetchVerdict {
        if self.repeats_agent {
            return FetchVerdict::Differs;
        }
        let claim = self.text("user-agent").and_then(ClaimedBrowser::read);
        let Some(claim) = claim else { return FetchVerdict::Other };
        if self.lacks_basics() || self.lacks_metadata(&claim) || self.hints_at_another(&claim) {
            FetchVerdict::Differs
        } else {
            FetchVerdict::Agrees
        }
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        (self.header)(name).and_then(|value| str::from_utf8(value).ok())
    }

    fn has(&self, name: &str) -> bool {
        (self.header)(name).is_some()
    }

    /// A WebSocket, for which some browsers send less.
    fn is_upgrade(&self) -> bool {
        self.has("upgrade") || self.has("sec-websocket-version") || self.method == "CONNECT"
    }

    /// Whether two of the three fields are missing that each page and each part of a page is
    /// fetched with. One may be: Chromium without a window sends no `Accept-Language`, and some
    /// proxies remove `Accept-Encoding`.
    fn lacks_basics(&self) -> bool {
        let basics = ["accept", "accept-language", "accept-encoding"];
        let missing = basics.into_iter().filter(|name| !self.has(name)).count();
        self.method == "GET" && missing > 1 && !self.is_upgrade()
    }

    /// Whether Fetch Metadata is missing although the claimed version sends it, is incomplete, or
    /// has no meaning. It may be missing for a request that is not for a page: browsers send
    /// reports and continue downloads without it.
    fn lacks_metadata(&self, claim: &ClaimedBrowser) -> bool {
        if !self.secure || !claim.sends_metadata() || self.is_upgrade() {
            return false;
        }
        let fields = ["sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"];
        match fields.into_iter().filter(|name| self.has(name)).count() {
            0 => {
                let accept = self.text("accept").unwrap_or_default();
                let is_get = self.method == "GET";
                accept.contains("text/html") || (is_get && !self.has("accept-language"))
            }
            3 => {
                let sites = ["cross-site", "same-origin", "same-site", "none"];
                !self.text("sec-fetch-site").is_some_and(|site| sites.contains(&site))
            }
            _ => true,
        }
    }

    /// Whether the client hints name Chromium and the claim another browser, or another version.
    fn hints_at_another(&self, claim: &ClaimedBrowser) -> bool {
        let Some(hint) = self.text("sec-ch-ua") else { return false };
        if claim.family != BrowserFamily::Chromium {
            return true;
        }
        let hinted = hint.split_once("\"Chromium\";v=\"").and_then(|(_, rest)| number(rest));
        // An old policy for firms keeps the version in `User-Agent` at 99.
        hinted.is_some_and(|hinted| hinted != claim.version.0 && claim.version.0 != 99)
    }
}

/// The families of browsers with known headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrowserFamily {
    Chromium,
    Firefox,
    Safari,
}

/// The browser that a `User-Agent` claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClaimedBrowser {
    family: BrowserFamily,
    /// Major and minor.
    version: (u32, u32),
}

/// Sets of families: a bit for each.
const CHROMIUM: u8 = 1;
const FIREFOX: u8 = 2;
const SAFARI: u8 = 4;

/// The families of the browsers that name a product in `User-Agent`. Any other product is an app or
/// a program that embeds the browser, and its headers may differ.
fn families(product: &str) -> u8 {
    match product {
        "AppleWebKit" | "Mobile" | "Safari" => CHROMIUM | SAFARI,
        "Chrome" | "HeadlessChrome" | "Edg" | "EdgA" | "OPR" | "SamsungBrowser" | "Vivaldi" => {
            CHROMIUM
        }
        "Gecko" | "Firefox" => FIREFOX,
        "Version" => SAFARI,
        _ => 0,
    }
}

/// Text in the comments of a `User-Agent` that is not a browser's: that of robots, and of apps that
/// embed Android's browser.
const FOREIGN: [&[u8]; 4] = [b"compatible", b"; wv", b"bot", b"http"];

/// The systems that Safari runs on. Browsers on other systems use its engine with other headers.
const APPLE: [&str; 3] = ["Macintosh", "iPhone", "iPad"];

impl ClaimedBrowser {
    /// Reads a `User-Agent`: products such as `Chrome/131.0.0.0`, and comments in parentheses.
    fn read(agent: &str) -> Option<ClaimedBrowser> {
        let (_, mut rest) = agent.strip_prefix("Mozilla/")?.split_once(' ')?;
        let (mut possible, mut named, mut is_apple) = (u8::MAX, None, false);
        while !rest.is_empty() {
            let (products, comment) = rest.split_once('(').unwrap_or((rest, ""));
            for product in products.split_ascii_whitespace() {
                let (name, version) = product.split_once('/').unwrap_or((product, ""));
                possible &= families(name);
                if matches!(name, "Chrome" | "HeadlessChrome" | "Firefox" | "Version") {
                    named = Some(version);
                }
            }
            is_apple |= APPLE.iter().any(|system| comment.starts_with(system));
            rest = skip_comment(comment)?;
        }
        let family = match possible {
            CHROMIUM => BrowserFamily::Chromium,
            FIREFOX => BrowserFamily::Firefox,
            SAFARI if is_apple => BrowserFamily::Safari,
            _ => return None,
        };
        let version = named?;
        let (major, minor) = version.split_once('.').unwrap_or((version, ""));
        Some(ClaimedBrowser { family, version: (number(major)?, number(minor).unwrap_or(0)) })
    }

    /// Whether this version sends Fetch Metadata with all requests to secure origins.
    fn sends_metadata(&self) -> bool {
        self.version
            >= match self.family {
                BrowserFamily::Chromium => (80, 0),
                BrowserFamily::Firefox => (90, 0),
                BrowserFamily::Safari => (16, 4),
            }
    }
}

/// Returns what follows a comment, which may contain others. `None`: it is not a browser's.
fn skip_comment(comment: &str) -> Option<&str> {
    let (bytes, mut depth) = (comment.as_bytes(), 1);
    for (place, byte) in bytes.iter().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'c' | b';' | b'b' | b'h'
                if FOREIGN.iter().any(|word| bytes[place..].starts_with(word)) =>
            {
                return None;
            }
            _ => {}
        }
        if depth == 0 {
            return comment.get(place + 1..);
        }
    }
    Some("")
}

/// The number that `text` begins with.
fn number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests;
