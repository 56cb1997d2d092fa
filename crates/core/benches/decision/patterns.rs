//! Whether a user agent matches a list of patterns: one pass, however many patterns there are.

use super::super::quickest;
use evenkeel_core::condition::patterns::Patterns;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;
const TEXTS: u32 = 50_000;

const AGENT: &str = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
                     Chrome/142.0.0.0 Safari/537.36";

pub fn measure() {
    println!("\na user agent of {} bytes that matches nothing, ns per request", AGENT.len());
    for count in [1, 10, 100, 1_000] {
        let names = (0..count).map(|at| format!("*{}Bot{at}*", ["Seo", "Ai", "Scan"][at % 3]));
        let expressions = (0..count).map(|at| format!("re:bot[ /-]{at}[0-9]+\\.[0-9]"));
        let lists: [(&str, Vec<String>); 2] =
            [("names", names.collect()), ("expressions", expressions.collect())];
        for (kind, list) in lists {
            let started = Instant::now();
            let patterns = Patterns::new(&list).expect("patterns");
            let built = started.elapsed();
            let times = (0..ROUNDS).map(|_| {
                let started = Instant::now();
                for _ in 0..TEXTS {
                    black_box(patterns.matches(black_box(AGENT.as_bytes())));
                }
                started.elapsed().as_nanos() as f64 / f64::from(TEXTS)
            });
            let time = quickest(times.collect());
            println!("{count:>5} {kind:<12}{time:>6.0}   compiled in {built:.1?}");
        }
    }
}
