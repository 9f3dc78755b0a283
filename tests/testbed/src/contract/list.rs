//! Claims about lists: pages, versions, order.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::scene::{Scene, names, number, refuses, says, version};

async fn three_maps(s: &Scene<'_>) -> Result<Value> {
    s.new_map("a").await?;
    s.new_map("b").await?;
    s.new_map("c").await
}

async fn list(s: &Scene<'_>, options: &[(&str, &str)]) -> Result<Value> {
    Ok(s.admin.list(&s.maps(), options).await?.ok()?)
}

fn token(page: &Value) -> Result<&str> {
    page["metadata"]["continue"]
        .as_str()
        .filter(|token| !token.is_empty())
        .context("a page without continue")
}

pub(super) async fn items_come_in_the_order_of_their_names(s: &Scene<'_>) -> Result<()> {
    for name in ["b", "a.b", "c", "a", "a-b"] {
        s.new_map(name).await?;
    }
    assert_eq!(names(&list(s, &[]).await?), ["a", "a-b", "a.b", "b", "c"]);
    Ok(())
}

pub(super) async fn an_empty_list_has_items_and_a_version(s: &Scene<'_>) -> Result<()> {
    let list = list(s, &[]).await?;
    assert_eq!(list["items"], json!([]));
    assert_eq!(list["kind"], "ConfigMapList");
    assert!(number(version(&list))? > 0);
    Ok(())
}

pub(super) async fn items_of_a_built_in_kind_do_not_name_it(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    let list = list(s, &[]).await?;
    assert_eq!(
        (&list["items"][0]["kind"], &list["items"][0]["apiVersion"]),
        (&Value::Null, &Value::Null)
    );
    Ok(())
}

pub(super) async fn a_list_shows_the_write_that_was_answered_before_it(s: &Scene<'_>) -> Result<()> {
    let last = three_maps(s).await?;
    let list = list(s, &[]).await?;
    assert_eq!(names(&list), ["a", "b", "c"]);
    assert!(number(version(&list))? >= number(version(&last))?);
    Ok(())
}

pub(super) async fn pages_hold_the_limit_and_the_last_one_does_not_continue(s: &Scene<'_>) -> Result<()> {
    three_maps(s).await?;
    let first = list(s, &[("limit", "2")]).await?;
    assert_eq!(names(&first), ["a", "b"]);
    let last = list(s, &[("limit", "2"), ("continue", token(&first)?)]).await?;
    assert_eq!(names(&last), ["c"]);
    assert!(token(&last).is_err(), "{}", last["metadata"]);
    Ok(())
}

pub(super) async fn a_page_that_just_holds_all_does_not_continue(s: &Scene<'_>) -> Result<()> {
    three_maps(s).await?;
    let page = list(s, &[("limit", "3")]).await?;
    assert!(token(&page).is_err(), "{}", page["metadata"]);
    Ok(())
}

pub(super) async fn later_pages_show_the_state_of_the_first(s: &Scene<'_>) -> Result<()> {
    three_maps(s).await?;
    let first = list(s, &[("limit", "1")]).await?;
    s.new_map("bb").await?;
    s.admin.delete(&s.map("c"), None).await?.ok()?;
    let rest = list(s, &[("limit", "5"), ("continue", token(&first)?)]).await?;
    assert_eq!(names(&rest), ["b", "c"]);
    assert_eq!(version(&rest), version(&first));
    Ok(())
}

pub(super) async fn the_rest_is_counted_only_without_selectors(s: &Scene<'_>) -> Result<()> {
    three_maps(s).await?;
    let plain = list(s, &[("limit", "1")]).await?;
    assert_eq!(plain["metadata"]["remainingItemCount"], 2);
    let of_namespace = format!("metadata.namespace={}", s.ns);
    let selected = list(s, &[("limit", "1"), ("fieldSelector", &of_namespace)]).await?;
    assert_eq!(selected["metadata"]["remainingItemCount"], Value::Null);
    assert!(token(&selected).is_ok());
    Ok(())
}

pub(super) async fn the_limit_is_ignored_at_version_zero(s: &Scene<'_>) -> Result<()> {
    let last = three_maps(s).await?;
    // Version 0 asks for any state: one that is recent enough is waited for first.
    list(s, &[("resourceVersion", version(&last))]).await?;
    let page = list(s, &[("limit", "1"), ("resourceVersion", "0")]).await?;
    assert_eq!(names(&page), ["a", "b", "c"]);
    assert!(token(&page).is_err());
    Ok(())
}

pub(super) async fn a_version_without_a_limit_is_the_least(s: &Scene<'_>) -> Result<()> {
    let first = s.new_map("a").await?;
    let second = s.new_map("b").await?;
    list(s, &[("resourceVersion", version(&second))]).await?;
    let recent = list(s, &[("resourceVersion", version(&first))]).await?;
    assert_eq!(names(&recent), ["a", "b"]);
    Ok(())
}

pub(super) async fn future_version_times_out(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.list(&s.maps(), &[("resourceVersion", "999999999")]).await?;
    refuses(&answer, 504, "Timeout");
    says(&answer, "Too large resource version: 999999999, current: ");
    assert_eq!(answer.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(answer.body["details"]["retryAfterSeconds"], 1);
    assert_eq!(answer.header("retry-after"), "1");
    Ok(())
}

pub(super) async fn a_version_that_is_no_number_is_bad(s: &Scene<'_>) -> Result<()> {
    let answer = s.admin.list(&s.maps(), &[("resourceVersion", "abc")]).await?;
    refuses(&answer, 400, "BadRequest");
    Ok(())
}

pub(super) async fn garbage_for_continue_is_bad(s: &Scene<'_>) -> Result<()> {
    let answer = s
        .admin
        .list(&s.maps(), &[("limit", "1"), ("continue", "garbage")])
        .await?;
    refuses(&answer, 400, "BadRequest");
    says(&answer, "continue");
    Ok(())
}

pub(super) async fn continue_with_a_version_is_bad(s: &Scene<'_>) -> Result<()> {
    three_maps(s).await?;
    let first = list(s, &[("limit", "1")]).await?;
    let options = [
        ("limit", "1"),
        ("continue", token(&first)?),
        ("resourceVersion", version(&first)),
    ];
    refuses(&s.admin.list(&s.maps(), &options).await?, 400, "BadRequest");
    Ok(())
}

// Events are kept in no cache of the real server, so that what its store has forgotten is forgotten at once.

pub(super) async fn expired_page_token_has_a_new_one_that_continues(s: &Scene<'_>) -> Result<()> {
    for name in ["a", "b", "c"] {
        s.new_event(name).await?;
    }
    let first = s.admin.list(&s.events(), &[("limit", "1")]).await?.ok()?;
    s.new_event("d").await?;
    s.api.forget_history().await?;
    let answer = s
        .admin
        .list(&s.events(), &[("limit", "1"), ("continue", token(&first)?)])
        .await?;
    refuses(&answer, 410, "Expired");
    let fresh = token(&answer.body)?;
    let on = s
        .admin
        .list(&s.events(), &[("limit", "5"), ("continue", fresh)])
        .await?
        .ok()?;
    assert_eq!(names(&on), ["b", "c", "d"]);
    Ok(())
}
