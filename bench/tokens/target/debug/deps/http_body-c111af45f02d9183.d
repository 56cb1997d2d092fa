/work/main/bench/tokens/target/debug/deps/http_body-c111af45f02d9183.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/frame.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/size_hint.rs

/work/main/bench/tokens/target/debug/deps/libhttp_body-c111af45f02d9183.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/frame.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/size_hint.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/lib.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/frame.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/http-body-1.1.0/src/size_hint.rs:
