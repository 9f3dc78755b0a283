//! What the API server is told: the status, events, and last the final delete.

pub mod events;
pub mod final_delete;
pub mod sender;
pub mod status;
pub mod termination_message;
pub mod told;
