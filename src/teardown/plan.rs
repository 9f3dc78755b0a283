//! What a teardown of a pod would do, step by step, as a value. Pure: facts in, plan out.
//!
//! The order, timeouts, volumes and status come from the functions that the teardown itself uses, so that a plan does not differ
//! from what is done.

mod facts;
pub mod gather;
mod model;
mod status;
mod steps;
mod text;

pub use facts::{CgroupFacts, ClaimFacts, PlanFacts};
pub use model::{Plan, PlannedAction, PlannedStep, PlannedWait};
pub use status::{PlannedCondition, PlannedStatus};
pub use steps::plan;
pub use text::text;
