/work/main/bench/tokens/target/debug/deps/model_engine-1c2aa16765e1acae.d: src/bin/model-engine/main.rs src/bin/model-engine/answer.rs src/bin/model-engine/ask.rs src/bin/model-engine/batch.rs src/bin/model-engine/body.rs src/bin/model-engine/options.rs src/bin/model-engine/prefix.rs src/bin/model-engine/random.rs src/bin/model-engine/report.rs src/bin/model-engine/tally.rs

/work/main/bench/tokens/target/debug/deps/libmodel_engine-1c2aa16765e1acae.rmeta: src/bin/model-engine/main.rs src/bin/model-engine/answer.rs src/bin/model-engine/ask.rs src/bin/model-engine/batch.rs src/bin/model-engine/body.rs src/bin/model-engine/options.rs src/bin/model-engine/prefix.rs src/bin/model-engine/random.rs src/bin/model-engine/report.rs src/bin/model-engine/tally.rs

src/bin/model-engine/main.rs:
src/bin/model-engine/answer.rs:
src/bin/model-engine/ask.rs:
src/bin/model-engine/batch.rs:
src/bin/model-engine/body.rs:
src/bin/model-engine/options.rs:
src/bin/model-engine/prefix.rs:
src/bin/model-engine/random.rs:
src/bin/model-engine/report.rs:
src/bin/model-engine/tally.rs:
