//! `check` reports the collector's rights.

use pod_teardown::{
    api::MetadataClient,
    node::effects::Effects,
    ops::check::{FAILURE, UNAVAILABLE, Verdict, collector_rights},
};
use testbed::apiserver::faults::Fault;

use crate::cluster::{Cluster, dial};

async fn client(cluster: &Cluster) -> MetadataClient {
    let (config, path) = cluster.credentials("check").await;
    MetadataClient::new(&config, path, Effects::ungated(), Some(dial())).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_account_with_all_rights_is_checked_by_verb_and_not_by_kind() {
    let cluster = Cluster::new().await;
    let rows = collector_rights(&client(&cluster).await).await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0].verdict, Verdict::Ok, "{rows:?}");
    let reviews = |path: &str| path.ends_with("/selfsubjectaccessreviews");
    let requests = cluster.api.requests();
    assert_eq!(requests.iter().filter(|it| reviews(&it.asked.path)).count(), 10);
}

#[tokio::test(start_paused = true)]
async fn check_of_credentials_without_rights_names_the_manifest_to_apply() {
    for (code, verdict, remedy) in [
        (403, Verdict::Failed(FAILURE), "deploy/gc-rbac.yaml"),
        (
            401,
            Verdict::Failed(FAILURE),
            "renew the credentials in --gc-kubeconfig",
        ),
        (503, Verdict::Failed(UNAVAILABLE), "the network"),
    ] {
        let cluster = Cluster::new().await;
        cluster.api.faults().inject(Fault::status(code).resource("namespaces"));
        let rows = collector_rights(&client(&cluster).await).await;
        assert_eq!((rows.len(), rows[0].verdict), (1, verdict), "{rows:?}");
        assert!(rows[0].remedy.contains(remedy), "{rows:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_api_that_is_down_is_named() {
    let cluster = Cluster::new().await;
    cluster.api.set_unavailable("apps/v1", true);
    let rows = collector_rights(&client(&cluster).await).await;
    assert_eq!((rows.len(), rows[1].verdict), (2, Verdict::Warning), "{rows:?}");
    assert!(rows[1].message.contains("apps"), "{rows:?}");
}
