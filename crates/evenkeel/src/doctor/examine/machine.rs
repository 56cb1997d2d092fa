//! Checks of the machine: processors, files, ports, the kernel's queues, the clock, memory, disk.
//!
//! The facts are those of the server's process if it runs, because that may be in a container.

use super::{Examined, RELOAD, fine, percent, problem, unknown, warning};
use crate::doctor::facts::SetupFacts;
use crate::run::files;
use evenkeel_config::settings::{CostSource, ProxySettings};
use evenkeel_telemetry::metrics::{ACCEPTED, CONNECTIONS, SHED, STATE_WRITES};

/// Deviations of a clock below this do not matter.
const CLOCK_SECS_MAX: f64 = 2.0;
/// A queue of the kernel shorter than this overflows in small bursts.
const SOMAXCONN_MIN: u64 = 1_024;
const GIB: f64 = (1_u64 << 30) as f64;
const MIB: u64 = 1 << 20;

pub fn cpus(facts: &SetupFacts) -> Option<Examined> {
    let proxy = facts.settings.as_ref()?.proxy.as_ref()?;
    if proxy.cost == CostSource::Tokens {
        return None;
    }
    let (cpus, here) = (proxy.cpus, facts.host.cpus);
    let are_local = !facts.backends.is_empty() && facts.backends.iter().all(|one| one.is_local);
    if !are_local {
        return elsewhere(facts, cpus);
    }
    let quotas = facts.backends.iter().map(|one| one.quota);
    let quota = quotas.collect::<Option<Vec<f64>>>().map(|all| all.iter().sum::<f64>());
    let cores = facts.host.cores.max(here);
    // What limits the proxy's own cgroup does not limit a backend with a quota of its own.
    let (has, of) = match quota {
        Some(quota) if quota < cores => (quota, "the cgroup of the backend has"),
        _ => (here, "this machine has"),
    };
    let found = format!("cpus is {cpus}, and {of} {has}");
    let set = [format!("proxy:\n  cpus: {has}"), RELOAD.to_owned()];
    let set = set.iter().flat_map(|line| line.split('\n')).map(str::to_owned);
    if cpus > 1.05 * has {
        problem(found, set)
    } else if cpus < 0.5 * has {
        warning(found, set)
    } else {
        slots(facts, proxy).unwrap_or_else(|| fine(found))
    }
}

/// The finding if the backend does not run on this machine.
fn elsewhere(facts: &SetupFacts, cpus: f64) -> Option<Examined> {
    let same = (cpus - facts.host.cpus).abs() < 0.01;
    if facts.file.names_cpus || !same {
        return fine(format!(
            "cpus is {cpus}; whether the backend has them cannot be seen from here"
        ));
    }
    warning(
        format!("cpus is {cpus}, those of this machine, but the backend is on another one"),
        ["proxy:", "  cpus: N      # the CPUs of the backend, of all backends together", RELOAD],
    )
}

/// The finding if the search for the number of slots contradicts `cpus`.
fn slots(facts: &SetupFacts, proxy: &ProxySettings) -> Option<Option<Examined>> {
    let load = facts.server()?.top.load.iter().find(|load| load.door == "proxy")?;
    let crowd = load.crowd.filter(|crowd| crowd.waiting > 0)?;
    let slots = crowd.concurrency as f64;
    (slots < 0.5 * proxy.cpus).then(|| {
        warning(
            format!(
                "cpus is {}, but more than {slots} requests at once complete no more: the backend \
                 seems to have fewer",
                proxy.cpus
            ),
            ["compare with nproc on the backend, and with its number of workers"],
        )
    })
}

pub fn connections(facts: &SetupFacts) -> Option<Examined> {
    let proxy = facts.proxy()?;
    let metrics = &facts.server()?.metrics;
    let of = |name| metrics.with(name, "door", "proxy").sum::<f64>();
    let (open, shed, accepted) = (of(CONNECTIONS.name), of(SHED.name), of(ACCEPTED.name));
    let bound = proxy.bounds.connections as f64;
    let found = match bound > 0.0 {
        true => format!("{open:.0} of {bound:.0} connections are open"),
        false => format!("{open:.0} connections are open"),
    };
    let todo = [
        "proxy:".to_owned(),
        format!("  bounds: {{connections: {:.0}}}", 2.0 * bound.max(1_000.0)),
        "check `open-files` then".to_owned(),
    ];
    if bound > 0.0 && open >= 0.95 * bound {
        return problem(found, todo);
    }
    if percent(shed, accepted) >= 1.0 {
        return warning(format!("{found}; {shed:.0} were closed to make room"), todo);
    }
    fine(found)
}

pub fn open_files(facts: &SetupFacts) -> Option<Examined> {
    let settings = facts.settings.as_ref()?;
    let needed = files::open_files(settings);
    let (Some(max), Some(used)) = (facts.host.files_max, facts.host.files_used) else {
        return fine("there is no limit");
    };
    let server = if facts.server.is_ok() { "" } else { " here; the server may have another one" };
    let found = format!(
        "{used} are open, the limit is {max}, and all connections may need {needed}{server}"
    );
    let needed = needed.max(65_536);
    let todo = [
        "systemctl edit evenkeel, and add:".to_owned(),
        "  [Service]".to_owned(),
        format!("  LimitNOFILE={needed}"),
        "systemctl restart evenkeel".to_owned(),
        format!("# without systemd: ulimit -n {needed} before the start; in Docker: --ulimit"),
    ];
    if facts.server.is_ok() && 10 * used >= 9 * max {
        problem(found, todo)
    } else if max < files::open_files(settings) {
        warning(found, todo)
    } else {
        fine(found)
    }
}

pub fn listen_queue(facts: &SetupFacts) -> Option<Examined> {
    facts.settings.as_ref().filter(|settings| !settings.doors().is_empty())?;
    let Some(length) = facts.host.somaxconn else { return unknown("the system does not say") };
    let overflows = facts.server().and_then(|server| server.setup.listen_overflows).unwrap_or(0);
    let found = format!(
        "net.core.somaxconn is {length}; {overflows} connections, of all programs, found a queue \
         full since the start of the server"
    );
    if length < SOMAXCONN_MIN {
        return warning(
            found,
            ["sysctl -w net.core.somaxconn=4096      # and in /etc/sysctl.d", "evenkeel upgrade"],
        );
    }
    if overflows > 0 {
        return warning(
            found,
            [
                "ss -ltn          # Recv-Q is the present length of each queue",
                "nstat -az TcpExtListenOverflows      # does it still grow?",
            ],
        );
    }
    fine(found)
}

pub fn ports(facts: &SetupFacts) -> Option<Examined> {
    let proxy = facts.proxy()?;
    let tcp = facts.backends.iter().filter(|one| one.is_tcp).count() as u64;
    let (Some(each), true) = (facts.host.ports, tcp > 0) else { return None };
    let ports = each.saturating_mul(tcp);
    let waiting = facts.host.time_wait.unwrap_or(0);
    let found =
        format!("{ports} for {tcp} backends; {waiting} sockets of this machine are in TIME_WAIT");
    let wider = "sysctl -w net.ipv4.ip_local_port_range=\"10000 65535\"";
    // Most of them may have nothing to do with the backends.
    if 10 * waiting >= 8 * each {
        return warning(
            found,
            [
                "ss -Htn state time-wait | awk '{print $4}' | sort | uniq -c | sort -n | tail",
                "if most are to a backend, let it keep connections open: see `keep-alive`",
                wider,
            ],
        );
    }
    if proxy.bounds.connections as u64 > ports {
        let bound = proxy.bounds.connections;
        return warning(format!("{found}, and bounds.connections is {bound}"), [wider]);
    }
    fine(found)
}

pub fn clock(facts: &SetupFacts) -> Option<Examined> {
    let answers = facts.backends.iter().filter_map(|one| Some((one, one.answer.as_ref()?)));
    let ahead = answers.filter_map(|(one, answer)| Some((one, answer.as_ref().ok()?.clock_ahead?)));
    let worst = ahead.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
    let sync = "timedatectl set-ntp true";
    if facts.host.clock_follows == Some(false) {
        return warning("the clock of this machine follows no time server", [sync]);
    }
    if let Some((backend, ahead)) = worst
        && ahead.abs() > CLOCK_SECS_MAX
    {
        let side = if ahead > 0.0 { "ahead of" } else { "behind" };
        return warning(
            format!("the clock of {} is {:.0} s {side} the one here", backend.name, ahead.abs()),
            [format!("{sync}          # on both")],
        );
    }
    if let Some(step) = facts.server().map(|server| server.setup.clock_step)
        && step.abs() > CLOCK_SECS_MAX
    {
        return warning(
            format!("it was changed by {step:.0} s since the server was started"),
            [sync],
        );
    }
    match (facts.host.clock_follows, worst) {
        (Some(_), _) => fine("it follows a time server"),
        (None, Some(_)) => fine("it agrees with the backend's"),
        (None, None) => unknown("neither systemd-timesyncd nor a backend says what time it is"),
    }
}

pub fn memory(facts: &SetupFacts) -> Option<Examined> {
    let (max, used) = (facts.host.memory_max?, facts.host.memory_used?);
    facts.server()?;
    let (max, used) = (max as f64, used as f64);
    let part = percent(used, max);
    let found = format!("{:.2} of {:.2} GiB of its cgroup ({part:.0} %)", used / GIB, max / GIB);
    if part < 90.0 {
        return fine(found);
    }
    let todo = [
        "raise MemoryMax= of the unit, or the limit of the container",
        "or lower keys_max, bounds.connections: see docs/guide/sizing.md",
    ];
    if part >= 97.0 { problem(found, todo) } else { warning(found, todo) }
}

pub fn state(facts: &SetupFacts) -> Option<Examined> {
    let settings = facts.settings.as_ref()?;
    let Some(file) = &settings.state.file else {
        return fine("debts are not saved (no state.file); a restart forgives them");
    };
    let server = facts.server()?;
    let file = file.display();
    let failed: f64 = server.metrics.with(STATE_WRITES.name, "result", "failed").sum();
    let folder = server.setup.state.as_ref()?;
    if let Some(why) = &folder.unwritable {
        return problem(
            format!("{file} cannot be written: {why}"),
            [
                "systemctl edit evenkeel, and add:".to_owned(),
                "  [Service]".to_owned(),
                "  StateDirectory=evenkeel      # /var/lib/evenkeel, writable by the server".into(),
                format!("or name another folder than that of {file} in state.file"),
            ],
        );
    }
    let free = folder.free.unwrap_or(u64::MAX);
    let room = ["df -h          # and make room, or name another folder in state.file"];
    if free < MIB {
        return problem(format!("the disk of {file} is full"), room);
    }
    if failed > 0.0 {
        return warning(
            format!("{failed:.0} snapshots to {file} failed since the start"),
            ["journalctl -u evenkeel | grep snapshot", "df -h"],
        );
    }
    if free < 100 * MIB {
        return warning(format!("the disk of {file} has {} MiB left", free / MIB), room);
    }
    fine(format!("{file} is written; {:.1} GiB are free", free as f64 / GIB))
}
