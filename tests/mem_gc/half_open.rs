//! A load balancer before the API server that drops its state without a word.

use testbed::balancer::Balancer;
use tokio::time::{Instant, sleep};

use crate::world::{Cluster, Like, map_path, owned, secs, to};

#[tokio::test(start_paused = true)]
async fn what_depends_on_an_owner_that_is_deleted_while_connections_are_half_open_is_gone_within_a_minute() {
    let mut cluster = Cluster::new().await;
    let server = cluster.api.url().trim_start_matches("http://").parse().unwrap();
    let balancer = Balancer::start(server).await.unwrap();
    cluster.lead_through(&balancer);
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    let earlier = cluster.map("earlier", Like::default()).await;
    cluster.map("of-the-earlier", owned([to(&earlier, false)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("earlier"), "Background").await;
    cluster.gone("of-the-earlier").await;
    // Those that nothing is asked over are idle by now.
    sleep(secs(100)).await;
    balancer.drop_state();
    let begun = Instant::now();
    cluster.delete(&map_path("owner"), "Background").await;
    cluster.gone("child").await;
    assert!(begun.elapsed() < secs(60), "{:?}", begun.elapsed());
}
