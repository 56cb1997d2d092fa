//! The command line: the commands and their flags, and the part of the program that each command
//! calls.
//!
//! Errors go to standard error and say what to do. Exit codes: 0 success, 1 the command failed or a
//! check found errors, 2 the command line is wrong. The work of a running server begins in `run`.

pub(crate) mod check;
pub(crate) mod clients;
mod diagnose;
mod help;
mod local_process;
mod reload;
pub(crate) mod remote;
mod top;
mod turn;
mod upgrade;

use crate::run;
use anyhow::Context;
use clap::{FromArgMatches, Parser, Subcommand};
use evenkeel_config::fault::Misuse;
use evenkeel_config::machine::Machine;
use evenkeel_config::source::{ConfigSource, NoConfigError, default_path};
use evenkeel_config::{Config, ProxyFlags, excerpt, secret};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use check::FaultsFound;
use clients::{ClientsFormat, clients};
use diagnose::DoctorOptions;
use remote::AdminClient;

/// The texts of all licences. `packaging/notices` writes them.
const NOTICES: &str = include_str!("../../../packaging/notices.txt");

/// Measures how much CPU time each client's requests use, and shares a web server fairly.
#[derive(Parser)]
#[command(name = "evenkeel", version, arg_required_else_help = true, propagate_version = true)]
#[command(after_help = help::ALL)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Run the server: open all listeners of a configuration file
    #[command(aliases = ["run", "start"], after_help = help::SERVE)]
    Serve(ServeArgs),
    /// Run the reverse proxy with the default limits, without a configuration file
    #[command(after_help = help::PROXY)]
    Proxy(ProxyArgs),
    /// Check configuration files, rule files (or folders of them) and the external processing in
    /// files of Envoy; print every error with its position
    #[command(aliases = ["validate", "test"], after_help = help::CHECK)]
    Check {
        /// Configuration files, rule files or folders [default: the file of `serve`]
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// A configuration file, as for `serve`
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Print the effective configuration, with all defaults filled in
    #[command(after_help = help::SHOW)]
    Show {
        /// The configuration file [default: as for `serve`]
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Make a running server on this machine read its configuration again
    #[command(after_help = help::RELOAD)]
    Reload(LocalServerArgs),
    /// Replace a running server on this machine by the program that is installed now, without
    /// losing a request
    #[command(after_help = help::UPGRADE)]
    Upgrade(LocalServerArgs),
    /// Examine the set-up, and say what is wrong and what to do: the configuration, the running
    /// server, this machine, the backends
    #[command(after_help = help::DOCTOR)]
    Doctor(DoctorOptions),
    /// Print the busiest clients of a running server, and what waits
    #[command(alias = "status", after_help = help::CLIENTS)]
    Clients(ClientsArgs),
    /// Show the busiest clients of a running server live in the terminal
    Top(TopArgs),
    /// Replay access logs against the limits: which clients would have been held, delayed or
    /// refused
    #[command(after_help = help::REPLAY)]
    Replay(evenkeel_lab::replay::ReplayOptions),
    /// Demonstrate the throttle with a site, a crawler and a human, all inside this program
    Demo(evenkeel_lab::demo::DemoOptions),
    /// Wait for a turn, run a command, and charge the CPU time that it used
    Turn(turn::TurnOptions),
    /// Run the Envoy rate limit service, configured by the environment variables of its reference
    /// server
    Ratelimit,
    /// Print a generated access log with people, crawlers and swarms, to try `replay` with
    #[command(hide = true)]
    SampleLog(evenkeel_lab::replay::sample::SampleLogOptions),
    /// Print the JSON schema of the configuration, for editors
    Schema,
    /// Print a completion script for a shell
    Completions {
        /// The shell that will run the script
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write the pages of all commands into a folder
    Man {
        /// An existing folder
        #[arg(long, value_name = "FOLDER")]
        into: Option<PathBuf>,
    },
    /// Print the licences of this program and of all that it contains
    #[command(alias = "licenses")]
    Licences,
    /// Print the version
    #[command(hide = true)]
    Version,
}

#[derive(clap::Args)]
struct ServeArgs {
    /// The configuration file [default: $EVENKEEL_CONFIG, else /etc/evenkeel/evenkeel.yaml,
    /// else /etc/tempomat.json]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(clap::Args)]
struct ProxyArgs {
    /// The URL of the backend, such as http://127.0.0.1:80
    #[arg(long, short, value_name = "URL")]
    backend: String,
    /// The address to listen on; may be given several times [default: 0.0.0.0:8888]
    #[arg(long, short, value_name = "ADDR")]
    listen: Vec<String>,
    /// Defaults for a kind of backend: openai, for language models [default: none]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// CPU-seconds per second to share out [default: those of this machine, or its cgroup's quota]
    #[arg(long, value_name = "N")]
    cpus: Option<String>,
    /// What happens to a client in debt: queue, hold, delay or reject [default: queue]
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// How a request's cost is measured: wall, shared, header:NAME, cgroup:PATH or tokens [default:
    /// shared, or tokens with --preset]
    #[arg(long, value_name = "COST")]
    cost: Option<String>,
    /// The address of metrics, health, `doctor` and `clients`, or off [default: 127.0.0.1:9970]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Proxies with a trusted X-Forwarded-For: networks, separated by commas [default: none]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    trusted_proxies: Vec<String>,
    /// Decide, count and log, but hold and refuse no request
    #[arg(long)]
    shadow: bool,
}

/// The flag that selects a running server of this machine, which gets a signal.
#[derive(clap::Args)]
struct LocalServerArgs {
    /// The admin address of the server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9970")]
    #[arg(value_parser = host_port)]
    admin: String,
}

/// The flags that select a running server.
#[derive(clap::Args)]
struct ServerArgs {
    /// The admin address of the server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9970")]
    #[arg(value_parser = host_port)]
    admin: String,
    /// A file with the token from the server's admin.token_file; required from another machine
    /// [default: $EVENKEEL_TOKEN_FILE]
    #[arg(long, value_name = "FILE", env = "EVENKEEL_TOKEN_FILE", hide_env = true)]
    token_file: Option<PathBuf>,
}

impl ServerArgs {
    /// The token from the token file; `None` if no file is given.
    fn token(&self) -> anyhow::Result<Option<String>> {
        Ok(self.token_file.as_deref().map(secret::token).transpose()?)
    }
}

#[derive(clap::Args)]
struct TopArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The limit to show first [default: the first one]
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Seconds between two updates, from 0.2 to 60
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

#[derive(clap::Args)]
struct ClientsArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Show only this limit
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Show only this limit, in the columns of Tempomat's doctor, for existing scripts
    #[arg(long, value_name = "NAME", conflicts_with_all = ["limit", "json"])]
    bucket: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    evenkeel_tls::install();
    let parsed = help::command().try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // Help and version also arrive here; clap provides the right exit code for them.
        Err(error) => {
            let _ = error.print();
            eprint!("{}", help::advice(&error));
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) if closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let is_misuse = error.is::<Misuse>();
            match error.downcast::<FaultsFound>() {
                // A check has printed them.
                Ok(FaultsFound) => {}
                Err(error) => eprint!("{}", excerpt::last_error(&format!("{error:#}"))),
            }
            ExitCode::from(if is_misuse { 2 } else { 1 })
        }
    }
}

fn run(command: CliCommand) -> anyhow::Result<ExitCode> {
    match command {
        CliCommand::Turn(options) => turn::turn(&options),
        CliCommand::Doctor(options) => diagnose::diagnose(options),
        other => run_to_end(other).map(|()| ExitCode::SUCCESS),
    }
}

fn run_to_end(command: CliCommand) -> anyhow::Result<()> {
    match command {
        // Their exit codes say more than whether they failed.
        CliCommand::Turn(_) | CliCommand::Doctor(_) => Ok(()),
        CliCommand::Serve(serve) => {
            let mut source = ConfigSource::new(&named(serve.config)?);
            let config = source.load(Machine::here())?;
            run::serve(&config, Some(source))
        }
        CliCommand::Proxy(proxy) => run::serve(&from_flags(proxy)?, None),
        CliCommand::Ratelimit => {
            run::serve(&evenkeel_config::environment::from_process(Machine::here())?, None)
        }
        CliCommand::Check { mut paths, config } => {
            paths.extend(config);
            if paths.is_empty() {
                paths.push(named(None)?);
            }
            check::check(&paths)
        }
        CliCommand::Show { config } => show(&named(config)?),
        CliCommand::Schema => print_schema(),
        CliCommand::Reload(server) => {
            Ok(writeln!(io::stdout(), "{}", reload::reload(&server.admin)?)?)
        }
        CliCommand::Upgrade(server) => {
            Ok(writeln!(io::stdout(), "{}", upgrade::upgrade(&server.admin)?)?)
        }
        CliCommand::Clients(asked) => ask_clients(&asked),
        CliCommand::Top(asked) => watch_top(&asked),
        CliCommand::Replay(options) => evenkeel_lab::replay::run(&options),
        CliCommand::SampleLog(options) => evenkeel_lab::replay::sample(options),
        CliCommand::Demo(options) => Ok(evenkeel_lab::demo::run(&options)?),
        CliCommand::Licences => Ok(io::stdout().write_all(NOTICES.as_bytes())?),
        CliCommand::Version => {
            Ok(io::stdout().write_all(help::command().render_version().as_bytes())?)
        }
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut help::command(), "evenkeel", &mut script);
            Ok(io::stdout().write_all(&script)?)
        }
        CliCommand::Man { into: None } => {
            Ok(clap_mangen::Man::new(help::command()).render(&mut io::stdout().lock())?)
        }
        CliCommand::Man { into: Some(folder) } => {
            let written = clap_mangen::generate_to(help::command(), &folder);
            written.with_context(|| format!("cannot write manual pages into {}", folder.display()))
        }
    }
}

fn from_flags(proxy: ProxyArgs) -> Result<Config, Misuse> {
    let flags = ProxyFlags {
        backend: proxy.backend,
        listen: proxy.listen,
        preset: proxy.preset,
        cpus: proxy.cpus,
        action: proxy.action,
        cost: proxy.cost,
        trusted_proxies: proxy.trusted_proxies,
        admin: proxy.admin,
        shadow: proxy.shadow,
    };
    evenkeel_config::from_flags(&flags, Machine::here()).map_err(|faults| Misuse(faults, "proxy"))
}

/// The named file, or else the default file that exists.
fn named(config: Option<PathBuf>) -> Result<PathBuf, NoConfigError> {
    config.map_or_else(default_path, Ok)
}

/// Parses the address of a server, which may be written as the URL of its page.
fn host_port(text: &str) -> Result<String, &'static str> {
    let text = text.strip_prefix("http://").map_or(text, |rest| rest.trim_end_matches('/'));
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let whole = !host.is_empty() && (bracketed || !host.contains([':', '/']));
    let good = whole && port.parse::<u16>().is_ok_and(|port| port > 0);
    if good { Ok(text.to_owned()) } else { Err("not an address; write HOST:PORT") }
}

/// Parses seconds, with or without a fraction.
fn interval(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().filter(|seconds| (0.2..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("not a number of seconds from 0.2 to 60")
}

fn watch_top(asked: &TopArgs) -> anyhow::Result<()> {
    let token = asked.server.token()?;
    let remote = AdminClient { address: &asked.server.admin, token: token.as_deref() };
    let limit = asked.limit.as_deref();
    Ok(top::run(&remote, limit, asked.interval)?)
}

/// Prints the status. An unknown limit prints an empty table and also fails, so that scripts notice
/// it.
fn ask_clients(asked: &ClientsArgs) -> anyhow::Result<()> {
    let token = asked.server.token()?;
    let ClientsArgs { server, limit, bucket, json } = asked;
    let form = match (bucket, json) {
        (Some(_), _) => ClientsFormat::Buckets,
        (None, true) => ClientsFormat::Json,
        (None, false) => ClientsFormat::Tables,
    };
    let limit = limit.as_deref().or(bucket.as_deref());
    let remote = AdminClient { address: &server.admin, token: token.as_deref() };
    let report = clients(&remote, limit, form)?;
    io::stdout().write_all(report.text.as_bytes())?;
    report.unknown.map_or(Ok(()), |names| Err(anyhow::anyhow!(names)))
}

fn show(path: &Path) -> anyhow::Result<()> {
    let config = ConfigSource::new(path).load(Machine::here())?;
    eprint!("{}", excerpt::warnings(config.warnings.iter().map(String::as_str)));
    Ok(io::stdout().write_all(config.native.as_bytes())?)
}

fn print_schema() -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{:#}", evenkeel_config::show::schema::schema())?)
}

/// Whether the reader of the output closed the pipe, as `head` does; this is not a failure.
fn closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
