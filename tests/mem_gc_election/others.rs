//! Other collectors that work, or seem to.

use jiff::Span;
use pod_teardown::collector::Mode;
use testbed::apiserver::faults::Fault;
use tokio::time::sleep;

use crate::cluster::{Cluster, FIRST, LEASES, assert_at_most_one, dice, expect_no_violation, secs, wait_until};

const MANAGER: &str = "kube-controller-manager";

#[tokio::test(start_paused = true)]
async fn an_agent_works_only_after_kube_controller_manager_was_silent() {
    for seed in 0..4 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        cluster.renew(MANAGER, "master", Span::new()).await;
        let one = cluster.agent("one", Mode::Auto).await;
        for _ in 0..40 {
            sleep(secs(1) + dice.millis(2_000)).await;
            cluster.renew(MANAGER, "master", Span::new()).await;
            assert!(!one.works());
        }
        let view = one.election.view();
        let manager = view.controller_manager.unwrap();
        assert_eq!(manager.holder.as_deref(), Some("master"));
        assert!(
            manager.changed.is_some() && one.why().contains("it renews its Lease"),
            "{}",
            one.why()
        );
        let took = wait_until(secs(45 + 12), || one.works()).await;
        assert!(took >= secs(45), "{took:?}");
        assert!(one.election.view().active_since.is_some());
        // It returns.
        cluster.renew(MANAGER, "master", Span::new()).await;
        wait_until(secs(4), || !one.works()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_manager_lease_is_observed_for_the_whole_time_and_ends_leadership_when_it_appears() {
    let cluster = Cluster::new().await;
    let one = cluster.agent("one", Mode::Auto).await;
    let took = wait_until(secs(FIRST + 45 + 8), || one.works()).await;
    assert!(took >= secs(FIRST + 45), "{took:?}");
    sleep(secs(200)).await;
    assert!(one.works());
    cluster.renew(MANAGER, "master", Span::new()).await;
    wait_until(secs(4), || !one.works()).await;
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_manager_lease_does_not_count_as_silent() {
    for code in [403, 404, 500, 503] {
        let cluster = Cluster::new().await;
        let fault = Fault::status(code).verb("get").name(MANAGER);
        // The fault's 404 names no object: the route may be missing.
        cluster.api.faults().inject(fault);
        let one = cluster.agent("one", Mode::Auto).await;
        sleep(secs(300)).await;
        assert!(
            !one.works() && one.why().contains("cannot be read"),
            "{code}: {}",
            one.why()
        );
        assert!(one.election.view().controller_manager.unwrap().error.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn leader_election_writes_only_the_collectors_lease() {
    let cluster = Cluster::new().await;
    let mut one = cluster.working("one", Mode::Auto, 70).await;
    one.stop().await;
    let own = format!("{LEASES}/pod-teardown-gc");
    let writes = cluster
        .api
        .requests()
        .into_iter()
        .filter(|it| !["get", "list"].contains(&&*it.asked.verb));
    let paths: Vec<_> = writes.map(|it| it.asked.path).collect();
    assert!(
        !paths.is_empty() && paths.iter().all(|path| *path == own || path == LEASES),
        "{paths:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn mode_always_needs_the_lease_and_reads_no_other() {
    let cluster = Cluster::new().await;
    cluster.renew(MANAGER, "master", Span::new()).await;
    let one = cluster.agent("one", Mode::Always).await;
    let took = wait_until(secs(FIRST + 2), || one.works()).await;
    assert!(took >= secs(FIRST));
    sleep(secs(120)).await;
    let view = one.election.view();
    assert!(view.controller_manager.is_none() && view.lease.unwrap().is_own);
}

#[tokio::test(start_paused = true)]
async fn mode_always_takes_the_lease_of_an_agent_that_kube_controller_manager_made_standby() {
    for seed in 0..4 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let one = cluster.working("one", Mode::Auto, 70).await;
        let waits = cluster.agent("waits", Mode::Auto).await;
        let always = cluster.agent("always", Mode::Always).await;
        let mut watcher = assert_at_most_one(&[&one, &waits, &always]);
        sleep(secs(10) + dice.millis(5_000)).await;
        assert_eq!(always.why(), "one holds the Lease kube-system/pod-teardown-gc");
        cluster.renew(MANAGER, "master", Span::new()).await;
        let took = wait_until(secs(4 + 15 + 8), || always.works()).await;
        assert!(took >= secs(13), "{took:?}");
        assert!(one.why().contains("it renews its Lease") && one.election.view().lease.is_none());
        // The manager is silent, and the holder is still unambiguous.
        sleep(secs(200)).await;
        assert!(always.works());
        assert_eq!(one.why(), "always holds the Lease kube-system/pod-teardown-gc");
        let lease = cluster.lease("pod-teardown-gc").await;
        assert_eq!(lease["spec"]["leaseTransitions"], 1);
        expect_no_violation(&mut watcher);
    }
}

#[tokio::test(start_paused = true)]
async fn a_working_holder_does_not_yield_the_lease_to_mode_always() {
    let cluster = Cluster::new().await;
    let one = cluster.working("one", Mode::Auto, 70).await;
    let always = cluster.agent("always", Mode::Always).await;
    let first = one.election.watch().borrow().clone();
    sleep(secs(200)).await;
    assert_eq!(*one.election.watch().borrow(), first);
    assert!(!always.works());
}
