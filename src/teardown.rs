//! The steps of a teardown: effects on the node, each idempotent, failures collected.

mod on_disk;
pub mod pod_dir;
pub mod volumes;
