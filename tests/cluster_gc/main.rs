//! The agent as a collector on etcd and kube-apiserver, with kube-controller-manager for everything else.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]

mod agent;
mod cluster;
mod controllers;
mod definitions;
mod graphs;
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
        the_agent_is_on_standby_while_kube_controller_manager_holds_its_lease_and_then_takes_over,
        beside_kube_controller_manager_without_a_lease_each_object_has_the_same_outcome,
    ],
    Own graphs: [
        the_collector_leaves_of_random_graphs_only_what_the_rules_allow,
        kube_controller_manager_leaves_of_the_same_graphs_only_what_the_rules_allow,
    ],
    Own install: [
        one_manifest_and_one_command_make_credentials_that_pass_check_with_minimal_rights,
        renewed_credentials_are_reported_with_their_new_expiry,
    ],
    Own unlisted: [
        a_kind_that_cannot_be_listed_delays_only_finalizers_and_is_named,
    ],
    Shared tenants: [
        an_owner_name_that_leads_to_a_tenants_server_deletes_no_object_of_another_namespace,
    ],
    Shared definitions: [
        a_dependent_that_names_an_unserved_version_stays_while_its_owner_exists,
        deleting_a_definition_deletes_its_instances_and_their_dependents_each_time,
        custom_and_built_in_objects_can_own_each_other,
        metadata_of_custom_objects_is_sent_as_protobuf,
    ],
    Shared controllers: [
        the_policy_decides_whether_objects_of_a_deployment_are_deleted_or_orphaned,
        pods_of_a_job_are_deleted_with_a_policy_and_orphaned_by_default,
        jobs_and_pods_of_a_cron_job_are_deleted,
        pods_of_a_replication_controller_are_deleted_while_it_still_creates_some,
        pods_of_a_replication_controller_are_orphaned_by_default,
        a_replication_controller_in_foreground_deletion_is_deleted_after_its_pods,
        pods_with_a_second_living_owner_keep_only_that_reference,
        three_pods_in_an_ownership_cycle_are_deleted,
    ],
    Shared rules: [
        an_object_with_an_owner_that_never_existed_is_deleted,
        an_owner_in_another_namespace_is_absent_and_reported_in_an_event,
        a_cluster_scoped_object_with_a_namespaced_owner_stays_and_is_reported,
        cluster_scoped_owners_have_dependents_in_all_namespaces,
        a_dependent_with_a_finalizer_delays_its_owner_only_with_block_owner_deletion,
        two_foreground_deletions_remove_the_finalizer_twice,
        fifty_owners_deleted_in_five_ways_delete_or_orphan_all_dependents,
        dependents_created_while_their_owner_is_deleted_are_collected,
    ],
}

fn main() -> anyhow::Result<ExitCode> {
    runner::main(claims())
}
