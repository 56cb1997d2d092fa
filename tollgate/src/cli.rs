//! The command line: what can be typed, and which part of the program does it.
//!
//! Errors go to standard error and say what to do. Exit codes: 0 done, 1 it failed or a check
//! found faults, 2 the command line is wrong.

use crate::config::cpus;
use crate::config::source::{Source, default_path};
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
    /// Check configuration files and print every fault with its place
    Check {
        /// Configuration files
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Print the configuration that would run, defaults filled in
    Show {
        /// The configuration file [default: $TOLLGATE_CONFIG, else
        /// /etc/tollgate/tollgate.yaml, else /etc/tempomat.json]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
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
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Check { paths } => check(&paths),
        Command::Show { config } => show(&config.unwrap_or_else(default_path)),
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
