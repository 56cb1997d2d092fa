//! The committed messages of the rate limit service are what its protos say.
//!
//! `TOLLGATE_WRITE_WIRE=1 cargo test -p tollgate --test wire` writes them anew; without it, this
//! compares. No `protoc` is needed.

use prost_build::{Config, Module};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const PROTOS: [&str; 4] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/service/rate_limit_quota/v3/rlqs.proto",
    "envoy/service/ratelimit/v2/rls.proto",
    "pb/lyft/ratelimit/ratelimit.proto",
];

/// What we ask others for: it is not served, so reflection does not show it.
const ASKED: [&str; 2] =
    ["envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

/// Packages that are served by another's messages: they are equal on the wire, as far as they go.
const SERVED_BY_V3: [&str; 4] = [
    "envoy.service.ratelimit.v2",
    "envoy.api.v2.core",
    "envoy.api.v2.ratelimit",
    "pb.lyft.ratelimit",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The messages as nested modules, and the descriptors that reflection shows.
fn generate() -> (String, Vec<u8>) {
    let root = folder("proto");
    let compiled = |paths: &[&str]| {
        let mut compiler = protox::Compiler::new([&root]).expect("the folder of protos");
        let paths = paths.iter().map(|path| root.join(path));
        compiler.include_imports(true).open_files(paths).expect("sound protos");
        compiler
    };
    let served = compiled(&PROTOS).encode_file_descriptor_set();
    let set = compiled(&[&PROTOS[..], &ASKED[..]].concat()).file_descriptor_set();
    let name = |package: &str| Module::from_protobuf_package_name(package);
    let requests = set.file.iter().map(|file| (name(file.package()), file.clone())).collect();
    let mut modules = Config::new().generate(requests).expect("messages");
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
        "// Written by `TOLLGATE_WRITE_WIRE=1 cargo test -p tollgate --test wire`; do not edit.\n",
    );
    nest(&mut text, &modules, &[]);
    (text, served)
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

#[test]
fn the_committed_messages_are_those_of_the_protos() {
    let (messages, descriptors) = generate();
    let folder = folder("src/doors/ratelimit/wire");
    let (rust, set) = (folder.join("messages.in"), folder.join("descriptors.bin"));
    if std::env::var_os("TOLLGATE_WRITE_WIRE").is_some() {
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(&rust, &messages).expect("written");
        fs::write(&set, &descriptors).expect("written");
    }
    let stale = "stale: run with TOLLGATE_WRITE_WIRE=1 and commit";
    assert!(fs::read_to_string(rust).is_ok_and(|text| text == messages), "messages.in is {stale}");
    assert!(fs::read(set).is_ok_and(|bytes| bytes == descriptors), "descriptors.bin is {stale}");
}
