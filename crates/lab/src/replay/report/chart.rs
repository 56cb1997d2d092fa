//! Charts as inline SVG: areas over time, and bars of durations.
//!
//! The charts need no script and no other file. They use the colours of the page, so they are light
//! or dark as the page is. `html` decides what is drawn.

use super::SeriesReport;
use super::html::escaped;
use super::text::{length, time};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 240.0;
/// The margins for the labels of the axes.
const MARGIN_LEFT: f64 = 56.0;
const MARGIN_BOTTOM: f64 = 28.0;
const MARGIN_TOP: f64 = 10.0;
/// The number of marks on the time axis.
const TIME_MARKS: usize = 6;

/// One of several areas, drawn one in front of the other.
pub struct ChartArea<'a> {
    /// The name of the area: its label and its CSS class.
    pub class: &'a str,
    /// The height in each slot.
    pub values: Vec<f64>,
}

/// Draws areas over the time of a series. `line` is a height to be marked, with its label.
pub fn areas(
    title: &str,
    series: &SeriesReport,
    areas: &[ChartArea<'_>],
    line: Option<(f64, &str)>,
) -> String {
    let highest = areas.iter().flat_map(|area| &area.values).fold(0.0_f64, |a, b| a.max(*b));
    let top = round_up(highest.max(line.map_or(0.0, |(at, _)| at)).max(1e-9));
    let y = |value: f64| MARGIN_TOP + (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM) * (1.0 - value / top);
    let mut svg = open(title, HEIGHT);
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (at, label) = (y(top * part), number(top * part));
        let _ = write!(
            svg,
            "<line class=grid x1={MARGIN_LEFT} x2={WIDTH} y1={at:.1} y2={at:.1} />\
             <text x={:.0} y={:.1} class=end>{label}</text>",
            MARGIN_LEFT - 6.0,
            at + 4.0
        );
    }
    for area in areas {
        let _ = write!(svg, "<path class={} d=\"{}\" />", area.class, outline(&area.values, y));
    }
    if let Some((at, name)) = line {
        let _ = write!(
            svg,
            "<line class=mark x1={MARGIN_LEFT} x2={WIDTH} y1={0:.1} y2={0:.1} />\
             <text x={WIDTH} y={1:.1} class=end>{2}</text>",
            y(at),
            y(at) - 4.0,
            escaped(name)
        );
    }
    times(&mut svg, series);
    svg + "</svg>"
}

fn open(title: &str, height: f64) -> String {
    let title = escaped(title);
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=\"{title}\">")
}

/// The path around an area, in steps.
fn outline(values: &[f64], y: impl Fn(f64) -> f64) -> String {
    let step = (WIDTH - MARGIN_LEFT) / values.len().max(1) as f64;
    let mut path = format!("M{MARGIN_LEFT} {:.1}", y(0.0));
    for (place, value) in values.iter().enumerate() {
        let _ =
            write!(path, "L{:.1} {:.1}h{step:.2}", MARGIN_LEFT + place as f64 * step, y(*value));
    }
    let _ = write!(path, "L{WIDTH} {:.1}Z", y(0.0));
    path
}

fn times(svg: &mut String, series: &SeriesReport) {
    let seconds = series.seconds * series.slots.len() as u64;
    for mark in 0..TIME_MARKS {
        let part = mark as f64 / (TIME_MARKS - 1) as f64;
        let at = series.begins as f64 + seconds as f64 * part;
        let text = time(at);
        // Days for long logs, minutes for short ones.
        let text = if seconds > 3 * 86_400 { &text[..10] } else { &text[5..16] };
        let anchor = match mark {
            0 => "start",
            mark if mark + 1 == TIME_MARKS => "end",
            _ => "middle",
        };
        let x = MARGIN_LEFT + (WIDTH - MARGIN_LEFT) * part;
        let y = HEIGHT - 8.0;
        let _ = write!(svg, "<text x={x:.0} y={y:.0} text-anchor={anchor}>{text}</text>");
    }
}

/// Draws bars of durations on a logarithmic scale; each step is a factor of ten.
pub fn bars(title: &str, rows: &[(&str, &str, f64)]) -> String {
    let height = rows.len() as f64 * 26.0 + 8.0;
    let longest = rows.iter().map(|(_, _, seconds)| *seconds).fold(1e-3, f64::max);
    let scale = |seconds: f64| {
        ((seconds.max(1e-3) / 1e-3).log10() / (longest / 1e-3).log10().max(1.0)).max(0.0)
    };
    let (names, room) = (300.0, WIDTH - 300.0 - 90.0);
    let mut svg = open(title, height);
    for (place, (name, class, seconds)) in rows.iter().enumerate() {
        let y = place as f64 * 26.0 + 4.0;
        let width = (room * scale(*seconds)).max(1.0);
        let _ = write!(
            svg,
            "<text x={0:.0} y={1:.0} class=end>{2}</text>\
             <rect class={class} x={names} y={y:.0} width={width:.1} height=20 rx=2 />\
             <text x={3:.1} y={1:.0}>{4}</text>",
            names - 8.0,
            y + 15.0,
            escaped(name),
            names + width + 6.0,
            length(*seconds)
        );
    }
    svg + "</svg>"
}

/// The next of 1, 2, 5, 10, 20, 50 and so on.
fn round_up(value: f64) -> f64 {
    let scale = 10_f64.powf(value.log10().floor());
    let part = value / scale;
    let steps = [1.0, 2.0, 5.0, 10.0];
    scale * steps.into_iter().find(|step| part <= *step).unwrap_or(10.0)
}

fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 10.0 => format!("{v:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_figures() {
        for (value, top) in [(0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (33.0, 50.0), (0.03, 0.05)] {
            assert!((round_up(value) - top).abs() < 1e-9, "{value}");
        }
        assert_eq!(
            (number(0.25), number(2.0), number(125.0)),
            ("0.25".into(), "2".into(), "125".into())
        );
    }
}
