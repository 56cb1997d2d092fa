//! `evenkeel turn`: a command waits for its turn, runs, and is charged the CPU time that it used.
//!
//! Without an answer of the line door the command runs at once: a limiter that is down must not
//! take the job with it. The turn is given back when this program ends, however it ends.

use anyhow::{Context, bail};
use evenkeel_core::units::Nanos;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The time in which a door has to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The exit code if no turn came in time: try again later (`EX_TEMPFAIL` of sysexits.h).
const NO_TURN: u8 = 75;
/// The exit codes of a shell for a command that cannot be started, and for an unknown one.
const CANNOT_RUN: u8 = 126;
const NOT_THERE: u8 = 127;

#[derive(clap::Args)]
pub struct TurnOptions {
    /// The tag of the command; commands with the same tag share their turns
    #[arg(long, value_name = "TAG")]
    tag: String,
    /// The line door of a running server: tcp://HOST:PORT or unix:///PATH
    #[arg(long, value_name = "ADDR", env = "EVENKEEL_LINE")]
    #[arg(default_value = "tcp://127.0.0.1:7070")]
    line: String,
    /// The longest wait; then the exit code is 75 [default: the server's line.turns.wait_max]
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Nanos>,
    /// The CPU time that the command will probably use [default: what it used before]
    #[arg(long, value_name = "TIME", value_parser = time)]
    cost: Option<Nanos>,
    /// The command with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn time(text: &str) -> Result<Nanos, String> {
    text.parse::<Nanos>().map_err(|error| error.to_string())
}

/// Runs the command. The exit code is that of the command.
pub fn turn(options: &TurnOptions) -> anyhow::Result<ExitCode> {
    if options.tag.contains('\n') {
        bail!("a tag has no newline");
    }
    let door = match Door::connect(&options.line) {
        Ok(door) => Some(door),
        Err(DoorError::Address) => {
            bail!("`{}` is no address: write tcp://HOST:PORT or unix:///PATH", options.line)
        }
        Err(DoorError::Io(error)) => {
            eprintln!("evenkeel turn: {}: {error}; running without a turn", options.line);
            None
        }
    };
    let turn = match door.map(|door| door.take(options)) {
        None => None,
        Some(Ok(Taken::Turn(turn))) => Some(turn),
        Some(Ok(Taken::Not(why))) => {
            eprintln!("evenkeel turn: no turn for `{}`: {why}", options.tag);
            return Ok(ExitCode::from(NO_TURN));
        }
        Some(Ok(Taken::Fault(fault))) => bail!("the server says: {fault}"),
        Some(Err(error)) => {
            eprintln!("evenkeel turn: {}: {error}; running without a turn", options.line);
            None
        }
    };
    let Some((program, arguments)) = options.command.split_first() else { bail!("no command") };
    let child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("evenkeel turn: {}: {error}", program.display());
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(ExitCode::from(if is_missing { NOT_THERE } else { CANNOT_RUN }));
        }
    };
    let status = wait(child)?;
    if let Some(turn) = turn {
        turn.done(cpu_time());
    }
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Waits for the command, and passes on the signals that would end this program.
fn wait(mut child: Child) -> anyhow::Result<ExitStatus> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    runtime.block_on(async {
        let mut ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
            .map(signal)
            .into_iter()
            .collect::<io::Result<Vec<_>>>()?;
        let [terminate, interrupt, hangup] = &mut ends[..] else { bail!("no signals") };
        let mut ended = tokio::task::spawn_blocking(move || child.wait());
        loop {
            let passed = tokio::select! {
                status = &mut ended => return Ok(status??),
                _ = terminate.recv() => Signal::TERM,
                // A terminal sends these two to the command itself.
                _ = interrupt.recv() => continue,
                _ = hangup.recv() => continue,
            };
            if let Some(pid) = pid {
                let _ = kill_process(pid, passed);
            }
        }
    })
}

/// The CPU time of the children that have ended, with their children.
fn cpu_time() -> Option<Nanos> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(13);
    let ticks = [fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?];
    let second = rustix::param::clock_ticks_per_second().max(1);
    Some(Nanos(ticks.iter().sum::<u64>().saturating_mul(1_000_000_000 / second)))
}

/// A connection to the line door.
struct Door {
    reader: BufReader<Box<dyn Read>>,
    writer: Box<dyn Write>,
}

enum DoorError {
    /// The text is no address.
    Address,
    Io(io::Error),
}

enum Taken {
    Turn(Turn),
    /// No turn, for this reason.
    Not(&'static str),
    Fault(String),
}

/// A turn that is held.
struct Turn {
    door: Door,
    id: String,
}

impl Door {
    fn connect(address: &str) -> Result<Door, DoorError> {
        match address.split_once("://") {
            Some(("unix", path)) => {
                let stream = UnixStream::connect(path).map_err(DoorError::Io)?;
                let reader = stream.try_clone().map_err(DoorError::Io)?;
                Ok(Door::of(reader, stream))
            }
            Some(("tcp", to)) if to.contains(':') => {
                let all = to.to_socket_addrs().map_err(DoorError::Io)?;
                let mut last = io::ErrorKind::AddrNotAvailable.into();
                for address in all {
                    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                        Ok(stream) => {
                            let reader = stream.try_clone().map_err(DoorError::Io)?;
                            return Ok(Door::of(reader, stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(DoorError::Io(last))
            }
            _ => Err(DoorError::Address),
        }
    }

    fn of(reader: impl Read + 'static, writer: impl Write + 'static) -> Door {
        Door { reader: BufReader::new(Box::new(reader)), writer: Box::new(writer) }
    }

    fn take(mut self, options: &TurnOptions) -> anyhow::Result<Taken> {
        let mut line = format!("TAKE {}", options.tag);
        for (name, time) in [("cost", options.cost), ("wait", options.wait)] {
            time.iter()
                .for_each(|time| line += &format!(" {name}={}ms", time.0.div_ceil(1_000_000)));
        }
        writeln!(self.writer, "{line}")?;
        let reply = self.reply()?;
        Ok(match reply.split_once(' ') {
            Some(("TURN", id)) => Taken::Turn(Turn { id: id.to_owned(), door: self }),
            Some(("ERR", fault)) => Taken::Fault(fault.to_owned()),
            _ => match &*reply {
                "LATE" => Taken::Not("it has waited for too long"),
                "BUSY" => Taken::Not("too many commands wait"),
                "OK" | "NO" => Taken::Fault(
                    "it gives out no turns; add `turns: {slots: 4}` to its `line` section".into(),
                ),
                _ => bail!("`{reply}` is no answer of a line door"),
            },
        })
    }

    fn reply(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let count = (&mut self.reader).take(256).read_line(&mut line)?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).context("no answer");
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Turn {
    /// Gives the turn back. If the door has gone, so has the turn.
    fn done(mut self, cost: Option<Nanos>) {
        let cost = cost.map(|cost| format!(" cost={}us", cost.0 / 1_000)).unwrap_or_default();
        if writeln!(self.door.writer, "DONE {}{cost}", self.id).is_ok() {
            let _ = self.door.reply();
        }
    }
}
