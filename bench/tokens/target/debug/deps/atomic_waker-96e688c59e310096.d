/work/main/bench/tokens/target/debug/deps/atomic_waker-96e688c59e310096.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/atomic-waker-1.1.2/src/lib.rs

/work/main/bench/tokens/target/debug/deps/libatomic_waker-96e688c59e310096.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/atomic-waker-1.1.2/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/atomic-waker-1.1.2/src/lib.rs:
