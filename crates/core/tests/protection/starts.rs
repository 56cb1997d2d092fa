//! A start under attack: the concurrency of the backend and the costs of all routes are unknown
//! when crawlers and people come at once.
//! `cargo test --test protection starts -- --nocapture` prints the results.

use super::*;

/// The 95th percentile of ten people from the third second on, in the mean of eight seeds, and in
/// the worst of them; with a slot of the backend for each worker.
fn people(workers: usize, crawlers: impl Iterator<Item = (IpAddr, u32)> + Clone) -> (f64, f64) {
    let of_seed = |seed| {
        let people = (0..10).map(|n| human(address(200 + n, 1, 1)));
        let crawlers = crawlers.clone().map(|(at, parallel)| crawler(at, parallel));
        let backend = SimBackend::new(CORES, workers, SimScheduling::Shared);
        let clients = people.chain(crawlers).collect();
        let length = Nanos::from_secs(30);
        let sim = Sim::new(SimScene { backend, seed, length, ..scene(clients) });
        let outcome = sim.with_auto_concurrency(CORES).run();
        let mut records: Vec<SimRecord> = outcome.clients[..10].concat();
        records.sort_unstable_by_key(|record| record.ended);
        let outcome = SimOutcome { clients: vec![records], ..outcome };
        outcome.figures(0, Nanos::from_secs(3), Nanos(u64::MAX)).latency(95.0).as_secs_f64() * 1e3
    };
    let all: Vec<f64> = (1..=8).map(of_seed).collect();
    (all.iter().sum::<f64>() / 8.0, all.into_iter().fold(0.0, f64::max))
}

#[test]
fn crawlers_are_there_from_the_first_second() {
    for workers in [2, 4, 8, 16, 64] {
        let calm = people(workers, std::iter::empty());
        let one = people(workers, std::iter::once((address(2, 2, 2), 40)));
        let networks = people(workers, (0..8).map(|n| (address(20 + n, 2, 2), 5)));
        let addresses = people(workers, (0..40).map(|n| (address(2, 2, n), 1)));
        println!(
            "{workers:2} workers: p95 (worst seed) calm {:.1} ({:.1}), one crawler {:.1} ({:.1}), \
             8 networks {:.1} ({:.1}), 40 addresses {:.1} ({:.1}) ms",
            calm.0, calm.1, one.0, one.1, networks.0, networks.1, addresses.0, addresses.1,
        );
        // If each worker has a heavy request, a light one waits until one of them ends.
        let most = if workers == 2 { 110.0 } else { 3.0 * calm.1 };
        assert!(one.1.max(networks.1) <= most && (workers == 2 || addresses.1 <= most));
    }
}
