//! The report of a replay as text for a terminal.
//!
//! Texts from strangers (agents, paths) are printed with all hidden characters escaped.

use super::{BusiestMinute, ClientReport, LimitComparison, LimitRow, ReplayReport, ResultsRow};
use crate::replay::people::ClientKind;
use crate::replay::reader::LogAccount;
use evenkeel_telemetry::printable::printable;
use jiff::Timestamp;
use std::fmt::Write;

/// The maximum number of buckets shown of each limit.
const BUCKETS_SHOWN_MAX: usize = 5;
/// The maximum length of the name of an agent, in characters.
const AGENT_CHARS_MAX: usize = 60;

pub fn text(report: &ReplayReport) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = write(&mut text, report);
    text
}

type Written = std::fmt::Result;

fn write(out: &mut String, report: &ReplayReport) -> Written {
    logs(out, report)?;
    outcome(out, report)?;
    kinds(out, report)?;
    clients(out, report)?;
    swarms(out, report)?;
    limits(out, report)?;
    busiest(out, &report.busiest)?;
    suggestion(out, report)
}

/// A time in UTC, to the second.
pub fn time(seconds: f64) -> String {
    let at = Timestamp::from_second(seconds as i64).unwrap_or_default();
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A duration in the unit that fits.
pub fn length(seconds: f64) -> String {
    match seconds {
        0.0 => "0".to_owned(),
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}

/// A number with its digits in groups of three.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A part of `all`, in per cent.
pub fn part(of: f64, all: f64) -> String {
    format!("{:.1}%", of * 100.0 / all.max(f64::MIN_POSITIVE))
}

/// A log, and what of it could not be read.
pub fn account(out: &mut String, log: &LogAccount) -> Written {
    let name = printable(&log.name);
    match log.format {
        Some(format) => {
            write!(out, "{name}: {format}, {} requests", count(log.requests))?;
            if log.cached > 0 {
                write!(out, ", without {} that a cache answered", count(log.cached))?;
            }
            writeln!(out)?;
        }
        None => writeln!(out, "{name}: not read")?,
    }
    if let Some((number, line)) = &log.example {
        let unread = count(log.unread);
        writeln!(out, "  {unread} lines could not be read; the first is line {number}: {line}")?;
    }
    if let Some(fault) = &log.fault {
        writeln!(out, "  {}", printable(fault))?;
    }
    Ok(())
}

fn logs(out: &mut String, report: &ReplayReport) -> Written {
    report.logs.iter().try_for_each(|log| account(out, log))?;
    let (site, all) = (&report.site, &report.all);
    let config = site.config.as_deref().map_or("the default limits".into(), printable);
    writeln!(out, "\nReplayed against {config}, {} CPUs, action {}", site.cpus, site.action)?;
    writeln!(out, "Costs are {}", costs(site.costs, site.guessed))?;
    writeln!(
        out,
        "{} requests of {} clients from {} to {} UTC",
        count(all.requests),
        count(all.clients),
        time(all.from),
        time(all.until)
    )?;
    for warning in &report.warnings {
        writeln!(out, "note: {}", printable(warning))?;
    }
    Ok(())
}

/// The source of the costs, as the end of a sentence.
pub fn costs(source: &str, guessed: u64) -> String {
    match source {
        "measured" => "measured: the log contains the duration of requests".to_owned(),
        "mixed" => {
            format!("partly ESTIMATED: the log lacks the duration of {} requests", count(guessed))
        }
        _ => "ESTIMATED: the log lacks the duration of requests, so the cost of each is estimated \
              from its kind"
            .to_owned(),
    }
}

fn outcome(out: &mut String, report: &ReplayReport) -> Written {
    let (all, fate) = (&report.all, &report.all.fate);
    writeln!(out, "\nWhat would have happened\n")?;
    let rows = [
        ("passed without waiting", all.passed),
        ("waited in the queue", u64::from(fate.queued)),
        ("held", u64::from(fate.held)),
        ("delayed", u64::from(fate.delayed)),
        ("refused", u64::from(fate.refused)),
        ("waited for a second or longer", u64::from(fate.noticed)),
    ];
    for (what, number) in rows {
        let part = number as f64 * 100.0 / all.requests.max(1) as f64;
        writeln!(out, "  {what:<31} {:>13}  {part:>6.2}%", count(number))?;
    }
    writeln!(out, "  {:<31} {:>13}", "longest wait", length(fate.longest_seconds))?;
    writeln!(out, "  {:<31} {:>13}", "CPU time needed", length(all.cpu_seconds))?;
    writeln!(out, "  {:<31} {:>13}", "maximum in flight at the site", all.running_max)?;
    writeln!(out, "  {:<31} {:>13}", "maximum waiting in the queue", all.waiting_max)
}

fn kinds(out: &mut String, report: &ReplayReport) -> Written {
    writeln!(out, "\nAffected clients by kind\n")?;
    writeln!(
        out,
        "  {:<8} {:>10} {:>12} {:>9} {:>10} {:>10} {:>9} {:>12}",
        "kind", "clients", "requests", "CPU", "affected", "waited 1s", "refused", "longest wait"
    )?;
    for row in &report.kinds {
        writeln!(
            out,
            "  {:<8} {:>10} {:>12} {:>9} {:>10} {:>10} {:>9} {:>12}",
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
    Ok(())
}

fn clients(out: &mut String, report: &ReplayReport) -> Written {
    if report.clients.is_empty() {
        writeln!(out, "\nNo client would have been refused or delayed noticeably.")?;
    } else {
        writeln!(out, "\nClients affected most\n")?;
        report.clients.iter().try_for_each(|client| one(out, client, report))?;
    }
    if report.clients_left_out > 0 {
        writeln!(out, "  and {} more", count(report.clients_left_out as u64))?;
    }
    writeln!(out, "\nClients with the highest cost\n")?;
    report.heaviest.iter().try_for_each(|client| one(out, client, report))
}

fn one(out: &mut String, client: &ClientReport, report: &ReplayReport) -> Written {
    let part = part(client.cpu_seconds, report.all.cpu_seconds);
    let why = client.why.join(", ");
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    writeln!(
        out,
        "  {:<15} {:>10} requests, {part:>5} of the CPU time; {}{why}",
        client.address.to_string(),
        count(client.requests.into()),
        client.kind.name()
    )?;
    let agent: String = printable(&client.agent).chars().take(AGENT_CHARS_MAX).collect();
    if !agent.is_empty() {
        writeln!(out, "                  {agent}")?;
    }
    fate(out, &client.fate)
}

fn fate(out: &mut String, fate: &ResultsRow) -> Written {
    let mut told = Vec::new();
    let waits =
        [(fate.queued, "waited in the queue"), (fate.held, "held"), (fate.delayed, "delayed")];
    for (number, what) in waits.into_iter().filter(|(number, _)| *number > 0) {
        told.push(format!("{} {what}", count(number.into())));
    }
    if fate.refused > 0 {
        told.push(format!("{} refused", count(fate.refused.into())));
    }
    if fate.waited_seconds >= 1.0 {
        let (longest, all) = (length(fate.longest_seconds), length(fate.waited_seconds));
        told.push(format!("for up to {longest}, {all} in all"));
    }
    if told.is_empty() {
        return Ok(());
    }
    writeln!(out, "                  {}", told.join(", "))?;
    let (Some(first), Some(last)) = (fate.first, fate.last) else { return Ok(()) };
    let kept = fate.noticed + fate.refused;
    writeln!(
        out,
        "                  {} of them delayed for a second or more or refused, {} to {}, in {} \
         minutes",
        count(kept.into()),
        time(first),
        time(last),
        fate.minutes
    )
}

fn swarms(out: &mut String, report: &ReplayReport) -> Written {
    if report.swarms.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nGroups of addresses that behave as one client\n")?;
    for swarm in &report.swarms {
        let part = part(swarm.cpu_seconds, report.all.cpu_seconds);
        let name: String = printable(&swarm.name).chars().take(AGENT_CHARS_MAX).collect();
        writeln!(
            out,
            "  {name}: {} addresses, {} requests, {part} of the CPU time",
            count(swarm.addresses as u64),
            count(swarm.requests)
        )?;
        if !swarm.agent.starts_with(&swarm.name) {
            let agent: String = printable(&swarm.agent).chars().take(AGENT_CHARS_MAX).collect();
            writeln!(out, "                  {agent}")?;
        }
        fate(out, &swarm.fate)?;
    }
    Ok(())
}

fn limits(out: &mut String, report: &ReplayReport) -> Written {
    writeln!(out, "\nDecisions by limit\n")?;
    for limit in &report.limits {
        writeln!(out, "  {} ({}): {}", printable(&limit.name), limit.action, decided(limit))?;
        for bucket in limit.first.iter().take(BUCKETS_SHOWN_MAX) {
            writeln!(out, "    {}", printable(&bucket.key))?;
            fate(out, &bucket.fate)?;
            if bucket.would > 0 {
                let would = count(bucket.would.into());
                writeln!(out, "                  would have affected {would} requests")?;
            }
        }
    }
    Ok(())
}

/// The decisions of a limit in one line.
pub(super) fn decided(limit: &LimitRow) -> String {
    match (limit.shadow, limit.buckets) {
        (true, buckets) => format!(
            "in shadow: stopped no request, would have affected {} requests of {} buckets",
            count(limit.would),
            count(buckets)
        ),
        (false, 0) => "refused no request, and delayed none for a second or more".to_owned(),
        (false, buckets) => {
            format!("refused or delayed for a second or more: {} buckets", count(buckets))
        }
    }
}

fn busiest(out: &mut String, minute: &BusiestMinute) -> Written {
    writeln!(
        out,
        "\nThe busiest minute: {} UTC, {} requests, {:.0}% of the available CPU time\n",
        time(minute.at),
        count(minute.requests),
        minute.load * 100.0
    )?;
    writeln!(
        out,
        "  {:<8} {:>9} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {:>8}",
        "", "", "without", "", "", "with", "", "", ""
    )?;
    writeln!(
        out,
        "  {:<8} {:>9} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {:>8}",
        "kind", "requests", "median", "95%", "slowest", "median", "95%", "slowest", "refused"
    )?;
    side(out, ClientKind::People.name(), &minute.people)?;
    side(out, "others", &minute.others)
}

fn side(out: &mut String, who: &str, sides: &LimitComparison) -> Written {
    let LimitComparison { requests, without, with, refused } = sides;
    writeln!(
        out,
        "  {who:<8} {:>9} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {:>8}",
        count(*requests as u64),
        length(without.p50),
        length(without.p95),
        length(without.max),
        length(with.p50),
        length(with.p95),
        length(with.max),
        count(*refused as u64)
    )
}

fn suggestion(out: &mut String, report: &ReplayReport) -> Written {
    writeln!(out, "\nShares for this site\n")?;
    writeln!(
        out,
        "  {:<7} {:>6} {:>20} {:>20}",
        "by", "share", "people in debt", "others in debt"
    )?;
    for row in &report.suggestion.tried {
        let mark = if row.suggested { "  <- suggested" } else { "" };
        let of = |short: u64, all: u64| format!("{} of {}", count(short), count(all));
        writeln!(
            out,
            "  {:<7} {:>5.0}% {:>20} {:>20}{mark}",
            row.by,
            row.share * 100.0,
            of(row.people_short, row.people),
            of(row.others_short, row.others)
        )?;
    }
    match report.suggestion.yaml.as_str() {
        "" => {
            writeln!(out, "\nThe log has too few people for a suggestion; start with the defaults.")
        }
        yaml => writeln!(out, "\n{yaml}"),
    }
}
