//! Makes Rust of the messages in `proto`.

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=proto");
    prost_build::Config::new()
        // Sorted, so that the same object is always the same bytes.
        .btree_map(["."])
        .compile_protos(&["proto/meta.proto"], &["proto"])
}
