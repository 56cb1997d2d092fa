//! Checks of the process: its file, its configuration, its program, its admin address, and what it
//! shares with other instances.
//!
//! What its clients do: `clients`. The machine: `machine`.

use super::{Examined, NO_SERVER, RELOAD, fine, length, problem, unknown, warning};
use crate::doctor::facts::{SetupFacts, label};
use evenkeel_telemetry::metrics::{TLS_RELOADS, TLS_UNTIL};

/// A certificate with less time than this deserves a warning: renewals are usually due earlier.
const CERTIFICATE_DAYS_MIN: f64 = 14.0;
const DAY_SECS: f64 = 86_400.0;

pub fn configuration(facts: &SetupFacts) -> Option<Examined> {
    let file = facts.file_name();
    match (&facts.file.checked, facts.server()) {
        (Some(Ok(warnings)), _) if warnings.is_empty() => fine(format!("{file} has no errors")),
        (Some(Ok(warnings)), _) => {
            let first = warnings.first().map_or("", |first| first);
            let count = warnings.len();
            warning(format!("{count} in {file}: {first}"), [format!("evenkeel check {file}")])
        }
        (Some(Err(faults)), _) => {
            let first = faults.first().map_or("", |first| first);
            let more = match faults.len() {
                0 | 1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            problem(format!("{first}{more}"), [format!("evenkeel check {file}")])
        }
        (None, Some(server)) if server.setup.config_file.is_none() => {
            fine("the server was started with flags, without a file")
        }
        (None, _) => unknown("no configuration file was found; name it with -c FILE"),
    }
}

pub fn server(facts: &SetupFacts) -> Option<Examined> {
    match &facts.server {
        Ok(server) if !server.setup.ready => {
            warning("it is starting or draining", ["ask again in a moment"])
        }
        Ok(server) => {
            let setup = &server.setup;
            let up = length(setup.now - setup.started);
            fine(format!("{} answers, version {}, up {up}", facts.admin, setup.version))
        }
        Err(_) if facts.settings.as_ref().is_some_and(|settings| settings.admin.is_none()) => {
            unknown("`admin: off` in the file: the server cannot be asked")
        }
        Err(why) => problem(
            why.clone(),
            [
                "systemctl status evenkeel; journalctl -u evenkeel -n 50      # has it ended? why?",
                "systemctl start evenkeel",
                "ss -ltnp | grep evenkeel      # at another address? then --admin HOST:PORT",
            ],
        ),
    }
}

pub fn reload(facts: &SetupFacts) -> Option<Examined> {
    let Some(server) = facts.server() else { return unknown(NO_SERVER) };
    let file = facts.file_name();
    if let Some(refused) = &server.top.refused_config {
        let check = facts.file.path.as_ref().map(|file| format!("evenkeel check {file}"));
        let actions: Vec<String> = check.into_iter().chain([RELOAD.to_owned()]).collect();
        return problem(refused.to_string(), actions);
    }
    let setup = &server.setup;
    if !setup.restart_keys.is_empty() {
        let keys = setup.restart_keys.join(", ");
        return warning(
            format!("changed in the file, but in force only after a restart: {keys}"),
            ["systemctl restart evenkeel"],
        );
    }
    let Some(running) = &setup.config_file else {
        return fine("the server runs with the flags it was started with");
    };
    match &facts.file.differences {
        Some(lines) if !lines.is_empty() && facts.file.path.as_ref() != Some(running) => warning(
            format!("the server runs {running}, which differs from {file}: {}", lines.join("; ")),
            ["name the file that you mean: systemctl cat evenkeel".to_owned()],
        ),
        Some(lines) if !lines.is_empty() => {
            warning(format!("not in force yet: {}", lines.join("; ")), [RELOAD])
        }
        Some(_) => fine(format!("{running} is in force")),
        None => unknown(format!("{running} cannot be compared with what runs")),
    }
}

pub fn program(facts: &SetupFacts) -> Option<Examined> {
    let setup = &facts.server()?.setup;
    if let Some(failed) = &setup.not_replaced {
        let ago = length(failed.seconds);
        return problem(
            format!("the last upgrade failed {ago} ago: {}", failed.why),
            ["journalctl -u evenkeel -n 50", "evenkeel upgrade"],
        );
    }
    let path = setup.program.as_deref().unwrap_or("its program");
    match setup.program_replaced {
        Some(true) => warning(
            format!("{path} is another file than the one that runs, version {}", setup.version),
            ["evenkeel upgrade"],
        ),
        Some(false) => fine(format!("{path} is what runs")),
        None => warning(format!("{path} no longer exists"), ["install it again"]),
    }
}

pub fn shadow(facts: &SetupFacts) -> Option<Examined> {
    let server = facts.server()?;
    let shadows: Vec<_> = server.top.limits.iter().filter(|limit| limit.shadow).collect();
    if shadows.is_empty() {
        return fine("decisions are enforced");
    }
    let since = length(server.setup.now - server.setup.config_since);
    let would: u64 = shadows.iter().map(|limit| limit.would).sum();
    let names: Vec<&str> = shadows.iter().map(|limit| &*limit.name).collect();
    let all = shadows.len() == server.top.limits.len();
    let of = if all { "all limits".to_owned() } else { format!("limits {}", names.join(", ")) };
    let found = format!("{of} only watch, for {since} at least; {would} decisions not enforced");
    match server.setup.config_file {
        Some(_) => warning(found, ["proxy:", "  shadow: false      # also in its limits", RELOAD]),
        None => warning(found, ["start it without --shadow"]),
    }
}

pub fn admin(facts: &SetupFacts) -> Option<Examined> {
    let admin = facts.settings.as_ref()?.admin.as_ref()?;
    let open = admin.listen.iter().find(|address| !address.ip().is_loopback());
    let file = admin.token_file.as_ref().map(|path| path.display().to_string());
    if let (Some(file), Some(true)) = (&file, facts.token_readable) {
        return problem(
            format!("every user of this machine can read {file}"),
            [format!("chmod 640 {file}; chgrp evenkeel {file}")],
        );
    }
    match (open, file) {
        (Some(address), Some(_)) => fine(format!("{address} needs a token, except /metrics")),
        (Some(address), None) => problem(
            format!("{address} can be reached from other machines and needs no token"),
            ["admin:", "  listen: 127.0.0.1:9970"],
        ),
        (None, _) => fine("only this machine can reach it"),
    }
}

pub fn certificates(facts: &SetupFacts) -> Option<Examined> {
    let server = facts.server()?;
    let left = |until: f64| (until - server.setup.now) / DAY_SECS;
    let all: Vec<(&str, f64)> = server
        .metrics
        .of(TLS_UNTIL.name)
        .filter(|(_, until)| *until > 0.0)
        .map(|(labels, until)| (label(labels, "of"), left(until)))
        .collect();
    let (of, days) = *all.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let failed: f64 = server.metrics.with(TLS_RELOADS.name, "result", "failed").sum();
    let todo = [format!("renew the certificate of `{of}`; the new file is read by itself")];
    if days <= 0.0 {
        return problem(format!("that of `{of}` expired {:.0} days ago", -days), todo);
    }
    let found = format!("that of `{of}` expires in {days:.0} days");
    if days < CERTIFICATE_DAYS_MIN {
        return warning(found, todo);
    }
    if failed > 0.0 {
        let found = format!("{found}; {failed:.0} times a new file could not be used");
        return warning(found, ["journalctl -u evenkeel | grep -i certificate"]);
    }
    fine(found)
}

pub fn store(facts: &SetupFacts) -> Option<Examined> {
    let settings = facts.settings.as_ref()?.store.as_ref();
    let Some(server) = facts.server() else { return settings.and_then(|_| unknown(NO_SERVER)) };
    let store = server.top.store.as_ref()?;
    let todo = ["redis-cli -u THE-URL-OF-store.redis ping", "journalctl -u evenkeel | grep store"];
    match (store.good, store.failed) {
        (_, 0) => fine(store.to_string()),
        (0, _) => problem(store.to_string(), todo),
        _ => warning(store.to_string(), todo),
    }
}

pub fn peers(facts: &SetupFacts) -> Option<Examined> {
    let peers = facts.server()?.top.peers.as_ref()?;
    let todo = ["evenkeel doctor          # on the others", "see docs/guide/peers.md"];
    if let Some(apart) = peers.apart.first() {
        let more = peers.apart.len() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        return warning(format!("{apart}{more}"), todo);
    }
    match (peers.live, peers.known) {
        (1, 1) => warning("no other instance was ever seen", ["peers:", "  join: [HOST:7946]"]),
        (1, _) => problem(peers.to_string(), todo),
        (live, known) if live < known => warning(peers.to_string(), todo),
        _ => fine(peers.to_string()),
    }
}
