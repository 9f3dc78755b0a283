//! The agent as a collector on etcd and kube-apiserver, with kube-controller-manager for everything else.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]

mod agent;
mod controllers;
mod definitions;
mod graphs;
mod house;
mod install;
mod rules;
mod runner;
mod scene;
mod tenants;
mod turns;
mod unlisted;

use std::process::ExitCode;

use futures::future::LocalBoxFuture;

/// A claim.
struct Claim {
    /// Its name.
    name: &'static str,
    /// Fails if the claim does not hold.
    check: Check,
}

/// Where a claim is checked.
enum Check {
    /// In a namespace beside others.
    Shared(for<'s> fn(&'s scene::Scene) -> LocalBoxFuture<'s, anyhow::Result<()>>),
    /// On its own control plane.
    Own(fn() -> LocalBoxFuture<'static, anyhow::Result<()>>),
}

/// The only table of claims. The compiler warns of functions that are not in it.
macro_rules! claims {
    ($($place:ident $module:ident: [$($claim:ident),* $(,)?],)*) => {
        fn claims() -> Vec<Claim> {
            vec![$($(Claim {
                name: concat!(stringify!($module), "::", stringify!($claim)),
                check: claims!(@$place $module $claim),
            }),*),*]
        }
    };
    (@Shared $module:ident $claim:ident) => { Check::Shared(|scene| Box::pin($module::$claim(scene))) };
    (@Own $module:ident $claim:ident) => { Check::Own(|| Box::pin($module::$claim())) };
}

// The slowest come first.
claims! {
    Own turns: [
        it_stands_by_while_an_elected_controller_manager_works_and_follows_when_that_is_gone,
        beside_a_collector_without_a_lease_each_object_comes_to_the_same_end,
    ],
    Own graphs: [
        what_the_collector_leaves_of_random_graphs_is_what_the_rules_allow,
        what_the_original_leaves_of_the_same_graphs_is_what_the_rules_allow,
    ],
    Own install: [
        one_manifest_and_one_command_make_credentials_that_check_finds_good_and_that_may_no_more_than_they_must,
        credentials_that_are_renewed_before_they_end_are_told_with_their_new_end,
    ],
    Own unlisted: [
        a_kind_that_nobody_can_list_holds_up_only_what_rests_on_all_kinds_and_is_named,
    ],
    Shared tenants: [
        an_owner_whose_name_leads_to_a_tenants_server_costs_no_object_of_another_namespace,
    ],
    Shared definitions: [
        a_dependent_that_names_a_version_no_longer_served_stays_while_its_owner_lives,
        deleting_a_definition_deletes_its_instances_and_their_dependents_each_time,
        custom_and_built_in_objects_can_own_each_other,
        metadata_of_custom_objects_comes_in_protobuf,
    ],
    Shared controllers: [
        of_a_deployment_everything_goes_or_only_the_reference_by_the_policy,
        of_a_job_its_pods_go_unless_they_are_left_which_they_are_if_nothing_is_said,
        of_a_cron_job_the_jobs_and_their_pods_go,
        of_a_replication_controller_the_pods_go_though_it_still_creates_some,
        of_a_replication_controller_the_pods_stay_if_nothing_is_said,
        a_replication_controller_is_kept_until_all_its_pods_are_gone,
        pods_that_name_a_living_owner_too_stay_with_that_reference_alone,
        three_pods_in_a_circle_go,
    ],
    Shared rules: [
        an_object_that_never_had_its_owner_goes,
        an_owner_of_another_namespace_is_absent_and_told_of_in_an_event,
        a_cluster_scoped_object_that_names_a_namespaced_owner_stays_and_is_told_of,
        cluster_scoped_owners_have_dependents_in_all_namespaces,
        a_dependent_with_a_finalizer_holds_its_owner_only_if_it_blocks,
        deleted_twice_in_the_foreground_it_loses_the_finalizer_twice,
        fifty_owners_that_go_in_five_ways_take_or_leave_their_dependents,
        dependents_created_while_their_owner_is_deleted_are_collected,
    ],
}

fn main() -> anyhow::Result<ExitCode> {
    runner::main(claims())
}
