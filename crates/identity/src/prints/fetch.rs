//! Whether the headers of a request agree with the browser that its `User-Agent` claims.
//!
//! Programs that take over a browser's `User-Agent` rarely send what the browser sends beside it:
//! `Accept`, `Accept-Language`, `Accept-Encoding`, and over HTTPS the fields of Fetch Metadata
//! (`Sec-Fetch-*`) and of client hints (`Sec-CH-UA`). Only what the claimed browser does with
//! certainty is evidence: an old version, an insecure origin, a WebSocket or a field that privacy
//! settings remove is none. A program that copies all headers of a browser agrees with it.

use std::fmt::{self, Display, Formatter};

/// What the headers say about the claimed browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchVerdict {
    /// Nothing contradicts the claim.
    Agrees,
    /// The claimed browser does not send such headers.
    Differs,
    /// No browser is claimed whose headers are known: a program, a robot, an app, or a browser
    /// that names itself in another way.
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
    /// Looks up a field by its name in small letters.
    pub header: F,
}

impl<'a, F: Fn(&str) -> Option<&'a [u8]>> FetchRequest<'a, F> {
    /// Compares the headers with the claim.
    pub fn verdict(&self) -> FetchVerdict {
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

/// The families of browsers whose headers are known.
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

/// The products that browsers of each family name in `User-Agent`. With any other it is an app or a
/// program that embeds the browser, whose headers may differ.
const PRODUCTS: [(BrowserFamily, &str, &[&str]); 4] = [
    (BrowserFamily::Chromium, "Chrome", CHROMIUM_PRODUCTS),
    (BrowserFamily::Chromium, "HeadlessChrome", CHROMIUM_PRODUCTS),
    (BrowserFamily::Firefox, "Firefox", &["Mozilla", "Gecko", "Firefox"]),
    (BrowserFamily::Safari, "Version", &["Mozilla", "AppleWebKit", "Version", "Mobile", "Safari"]),
];

const CHROMIUM_PRODUCTS: &[&str] = &[
    "Mozilla",
    "AppleWebKit",
    "Chrome",
    "HeadlessChrome",
    "Mobile",
    "Safari",
    "Edg",
    "EdgA",
    "OPR",
    "SamsungBrowser",
    "Vivaldi",
];

/// What the comments of a `User-Agent` contain if it is not a browser's: robots, and apps that
/// embed Android's browser.
const FOREIGN: [&str; 4] = ["compatible", "; wv", "bot", "http"];

/// The systems that Safari runs on. Browsers on other systems use its engine with other headers.
const APPLE: [&str; 3] = ["Macintosh", "iPhone", "iPad"];

impl ClaimedBrowser {
    /// Reads a `User-Agent`: products such as `Chrome/131.0.0.0`, and comments in parentheses.
    fn read(agent: &str) -> Option<ClaimedBrowser> {
        let (mut depth, mut is_foreign, mut is_apple) =
            (0_u32, !agent.starts_with("Mozilla/"), false);
        let mut products = Vec::new();
        for piece in agent.split_inclusive(['(', ')']) {
            let text = piece.trim_end_matches(['(', ')']);
            if depth == 0 {
                products.extend(text.split_ascii_whitespace());
            } else {
                is_foreign |= FOREIGN.iter().any(|word| text.contains(word));
                is_apple |= APPLE.iter().any(|word| text.starts_with(word));
            }
            match piece.as_bytes().last() {
                Some(b'(') => depth += 1,
                Some(b')') => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        let named = |wanted: &str| {
            let versions = products.iter().filter_map(|product| product.split_once('/'));
            versions.clone().find(|(name, _)| *name == wanted).map(|(_, version)| version)
        };
        let found = PRODUCTS.iter().find_map(|(family, product, known)| {
            named(product).map(|version| (*family, version, known))
        });
        let (family, version, known) = found?;
        let is_known = |product: &&str| known.contains(&product.split('/').next().unwrap_or(""));
        let suits = family != BrowserFamily::Safari || (is_apple && named("Safari").is_some());
        if is_foreign || !suits || !products.iter().all(is_known) {
            return None;
        }
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

/// The number that `text` begins with.
fn number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests;
