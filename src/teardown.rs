//! The steps of a teardown: effects on the node, each idempotent, failures collected.

pub mod on_disk;
pub mod pod_dir;
pub mod volumes;
