//! The command line: what can be typed, and which part of the program does it.
//!
//! Errors go to standard error and say what to do. Exit codes: 0 done, 1 it failed or a check
//! found faults, 2 the command line is wrong. What a running program does: `run`.

use crate::config::fault::Faults;
use crate::config::source::{Source, default_path};
use crate::config::{self, Config, Flags, cpus};
use crate::demo;
use crate::run;
use crate::watch::doctor::doctor;
use clap::{CommandFactory, Parser, Subcommand};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Charges every client for the CPU time its requests cost, and keeps a web server fair.
#[derive(Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Open every door that a configuration file names
    Serve(Serve),
    /// Run the reverse proxy with the default limits and no file
    Proxy(Proxy),
    /// Check configuration files and print every fault with its place
    Check {
        /// Configuration files
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Print the configuration that would run, defaults filled in
    Show {
        /// The configuration file [default: as for `serve`]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Print the busiest clients of a running server
    Doctor(Doctor),
    /// Show what the throttle does: a site, a crawler and a human, all in this program
    Demo(demo::Options),
    /// Print a script that completes commands in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command into a folder
    Man {
        /// A folder that is there
        #[arg(long, value_name = "FOLDER")]
        into: Option<PathBuf>,
    },
}

#[derive(clap::Args)]
struct Serve {
    /// The configuration file [default: $TOLLGATE_CONFIG, else /etc/tollgate/tollgate.yaml,
    /// else /etc/tempomat.json]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Proxy {
    /// The server to stand in front of, such as http://127.0.0.1:80
    #[arg(long, value_name = "URL")]
    backend: String,
    /// Where to listen; may be given several times [default: 0.0.0.0:8888]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// CPU-seconds per second to share out [default: this machine's, or its cgroup's quota]
    #[arg(long, value_name = "N")]
    cpus: Option<String>,
    /// What happens to a client in debt: hold, delay or reject [default: hold]
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// How a request's cost is measured: wall, shared or header:NAME [default: shared]
    #[arg(long, value_name = "COST")]
    cost: Option<String>,
    /// Where metrics, health and `doctor` are served, or off [default: 127.0.0.1:9970]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Whose X-Forwarded-For is believed: networks, with commas between [default: nobody's]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    trusted_proxies: Vec<String>,
}

#[derive(clap::Args)]
struct Doctor {
    /// The admin address of the server
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9970")]
    admin: String,
    /// Only this limit
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Does what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are no errors; clap knows which is which.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(if error.is::<Misuse>() { 2 } else { 1 })
        }
    }
}

/// Flags that can be typed but mean nothing that could run.
#[derive(Debug, thiserror::Error)]
#[error("{0}\nFor more information, try 'tollgate proxy --help'.")]
struct Misuse(Faults);

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(serve) => {
            let mut source = Source::new(&serve.config.unwrap_or_else(default_path));
            let config = source.load(cpus::available())?;
            run::serve(&config, Some(source))
        }
        Command::Proxy(proxy) => run::serve(&from_flags(proxy)?, None),
        Command::Check { paths } => check(&paths),
        Command::Show { config } => show(&config.unwrap_or_else(default_path)),
        Command::Doctor(asked) => {
            let text = doctor(&asked.admin, asked.limit.as_deref(), asked.json)?;
            Ok(io::stdout().write_all(text.as_bytes())?)
        }
        Command::Demo(options) => Ok(demo::run(&options)?),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
            Ok(io::stdout().write_all(&script)?)
        }
        Command::Man { into: None } => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            Ok(io::stdout().write_all(&page)?)
        }
        Command::Man { into: Some(folder) } => {
            Ok(clap_mangen::generate_to(Cli::command(), folder)?)
        }
    }
}

fn from_flags(proxy: Proxy) -> Result<Config, Misuse> {
    let flags = Flags {
        backend: proxy.backend,
        listen: proxy.listen,
        cpus: proxy.cpus,
        action: proxy.action,
        cost: proxy.cost,
        trusted_proxies: proxy.trusted_proxies,
        admin: proxy.admin,
    };
    config::from_flags(&flags, cpus::available()).map_err(Misuse)
}

fn check(paths: &[PathBuf]) -> anyhow::Result<()> {
    let mut faulty = Vec::new();
    for path in paths {
        match Source::new(path).load(cpus::available()) {
            Ok(_) => writeln!(io::stdout(), "{}: good", path.display())?,
            Err(faults) => faulty.push(faults.to_string()),
        }
    }
    anyhow::ensure!(faulty.is_empty(), faulty.join("\n"));
    Ok(())
}

fn show(path: &Path) -> anyhow::Result<()> {
    let config = Source::new(path).load(cpus::available())?;
    Ok(io::stdout().write_all(config.native.as_bytes())?)
}

/// Whoever reads our output has seen enough, as `head` does.
fn closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
