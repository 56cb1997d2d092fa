//! One small HTTP/1.1 proxy in several variants, to find out what io_uring gives:
//! `bench/uring/run.py` runs them side by side.
//!
//! `uring VARIANT PORT BACKEND [CONNECTIONS [BUFFER]]` listens on PORT and opens CONNECTIONS to the
//! port BACKEND, all on loopback. It is a measurement, no proxy to use: it ends at the first thing
//! that it does not expect. `uring call` times a system call that does nothing.

mod buffers;
mod driver;
mod epoll;
mod late;
mod proxy;
mod ring;
mod sockets;
mod tasks;
mod web;

use ring::Options;
use sockets::Setup;
use std::time::Instant;
use tasks::Sockets;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "uring epoll|ring[+multi][+fixed][+link][+zc][+sqpoll=CPU]|tokio[-late|-ring]|\
                     hyper[-late|-ring] PORT BACKEND [CONNECTIONS [BUFFER]]";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| match arguments.get(at) {
        Some(text) => text.parse().expect(USAGE),
        None => default,
    };
    let variant = arguments.first().expect(USAGE);
    if variant == "call" {
        return time_calls();
    }
    let (port, backend) = (number(1, 0) as u16, number(2, 0) as u16);
    let setup = Setup::new(port, backend, number(3, 300), number(4, 4096)).expect("sockets");
    match variant.as_str() {
        "epoll" => epoll::run(setup),
        "tokio" => tasks::run(setup, Sockets::Tokio),
        "tokio-late" => tasks::run(setup, Sockets::Late),
        "tokio-ring" => tasks::run(setup, Sockets::Ring),
        "hyper" => web::run(setup, Sockets::Tokio),
        "hyper-late" => web::run(setup, Sockets::Late),
        "hyper-ring" => web::run(setup, Sockets::Ring),
        _ => ring::run(setup, options(variant)),
    }
}

fn options(variant: &str) -> Options {
    let mut parts = variant.split('+');
    assert_eq!(parts.next(), Some("ring"), "{USAGE}");
    let mut options = Options::default();
    for part in parts {
        match part {
            "multi" => options.is_multishot = true,
            "fixed" => options.is_fixed = true,
            "link" => options.is_linked = true,
            "zc" => options.is_zero_copy = true,
            _ => {
                let cpu = part.strip_prefix("sqpoll=").expect(USAGE);
                options.polled_by = Some(cpu.parse().expect(USAGE));
            }
        }
    }
    options
}

/// The price of entering and leaving the kernel.
fn time_calls() {
    const CALLS: u32 = 5_000_000;
    let quickest = (0..10)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                // SAFETY: takes no arguments.
                unsafe { libc::syscall(libc::SYS_getppid) };
            }
            start.elapsed().as_nanos() / u128::from(CALLS)
        })
        .min();
    println!("{} ns", quickest.unwrap_or(0));
}
