//! Pure: what the server makes of an object before it is stored.

pub mod create;
pub mod definitions;
pub mod leases;
pub mod normal;
pub mod owners;
pub mod pods;
pub mod unknown;
pub mod update;
