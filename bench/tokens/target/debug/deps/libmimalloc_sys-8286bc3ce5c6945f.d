/work/main/bench/tokens/target/debug/deps/libmimalloc_sys-8286bc3ce5c6945f.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/libmimalloc-sys-0.1.49/src/lib.rs

/work/main/bench/tokens/target/debug/deps/liblibmimalloc_sys-8286bc3ce5c6945f.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/libmimalloc-sys-0.1.49/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/libmimalloc-sys-0.1.49/src/lib.rs:
