//! Pure: defaults and validation of objects before they are stored.

pub mod create;
pub mod definitions;
pub mod leases;
pub mod normal;
pub mod owners;
pub mod pods;
pub mod update;
