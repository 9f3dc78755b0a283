//! Claims about whole teardowns: the real agent, on a real containerd, against whichever API server.
//!
//! Each is an async function of its [`Scene`]; it holds if it returns without an error.

mod drivers;
mod history;
pub mod pods;
mod runner;
pub mod scene;

mod breaks;
mod bystanders;
mod crashes;
mod csi;
mod ends;
mod holds;
mod hooks;
mod objects;
mod requests;
mod volumes;

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
    crashes, Own: [
        the_deadline_stands_when_the_agent_dies_in_the_wait,
        told_to_stop_twice_it_ends_at_once_and_nothing_is_lost,
        a_hook_that_a_crash_interrupted_gets_what_is_left,
        finished_hook_is_not_rerun_after_a_restart,
        a_deletion_that_came_while_no_agent_ran_is_done_at_its_start,
        a_runtime_that_restarts_delays_a_teardown_and_no_more,
    ],
    holds, Own: [
        a_kubelet_that_starts_during_a_teardown_stops_it,
        a_kubelet_at_work_holds_everything_back_until_it_ends,
        a_node_of_another_machine_holds_everything_back,
        a_node_that_was_registered_anew_holds_everything_back,
        a_dry_run_says_what_it_would_do_and_does_nothing,
        a_second_agent_ends_and_names_the_first,
    ],
    breaks, Own: [
        a_container_whose_shim_hangs_ends_when_all_its_processes_have_exited,
        a_sandbox_whose_network_plugins_are_gone_is_tried_until_they_are_back,
        a_sandbox_whose_network_configuration_is_gone_is_tried_until_it_is_back,
        a_container_whose_shim_is_killed_while_it_is_stopped_leaves_nothing,
        a_container_whose_shim_was_killed_before_its_end_leaves_nothing,
    ],
    breaks, Shared: [
        why_names_what_is_mounted_where_the_runtime_cannot_unmount_and_who_holds_it,
        why_shows_that_a_stop_has_no_answer_while_somebody_has_the_containers_root_open,
    ],
    requests, Own: [
        a_pod_that_only_the_runtime_knows_is_taken_down,
    ],
    requests, Shared: [
        a_pod_that_is_killed_ends_with_its_hook_and_keeps_its_object,
        an_evicted_pod_has_failed_though_its_container_ends_well,
        check_shows_the_cgroup_driver_and_the_version_of_this_machine,
    ],
    hooks, Shared: [
        a_hook_that_overruns_is_cut_at_the_deadline,
        a_command_runs_before_the_signal,
        failed_hook_is_an_event_and_the_stop_continues,
        a_request_reaches_a_named_port_of_the_pod,
        a_sleep_delays_the_signal,
    ],
    ends, Shared: [
        a_shortened_grace_takes_effect_during_the_wait,
        one_that_ignores_its_signal_is_killed_when_its_grace_is_over,
        one_that_is_frozen_is_thawed_and_takes_its_stop_signal,
        containers_stop_side_by_side,
        sidecars_are_stopped_last_and_in_reverse,
        a_polite_pod_ends_well,
        a_container_gets_the_stop_signal_of_its_image,
        a_deletion_without_grace_leaves_nothing,
        twenty_pods_end_at_once,
    ],
    objects, Shared: [
        a_successor_of_the_same_name_is_another_pod,
        a_finalizer_keeps_the_object_but_not_the_node,
        the_last_status_tells_how_each_container_ended,
    ],
    bystanders, Own: [
        the_object_of_another_nodes_pod_is_left_alone_though_its_containers_end_here,
    ],
    bystanders, Shared: [
        a_pod_that_has_failed_is_cleaned_and_kept_until_it_is_deleted,
        a_mirror_pod_is_left_alone,
        a_pod_that_is_not_deleted_is_left_alone,
    ],
    csi, Shared: [
        a_volume_may_be_attached_elsewhere_once_its_driver_has_taken_it_back_and_not_before,
    ],
    volumes, Shared: [
        volumes_of_every_kind_are_unmounted_and_removed,
        what_somebody_unmounts_by_hand_lets_its_pod_go_at_once,
        why_names_the_mount_that_is_busy_and_the_container_that_holds_it,
        what_a_host_path_shows_stays,
    ],
}
