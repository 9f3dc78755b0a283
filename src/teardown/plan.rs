//! What a teardown of a pod would do, step by step, as a value. Each step plans with the functions that its effect uses, so that a
//! plan does not differ from what is done.

use std::sync::Arc;

use super::{bounded_read::Reads, context::Context, steps};
use crate::model::{pod::PodView, termination::Terminator};

mod facts;
mod model;
mod text;

pub(super) use facts::{PlanFacts, Planned};
pub use model::{Plan, PlannedAction, PlannedStep, PlannedWait};
pub use text::text;

/// Plans the teardown of this pod, with its object as the API server shows it now. `terminator`: the process that terminates it now.
/// `blocked`: why nothing may be touched. The context refuses effects, see [`Context::read_only`].
#[cfg(feature = "agent")]
pub(crate) async fn plan_teardown(
    context: &Arc<Context>,
    view: Arc<PodView>,
    terminator: Terminator,
    blocked: Vec<String>,
) -> Plan {
    let (reads, unread) = Reads::of_current(context, view).await;
    let unread = unread.map(|unread| unread.why().to_owned());
    steps::plan(PlanFacts::new(reads), unread, terminator, blocked).await
}

/// As [`plan_teardown`] by this agent, with this view of the object.
pub(crate) async fn plan_view(context: &Arc<Context>, view: Arc<PodView>, blocked: Vec<String>) -> Plan {
    let facts = PlanFacts::new(Reads::new(context, view));
    steps::plan(facts, None, Terminator::Agent, blocked).await
}
