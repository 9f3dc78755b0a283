//! Known defects of kube-controller-manager's garbage collector, by their numbers in the facts: `routes` 1, `kinds` 2,
//! 3 and 14, `races` 4, 5, 6, 10, 11 and 13, `cost` 7, 8, 9 and 12.
//!
//! Two parts of 13 are elsewhere: the limit of orphaning requests is in src/collector/limit.rs, and unmappable kinds
//! are in `safety::unsynced`.

mod cost;
mod kinds;
mod races;
mod routes;
