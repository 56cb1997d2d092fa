//! The report of a replay as one HTML page.
//!
//! The page needs no script and no other file, is light or dark as its reader prefers, and can be
//! sent as it is. Texts from strangers are escaped twice: hidden characters, and the characters
//! with a meaning in HTML.

use super::chart::{ChartArea, areas, bars};
use super::text::{costs, count, decided, length, part, time};
use super::{ClientReport, ReplayReport, ResultsRow};
use evenkeel_telemetry::printable::printable;
use std::fmt::Write;

const STYLE: &str = "\
:root{--bg:#fff;--fg:#1c2024;--dim:#60666d;--line:#dfe3e8;--calm:#4c8fd6;--hot:#d9662b;\
--mark:#b3261e}\
@media (prefers-color-scheme: dark){:root{--bg:#14171a;--fg:#e8eaed;--dim:#9aa2ab;\
--line:#2e343b;--calm:#5a9bdd;--hot:#e8854f;--mark:#f2786f}}*{box-sizing:border-box}\
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;\
max-width:1040px;margin:0 auto;padding:24px 20px 60px}h1{font-size:24px;margin:0 0 4px}\
h2{font-size:18px;margin:36px 0 8px}p{margin:6px 0;max-width:75ch}\
.dim,small{color:var(--dim)}\
.note{border-left:4px solid var(--hot);padding:4px 12px;margin:8px 0}\
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;\
margin:16px 0}.facts div{border:1px solid var(--line);border-radius:6px;padding:10px 12px}\
.facts b{display:block;font-size:20px;font-variant-numeric:tabular-nums}\
.scroll{overflow-x:auto}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);\
vertical-align:top}th{font-weight:600;color:var(--dim)}.n{text-align:right}\
td small{display:block;overflow-wrap:anywhere}tr.is td{font-weight:600}\
pre{background:var(--line);border-radius:6px;padding:12px;overflow-x:auto}\
svg{width:100%;height:auto;display:block;margin:8px 0}\
svg text{fill:var(--dim);font-size:12px}svg .end{text-anchor:end}.grid{stroke:var(--line)}\
.mark{stroke:var(--mark);stroke-dasharray:5 4}.hot{fill:var(--hot)}.calm{fill:var(--calm)}\
.key i{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 5px 0 12px}\
.key .calm{background:var(--calm)}.key .hot{background:var(--hot)}";

pub fn page(report: &ReplayReport) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=Content-Security-Policy \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>Evenkeel replay</title><style>",
    );
    page.push_str(STYLE);
    page.push_str("</style></head><body>\n");
    // Writing to a String cannot fail.
    let _ = body(&mut page, report);
    page.push_str("</body></html>\n");
    page
}

/// Escapes text for use between tags and in quoted attributes.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

type Written = std::fmt::Result;

fn body(out: &mut String, report: &ReplayReport) -> Written {
    head(out, report)?;
    over_time(out, report)?;
    kinds(out, report)?;
    table(out, "Clients affected most", &report.clients, report)?;
    table(out, "Clients with the highest cost", &report.heaviest, report)?;
    swarms(out, report)?;
    busiest(out, report)?;
    limits(out, report)?;
    shares(out, report)?;
    logs(out, report)
}

fn head(out: &mut String, report: &ReplayReport) -> Written {
    let (site, all) = (&report.site, &report.all);
    let config = site.config.as_deref().unwrap_or("the default limits");
    write!(
        out,
        "<h1>What the limits would have done</h1><p class=dim>{} to {} UTC, against {}, {} CPUs, \
         action {}. Evenkeel {}.</p><p>Costs are {}.</p>",
        time(all.from),
        time(all.until),
        escaped(config),
        site.cpus,
        site.action,
        report.version,
        costs(report.site.costs, report.site.guessed)
    )?;
    for warning in &report.warnings {
        write!(out, "<p class=note>{}</p>", escaped(warning))?;
    }
    out.push_str("<div class=facts>");
    for (what, figure) in [
        ("requests", count(all.requests)),
        ("clients", count(all.clients)),
        ("passed without waiting", count(all.passed)),
        ("waited for a second", count(all.fate.noticed.into())),
        ("refused", count(all.fate.refused.into())),
        ("longest wait", length(all.fate.longest_seconds)),
        ("CPU time needed", length(all.cpu_seconds)),
    ] {
        write!(out, "<div><b>{figure}</b>{what}</div>")?;
    }
    out.push_str("</div>");
    Ok(())
}

fn over_time(out: &mut String, report: &ReplayReport) -> Written {
    let series = &report.series;
    let slot = series.seconds.max(1) as f64;
    let needed = series.slots.iter().map(|slot_of| slot_of.1 / slot).collect();
    let passed = series.slots.iter().map(|slot_of| slot_of.2 / slot).collect();
    let layers =
        [ChartArea { class: "hot", values: needed }, ChartArea { class: "calm", values: passed }];
    let cpus = report.site.cpus;
    let line = Some((cpus, "all CPUs"));
    let title = "CPUs that requests needed";
    write!(
        out,
        "<section><h2>{title}</h2><p class=\"key dim\"><i class=calm></i>of requests that were \
         not delayed<i class=hot></i>of those that waited for a second or were \
         refused</p>{}</section>",
        areas(title, series, &layers, line)
    )?;
    let kept = series.slots.iter().map(|slot| (slot.3 + slot.4) as f64).collect();
    let refused = series.slots.iter().map(|slot| slot.4 as f64).collect();
    let layers =
        [ChartArea { class: "calm", values: kept }, ChartArea { class: "hot", values: refused }];
    let title = "Requests that waited for a second or were refused";
    let every = length(slot);
    write!(
        out,
        "<section><h2>{title}</h2><p class=\"key dim\"><i class=calm></i>waited<i class=hot></i>\
         refused; in each {every}</p>{}</section>",
        areas(title, series, &layers, None)
    )
}

fn kinds(out: &mut String, report: &ReplayReport) -> Written {
    out.push_str(
        "<section><h2>Affected clients by kind</h2><p class=dim>Kinds are guessed from files \
         requested with pages, from referrers and from pauses. The limits do not use \
         them.</p><div class=scroll><table><tr><th>looks like<th class=n>clients<th \
         class=n>requests<th class=n>CPU time<th class=n>affected clients<th class=n>waited 1 \
         s<th class=n>refused<th class=n>longest wait</tr>",
    );
    for row in &report.kinds {
        write!(
            out,
            "<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}\
             <td class=n>{}<td class=n>{}</tr>",
            row.kind.name(),
            count(row.clients),
            count(row.requests),
            part(row.cpu_seconds, report.all.cpu_seconds),
            count(row.affected),
            count(row.fate.noticed.into()),
            count(row.fate.refused.into()),
            length(row.fate.longest_seconds)
        )?;
    }
    out.push_str("</table></div></section>");
    Ok(())
}

fn table(
    out: &mut String,
    title: &str,
    clients: &[ClientReport],
    report: &ReplayReport,
) -> Written {
    write!(out, "<section><h2>{title}</h2>")?;
    if clients.is_empty() {
        out.push_str("<p>Nobody.</p></section>");
        return Ok(());
    }
    out.push_str(
        "<div class=scroll><table><tr><th>client<th>looks like<th class=n>requests<th class=n>CPU \
         time<th class=n>waited 1 s<th class=n>refused<th class=n>longest<th>when</tr>",
    );
    for client in clients {
        write!(
            out,
            "<tr><td>{}<small>{}</small><td>{}<small>{}</small><td class=n>{}<td class=n>{}{}</tr>",
            client.address,
            escaped(&client.agent),
            client.kind.name(),
            client.why.join(", "),
            count(client.requests.into()),
            part(client.cpu_seconds, report.all.cpu_seconds),
            fate(&client.fate)
        )?;
    }
    out.push_str("</table></div></section>");
    Ok(())
}

/// The four table cells of the results of requests.
fn fate(fate: &ResultsRow) -> String {
    let when = match (fate.first, fate.last) {
        (Some(first), Some(last)) => {
            format!("{} to {}<small>in {} minutes</small>", time(first), time(last), fate.minutes)
        }
        _ => String::new(),
    };
    format!(
        "<td class=n>{}<td class=n>{}<td class=n>{}<td>{when}",
        count(fate.noticed.into()),
        count(fate.refused.into()),
        length(fate.longest_seconds)
    )
}

fn swarms(out: &mut String, report: &ReplayReport) -> Written {
    if report.swarms.is_empty() {
        return Ok(());
    }
    out.push_str(
        "<section><h2>Groups of addresses that behave as one client</h2><div \
         class=scroll><table><tr><th>common property<th class=n>addresses<th class=n>requests<th \
         class=n>CPU time<th class=n>waited 1 s<th class=n>refused<th class=n>longest<th>when</tr>",
    );
    for swarm in &report.swarms {
        let agent = if swarm.agent == swarm.name { "" } else { &swarm.agent };
        write!(
            out,
            "<tr><td>{}<small>{}</small><td class=n>{}<td class=n>{}<td class=n>{}{}</tr>",
            escaped(&swarm.name),
            escaped(agent),
            count(swarm.addresses as u64),
            count(swarm.requests),
            part(swarm.cpu_seconds, report.all.cpu_seconds),
            fate(&swarm.fate)
        )?;
    }
    out.push_str("</table></div></section>");
    Ok(())
}

fn busiest(out: &mut String, report: &ReplayReport) -> Written {
    let minute = &report.busiest;
    let (people, others) = (&minute.people, &minute.others);
    let rows = [
        ("people, median, without", "hot", people.without.p50),
        ("people, median, with the limits", "calm", people.with.p50),
        ("people, 95%, without", "hot", people.without.p95),
        ("people, 95%, with the limits", "calm", people.with.p95),
        ("others, median, without", "hot", others.without.p50),
        ("others, median, with the limits", "calm", others.with.p50),
        ("others, 95%, without", "hot", others.without.p95),
        ("others, 95%, with the limits", "calm", others.with.p95),
    ];
    let title = "The busiest minute, from request to answer";
    write!(
        out,
        "<section><h2>{title}</h2><p>{} UTC: {} requests that needed {:.0}% of the available CPU \
         time, {} of them from clients that look like people; {} of these would have been \
         refused, and {} of the others. The scale is logarithmic.</p>{}</section>",
        time(minute.at),
        count(minute.requests),
        minute.load * 100.0,
        count(people.requests as u64),
        count(people.refused as u64),
        count(others.refused as u64),
        bars(title, &rows)
    )
}

fn limits(out: &mut String, report: &ReplayReport) -> Written {
    out.push_str(
        "<section><h2>Decisions by limit</h2><div class=scroll><table><tr><th>limit<th>counted \
         by<th class=n>waited 1 s<th class=n>refused<th class=n>longest<th>when</tr>",
    );
    for limit in &report.limits {
        let (name, what) = (escaped(&limit.name), decided(limit));
        write!(out, "<tr class=is><td>{name} ({})<td colspan=5>{what}</tr>", limit.action)?;
        for bucket in &limit.first {
            let key = escaped(&bucket.key);
            match bucket.would {
                0 => write!(out, "<tr><td><td>{key}{}</tr>", fate(&bucket.fate))?,
                would => write!(
                    out,
                    "<tr><td><td>{key}<td colspan=4>would have affected {} requests</tr>",
                    count(would.into())
                )?,
            }
        }
    }
    out.push_str("</table></div></section>");
    Ok(())
}

fn shares(out: &mut String, report: &ReplayReport) -> Written {
    out.push_str(
        "<section><h2>Shares for this site</h2><p class=dim>Clients that would have been in debt \
         at any time with a share, with a burst of 30 s of CPU time. The suggestion is one step \
         above the share that is enough for all but one in a thousand of the clients that look \
         like people.</p><div class=scroll><table><tr><th>by<th class=n>share<th class=n>people \
         in debt<th class=n>of<th class=n>others in debt<th class=n>of</tr>",
    );
    for row in &report.suggestion.tried {
        let class = if row.suggested { " class=is" } else { "" };
        write!(
            out,
            "<tr{class}><td>{}<td class=n>{:.0}%<td class=n>{}<td class=n>{}<td class=n>{}\
             <td class=n>{}</tr>",
            row.by,
            row.share * 100.0,
            count(row.people_short),
            count(row.people),
            count(row.others_short),
            count(row.others)
        )?;
    }
    out.push_str("</table></div>");
    match report.suggestion.yaml.as_str() {
        "" => out.push_str("<p>The log has too few people for a suggestion.</p></section>"),
        yaml => write!(out, "<pre>{}</pre></section>", lines(yaml))?,
    }
    Ok(())
}

/// Escapes text of several lines; `escaped` would make the line feeds visible.
fn lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

fn logs(out: &mut String, report: &ReplayReport) -> Written {
    out.push_str(
        "<section><h2>The logs</h2><div class=scroll><table><tr><th>log<th>format\
         <th class=n>requests<th class=n>not read<th>such as</tr>",
    );
    for log in &report.logs {
        let example = log.example.as_ref();
        let example =
            example.map_or(String::new(), |(number, line)| format!("line {number}: {line}"));
        write!(
            out,
            "<tr><td>{}<td>{}<td class=n>{}<td class=n>{}<td>{}<small>{}</small></tr>",
            escaped(&log.name),
            log.format.unwrap_or("unknown"),
            count(log.requests),
            count(log.unread),
            escaped(&example),
            escaped(log.fault.as_deref().unwrap_or_default())
        )?;
    }
    out.push_str("</table></div></section>");
    Ok(())
}
