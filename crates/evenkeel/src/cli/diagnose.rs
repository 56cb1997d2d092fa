//! The command line of `evenkeel doctor`: its flags, and its exit code.
//!
//! 0 if there is no problem, 1 if there is one. With flags of the former `doctor`, which showed
//! clients, it does what `clients` does, and says so. The examination is in `doctor`.

use super::remote::{AdminClient, DEFAULT_ADMIN};
use super::{ClientsArgs, ServerArgs, ask_clients, host_port};
use crate::doctor::{DoctorSources, FindingLevel, PrintStyle, examine, gather, json, text};
use evenkeel_config::excerpt;
use evenkeel_config::machine::Machine;
use evenkeel_config::source::{ConfigSource, default_path};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct DoctorOptions {
    /// The admin address of the server [default: that of the file, else 127.0.0.1:9970]
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
    admin: Option<String>,
    /// A file with the token from the server's admin.token_file; required from another machine
    /// [default: $EVENKEEL_TOKEN_FILE]
    #[arg(long, value_name = "FILE", env = "EVENKEEL_TOKEN_FILE", hide_env = true)]
    token_file: Option<PathBuf>,
    /// The configuration file [default: that of the server, else as for `serve`]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do not send a request (HEAD /) to each backend
    #[arg(long)]
    no_probe: bool,
    /// Fail with exit code 1 on warnings too
    #[arg(long)]
    strict: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// As `evenkeel clients --limit NAME`
    #[arg(long, value_name = "NAME", hide = true)]
    limit: Option<String>,
    /// As `evenkeel clients --bucket NAME`
    #[arg(long, value_name = "NAME", hide = true, conflicts_with_all = ["limit", "json"])]
    bucket: Option<String>,
}

/// The admin address that a file names, or the default one.
fn admin_of(config: Option<&Path>) -> String {
    let path = config.map_or_else(default_path, |path| Ok(path.to_owned())).ok();
    let config = path.and_then(|path| ConfigSource::new(&path).load(Machine::here()).ok());
    let listen = config.and_then(|config| config.settings.admin?.listen.first().copied());
    listen.filter(|at| at.port() > 0).map_or_else(|| DEFAULT_ADMIN.to_owned(), reachable)
}

/// The address at which this machine reaches a listener.
fn reachable(mut listen: SocketAddr) -> String {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => listen.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => listen.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    listen.to_string()
}

/// Examines the set-up and prints the findings.
pub fn diagnose(options: DoctorOptions) -> anyhow::Result<ExitCode> {
    let DoctorOptions { config, no_probe, strict, json: is_json, limit, bucket, .. } = options;
    let admin = options.admin.unwrap_or_else(|| admin_of(config.as_deref()));
    let server = ServerArgs { admin, token_file: options.token_file };
    if limit.is_some() || bucket.is_some() {
        let _ = writeln!(
            io::stderr(),
            "note: `evenkeel clients` shows clients; `doctor` examines the set-up"
        );
        ask_clients(&ClientsArgs { server, limit, bucket, json: is_json })?;
        return Ok(ExitCode::SUCCESS);
    }
    let token = server.token()?;
    let remote = AdminClient { address: &server.admin, token: token.as_deref() };
    let sources = DoctorSources { config: config.as_deref(), remote, probes: !no_probe };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let facts = runtime.block_on(gather(&sources));
    let findings = examine(&facts);
    let top = facts.server.as_ref().ok().map(|server| &server.top);
    let style = PrintStyle { has_colors: excerpt::shows_colors(&io::stdout()) };
    let report = if is_json { json(&findings, top)? } else { text(&findings, style) };
    io::stdout().write_all(report.as_bytes())?;
    let worst = findings.iter().map(|finding| finding.level).max();
    let bound = if strict { FindingLevel::Warning } else { FindingLevel::Problem };
    Ok(ExitCode::from(u8::from(worst >= Some(bound))))
}
