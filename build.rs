//! Compiles the messages of the API server that the collector reads.

use std::io;

fn main() -> io::Result<()> {
    // What is only passed on to the next decoder is not copied.
    prost_build::Config::new()
        .bytes(["."])
        .compile_protos(&["proto/meta.proto"], &["proto"])
}
