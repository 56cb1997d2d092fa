//! The committed messages of other protocols match their protos.
//!
//! `EVENKEEL_WRITE_WIRE=1 cargo test -p evenkeel --test wire` writes them again; without it, the
//! test compares them. No `protoc` is needed.

use prost_build::{Config, Module};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const PROTOS: [&str; 5] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/service/rate_limit_quota/v3/rlqs.proto",
    "envoy/service/ratelimit/v2/rls.proto",
    "pb/lyft/ratelimit/ratelimit.proto",
    "grpc/health/v1/health.proto",
];

/// Protocols that Evenkeel uses as a client. They are not served, so reflection does not show them.
const ASKED: [&str; 2] =
    ["envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

/// The protocols of Envoy's external processing and external authorization.
const EXT_PROC: [&str; 1] = ["envoy/service/ext_proc/v3/external_processor.proto"];
const EXT_AUTHZ: [&str; 1] = ["envoy/service/auth/v3/external_auth.proto"];

/// The messages for an OpenTelemetry collector.
const TOLD: [&str; 2] = [
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
    "opentelemetry/proto/collector/metrics/v1/metrics_service.proto",
];

/// Packages without messages of their own: their encoding is the same as that of v3, in the fields
/// that they have.
const SERVED_BY_V3: [&str; 4] = [
    "envoy.service.ratelimit.v2",
    "envoy.api.v2.core",
    "envoy.api.v2.ratelimit",
    "pb.lyft.ratelimit",
];

/// A folder of one crate.
fn folder(of: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of).join(name)
}

fn compiled(of: &str, paths: &[&str]) -> protox::Compiler {
    let root = folder(of, "proto");
    let mut compiler = protox::Compiler::new([&root]).expect("the folder of protos");
    let paths = paths.iter().map(|path| root.join(path));
    compiler.include_imports(true).open_files(paths).expect("sound protos");
    compiler
}

/// The messages of these files as nested modules.
fn generate(of: &str, paths: &[&str]) -> String {
    let set = compiled(of, paths).file_descriptor_set();
    let name = |package: &str| Module::from_protobuf_package_name(package);
    let requests = set.file.iter().map(|file| (name(file.package()), file.clone())).collect();
    let mut config = Config::new();
    // Headers and bodies are shared with the message that they come in.
    config.bytes([".envoy.service.ext_proc.v3"]);
    let mut modules = config.generate(requests).expect("messages");
    for file in &set.file {
        let package = file.package();
        if package == "google.protobuf" || SERVED_BY_V3.contains(&package) {
            modules.remove(&name(package));
        }
    }
    let modules: BTreeMap<_, _> = modules
        .into_iter()
        .map(|(module, code)| (module.parts().map(str::to_owned).collect::<Vec<_>>(), code))
        .collect();
    let mut text = String::from(
        "// Written by `EVENKEEL_WRITE_WIRE=1 cargo test -p evenkeel --test wire`; do not edit.\n",
    );
    nest(&mut text, &modules, &[]);
    text
}

fn nest(text: &mut String, modules: &BTreeMap<Vec<String>, String>, above: &[String]) {
    text.push_str(modules.get(above).map_or("", String::as_str));
    let mut below: Vec<&String> = modules
        .keys()
        .filter(|parts| parts.starts_with(above))
        .filter_map(|parts| parts.get(above.len()))
        .collect();
    below.dedup();
    for part in below {
        let _ = writeln!(text, "pub mod {part} {{");
        nest(text, modules, &[above, std::slice::from_ref(part)].concat());
        text.push_str("}\n");
    }
}

/// What is committed is this; or becomes it, if that is asked for.
fn compare(of: &str, path: &str, bytes: &[u8]) {
    let path = folder(of, "src").join(path);
    if std::env::var_os("EVENKEEL_WRITE_WIRE").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, bytes).expect("written");
    }
    let is = fs::read(&path).is_ok_and(|read| read == bytes);
    assert!(is, "{} is stale: run with EVENKEEL_WRITE_WIRE=1 and commit", path.display());
}

#[test]
fn the_committed_messages_are_those_of_the_protos() {
    let all = generate("ratelimit", &[&PROTOS[..], &ASKED[..]].concat());
    compare("ratelimit", "wire/messages.in", all.as_bytes());
    let served = compiled("ratelimit", &PROTOS).encode_file_descriptor_set();
    compare("ratelimit", "wire/descriptors.bin", &served);
    compare("ask", "ext_proc/messages.in", generate("ask", &EXT_PROC).as_bytes());
    compare("ask", "ext_proc/authz_messages.in", generate("ask", &EXT_AUTHZ).as_bytes());
    compare("telemetry", "otlp/wire/messages.in", generate("telemetry", &TOLD).as_bytes());
}
