//! The site of the demo: two pages that burn CPU time, a few workers and one queue.
//!
//! It behaves like a small dynamic site: each worker handles one request at a time, and the others
//! wait in a FIFO queue. The workers share one core, as under a scheduler that gives each a slice
//! in turn; the other cores of the machine are free for the proxy and the visitors. The CPU time is
//! real: a worker spins until its thread has used the cost of the page. A ledger records the CPU
//! time of each visitor. The site does not know about limits; the proxy in front of it has them.

use crate::demo::visitors::DemoVisitor;
use evenkeel_core::units::Nanos;
use evenkeel_runtime::clock;
use evenkeel_runtime::thread::OwnedThread;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::{FairMutex, Mutex};
use std::convert::Infallible;
use std::hint::black_box;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The maximum number of requests in the queue; further ones are answered 503.
const QUEUE_MAX: usize = 1024;
/// Rounds of arithmetic between two readings of the thread's CPU time: some microseconds.
const ROUNDS_PER_CHECK: u32 = 4_000;

/// How long a worker keeps the core before the next worker gets it.
const CORE_SLICE: Nanos = Nanos::from_millis(1);

/// The pages, each with its cost in CPU time.
const PAGE_COSTS: [(&str, Nanos); 2] =
    [("/page", Nanos::from_millis(2)), ("/search", Nanos::from_millis(100))];

/// The only core of the site. Waiting workers get it in turn.
type SiteCore = FairMutex<()>;

/// A running site. Dropping it ends all its threads.
pub struct DemoSite {
    address: SocketAddr,
    ledger: Arc<CpuLedger>,
    /// Invariant: declared before the workers, because its drop ends them.
    _front: OwnedThread<oneshot::Sender<Infallible>>,
    workers: Vec<OwnedThread<()>>,
}

/// CPU time used for each visitor, in nanoseconds.
#[derive(Default)]
struct CpuLedger([AtomicU64; DemoVisitor::ALL.len()]);

impl DemoSite {
    /// Opens a site on a free port of loopback, with `workers` threads that handle requests.
    pub fn open(workers: usize) -> io::Result<DemoSite> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let ledger = Arc::new(CpuLedger::default());
        let (jobs, queue) = sync_channel(QUEUE_MAX);
        let queue = Arc::new(Mutex::new(queue));
        let core = Arc::new(SiteCore::default());
        let (stop, stopped) = oneshot::channel();
        let front = move || serve(listener, jobs, stopped);
        let front = OwnedThread::serve("demo-site", stop, (), front)?;
        let mut site = DemoSite { address, ledger, _front: front, workers: Vec::new() };
        for _ in 0..workers {
            let (queue, core) = (Arc::clone(&queue), Arc::clone(&core));
            let ledger = Arc::clone(&site.ledger);
            let worker = move || work(&queue, &core, &ledger);
            site.workers.push(OwnedThread::start("demo-worker", (), worker)?);
        }
        Ok(site)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The CPU time used for `visitor` so far.
    pub fn used(&self, visitor: DemoVisitor) -> Nanos {
        Nanos(self.ledger.0[visitor as usize].load(Ordering::Relaxed))
    }
}

/// A request that waits for a worker.
struct PageJob {
    effort: Nanos,
    visitor: Option<DemoVisitor>,
    done: oneshot::Sender<()>,
}

/// The loop of a worker: takes the oldest request and burns the cost of its page. Skips requests
/// that have lost their client.
fn work(queue: &Mutex<Receiver<PageJob>>, core: &SiteCore, ledger: &CpuLedger) {
    loop {
        let next = queue.lock().recv();
        let Ok(job) = next else { return };
        if job.done.is_closed() {
            continue;
        }
        let used = share(core, job.effort);
        if let Some(visitor) = job.visitor {
            ledger.0[visitor as usize].fetch_add(used.0, Ordering::Relaxed);
        }
        let _ = job.done.send(());
    }
}

/// Burns `effort` in slices, in turn with other workers; returns the CPU time used.
fn share(core: &SiteCore, effort: Nanos) -> Nanos {
    let mut used = Nanos::ZERO;
    while used < effort {
        let _turn = core.lock();
        used = used.plus(burn(effort.minus(used).min(CORE_SLICE)));
    }
    used
}

/// Computes until this thread has used `effort` of CPU time; returns the CPU time used.
fn burn(effort: Nanos) -> Nanos {
    let start = clock::thread_cpu();
    let mut number = black_box(effort.0);
    loop {
        for round in 0..ROUNDS_PER_CHECK {
            number = number.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(round);
        }
        black_box(number);
        let used = clock::thread_cpu().minus(start);
        if used >= effort {
            return used;
        }
    }
}

/// Accepts connections until `stopped` fires. Its connection tasks end with the runtime.
async fn serve(
    listener: std::net::TcpListener,
    jobs: SyncSender<PageJob>,
    mut stopped: oneshot::Receiver<Infallible>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { continue };
        let jobs = jobs.clone();
        let service = service_fn(move |request| answer(jobs.clone(), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// Queues a request, waits for its worker, and answers.
async fn answer(
    jobs: SyncSender<PageJob>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let Some((_, effort)) = PAGE_COSTS.into_iter().find(|(page, _)| *page == path) else {
        return Ok(page(StatusCode::NOT_FOUND, "no such page\n"));
    };
    let (done, worked) = oneshot::channel();
    let job = PageJob { effort, visitor: DemoVisitor::of(request.headers()), done };
    if jobs.try_send(job).is_err() || worked.await.is_err() {
        return Ok(page(StatusCode::SERVICE_UNAVAILABLE, "too many requests are waiting\n"));
    }
    Ok(page(StatusCode::OK, "here is your page\n"))
}

fn page(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_cpu_time_of_this_thread() {
        let before = clock::thread_cpu();
        let used = burn(Nanos::from_millis(5));
        assert!(used >= Nanos::from_millis(5));
        assert!(clock::thread_cpu().minus(before) >= used);
    }

    #[test]
    fn who_shares_the_core_uses_no_less_of_it() {
        let core = SiteCore::default();
        let effort = Nanos(2_500_000);
        std::thread::scope(|scope| {
            let two = [(); 2].map(|()| scope.spawn(|| share(&core, effort)));
            for one in two {
                assert!(one.join().expect("it ends") >= effort);
            }
        });
    }

    #[test]
    fn a_site_ends_when_dropped() {
        let site = DemoSite::open(2).expect("a free port");
        assert_eq!(site.used(DemoVisitor::Human), Nanos::ZERO);
        assert!(site.address().ip().is_loopback());
    }
}
