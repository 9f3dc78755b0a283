//! What `gc status` and `why` say of deletions that do not end.

use pod_teardown::collector::why;
use testbed::apiserver::faults::Fault;
use tokio::time::{Instant, sleep};

use crate::world::{Cluster, ObjectSpec, absent_owner, map_path, owned, secret_path, secs, to, until, with_finalizer};

async fn explain(cluster: &Cluster, name: &str) -> String {
    let why = why::explain(&cluster.shared().lock(), &name.parse().unwrap(), Instant::now());
    why.unwrap().text()
}

#[tokio::test(start_paused = true)]
async fn a_get_without_an_answer_is_named() {
    let mut cluster = Cluster::new().await;
    cluster
        .secret("child", owned([absent_owner("v1", "ConfigMap", 1)]))
        .await;
    cluster.inject(Fault::delay(secs(3600)).verb("get").resource("configmaps"));
    cluster.start_synced().await;
    sleep(secs(300)).await;
    let words = "the API server has not answered the GET for";
    let waiting = cluster.report().oldest;
    assert!(
        waiting
            .iter()
            .any(|it| it.why.as_ref().is_some_and(|why| why.starts_with(words))),
        "{waiting:?}"
    );
    let text = explain(&cluster, "secret/default/child").await;
    assert!(text.contains(words), "{text}");
}

/// open-telemetry/opentelemetry-operator#2364.
#[tokio::test(start_paused = true)]
async fn a_controller_that_creates_dependents_during_a_foreground_deletion_is_named() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.secret("child-0", owned([to(&owner, true)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    for number in 1..=30 {
        let owners = [to(&owner, true)];
        let spec = if number < 30 {
            owned(owners)
        } else {
            with_finalizer(owners)
        };
        cluster.secret(&format!("child-{number}"), spec).await;
        let before = secret_path(&format!("child-{}", number - 1));
        until("a dependent is deleted", async || cluster.get(&before).await.is_none()).await;
    }
    let words = "dependents were created since its foreground deletion was seen: a controller creates them again";
    let text = explain(&cluster, "configmap/default/owner").await;
    assert!(text.contains(words), "{text}");
    let status = cluster.report().text(false);
    assert!(status.contains(words), "{status}");
    let created = cluster.report().deletions[0].created;
    assert!((29..=30).contains(&created), "{created}");
}

#[tokio::test(start_paused = true)]
async fn dependents_of_the_first_list_are_not_counted_as_created_since_the_deletion() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    for number in 0..30 {
        cluster
            .secret(&format!("child-{number}"), owned([to(&owner, true)]))
            .await;
        cluster.inject(Fault::delay(secs(600)).verb("delete").name(&format!("child-{number}")));
    }
    cluster.delete(&map_path("owner"), "Foreground").await;
    cluster.start_synced().await;
    sleep(secs(60)).await;
    let deletions = cluster.report().deletions;
    assert_eq!(
        (deletions[0].dependents, deletions[0].created),
        (30, 0),
        "{deletions:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_section_with_more_rows_than_are_shown_has_their_number() {
    let mut cluster = Cluster::new().await;
    for number in 0..300 {
        cluster
            .map(
                &format!("kept-{number}"),
                owned([absent_owner("core/v1", "Pod", number)]),
            )
            .await;
    }
    cluster.start_synced().await;
    sleep(secs(5)).await;
    let report = cluster.report();
    assert_eq!((report.kept.len(), report.kept_total), (10, 300));
    let status = report.text(false);
    let title = "Kept, because it is unknown whether their owner exists (10 of 300):";
    assert!(status.contains(title), "{status}");
    let remedy = "there is no group core: the apiVersion of its kinds is v1";
    assert!(status.contains(remedy), "{status}");
    let text = explain(&cluster, "configmap/default/kept-1").await;
    assert!(text.contains(remedy), "{text}");
}
