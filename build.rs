//! Compiles the messages of the API server that the collector reads.

use std::io;

fn main() -> io::Result<()> {
    prost_build::compile_protos(&["proto/meta.proto"], &["proto"])
}
