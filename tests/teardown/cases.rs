//! Claims about whole teardowns: the real agent, on a real containerd, against whichever API server.
//!
//! Each is an async function of its [`Scene`]; it holds if it returns without an error.

mod history;
mod pods;
mod runner;
mod scene;

mod ends;
mod hooks;

use anyhow::Result;
use futures::future::LocalBoxFuture;

pub use self::{runner::main, scene::Scene};

/// Where a claim is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On a stage with a running agent, beside other claims.
    Shared,
    /// On a stage of its own, without an agent at first: it stops or restarts things.
    Own,
}

/// One claim.
pub struct Case<S> {
    /// What is claimed.
    pub name: &'static str,
    /// Where.
    pub place: Place,
    /// Fails if it does not hold.
    pub check: for<'a> fn(&'a mut Scene, &'a S) -> LocalBoxFuture<'a, Result<()>>,
}

/// The one table of claims. A function that is not in it is dead code, of which the compiler warns.
macro_rules! cases {
    ($($module:ident, $place:ident: [$($claim:ident),* $(,)?],)*) => {
        /// All claims that hold on any API server; what takes longest comes first.
        pub fn cases<S>() -> Vec<Case<S>> {
            vec![$($(Case {
                name: concat!(stringify!($module), "::", stringify!($claim)),
                place: Place::$place,
                check: |scene, _| Box::pin($module::$claim(scene)),
            }),*),*]
        }
    };
}

cases! {
    hooks, Shared: [
        a_hook_that_overruns_is_cut_at_the_deadline,
        a_command_runs_before_the_signal,
        a_hook_that_fails_is_an_event_and_the_stop_goes_on,
        a_request_reaches_a_named_port_of_the_pod,
        a_sleep_delays_the_signal,
    ],
    ends, Shared: [
        a_shortened_grace_takes_effect_during_the_wait,
        one_that_ignores_its_signal_is_killed_when_its_grace_is_over,
        containers_stop_side_by_side,
        sidecars_are_stopped_last_and_in_reverse,
        a_polite_pod_ends_well,
        a_deletion_without_grace_leaves_nothing,
        twenty_pods_end_at_once,
    ],
}
