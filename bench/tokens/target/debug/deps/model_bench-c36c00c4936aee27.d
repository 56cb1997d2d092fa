/work/main/bench/tokens/target/debug/deps/model_bench-c36c00c4936aee27.d: src/lib.rs

/work/main/bench/tokens/target/debug/deps/libmodel_bench-c36c00c4936aee27.rmeta: src/lib.rs

src/lib.rs:
