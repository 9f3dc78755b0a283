//! A load balancer that silently drops its connections.

use crate::prelude::*;

#[tokio::test(start_paused = true)]
async fn dependents_are_deleted_within_a_minute_when_connections_are_half_open() {
    let mut cluster = Cluster::new().await;
    let balancer = Balancer::start(cluster.api.connector().clone());
    cluster.use_balancer(&balancer);
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    let earlier = cluster.map("earlier", ObjectSpec::default()).await;
    cluster.map("of-the-earlier", owned([to(&earlier, false)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("earlier"), "Background").await;
    cluster.wait_for_deletion("of-the-earlier").await;
    // Connections without requests are idle by now.
    sleep(secs(100)).await;
    balancer.drop_state();
    let started = Instant::now();
    cluster.delete(&map_path("owner"), "Background").await;
    cluster.wait_for_deletion("child").await;
    assert!(started.elapsed() < secs(60), "{:?}", started.elapsed());
}
