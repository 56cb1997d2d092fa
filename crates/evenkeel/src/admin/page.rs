//! The files of the page at `/`, from the folder `page/`.
//!
//! They are part of the program: no file is read from disk and none is loaded from elsewhere. They
//! contain no data of their own; the page requests its data, with a token if one is needed.
//! `page/uplot` draws the charts; its licence is next to it.

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The path, type and contents of each file.
const FILES: [(&str, &str, &[u8]); 15] = [
    ("/", HTML, include_bytes!("page/index.html")),
    ("/page.css", STYLE, include_bytes!("page/page.css")),
    ("/icon.svg", "image/svg+xml", include_bytes!("page/icon.svg")),
    ("/page.js", SCRIPT, include_bytes!("page/page.js")),
    ("/server.js", SCRIPT, include_bytes!("page/server.js")),
    ("/verdict.js", SCRIPT, include_bytes!("page/verdict.js")),
    ("/charts.js", SCRIPT, include_bytes!("page/charts.js")),
    ("/plot.js", SCRIPT, include_bytes!("page/plot.js")),
    ("/shares.js", SCRIPT, include_bytes!("page/shares.js")),
    ("/clients.js", SCRIPT, include_bytes!("page/clients.js")),
    ("/client.js", SCRIPT, include_bytes!("page/client.js")),
    ("/groups.js", SCRIPT, include_bytes!("page/groups.js")),
    ("/text.js", SCRIPT, include_bytes!("page/text.js")),
    ("/uplot/uplot.js", SCRIPT, include_bytes!("page/uplot/uPlot.iife.min.js")),
    ("/uplot/uplot.css", STYLE, include_bytes!("page/uplot/uPlot.min.css")),
];

/// Returns the type and contents of the file at `path`.
pub fn file(path: &str) -> Option<(&'static str, &'static [u8])> {
    FILES.iter().find(|(known, ..)| *known == path).map(|(_, kind, bytes)| (*kind, *bytes))
}
