//! What `gc status` and `why` say of deletions that do not end.

use pod_teardown::collector::why;

use crate::prelude::*;

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
    assert!(waiting.iter().any(|it| it.why.contains(words)), "{waiting:?}");
    let text = explain(&cluster, "secret/default/child").await;
    assert!(text.contains(words), "{text}");
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
