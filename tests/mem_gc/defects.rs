//! What kube-controller-manager's collector is known to do wrong (facts, section 11), by its numbers there:
//! `routes` 1, `kinds` 2, 3 and 14, `races` 4, 5, 6, 10, 11 and 13, `cost` 7, 8, 9 and 12.
//!
//! Of 13, that orphaning sends no request per dependent at once is the engine's limit (src/collector/limit.rs), and that a kind
//! that cannot be mapped keeps no other from being watched is shown in `safety::sight`.

mod cost;
mod kinds;
mod races;
mod routes;
