//! Claims about the API server that the agent relies on, checked on the real one and, as far as it serves them, on the one
//! in memory.
//!
//! Each is an async function of its [`Scene`]; it holds if it returns without an error or a panic.

mod collecting;
mod custom;
mod definitions;
mod deletion;
mod discovery;
mod errors;
mod events;
mod grace;
mod leases;
mod list;
mod metadata;
mod metadata_events;
mod nodes;
mod patches;
mod runner;
mod scene;
mod selectors;
mod status;
mod things;
mod volumes;
mod watch;
mod writes;

use anyhow::Result;
use futures::future::LocalBoxFuture;

pub use self::{runner::main, scene::Scene};

/// One claim.
pub struct Claim {
    /// What is claimed.
    pub name: &'static str,
    /// Fails if it does not hold.
    pub check: for<'a> fn(&'a Scene<'a>) -> LocalBoxFuture<'a, Result<()>>,
}

/// A table of claims. A function that is in none is dead code, of which the compiler warns.
macro_rules! claims {
    ($(#[$doc:meta])* $table:ident: $($module:ident: [$($claim:ident),* $(,)?],)*) => {
        $(#[$doc])*
        pub const $table: &[Claim] = &[$($(Claim {
            name: concat!(stringify!($module), "::", stringify!($claim)),
            check: |scene| Box::pin($module::$claim(scene)),
        }),*),*];
    };
}

claims! {
    /// Claims about every API server.
    CLAIMS:
    list: [
        items_come_in_the_order_of_their_names,
        an_empty_list_has_items_and_a_version,
        items_of_a_built_in_kind_do_not_name_it,
        a_list_shows_the_write_that_was_answered_before_it,
        pages_hold_the_limit_and_the_last_one_does_not_continue,
        a_page_that_just_holds_all_does_not_continue,
        later_pages_show_the_state_of_the_first,
        the_rest_is_counted_only_without_selectors,
        the_limit_is_ignored_at_version_zero,
        a_version_without_a_limit_is_the_least,
        future_version_times_out,
        a_version_that_is_no_number_is_bad,
        garbage_for_continue_is_bad,
        continue_with_a_version_is_bad,
        expired_page_token_has_a_new_one_that_continues,
    ],
    selectors: [
        pods_are_selected_by_their_node,
        node_and_name_select_together,
        a_field_that_a_kind_does_not_know_is_bad,
    ],
    watch: [
        a_watch_shows_what_came_after_its_version_in_order,
        the_last_event_is_the_last_state_under_a_version_of_its_own,
        events_name_their_kind,
        without_a_version_all_that_is_there_comes_first,
        a_watch_without_a_version_marks_the_end_too_if_bookmarks_are_allowed,
        a_version_of_the_future_is_silence,
        a_forgotten_version_is_an_error_in_the_stream_and_its_end,
        a_version_that_is_no_number_is_refused_without_a_reason,
        a_watch_ends_cleanly_when_its_time_is_over,
        unselected_objects_are_not_seen,
        a_single_object_may_be_watched_by_its_name,
        a_selector_that_is_bad_in_a_list_is_bad_in_a_watch,
    ],
    writes: [
        the_server_gives_uid_time_and_version,
        creating_answers_201,
        existing_object_cannot_be_created,
        object_being_deleted_still_exists,
        creating_with_a_version_is_an_internal_error,
        missing_namespace_is_not_found,
        body_and_path_must_agree_on_the_namespace,
        body_and_path_must_agree_on_the_name,
        a_body_that_cannot_be_read_is_bad,
        a_stale_version_cannot_be_updated,
        an_update_without_a_version_overwrites,
        an_update_of_another_uid_is_a_conflict,
        missing_object_cannot_be_updated,
        an_update_that_changes_nothing_is_no_event_and_no_version,
        setting_the_time_of_deletion_is_invalid,
        removing_the_time_of_deletion_is_ignored,
        uid_and_time_of_creation_do_not_change,
        the_generation_of_a_pod_moves_with_its_spec_only,
        the_node_of_a_pod_does_not_change,
        a_pod_is_pending_and_has_half_a_minute_of_grace_by_default,
        a_recreated_object_has_another_uid,
    ],
    patches: [
        merging_removes_nulls_and_replaces_lists,
        owners_are_merged_strategically_by_uid,
        an_owner_is_taken_out_by_its_uid,
        a_json_patch_is_done_in_order,
        a_json_patch_whose_test_fails_changes_nothing,
        a_patch_of_another_uid_is_invalid_not_a_conflict,
        a_patch_of_a_stale_version_is_a_conflict,
        a_stale_version_is_seen_before_another_uid,
        missing_object_cannot_be_patched,
        a_patch_that_changes_nothing_is_no_event_and_no_version,
        a_patch_of_an_unknown_type_is_unsupported,
        a_patch_that_cannot_be_read_is_bad,
    ],
    status: [
        the_object_itself_does_not_take_a_status,
        a_status_given_at_creation_is_not_taken,
        the_status_does_not_take_a_spec,
        labels_and_finalizers_do_come_in_through_the_status,
        owners_do_not_come_in_through_the_status,
        conditions_are_merged_by_their_type,
        addresses_are_merged_by_their_ip,
        container_statuses_are_replaced_as_a_whole,
        exit_is_stored_as_sent,
        the_phase_may_go_back,
        a_status_for_another_uid_is_invalid,
        a_status_for_its_own_uid_is_taken,
        status_of_a_deleted_pod_is_not_found,
        claim_statuses_stay_if_a_status_sets_them_to_null,
        an_empty_list_clears_claim_statuses,
        a_node_changes_no_claim_statuses,
        a_cleared_time_in_the_status_is_left_out,
    ],
    grace: [
        a_deleted_pod_stays_and_shows_when_its_grace_is_over,
        a_deletion_may_ask_for_more_than_the_spec,
        a_second_deletion_without_a_grace_changes_nothing,
        a_second_deletion_cannot_lengthen,
        a_second_deletion_may_shorten_from_the_first_one_s_time,
        a_grace_below_zero_is_one_second,
        a_grace_of_zero_is_seen_as_a_change_and_an_end,
        the_final_deletion_ends_a_graceful_one,
        the_final_deletion_of_another_uid_is_a_conflict,
        a_pod_without_a_node_goes_at_once,
        a_pod_that_has_finished_goes_at_once,
        a_pod_that_finishes_during_its_grace_stays,
        a_finalizer_holds_a_pod_whose_grace_is_over,
        losing_its_finalizers_does_not_end_a_pod_within_its_grace,
        a_spec_with_a_grace_of_zero_goes_at_once,
        a_name_of_a_terminating_pod_is_taken,
    ],
    deletion: [
        the_answer_names_what_was_removed,
        deletion_of_a_missing_object_is_not_found,
        another_uid_is_a_conflict_that_names_the_kind,
        another_version_is_a_conflict,
        matching_uid_and_version_allow_the_deletion,
        preconditions_hold_for_what_is_being_deleted_too,
        object_is_deleted_with_its_last_finalizer,
        object_is_kept_with_one_of_two_finalizers,
        update_without_finalizers_completes_the_deletion,
        deleting_again_changes_nothing,
        no_finalizer_is_added_during_deletion,
        a_policy_is_a_finalizer_until_its_work_is_done,
        a_later_policy_replaces_an_earlier_one,
        options_that_contradict_are_invalid,
        options_of_another_kind_are_bad,
    ],
    nodes: [
        it_reads_its_own_pods_only,
        a_pod_that_is_not_there_is_forbidden_not_missing,
        node_lists_pods_only_by_its_name,
        an_absent_pod_is_an_empty_list_to_its_node,
        node_watches_pods_only_by_its_name,
        node_deletes_its_own_pods_gracefully_or_not,
        node_does_not_delete_pods_of_other_nodes,
        deleting_a_pod_that_is_gone_is_not_found,
        deleting_under_an_old_uid_is_a_conflict_wherever_the_new_pod_is,
        node_does_not_delete_collections,
        node_changes_the_status_of_its_own_pods_only,
        a_status_under_an_old_uid_is_refused_by_where_the_new_pod_is,
        node_does_not_change_labels_through_the_status,
        node_changes_nothing_else_of_a_pod,
        node_creates_only_mirror_pods,
        it_reads_its_own_node_only,
        a_node_that_does_not_exist_is_missing_to_itself,
        unknown_token_is_unauthorized,
    ],
    volumes: [
        a_node_takes_one_out_of_its_list_if_that_is_still_as_it_was_seen,
        the_last_one_leaves_no_list,
        a_node_reads_the_persistent_volumes_of_its_pods_only,
        a_node_reads_the_resource_claims_of_its_pods_only,
    ],
    leases: [
        a_time_has_six_digits_or_is_refused,
        putting_an_absent_one_creates_it,
        putting_a_present_one_needs_its_version,
        a_lease_of_no_time_is_invalid,
        a_node_keeps_its_own_lease,
        a_node_keeps_no_other_lease,
        a_node_does_not_list_leases,
    ],
    events: [
        a_node_creates_and_changes_events,
        a_node_does_not_read_or_delete_events,
        an_event_lies_where_its_object_is,
        an_event_about_a_node_lies_in_the_default_namespace,
        an_event_keeps_its_micro_time,
        an_event_has_no_dependents_to_wait_for,
    ],
    errors: [
        a_missing_object_is_named_in_the_details,
        the_details_of_a_group_s_object_name_the_group,
        a_missing_route_of_the_core_has_no_details,
        a_missing_group_is_plain_text,
        a_method_that_a_path_does_not_know_is_not_allowed,
        an_empty_list_in_an_absent_namespace_is_no_error,
        a_namespace_that_is_terminating_takes_nothing_new,
    ],
    discovery: [
        aggregated_discovery_is_served_on_request,
        the_aggregated_form_is_preferred_wherever_it_stands,
        known_etag_is_not_modified,
        a_version_whose_server_is_away_is_stale,
    ],
    metadata: [
        one_object_in_json_is_its_metadata_alone,
        one_object_in_protobuf_says_the_same,
        deletion_is_visible_in_protobuf,
        a_list_in_json_names_the_kind_of_its_items,
        protobuf_list_continues_like_json,
        form_of_one_object_is_not_that_of_a_list,
        unknown_form_is_not_acceptable,
        first_known_form_is_used,
        a_refusal_is_in_json_if_only_objects_were_asked_for_in_protobuf,
        a_change_is_answered_as_asked,
        a_deletion_is_answered_with_metadata_or_a_status,
    ],
    metadata_events: [
        a_watch_in_json_shows_metadata_and_bookmarks_of_it,
        a_watch_in_protobuf_is_frames_of_the_same,
        a_bookmark_in_protobuf_ends_the_initial_events,
        an_error_in_a_protobuf_watch_is_a_protobuf_status,
        a_list_is_no_form_of_a_watch,
    ],
    custom: [
        each_version_serves_the_same_objects,
        custom_objects_keep_any_field_and_name_their_kind,
        object_without_kind_is_bad,
        custom_metadata_is_available_in_protobuf_but_nothing_else,
        custom_objects_accept_no_strategic_patch,
        put_of_a_custom_object_needs_its_version_and_creates_none,
        generation_of_a_custom_object_changes_except_with_metadata,
        status_subresource_of_a_custom_object_accepts_only_status,
    ],
    definitions: [
        all_at_once_its_kind_is_named_with_group_and_version,
        a_cluster_wide_kind_has_no_namespaces_and_the_other_way_round,
        a_version_that_is_no_longer_served_has_no_route,
        a_change_of_what_is_served_ends_the_watches,
        instances_are_deleted_with_their_definition,
        definition_waits_for_an_instance_with_a_finalizer,
        a_deleted_definition_takes_no_new_instance_as_long_as_it_is_there,
        a_definition_that_comes_back_brings_nothing_back,
        a_definition_is_named_after_what_it_defines,
    ],
    collecting: [
        replication_controllers_orphan_by_default,
        the_old_option_beats_a_finalizer_given_at_birth,
        a_finalizer_given_at_birth_is_a_policy,
        two_policies_at_once_are_invalid,
        a_deletion_that_waits_is_a_new_generation_once,
        a_pod_s_policy_is_that_of_its_first_deletion,
        a_deletion_fits_the_version_that_it_names_and_no_other,
        references_may_disagree_about_one_uid_and_go_together,
        the_last_reference_leaves_no_list_behind,
        unblocking_a_reference_that_is_gone_brings_it_back,
        a_merge_of_references_fits_one_version,
        owners_that_cannot_be_are_invalid,
        a_wrong_owner_is_named_by_its_index_and_field,
    ],
}

claims! {
    /// Claims about requests that only the real API server serves: the agent's way back to discovery group by group, and
    /// what a scheduler does.
    CLUSTER_CLAIMS:
    discovery: [
        the_core_has_its_one_version,
        a_group_names_its_versions_and_the_preferred_one,
        a_version_lists_its_resources,
        subresource_has_its_own_entry,
        unstored_resource_can_only_be_created,
        unknown_aggregated_form_is_not_acceptable,
        a_version_whose_server_is_away_fails_alone,
    ],
    watch: [
        a_pod_appears_to_its_node_when_it_is_bound,
    ],
    definitions: [
        defined_kind_is_served_and_discovered,
    ],
}
