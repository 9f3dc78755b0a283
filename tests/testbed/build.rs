//! Makes Rust of the messages in `proto`, and of the calls of drivers in the agent's own.

/// The agent's.
const DRIVERS: [&str; 4] = [
    "../../proto/csi.proto",
    "../../proto/dra_v1.proto",
    "../../proto/dra_v1beta1.proto",
    "../../proto/pluginregistration.proto",
];

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=../../proto");
    prost_build::Config::new()
        // Sorted, so that the same object is always the same bytes.
        .btree_map(["."])
        // Read from the JSON of an object, and compared as JSON.
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .type_attribute(".", r#"#[serde(rename_all = "camelCase", default)]"#)
        .type_attribute("meta.Time", r#"#[serde(try_from = "String", into = "String")]"#)
        .compile_protos(&["proto/meta.proto"], &["proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        .include_file("drivers.rs")
        .compile_protos(&DRIVERS, &["../../proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        .include_file("otlp.rs")
        .compile_protos(&["../../proto/otlp.proto"], &["../../proto"])
}
