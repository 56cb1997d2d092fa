//! Compares the line door with a bare echo server of its protocol and with Redis, in one run: the
//! CPU time per query with 64 queries in flight on each of 50 connections, and the latency with one
//! query at a time.
//!
//! `bench/line` starts it and describes what it needs. Servers run on core 0, the load on core 1.
//! The contestants take turns within each round, so that a disturbance of the machine affects all
//! of them. The echo shows the cost of tokio without a decision: it answers `OK` to every line.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CONNECTIONS: usize = 50;
const PIPELINE: usize = 64;
const KEYS: usize = 100_000;
const SERVER_CORE: usize = 0;
const LOAD_CORE: usize = 1;
/// The number of round trips of one latency measurement.
const TRIPS: usize = 10_000;

/// A server and the queries for it.
struct Contestant {
    name: &'static str,
    address: SocketAddr,
    process: u32,
    query: fn(usize) -> Vec<u8>,
}

#[derive(Clone, Copy)]
struct Figures {
    queries_per_second: f64,
    cpu_us: f64,
    busy: f64,
    latency_us: f64,
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|word| word == "echo") {
        let port = arguments.get(at + 1).and_then(|port| port.parse().ok()).unwrap_or(0);
        return echo(port);
    }
    if !arguments.iter().any(|word| word == "--run") {
        println!("bench/line runs this; it needs redis-server and two cores to itself");
        return Ok(());
    }
    let rounds = number(&arguments, "--rounds", 5);
    let seconds = number(&arguments, "--seconds", 3);
    let folder = tempfile::tempdir()?;
    let mut children = Vec::new();
    let before = arguments.iter().position(|word| word == "--before");
    let before = before.and_then(|at| arguments.get(at + 1));
    let contestants = start_all(folder.path(), before, &mut children)?;
    pin(LOAD_CORE)?;
    describe();
    let mut figures = vec![Vec::new(); contestants.len()];
    for contestant in &contestants {
        measure(contestant, 1)?;
    }
    for _ in 0..rounds {
        for (contestant, figures) in contestants.iter().zip(&mut figures) {
            figures.push(measure(contestant, seconds as u64)?);
        }
    }
    show(&contestants, &figures);
    for mut child in children {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

fn number(arguments: &[String], name: &str, default: usize) -> usize {
    let at = arguments.iter().position(|word| word == name);
    at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
}

fn pin(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// A key of 16 bytes; consecutive numbers give unordered keys.
fn key(n: usize) -> String {
    format!("{:016x}", (n as u64 % KEYS as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn framed(words: &[&str]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", words.len());
    for word in words {
        let _ = write!(frame, "${}\r\n{word}\r\n", word.len());
    }
    frame.into_bytes()
}

/// Starts all servers; `before` is an earlier build of the program.
fn start_all(
    folder: &Path,
    before: Option<&String>,
    children: &mut Vec<Child>,
) -> io::Result<Vec<Contestant>> {
    let ports: Vec<u16> = (0..6).map(|_| free_port()).collect::<io::Result<_>>()?;
    let config = |name: &str, line: u16, resp: u16| -> io::Result<PathBuf> {
        let file = folder.join(name);
        let text = format!(
            "admin: off\nlog: {{level: error}}\nline:\n  listen: tcp://127.0.0.1:{line}\n  \
             resp: 127.0.0.1:{resp}\n  rate: 1000/s\n  burst: 100000\n"
        );
        fs::write(&file, text)?;
        Ok(file)
    };
    let itself = std::env::current_exe()?;
    let mut run = |command: &mut Command, port: u16| -> io::Result<u32> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn()?;
        let id = child.id();
        children.push(child);
        await_port(port)?;
        Ok(id)
    };
    let on_core = |program: &Path| {
        let mut command = Command::new("taskset");
        command.args(["-c", &SERVER_CORE.to_string()]).arg(program);
        command
    };
    let echo = run(on_core(&itself).args(["echo", &ports[0].to_string()]), ports[0])?;
    let binary = std::env::var_os("EVENKEEL").unwrap_or(env!("CARGO_BIN_EXE_evenkeel").into());
    let mut evenkeel = on_core(binary.as_ref());
    let now = config("evenkeel.yaml", ports[1], ports[2])?;
    let line = run(evenkeel.args(["serve", "--config"]).arg(now), ports[1])?;
    let earlier = config("before.yaml", ports[4], ports[5])?;
    let start_earlier = |before: &String| {
        run(on_core(before.as_ref()).args(["serve", "--config"]).arg(&earlier), ports[4])
    };
    let before = before.map(start_earlier).transpose()?;
    let mut redis = on_core("redis-server".as_ref());
    redis.args(["--port", &ports[3].to_string(), "--save", "", "--appendonly", "no"]);
    let redis = run(redis.args(["--dir"]).arg(folder), ports[3])?;
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let tag = |n| format!("{}\n", key(n)).into_bytes();
    let contestant =
        |name, port, process, query| Contestant { name, address: at(port), process, query };
    let mut all = vec![
        contestant("bare echo", ports[0], echo, tag),
        contestant("evenkeel line", ports[1], line, tag),
        contestant("redis PING", ports[3], redis, |_| framed(&["PING"])),
        contestant("redis INCR", ports[3], redis, |n| framed(&["INCR", &key(n)])),
        contestant("evenkeel THROTTLE", ports[2], line, |n| framed(&["THROTTLE", &key(n)])),
        contestant("evenkeel CL.THROTTLE", ports[2], line, |n| {
            framed(&["CL.THROTTLE", &key(n), "100000", "1000", "1"])
        }),
    ];
    all.extend(before.map(|before| contestant("before line", ports[4], before, tag)));
    Ok(all)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn await_port(port: u16) -> io::Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// The CPU time of a process in seconds, with a resolution of a hundredth.
fn cpu_seconds(process: u32) -> io::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((ticks(12) + ticks(13)) / 100.0)
}

fn measure(contestant: &Contestant, seconds: u64) -> io::Result<Figures> {
    let latency_us = latency(contestant)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (before, begin) = (cpu_seconds(contestant.process)?, Instant::now());
    let queries = runtime.block_on(load(contestant, Duration::from_secs(seconds)))?;
    let (cpu, took) = (cpu_seconds(contestant.process)? - before, begin.elapsed().as_secs_f64());
    Ok(Figures {
        queries_per_second: queries as f64 / took,
        cpu_us: cpu / queries as f64 * 1e6,
        busy: cpu / took,
        latency_us,
    })
}

/// The median round trip time of one query at a time, in microseconds.
fn latency(contestant: &Contestant) -> io::Result<f64> {
    let mut stream = TcpStream::connect(contestant.address)?;
    stream.set_nodelay(true)?;
    let queries: Vec<Vec<u8>> = (0..TRIPS).map(contestant.query).collect();
    let mut trips = Vec::with_capacity(TRIPS);
    let mut buffer = [0; 4096];
    for query in &queries {
        let begin = Instant::now();
        stream.write_all(query)?;
        loop {
            let read = stream.read(&mut buffer)?;
            if ended(&buffer[..read], query[0] == b'*') {
                break;
            }
        }
        trips.push(begin.elapsed());
    }
    trips.sort_unstable();
    Ok(trips[TRIPS / 2].as_secs_f64() * 1e6)
}

/// Whether a reply is complete; replies that are arrays arrive in one piece.
fn ended(bytes: &[u8], framed: bool) -> bool {
    bytes.ends_with(if framed { b"\r\n" } else { b"\n" })
}

/// The number of queries answered within `length`.
async fn load(contestant: &Contestant, length: Duration) -> io::Result<u64> {
    let end = Instant::now() + length;
    let batches = KEYS / PIPELINE;
    let batch = |at: usize| -> Vec<u8> {
        (0..PIPELINE).flat_map(|n| (contestant.query)(at * PIPELINE + n)).collect()
    };
    let batches: std::sync::Arc<Vec<Vec<u8>>> =
        std::sync::Arc::new((0..batches).map(batch).collect());
    let lines = match contestant.name {
        name if name.ends_with("THROTTLE") => 6,
        _ => 1,
    };
    let mut tasks = tokio::task::JoinSet::new();
    for connection in 0..CONNECTIONS {
        let (address, batches) = (contestant.address, std::sync::Arc::clone(&batches));
        tasks.spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let mut buffer = [0; 16 * 1024];
            let (mut at, mut answered) = (connection * 31, 0);
            while Instant::now() < end {
                stream.write_all(&batches[at % batches.len()]).await?;
                at += 1;
                let mut newlines = 0;
                while newlines < PIPELINE * lines {
                    let read = stream.read(&mut buffer).await?;
                    if read == 0 {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                    }
                    newlines += memchr::memchr_iter(b'\n', &buffer[..read]).count();
                }
                answered += PIPELINE as u64;
            }
            Ok(answered)
        });
    }
    let mut answered = 0;
    while let Some(done) = tasks.join_next().await {
        answered += done.map_err(io::Error::other)??;
    }
    Ok(answered)
}

fn describe() {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find(|line| line.starts_with("model name")).unwrap_or("?");
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("# {model}, load {}", load.split(' ').next().unwrap_or("?"));
    println!("# {CONNECTIONS} connections, {PIPELINE} queries under way on each, {KEYS} keys");
}

fn show(contestants: &[Contestant], figures: &[Vec<Figures>]) {
    println!("\n| | queries/s | CPU us/query | core busy | latency us |\n|---|---|---|---|---|");
    for (contestant, rounds) in contestants.iter().zip(figures) {
        let column = |of: fn(&Figures) -> f64, digits| spread(rounds.iter().map(of), digits);
        println!(
            "| {} | {} | {} | {} | {} |",
            contestant.name,
            column(|f| f.queries_per_second, 0),
            column(|f| f.cpu_us, 3),
            column(|f| f.busy, 2),
            column(|f| f.latency_us, 1)
        );
    }
    println!(
        "\n| evenkeel line against, within each round | CPU per query | latency |\n|---|---|---|"
    );
    for (at, contestant) in contestants.iter().enumerate().filter(|(at, _)| *at != 1) {
        let ratio = |of: fn(&Figures) -> f64| {
            let pairs = figures[1].iter().zip(&figures[at]);
            spread(pairs.map(|(ours, theirs)| of(ours) / of(theirs)), 2)
        };
        println!("| {} | {} | {} |", contestant.name, ratio(|f| f.cpu_us), ratio(|f| f.latency_us));
    }
}

/// Formats values as `median (least-most)`.
fn spread(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (least, most) = (values[0], values[values.len() - 1]);
    format!("{:.digits$} ({least:.digits$}-{most:.digits$})", values[values.len() / 2])
}

/// Answers `OK` to every line without any decision.
fn echo(port: u16) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let mut buffer = [0; 16 * 1024];
                let mut out = Vec::new();
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    out.clear();
                    for _ in memchr::memchr_iter(b'\n', &buffer[..read]) {
                        out.extend_from_slice(b"OK\n");
                    }
                    if stream.write_all(&out).await.is_err() {
                        return;
                    }
                }
            });
        }
    })
}
