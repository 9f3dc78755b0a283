//! Claims about whole teardowns with the real agent and a real containerd, on any API server.
//!
//! Each is an async function of its [`Scene`] that fails with an error.

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
mod why;

use testbed::{api::ApiServer, claims::Claim};

pub use self::{
    runner::{Shared, main},
    scene::Scene,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageKind {
    /// A stage with a running agent, shared with other claims.
    Shared,
    /// An own stage, without an agent at first: the claim stops or restarts it.
    Own,
}

/// A table of claims. The compiler warns about a function that is not in it.
macro_rules! claims {
    ($server:ty; $($module:ident, $kind:ident: [$($claim:ident),* $(,)?],)*) => {
        vec![$($($crate::cases::claims!(@$server, $module, $kind, $claim, |scene, _| Box::pin($module::$claim(scene)))),*),*]
    };
    // With the server as another argument.
    (in $module:ident on $server:ty; $($kind:ident: [$($claim:ident),* $(,)?],)*) => {
        vec![$($($crate::cases::claims!(@$server, $module, $kind, $claim, |scene, server| Box::pin($claim(scene, server)))),*),*]
    };
    (@$server:ty, $module:ident, $kind:ident, $claim:ident, $check:expr) => {
        testbed::claims::Claim::new(
            concat!(stringify!($module), "::", stringify!($claim)),
            |shared: &$crate::cases::Shared<$server>| Box::pin(shared.check($crate::cases::StageKind::$kind, $check)),
        )
    };
}
pub(crate) use claims;

/// All claims for any API server, the slowest first.
pub fn cases<S: ApiServer + 'static>() -> Vec<Claim<Shared<S>>> {
    claims! {
        S;
        crashes, Own: [
            deadline_stays_when_the_agent_is_killed_during_the_wait,
            second_stop_signal_exits_at_once_and_loses_nothing,
            hook_interrupted_by_a_crash_gets_the_remaining_time,
            finished_hook_is_not_rerun_after_a_restart,
            deletion_while_no_agent_ran_is_done_at_its_start,
            restart_of_the_runtime_only_delays_a_teardown,
        ],
        holds, Own: [
            kubelet_that_starts_during_a_teardown_stops_it,
            running_kubelet_blocks_all_effects_until_it_exits,
            node_with_another_machine_id_blocks_all_effects,
            node_that_was_registered_again_blocks_all_effects,
            second_agent_exits_and_names_the_first,
        ],
        breaks, Own: [
            container_below_a_stopped_shim_is_killed_and_its_pod_goes,
            container_is_killed_when_the_program_of_the_runtime_is_missing,
            process_of_a_sandbox_outside_of_its_cgroup_is_killed,
            process_that_was_named_is_killed_though_the_runtime_reports_its_exit,
            devices_and_volumes_are_taken_down_after_the_last_process,
            process_of_a_pod_that_calls_itself_a_shim_delays_no_other_pod,
            repaired_runtime_finishes_the_stop_itself,
            container_with_a_hanging_shim_terminates_when_its_processes_have_exited,
            sandbox_is_retried_until_its_network_plugins_are_back,
            sandbox_is_retried_until_its_network_configuration_is_back,
            object_goes_without_its_network_after_an_approval,
            container_whose_shim_is_killed_during_its_stop_leaves_nothing,
            container_whose_shim_was_killed_before_its_stop_leaves_nothing,
        ],
        breaks, Shared: [
            why_names_the_busy_mount_and_its_holder,
            why_shows_a_stop_without_answer_while_a_process_uses_the_containers_root,
        ],
        requests, Own: [
            orphan_in_the_runtime_is_taken_down,
        ],
        requests, Shared: [
            stopped_pod_runs_its_hook_and_keeps_its_object,
            evicted_pod_has_failed_although_its_container_succeeded,
            check_shows_the_cgroup_driver_and_version_of_the_node,
        ],
        hooks, Shared: [
            overrunning_hook_is_cut_off_at_the_deadline,
            exec_hook_runs_before_the_stop_signal,
            failed_hook_is_an_event_and_the_stop_continues,
            http_hook_reaches_a_named_port_of_the_pod,
            sleep_hook_delays_the_stop_signal,
        ],
        ends, Shared: [
            shortened_grace_period_takes_effect_during_the_wait,
            container_that_ignores_its_signal_is_killed_after_its_grace_period,
            frozen_container_is_thawed_and_gets_its_stop_signal,
            containers_stop_in_parallel,
            sidecars_are_stopped_last_in_reverse_order,
            pod_that_exits_at_its_signal_succeeds,
            container_gets_the_stop_signal_of_its_image,
            deletion_without_grace_period_leaves_nothing,
            twenty_pods_terminate_at_once,
        ],
        objects, Shared: [
            pod_recreated_under_the_same_name_is_another_pod,
            finalizer_keeps_the_object_and_nothing_on_the_node,
            last_status_has_the_exit_of_each_container,
        ],
        bystanders, Own: [
            object_of_a_pod_on_another_node_is_kept_although_its_containers_stop_here,
        ],
        bystanders, Shared: [
            failed_pod_is_cleaned_and_kept_until_it_is_deleted,
            mirror_pod_is_not_touched,
            pod_that_is_not_deleted_is_not_touched,
        ],
        csi, Own: [
            pod_of_an_uninstalled_driver_terminates_with_the_commands_that_why_shows,
        ],
        csi, Shared: [
            volume_may_be_attached_elsewhere_only_after_its_driver_has_unstaged_it,
        ],
        why, Own: [
            why_names_a_process_that_waits_in_the_kernel,
            why_names_what_is_left_of_a_pod_beside_a_paused_agent,
        ],
        why, Shared: [
            why_names_what_a_termination_waits_for,
        ],
        volumes, Shared: [
            volumes_of_every_kind_are_unmounted_and_removed,
            unmount_by_hand_unblocks_the_pod_soon,
            why_names_the_busy_mount_and_the_container_that_holds_it,
            content_of_a_host_path_stays,
        ],
    }
}
