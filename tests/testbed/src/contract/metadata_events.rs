//! Claims about watches that show nothing but metadata, in JSON and in protobuf.

use anyhow::{Context, Result};
use http::{Method, header};
use serde_json::json;

use super::metadata::{LIST, ONE, ONE_PROTOBUF, agrees, metadata, owned};
use super::scene::{Scene, next, nothing_more, uid, version};
use crate::proto::{self, Status};
use crate::rest::{EventType, Patch, Watch};

async fn watch(s: &Scene<'_>, accept: &'static str, options: &[(&str, &str)]) -> Result<Watch> {
    let call = s.admin.call(Method::GET, &s.maps()).header(header::ACCEPT, accept);
    Ok(call.options(options).options(&[("watch", "true")]).stream().await?)
}

/// The next event of a watch in protobuf, which has to come.
async fn next_message(watch: &mut Watch) -> Result<(String, Vec<u8>)> {
    watch.next_message().await?.context("the watch ended before the event")
}

pub(super) async fn a_watch_in_json_shows_metadata_and_bookmarks_of_it(s: &Scene<'_>) -> Result<()> {
    let map = s.new_map("a").await?;
    let options = [("allowWatchBookmarks", "true")];
    let mut watch = watch(s, ONE, &options).await?;
    assert_eq!(watch.content_type(), "application/json");
    let added = next(&mut watch).await?;
    assert_eq!((added.kind, added.rv()), (EventType::Added, version(&map)));
    assert_eq!(added.object["kind"], "PartialObjectMetadata");
    let bookmark = next(&mut watch).await?;
    assert_eq!(bookmark.kind, EventType::Bookmark);
    let rv = bookmark.rv();
    let end = json!({"k8s.io/initial-events-end": "true"});
    assert_eq!(
        bookmark.object["metadata"],
        json!({"resourceVersion": rv, "annotations": end})
    );
    assert_eq!(bookmark.object["kind"], "PartialObjectMetadata");
    Ok(())
}

pub(super) async fn a_watch_in_protobuf_is_frames_of_the_same(s: &Scene<'_>) -> Result<()> {
    let map = owned(s).await?;
    let options = [("resourceVersion", version(&map)), ("allowWatchBookmarks", "true")];
    let mut after = watch(s, ONE_PROTOBUF, &options).await?;
    assert_eq!(after.content_type(), "application/vnd.kubernetes.protobuf;stream=watch");
    let patch = json!({"metadata": {"finalizers": null}});
    let changed = s.admin.patch(&s.map("a"), Patch::Merge, &patch).await?.ok()?;
    let (change, object) = next_message(&mut after).await?;
    assert_eq!(
        (change.as_str(), metadata(&object)?.resource_version()),
        ("MODIFIED", version(&changed))
    );
    s.admin.delete(&s.map("a"), None).await?.ok()?;
    let (change, object) = next_message(&mut after).await?;
    let last = metadata(&object)?;
    assert_eq!((change.as_str(), last.uid()), ("DELETED", uid(&map)));
    assert!(last.resource_version() != version(&changed), "{last:?}");
    Ok(())
}

pub(super) async fn a_bookmark_in_protobuf_ends_the_initial_events(s: &Scene<'_>) -> Result<()> {
    let map = owned(s).await?;
    let options = [("allowWatchBookmarks", "true")];
    let mut watch = watch(s, ONE_PROTOBUF, &options).await?;
    let (change, object) = next_message(&mut watch).await?;
    assert_eq!(change, "ADDED");
    agrees(&metadata(&object)?, &map);
    assert_eq!(next_message(&mut watch).await?.0, "ADDED");
    let (change, object) = next_message(&mut watch).await?;
    let bookmark = metadata(&object)?;
    assert_eq!((change.as_str(), bookmark.name()), ("BOOKMARK", ""));
    assert_eq!(bookmark.annotations["k8s.io/initial-events-end"], "true");
    assert!(!bookmark.resource_version().is_empty());
    Ok(())
}

pub(super) async fn an_error_in_a_protobuf_watch_is_a_protobuf_status(s: &Scene<'_>) -> Result<()> {
    // Events: kept in no cache of the real server, so that what its store has forgotten is forgotten at once.
    s.new_event("a").await?;
    s.api.forget_history().await?;
    let call = s
        .admin
        .call(Method::GET, &s.events())
        .header(header::ACCEPT, ONE_PROTOBUF);
    let mut old = call
        .options(&[("watch", "true"), ("resourceVersion", "1")])
        .stream()
        .await?;
    let (change, object) = next_message(&mut old).await?;
    let status: Status = proto::decode(&object)?;
    assert_eq!(
        (change.as_str(), status.status(), status.reason()),
        ("ERROR", "Failure", "Expired")
    );
    assert_eq!(status.code(), 410);
    assert_eq!(old.next_message().await?, None);
    Ok(())
}

pub(super) async fn a_list_is_no_form_of_a_watch(s: &Scene<'_>) -> Result<()> {
    s.new_map("a").await?;
    // It is seen too late for a refusal: the stream ends at its first event.
    nothing_more(&mut watch(s, LIST, &[]).await?).await
}
