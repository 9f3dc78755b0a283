//! What the API server is told: the status, and last the final delete.

pub mod final_delete;
pub mod remembered;
pub mod sender;
pub mod status;
pub mod termination_message;
pub mod volumes;
