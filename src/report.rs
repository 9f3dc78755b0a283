//! What the API server is told.

pub mod status;
pub mod termination_message;
