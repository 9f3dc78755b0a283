//! Claims about the graceful deletion of pods.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::scene::{Scene, next, next_of, number, refuses, uid, version};
use crate::rest::{
    Answer,
    EventType::{Added, Deleted, Modified},
    Patch,
};

async fn delete(s: &Scene<'_>, options: Value) -> Result<Answer> {
    Ok(s.admin.delete(&s.pod("a"), Some(&options)).await?)
}

async fn delete_with(s: &Scene<'_>, seconds: i64) -> Result<Value> {
    Ok(delete(s, json!({"gracePeriodSeconds": seconds})).await?.ok()?)
}

fn deletion(pod: &Value) -> Result<Timestamp> {
    let time = pod["metadata"]["deletionTimestamp"]
        .as_str()
        .context("no deletionTimestamp")?;
    time.parse().with_context(|| format!("deletionTimestamp {time:?}"))
}

fn grace(pod: &Value) -> &Value {
    &pod["metadata"]["deletionGracePeriodSeconds"]
}

pub(super) async fn a_deleted_pod_stays_and_shows_when_its_grace_is_over(s: &Scene<'_>) -> Result<()> {
    let pod = s
        .new_pod_with(
            "a",
            json!({}),
            json!({"nodeName": s.node, "terminationGracePeriodSeconds": 300}),
        )
        .await?;
    let sent = Timestamp::now();
    let answer = delete(s, json!({})).await?;
    let answered = Timestamp::now();
    assert_eq!((answer.code(), &answer.body["kind"]), (200, &json!("Pod")));
    let after = answer.ok()?;
    assert_eq!((uid(&after), grace(&after)), (uid(&pod), &json!(300)));
    assert_eq!(after["metadata"]["generation"], 2);
    let end = deletion(&after)?;
    let left = [answered, sent].map(|time| end.duration_since(time).as_secs());
    assert!(left[0] <= 302 && left[1] >= 298, "the grace ends in {left:?} s");
    assert_eq!(s.admin.get(&s.pod("a")).await?.ok()?, after);
    Ok(())
}

pub(super) async fn a_deletion_may_ask_for_more_than_the_spec(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    assert_eq!(grace(&delete_with(s, 90).await?), &json!(90));
    Ok(())
}

pub(super) async fn a_second_deletion_without_a_grace_changes_nothing(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let first = delete_with(s, 60).await?;
    let mut watch = s.watch_after(&s.pods(), &first).await?;
    assert_eq!(delete(s, json!({})).await?.ok()?, first);
    s.new_pod("b").await?;
    assert_eq!(next_of(&mut watch).await?, (Added, "b".to_owned()));
    Ok(())
}

pub(super) async fn a_second_deletion_cannot_lengthen(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let first = delete_with(s, 60).await?;
    assert_eq!(delete_with(s, 600).await?, first);
    Ok(())
}

pub(super) async fn a_second_deletion_may_shorten_from_the_first_one_s_time(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let first = delete_with(s, 600).await?;
    let second = delete_with(s, 100).await?;
    assert_eq!(grace(&second), &json!(100));
    assert_eq!(deletion(&first)?.duration_since(deletion(&second)?).as_secs(), 500);
    assert_eq!(second["metadata"]["generation"], first["metadata"]["generation"]);
    assert!(number(version(&second))? > number(version(&first))?);
    Ok(())
}

pub(super) async fn a_grace_below_zero_is_one_second(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    assert_eq!(grace(&delete_with(s, -5).await?), &json!(1));
    Ok(())
}

pub(super) async fn a_grace_of_zero_is_seen_as_a_change_and_an_end(s: &Scene<'_>) -> Result<()> {
    let pod = s.new_pod("a").await?;
    let mut watch = s.watch_after(&s.pods(), &pod).await?;
    delete_with(s, 0).await?;
    let (change, end) = (next(&mut watch).await?, next(&mut watch).await?);
    assert_eq!((change.kind, end.kind), (Modified, Deleted));
    assert_eq!(grace(&change.object), &json!(0));
    assert!(number(end.rv())? > number(change.rv())? && number(change.rv())? > number(version(&pod))?);
    refuses(&s.admin.get(&s.pod("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn the_final_deletion_ends_a_graceful_one(s: &Scene<'_>) -> Result<()> {
    let pod = s.new_pod("a").await?;
    let graceful = delete_with(s, 60).await?;
    let mut watch = s.watch_after(&s.pods(), &graceful).await?;
    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid(&pod)}});
    let answer = delete(s, options).await?;
    assert_eq!(
        (answer.code(), &answer.body["kind"], uid(&answer.body)),
        (200, &json!("Pod"), uid(&pod))
    );
    assert_eq!(next_of(&mut watch).await?, (Modified, "a".to_owned()));
    assert_eq!(next_of(&mut watch).await?, (Deleted, "a".to_owned()));
    s.admin.wait_gone(&s.ns, "a", uid(&pod), Duration::from_secs(5)).await?;
    Ok(())
}

pub(super) async fn the_final_deletion_of_another_uid_is_a_conflict(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let before = delete_with(s, 60).await?;
    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "another"}});
    refuses(&delete(s, options).await?, 409, "Conflict");
    assert_eq!(s.admin.get(&s.pod("a")).await?.ok()?, before);
    Ok(())
}

pub(super) async fn a_pod_without_a_node_goes_at_once(s: &Scene<'_>) -> Result<()> {
    s.new_pod_with("a", json!({}), json!({})).await?;
    delete(s, json!({})).await?.ok()?;
    refuses(&s.admin.get(&s.pod("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn a_pod_that_has_finished_goes_at_once(s: &Scene<'_>) -> Result<()> {
    for phase in ["Failed", "Succeeded"] {
        s.new_pod("a").await?;
        let status = json!({"status": {"phase": phase}});
        s.admin
            .patch(&format!("{}/status", s.pod("a")), Patch::Merge, &status)
            .await?
            .ok()?;
        delete(s, json!({})).await?.ok()?;
        refuses(&s.admin.get(&s.pod("a")).await?, 404, "NotFound");
    }
    Ok(())
}

pub(super) async fn a_pod_that_finishes_during_its_grace_stays(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    delete_with(s, 60).await?;
    let status = json!({"status": {"phase": "Failed"}});
    s.admin
        .patch(&format!("{}/status", s.pod("a")), Patch::Merge, &status)
        .await?
        .ok()?;
    let still = s.admin.get(&s.pod("a")).await?.ok()?;
    assert_eq!(
        (grace(&still), &still["status"]["phase"]),
        (&json!(60), &json!("Failed"))
    );
    Ok(())
}

pub(super) async fn a_finalizer_holds_a_pod_whose_grace_is_over(s: &Scene<'_>) -> Result<()> {
    let spec = json!({"nodeName": s.node});
    let pod = s
        .new_pod_with("a", json!({"finalizers": ["example.test/held"]}), spec)
        .await?;
    let mut watch = s.watch_after(&s.pods(), &pod).await?;
    let held = delete_with(s, 0).await?;
    assert_eq!(grace(&held), &json!(0));
    assert_eq!(next_of(&mut watch).await?, (Modified, "a".to_owned()));
    let out = json!({"metadata": {"finalizers": null}});
    s.admin.patch(&s.pod("a"), Patch::Merge, &out).await?.ok()?;
    assert_eq!(next_of(&mut watch).await?, (Deleted, "a".to_owned()));
    Ok(())
}

pub(super) async fn losing_its_finalizers_does_not_end_a_pod_within_its_grace(s: &Scene<'_>) -> Result<()> {
    let spec = json!({"nodeName": s.node});
    s.new_pod_with("a", json!({"finalizers": ["example.test/held"]}), spec)
        .await?;
    delete_with(s, 60).await?;
    let out = json!({"metadata": {"finalizers": null}});
    s.admin.patch(&s.pod("a"), Patch::Merge, &out).await?.ok()?;
    assert_eq!(grace(&s.admin.get(&s.pod("a")).await?.ok()?), &json!(60));
    Ok(())
}

pub(super) async fn a_spec_with_a_grace_of_zero_goes_at_once(s: &Scene<'_>) -> Result<()> {
    s.new_pod_with(
        "a",
        json!({}),
        json!({"nodeName": s.node, "terminationGracePeriodSeconds": 0}),
    )
    .await?;
    delete(s, json!({})).await?.ok()?;
    refuses(&s.admin.get(&s.pod("a")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn a_name_of_a_terminating_pod_is_taken(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    delete_with(s, 60).await?;
    let spec = json!({"containers": [{"name": "main", "image": "example.test/main"}]});
    let answer = s
        .admin
        .create(&s.pods(), &json!({"metadata": {"name": "a"}, "spec": spec}))
        .await?;
    refuses(&answer, 409, "AlreadyExists");
    Ok(())
}
