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

use runner::Shared;
use testbed::claims::Claim;

/// The only table of claims. The compiler warns of functions that are not in it.
macro_rules! claims {
    ($($place:ident $module:ident: [$($claim:ident),* $(,)?],)*) => {
        fn claims() -> Vec<Claim<Shared>> {
            vec![$($(Claim::new(
                concat!(stringify!($module), "::", stringify!($claim)),
                claims!(@$place $module $claim),
            )),*),*]
        }
    };
    // In a namespace beside others.
    (@Shared $module:ident $claim:ident) => {
        |shared: &Shared| Box::pin(shared.check(|scene| Box::pin($module::$claim(scene))))
    };
    // On its own control plane.
    (@Own $module:ident $claim:ident) => { |_| Box::pin($module::$claim()) };
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
        metadata_of_custom_objects_is_sent_as_protobuf,
    ],
    Shared controllers: [
        the_policy_decides_whether_objects_of_a_deployment_are_deleted_or_orphaned,
        pods_of_a_job_are_deleted_with_a_policy_and_orphaned_by_default,
        jobs_and_pods_of_a_cron_job_are_deleted,
        pods_of_a_replication_controller_are_deleted_while_it_still_creates_some,
    ],
    Shared rules: [
        an_owner_in_another_namespace_is_absent_and_reported_in_an_event,
        a_cluster_scoped_object_with_a_namespaced_owner_stays_and_is_reported,
        fifty_owners_deleted_in_five_ways_delete_or_orphan_all_dependents,
    ],
}

fn main() -> anyhow::Result<ExitCode> {
    runner::main(claims())
}
