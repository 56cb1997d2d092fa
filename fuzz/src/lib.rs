//! Fuzz harnesses: what drives the tests named `fuzz_..` with made-up input.
//!
//! A harness is a closure over bytes or over values of simple types, and fails by panicking. It
//! runs for `FUZZ_SECONDS` (default 1) on input from a seed, which `FUZZ_SEED` sets and a failure
//! tells, so it can be repeated. A failing input is made as small as possible before it is shown.
//! Input is random and not guided by coverage.

mod any;

pub use any::Any;

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// Cases between two looks at the time.
const BATCH: u32 = 16;
/// How long a failing input is made smaller, and in how many steps: one and more for each byte.
const SHRINK_MS: u32 = 20_000;
const SHRINK_STEPS: u32 = 100_000;

/// A harness over bytes.
pub struct Bytes(());

/// A harness over values of a type.
pub struct Values<T>(PhantomData<T>);

/// A harness over bytes.
#[must_use]
pub fn fuzz() -> Bytes {
    Bytes(())
}

impl Bytes {
    /// A harness over values of a type instead.
    #[must_use]
    pub fn with_type<T: Any>(self) -> Values<T> {
        Values(PhantomData)
    }

    /// Runs `body` on input after input until the time is over.
    ///
    /// # Panics
    /// `body` does, on the input that is shown; or a variable is not a number.
    pub fn for_each(self, body: impl Fn(&[u8])) {
        run(|bytes: &Vec<u8>| body(bytes));
    }
}

impl<T: Any> Values<T> {
    /// As [`Bytes::for_each`].
    ///
    /// # Panics
    /// As there.
    pub fn for_each(self, body: impl Fn(&T)) {
        run(body);
    }
}

fn run<T: Any>(body: impl Fn(&T)) {
    let time = Duration::from_secs(variable("FUZZ_SECONDS").unwrap_or(1));
    let seed = variable("FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let config = Config {
        cases: BATCH,
        failure_persistence: None,
        max_shrink_time: SHRINK_MS,
        max_shrink_iters: SHRINK_STEPS,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut seeds = TestRunner::new_with_rng(config.clone(), rng);
    let (strategy, begun) = (T::any(), Instant::now());
    while begun.elapsed() < time {
        // A runner is done with its cases once and for all.
        let mut runner = TestRunner::new_with_rng(config.clone(), seeds.new_rng());
        let found = runner.run(&strategy, |value| {
            body(&value);
            Ok(())
        });
        match found {
            Ok(()) => {}
            Err(TestError::Fail(why, input)) => {
                panic!("FUZZ_SEED={seed}: {why}\ninput: {input:?}")
            }
            Err(TestError::Abort(why)) => panic!("FUZZ_SEED={seed}: {why}"),
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`: write a number")))
}

#[cfg(test)]
mod tests {
    use super::fuzz;
    use std::cell::Cell;
    use std::panic::catch_unwind;

    #[test]
    fn a_failing_input_is_made_small_and_shown() {
        let harness = || {
            fuzz().with_type::<(bool, Vec<u8>)>().for_each(|(_, bytes)| {
                assert!(!bytes.contains(&b'x'));
            });
        };
        let told = catch_unwind(harness).expect_err("found");
        let told = told.downcast::<String>().expect("a text");
        assert!(told.contains("FUZZ_SEED=") && told.ends_with("input: (false, [120])"), "{told}");
    }

    #[test]
    fn inputs_are_short_and_long_plain_and_odd() {
        let (short, long, plain, high) = <(Cell<u32>, Cell<u32>, Cell<u32>, Cell<u32>)>::default();
        let count = |cell: &Cell<u32>, is: bool| cell.set(cell.get() + u32::from(is));
        fuzz().for_each(|bytes| {
            count(&short, bytes.len() < 4);
            count(&long, bytes.len() > 256);
            count(&plain, bytes.len() > 8 && bytes.iter().all(u8::is_ascii_graphic));
            count(&high, bytes.len() > 8 && bytes.iter().any(|byte| *byte > 0x7f));
        });
        for cell in [&short, &long, &plain, &high] {
            assert!(cell.get() > 10, "{short:?} {long:?} {plain:?} {high:?}");
        }
    }
}
