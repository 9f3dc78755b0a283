//! Claims about watches.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::scene::{Scene, next, next_of, nothing_more, number, refuses, says, uid, version};
use crate::rest::{
    Answer, Error,
    EventType::{Added, Bookmark, Deleted, Error as ErrorEvent, Modified},
    Patch,
};

const END_OF_INITIAL_EVENTS: &str = "k8s.io/initial-events-end";

async fn refused(s: &Scene<'_>, options: &[(&str, &str)]) -> Result<Answer> {
    match s.admin.watch(&s.maps(), options).await {
        Err(Error::Refused { answer, .. }) => Ok(*answer),
        other => bail!("expected a refusal, got {other:?}"),
    }
}

async fn label(s: &Scene<'_>, name: &str, label: Value) -> Result<Value> {
    let patch = json!({"metadata": {"labels": {"shown": label}}});
    Ok(s.admin.patch(&s.map(name), Patch::Merge, &patch).await?.ok()?)
}

pub(super) async fn a_watch_shows_what_came_after_its_version_in_order(s: &Scene<'_>) -> Result<()> {
    let before = s.new_map("before").await?;
    let created = s.new_map("a").await?;
    let changed = label(s, "a", json!("yes")).await?;
    s.admin.delete(&s.map("a"), None).await?.ok()?;
    let mut watch = s.watch_after(&s.maps(), &before).await?;
    let events = [
        next(&mut watch).await?,
        next(&mut watch).await?,
        next(&mut watch).await?,
    ];
    assert_eq!(events.each_ref().map(|event| event.kind), [Added, Modified, Deleted]);
    assert_eq!((events[0].rv(), events[1].rv()), (version(&created), version(&changed)));
    assert!(number(events[2].rv())? > number(version(&changed))?);
    Ok(())
}

pub(super) async fn the_last_event_is_the_last_state_under_a_version_of_its_own(s: &Scene<'_>) -> Result<()> {
    let created = s.new_map_with("a", json!({"labels": {"shown": "yes"}})).await?;
    let mut watch = s.watch_after(&s.maps(), &created).await?;
    s.admin.delete(&s.map("a"), None).await?.ok()?;
    let event = next(&mut watch).await?;
    assert_eq!((event.kind, uid(&event.object)), (Deleted, uid(&created)));
    assert_eq!(event.object["metadata"]["labels"]["shown"], "yes");
    assert!(number(event.rv())? > number(version(&created))?);
    Ok(())
}

pub(super) async fn events_name_their_kind(s: &Scene<'_>) -> Result<()> {
    let seen = s.new_map("before").await?;
    s.new_map("a").await?;
    let event = next(&mut s.watch_after(&s.maps(), &seen).await?).await?;
    assert_eq!(
        (&event.object["kind"], &event.object["apiVersion"]),
        (&json!("ConfigMap"), &json!("v1"))
    );
    Ok(())
}

pub(super) async fn without_a_version_all_that_is_there_comes_first(s: &Scene<'_>) -> Result<()> {
    s.new_map("b").await?;
    let last = s.new_map("a").await?;
    // What is asked of version 0 may be any state: one that is recent enough is waited for first.
    s.admin
        .list(&s.maps(), &[("resourceVersion", version(&last))])
        .await?
        .ok()?;
    for options in [&[][..], &[("resourceVersion", "0")]] {
        let mut watch = s.admin.watch(&s.maps(), options).await?;
        let mut initial = [next_of(&mut watch).await?, next_of(&mut watch).await?];
        initial.sort_by(|a, b| a.1.cmp(&b.1));
        assert_eq!(initial, [(Added, "a".to_owned()), (Added, "b".to_owned())]);
    }
    Ok(())
}

pub(super) async fn a_watch_without_a_version_marks_the_end_too_if_bookmarks_are_allowed(s: &Scene<'_>) -> Result<()> {
    let mut watch = s.admin.watch(&s.maps(), &[("allowWatchBookmarks", "true")]).await?;
    let end = next(&mut watch).await?;
    assert_eq!(end.kind, Bookmark);
    assert_eq!(end.object["metadata"]["annotations"][END_OF_INITIAL_EVENTS], "true");
    Ok(())
}

pub(super) async fn a_version_of_the_future_is_silence(s: &Scene<'_>) -> Result<()> {
    let options = [("resourceVersion", "999999999"), ("timeoutSeconds", "1")];
    let mut watch = s.admin.watch(&s.maps(), &options).await?;
    s.new_map("a").await?;
    nothing_more(&mut watch).await
}

pub(super) async fn a_forgotten_version_is_an_error_in_the_stream_and_its_end(s: &Scene<'_>) -> Result<()> {
    // Events: kept in no cache of the real server, so that what its store has forgotten is forgotten at once.
    s.new_event("a").await?;
    s.api.forget_history().await?;
    let mut watch = s.admin.watch(&s.events(), &[("resourceVersion", "1")]).await?;
    let event = next(&mut watch).await?;
    assert_eq!(event.kind, ErrorEvent);
    assert_eq!(
        (&event.object["kind"], &event.object["code"]),
        (&json!("Status"), &json!(410))
    );
    assert_eq!(event.object["reason"], "Expired");
    nothing_more(&mut watch).await
}

pub(super) async fn a_version_that_is_no_number_is_refused_without_a_reason(s: &Scene<'_>) -> Result<()> {
    refuses(&refused(s, &[("resourceVersion", "abc")]).await?, 500, "");
    Ok(())
}

pub(super) async fn a_watch_ends_cleanly_when_its_time_is_over(s: &Scene<'_>) -> Result<()> {
    let seen = s.new_map("a").await?;
    let options = [("resourceVersion", version(&seen)), ("timeoutSeconds", "1")];
    nothing_more(&mut s.admin.watch(&s.maps(), &options).await?).await
}

pub(super) async fn unselected_objects_are_not_seen(s: &Scene<'_>) -> Result<()> {
    let seen = s.new_map("a").await?;
    let options = [
        ("fieldSelector", "metadata.name=b"),
        ("resourceVersion", version(&seen)),
    ];
    let mut watch = s.admin.watch(&s.maps(), &options).await?;
    label(s, "a", json!("yes")).await?;
    s.new_map("c").await?;
    s.new_map("b").await?;
    assert_eq!(next_of(&mut watch).await?, (Added, "b".to_owned()));
    Ok(())
}

pub(super) async fn a_pod_appears_to_its_node_when_it_is_bound(s: &Scene<'_>) -> Result<()> {
    let pod = s.new_pod_with("a", json!({}), json!({})).await?;
    let of_node = format!("spec.nodeName={}", s.node);
    let options = [("fieldSelector", of_node.as_str()), ("resourceVersion", version(&pod))];
    let mut watch = s.admin.watch("/api/v1/pods", &options).await?;
    let target = json!({"apiVersion": "v1", "kind": "Node", "name": s.node});
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": target});
    s.admin
        .create(&format!("{}/binding", s.pod("a")), &binding)
        .await?
        .ok()?;
    let event = next(&mut watch).await?;
    assert_eq!((event.kind, uid(&event.object)), (Added, uid(&pod)));
    assert_eq!(event.object["spec"]["nodeName"], s.node);
    Ok(())
}

pub(super) async fn a_single_object_may_be_watched_by_its_name(s: &Scene<'_>) -> Result<()> {
    s.new_map("b").await?;
    s.new_map("a").await?;
    let mut watch = s
        .admin
        .watch(&s.maps(), &[("fieldSelector", "metadata.name=a")])
        .await?;
    assert_eq!(next_of(&mut watch).await?, (Added, "a".to_owned()));
    s.admin.delete(&s.map("b"), None).await?.ok()?;
    s.admin.delete(&s.map("a"), None).await?.ok()?;
    assert_eq!(next_of(&mut watch).await?, (Deleted, "a".to_owned()));
    Ok(())
}

pub(super) async fn a_selector_that_is_bad_in_a_list_is_bad_in_a_watch(s: &Scene<'_>) -> Result<()> {
    let answer = refused(s, &[("fieldSelector", "data.x=y")]).await?;
    refuses(&answer, 400, "BadRequest");
    says(&answer, "is not a known field selector");
    Ok(())
}
