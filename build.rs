//! Compiles the messages of the API server that the collector reads, the calls that drivers on the node take, and
//! the messages of OpenTelemetry collectors.

use std::io;

/// What drivers speak.
const DRIVERS: [&str; 4] = [
    "proto/csi.proto",
    "proto/dra_v1.proto",
    "proto/dra_v1beta1.proto",
    "proto/pluginregistration.proto",
];

fn main() -> io::Result<()> {
    // Where nothing is said, a changed test or document has all of it compiled anew.
    println!("cargo::rerun-if-changed=proto");
    // What is only passed on to the next decoder is not copied. Texts are: thousands of small pieces of a page that live for a
    // moment leave holes in the heap, twice as large as what is kept of each object.
    prost_build::Config::new()
        .bytes([".meta.Unknown", ".meta.WatchEvent", ".meta.RawExtension"])
        .compile_protos(&["proto/meta.proto"], &["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .include_file("drivers.rs")
        .compile_protos(&DRIVERS, &["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .include_file("otlp.rs")
        .compile_protos(&["proto/otlp.proto"], &["proto"])
}
