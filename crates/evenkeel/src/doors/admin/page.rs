//! The files of the page at `/`, as they lie in `page/`.
//!
//! They are part of the program: nothing is read from a disk and nothing comes from elsewhere. They
//! tell nothing by themselves; what the page shows it asks for, with a token where one is needed.
//! `page/uplot` draws the charts; its licence lies beside it.

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, type and contents of each file.
const FILES: [(&str, &str, &[u8]); 12] = [
    ("/", HTML, include_bytes!("page/index.html")),
    ("/page.css", STYLE, include_bytes!("page/page.css")),
    ("/icon.svg", "image/svg+xml", include_bytes!("page/icon.svg")),
    ("/page.js", SCRIPT, include_bytes!("page/page.js")),
    ("/server.js", SCRIPT, include_bytes!("page/server.js")),
    ("/verdict.js", SCRIPT, include_bytes!("page/verdict.js")),
    ("/charts.js", SCRIPT, include_bytes!("page/charts.js")),
    ("/clients.js", SCRIPT, include_bytes!("page/clients.js")),
    ("/client.js", SCRIPT, include_bytes!("page/client.js")),
    ("/text.js", SCRIPT, include_bytes!("page/text.js")),
    ("/uplot/uplot.js", SCRIPT, include_bytes!("page/uplot/uPlot.iife.min.js")),
    ("/uplot/uplot.css", STYLE, include_bytes!("page/uplot/uPlot.min.css")),
];

/// Type and contents of the file at `path`.
pub fn file(path: &str) -> Option<(&'static str, &'static [u8])> {
    FILES.iter().find(|(known, ..)| *known == path).map(|(_, kind, bytes)| (*kind, *bytes))
}
