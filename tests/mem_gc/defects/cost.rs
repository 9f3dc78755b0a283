//! What a request has shown is not requested again, and changes without effect cost no request.

use nix::time::{ClockId, clock_gettime};

use crate::prelude::*;

fn remaining(cluster: &Cluster) -> usize {
    cluster.api.objects("v1", "Secret").len()
}

/// CPU time of this thread, which runs the test, the collector and the server.
fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Requests for objects, and CPU time, of the foreground deletion of an owner with this many dependents.
async fn foreground(dependents: usize) -> (usize, Duration) {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    let owners = [to(&owner, true)];
    for number in 0..dependents {
        cluster.insert_secret("default", &format!("child-{number}"), &owners);
    }
    cluster.start_synced().await;
    cluster.api.forget_requests();
    let started = cpu();
    cluster.delete(&map_path("owner"), "Foreground").await;
    let mut asked = 0;
    while !cluster.api.objects("v1", "ConfigMap").is_empty() {
        // The server remembers the last requests only.
        sleep(Duration::from_millis(10)).await;
        asked += cluster.object_requests().len();
        cluster.api.forget_requests();
    }
    assert_eq!(remaining(&cluster), 0);
    (asked, cpu() - started)
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_costs_one_request_and_constant_time_per_dependent() {
    let (few, many) = (2_000, 20_000);
    let (mut first, mut then) = (Duration::MAX, Duration::MAX);
    // The shortest times count: on a busy machine a run takes more CPU time.
    for _ in 0..3 {
        let (asked, time) = foreground(few).await;
        assert!(asked <= few + 8, "{asked}");
        first = first.min(time);
        let (asked, time) = foreground(many).await;
        assert!(asked <= many + 8, "{asked}");
        then = then.min(time);
        eprintln!("{few}: {first:?}, {many}: {then:?}");
        if then < first * 30 {
            break;
        }
    }
    // Linear cost is ten times as long, quadratic cost a hundred times.
    assert!(then < first * 30, "{few}: {first:?}, {many}: {then:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unresolvable_reference_costs_no_request_and_is_reported() {
    let mut cluster = Cluster::new().await;
    for (name, version, kind) in [
        ("group", "absent.test/v1", "Thing"),
        ("version", "apps/v9", "Nothing"),
        ("kind", "v1", "Thing"),
    ] {
        cluster.map(name, owned([absent_owner(version, kind, 1)])).await;
    }
    cluster.start_synced().await;
    sleep(secs(5)).await;
    let before = cluster.report();
    let mut kept: Vec<&str> = before.kept.iter().map(|it| &*it.object).collect();
    kept.sort_unstable();
    assert_eq!(
        kept,
        [
            "Nothing.apps default/never",
            "Thing default/never",
            "Thing.absent.test default/never"
        ]
    );
    sleep(secs(3600)).await;

    assert_eq!(cluster.object_requests(), []);
    assert_eq!(cluster.report().kept, before.kept);
    assert!(cluster.exists("group").await && cluster.exists("version").await && cluster.exists("kind").await);
}

#[tokio::test(start_paused = true)]
async fn changes_of_an_object_with_a_living_owner_cost_no_request() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    for number in 0..10 {
        cluster.map(&format!("child-{number}"), owned([to(&owner, true)])).await;
    }
    cluster.start_synced().await;
    let before = cluster.counts().events;
    for round in 0..100 {
        for number in 0..10 {
            let mut child = cluster.api.objects("v1", "ConfigMap")[number].clone();
            child["apiVersion"] = "v1".into();
            child["kind"] = "ConfigMap".into();
            child["data"] = json!({ "round": round.to_string() });
            cluster.api.insert_raw(child).unwrap();
        }
        sleep(Duration::from_millis(100)).await;
    }
    until!(cluster.counts().events >= before + 1000);
    assert_eq!(cluster.object_requests(), []);
}
