//! Compiles the messages of the API server that the collector reads, and the calls that drivers on the node take.

use std::io;

/// What drivers speak.
const DRIVERS: [&str; 4] = [
    "proto/csi.proto",
    "proto/dra_v1.proto",
    "proto/dra_v1beta1.proto",
    "proto/pluginregistration.proto",
];

/// Messages that are also read from JSON.
const JSON_MESSAGES: [&str; 5] = [
    "ListMeta",
    "PartialObjectMetadata",
    "ObjectMeta",
    "OwnerReference",
    "Status",
];
/// Their fields that are texts in JSON and bytes in protobuf, and lists that may be null.
const JSON_FIELDS: [(&str, &str); 12] = [
    ("ObjectMeta.name", "json_text"),
    ("ObjectMeta.namespace", "json_text"),
    ("ObjectMeta.uid", "json_text"),
    ("ObjectMeta.resource_version", "json_text"),
    ("ObjectMeta.deletion_timestamp", "json_text"),
    ("ObjectMeta.finalizers", "json_texts"),
    ("ObjectMeta.owner_references", "json_list"),
    ("OwnerReference.kind", "json_text"),
    ("OwnerReference.name", "json_text"),
    ("OwnerReference.uid", "json_text"),
    ("OwnerReference.api_version", "json_text"),
    ("Status.message", "json_text"),
];

fn main() -> io::Result<()> {
    // Where nothing is said, a changed test or document has all of it compiled anew.
    println!("cargo::rerun-if-changed=proto");
    // What is only passed on to the next decoder is not copied. Texts are: thousands of small pieces of a page that live for a
    // moment leave holes in the heap, twice as large as what is kept of each object.
    let mut meta = prost_build::Config::new();
    meta.bytes([".meta.Unknown", ".meta.WatchEvent", ".meta.RawExtension"]);
    // API servers without protobuf send the same in JSON.
    for message in JSON_MESSAGES {
        let derived = "#[derive(serde::Deserialize)] #[serde(rename_all = \"camelCase\", default)]";
        meta.type_attribute(format!(".meta.{message}"), derived);
    }
    for (field, read) in JSON_FIELDS {
        let read = format!("#[serde(deserialize_with = \"super::{read}\")]");
        meta.field_attribute(format!(".meta.{field}"), read);
    }
    meta.compile_protos(&["proto/meta.proto"], &["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .include_file("drivers.rs")
        .compile_protos(&DRIVERS, &["proto"])
}
