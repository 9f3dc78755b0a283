//! Claims about the API server that the agent relies on, checked on the real one and on the one in memory alike.
//!
//! Each is an async function of its [`Scene`]; it holds if it returns without an error or a panic.

mod list;
mod runner;
mod scene;
mod selectors;
mod watch;

use anyhow::Result;
use futures::future::BoxFuture;

pub use self::{runner::main, scene::Scene};

/// One claim.
pub struct Claim {
    /// What is claimed.
    pub name: &'static str,
    /// Fails if it does not hold.
    pub check: for<'a> fn(&'a Scene<'a>) -> BoxFuture<'a, Result<()>>,
}

/// The one table of claims. A function that is not in it is dead code, of which the compiler warns.
macro_rules! claims {
    ($($module:ident: [$($claim:ident),* $(,)?],)*) => {
        /// All claims there are.
        pub const CLAIMS: &[Claim] = &[$($(Claim {
            name: concat!(stringify!($module), "::", stringify!($claim)),
            check: |scene| Box::pin($module::$claim(scene)),
        }),*),*];
    };
}

claims! {
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
        an_exact_version_shows_the_past,
        a_version_with_a_limit_is_exact,
        a_version_without_a_limit_is_the_least,
        a_version_of_the_future_is_waited_for_in_vain,
        a_match_without_a_version_is_invalid,
        a_version_that_is_no_number_is_bad,
        garbage_for_continue_is_bad,
        continue_with_a_version_is_bad,
        a_forgotten_version_is_expired,
        a_forgotten_page_is_expired_and_names_a_token_that_goes_on,
    ],
    selectors: [
        pods_are_selected_by_their_node,
        node_and_name_select_together,
        a_field_may_differ,
        pods_are_selected_by_their_phase,
        the_namespace_is_a_field,
        a_field_that_a_kind_does_not_know_is_bad,
        labels_select_by_equality,
        labels_select_by_sets,
        a_label_selector_that_cannot_be_read_is_bad,
        events_are_selected_by_what_they_are_about,
    ],
    watch: [
        a_watch_shows_what_came_after_its_version_in_order,
        the_last_event_is_the_last_state_under_a_version_of_its_own,
        events_name_their_kind,
        without_a_version_all_that_is_there_comes_first,
        a_bookmark_ends_the_initial_events,
        a_bookmark_ends_the_initial_events_of_an_empty_set,
        a_watch_without_a_version_marks_the_end_too_if_bookmarks_are_allowed,
        initial_events_and_match_need_each_other,
        a_version_of_the_future_is_silence,
        initial_events_of_the_future_are_an_error,
        a_forgotten_version_is_an_error_in_the_stream_and_its_end,
        a_version_that_is_no_number_is_refused_without_a_reason,
        a_watch_ends_cleanly_when_its_time_is_over,
        what_is_no_longer_selected_is_deleted_in_its_old_state,
        what_begins_to_be_selected_is_added,
        what_is_not_selected_is_not_seen,
        a_pod_appears_to_its_node_when_it_is_bound,
        a_single_object_may_be_watched_by_its_name,
        a_selector_that_is_bad_in_a_list_is_bad_in_a_watch,
    ],
}
