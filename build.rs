//! Compiles the messages of the API server that the collector reads.

use std::io;

fn main() -> io::Result<()> {
    // What is only passed on to the next decoder is not copied. Texts are: thousands of small pieces of a page that live for a
    // moment leave holes in the heap, twice as large as what is kept of each object.
    prost_build::Config::new()
        .bytes([".meta.Unknown", ".meta.WatchEvent", ".meta.RawExtension"])
        .compile_protos(&["proto/meta.proto"], &["proto"])
}
