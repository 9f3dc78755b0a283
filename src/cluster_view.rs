//! What the API server shows of terminations on all nodes, for `kubectl teardown`: read with the user's own credentials.
//!
//! `read` fetches objects; `nodes` and `pod` decide what they show. Nothing is written.

pub mod nodes;
pub mod pod;
pub mod read;
