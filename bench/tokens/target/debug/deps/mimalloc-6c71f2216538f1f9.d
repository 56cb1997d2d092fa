/work/main/bench/tokens/target/debug/deps/mimalloc-6c71f2216538f1f9.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/mimalloc-0.1.52/src/lib.rs

/work/main/bench/tokens/target/debug/deps/libmimalloc-6c71f2216538f1f9.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/mimalloc-0.1.52/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/mimalloc-0.1.52/src/lib.rs:
