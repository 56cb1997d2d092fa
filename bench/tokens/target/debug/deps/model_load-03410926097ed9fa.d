/work/main/bench/tokens/target/debug/deps/model_load-03410926097ed9fa.d: src/bin/model-load/main.rs src/bin/model-load/plan.rs src/bin/model-load/wire.rs

/work/main/bench/tokens/target/debug/deps/libmodel_load-03410926097ed9fa.rmeta: src/bin/model-load/main.rs src/bin/model-load/plan.rs src/bin/model-load/wire.rs

src/bin/model-load/main.rs:
src/bin/model-load/plan.rs:
src/bin/model-load/wire.rs:
