//! Other collectors are at work, or seem to be.

use jiff::Span;
use pod_teardown::collector::Mode;
use testbed::apiserver::faults::{Action, Fault};
use tokio::time::sleep;

use crate::cluster::{Cluster, LEASES, dice, held, never_two, secs, within};

const MANAGER: &str = "kube-controller-manager";

#[tokio::test(start_paused = true)]
async fn it_works_only_when_the_controller_manager_has_rested_and_a_canary_survived() {
    for seed in 0..4 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        cluster.renew(MANAGER, "master", Span::new()).await;
        let one = cluster.agent("one", Mode::Auto).await;
        for _ in 0..40 {
            sleep(secs(1) + dice.millis(2_000)).await;
            cluster.renew(MANAGER, "master", Span::new()).await;
            assert!(!one.works());
            assert!(cluster.canaries().await.is_empty());
        }
        let view = one.turns.view();
        let manager = view.controller_manager.unwrap();
        assert_eq!(manager.holder.as_deref(), Some("master"));
        assert!(
            manager.changed.is_some() && one.why().contains("it renews its Lease"),
            "{}",
            one.why()
        );
        let took = within(secs(45 + 30 + 8), || one.works()).await;
        assert!(took >= secs(75), "{took:?}");
        let view = one.turns.view();
        assert!(view.canary.unwrap().survived.is_some() && view.works_since.is_some());
        // It comes back.
        cluster.renew(MANAGER, "master", Span::new()).await;
        within(secs(4), || !one.works()).await;
        sleep(secs(4)).await;
        assert!(cluster.canaries().await.is_empty(), "it proves nothing any more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_controller_manager_that_has_no_lease_is_asked_by_a_canary_alone() {
    let cluster = Cluster::new().await;
    let one = cluster.agent("one", Mode::Auto).await;
    let took = within(secs(15 + 30 + 8), || one.works()).await;
    assert!(took >= secs(45), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_died_before_anybody_looked_is_watched_for_the_whole_time() {
    let cluster = Cluster::new().await;
    cluster.renew(MANAGER, "master", Span::new()).await;
    sleep(secs(3600)).await;
    let one = cluster.agent("one", Mode::Auto).await;
    let took = within(secs(15 + 45 + 30 + 8), || one.works()).await;
    assert!(took >= secs(15 + 45 + 30), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_read_is_not_one_that_rests() {
    for code in [403, 404, 500, 503] {
        let cluster = Cluster::new().await;
        let fault = Fault::status(code).verb("get").name(MANAGER);
        // A 404 of the fault names no object: the route may be missing.
        cluster.api.faults().inject(fault);
        let one = cluster.agent("one", Mode::Auto).await;
        sleep(secs(300)).await;
        assert!(
            !one.works() && one.why().contains("cannot be read"),
            "{code}: {}",
            one.why()
        );
        assert!(one.turns.view().controller_manager.unwrap().error.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn it_stands_by_while_a_collector_without_a_lease_works() {
    for seed in 0..4 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let one = cluster.agent("one", Mode::Auto).await;
        let mut deleted = 0;
        for _ in 0..30 {
            sleep(secs(1) + dice.millis(20_000)).await;
            deleted += cluster.collect().await;
            assert!(!one.works());
        }
        // The collector rests until the next one would have survived.
        assert!(deleted >= 2, "{deleted}");
        let took = within(secs(60 + 30 + 10), || one.works()).await;
        assert!(took >= secs(5), "{took:?}");
        // And one comes back while ours works.
        sleep(secs(200) + dice.millis(60_000)).await;
        assert!(one.works());
        assert_eq!(cluster.collect().await, 1);
        within(secs(4), || !one.works()).await;
        assert!(one.why().contains("it deleted a canary"), "{}", one.why());
        within(secs(100), || one.works()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn laying_the_next_canary_ends_no_turn_and_leaves_none_behind() {
    let cluster = Cluster::new().await;
    let one = cluster.working("one", Mode::Auto, 60).await;
    let first = one.turns.watch().borrow().clone();
    let canary = one.turns.canary();
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..120 {
        sleep(secs(5)).await;
        let canaries = cluster.canaries().await;
        assert_eq!(canaries.len(), 1);
        let metadata = &canaries[0]["metadata"];
        names.insert(metadata["name"].to_string());
        let owner = &metadata["ownerReferences"][0];
        assert_eq!(owner["kind"], "ConfigMap");
        for uid in [&metadata["uid"], &owner["uid"]] {
            assert!(canary.is_canary(uid.as_str().unwrap()));
        }
    }
    assert!((9..=12).contains(&names.len()), "{}", names.len());
    assert_eq!(*one.turns.watch().borrow(), first);
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_takes_the_old_canary_while_the_next_is_laid_is_noticed() {
    for seed in 0..10 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let one = cluster.working("one", Mode::Auto, 60).await;
        sleep(secs(25) + dice.millis(15_000)).await;
        if cluster.collect().await == 0 {
            continue;
        }
        within(secs(5), || !one.works()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn canaries_of_those_who_crashed_are_cleared_away_and_prove_nothing() {
    let cluster = Cluster::new().await;
    let mut one = cluster.working("one", Mode::Auto, 60).await;
    let other = cluster.agent("other", Mode::Auto).await;
    let mut watcher = never_two(&[&one, &other]);
    let before = cluster.canaries().await;
    one.crash().await;
    let took = within(secs(15 + 9 + 30 + 8), || other.works()).await;
    assert!(took >= secs(13 + 30), "{took:?}");
    let after = cluster.canaries().await;
    assert!(after.len() == 1 && before.len() == 1 && after != before);
    held(&mut watcher);
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_takes_its_canary_along() {
    let cluster = Cluster::new().await;
    let mut one = cluster.working("one", Mode::Auto, 60).await;
    one.stop().await;
    assert!(cluster.canaries().await.is_empty());
    let requests = cluster.api.requests();
    let of_others = |path: &str| !path.starts_with(LEASES) && !path.starts_with("/api/v1/namespaces");
    assert!(
        !requests
            .iter()
            .any(|it| it.asked.verb != "get" && of_others(&it.asked.path))
    );
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_lost_while_a_canary_is_laid_do_no_harm() {
    let cluster = Cluster::new().await;
    for verb in ["create", "delete", "list"] {
        let lost = Fault::new(Action::LoseResponse).verb(verb).resource("leases");
        cluster.api.faults().inject(lost.times(2));
    }
    let one = cluster.agent("one", Mode::Auto).await;
    within(secs(200), || one.works()).await;
    sleep(secs(300)).await;
    assert!(one.works());
    assert_eq!(cluster.canaries().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn always_needs_the_lease_and_asks_nobody_else() {
    let cluster = Cluster::new().await;
    cluster.renew(MANAGER, "master", Span::new()).await;
    let one = cluster.agent("one", Mode::Always).await;
    let took = within(secs(17), || one.works()).await;
    assert!(took >= secs(15));
    sleep(secs(120)).await;
    assert!(cluster.canaries().await.is_empty());
    let view = one.turns.view();
    assert!(view.controller_manager.is_none() && view.lease.unwrap().is_own);
}

#[tokio::test(start_paused = true)]
async fn whoever_stands_by_for_another_collector_leaves_the_lease_to_one_that_always_works() {
    for seed in 0..4 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let one = cluster.agent("one", Mode::Auto).await;
        sleep(secs(20)).await;
        let waits = cluster.agent("waits", Mode::Auto).await;
        for _ in 0..20 {
            cluster.renew(MANAGER, "master", Span::new()).await;
            sleep(secs(2)).await;
        }
        let view = one.turns.view().lease.unwrap();
        assert!(view.is_own && view.stands_by);
        assert!(
            waits.turns.view().lease.unwrap().stands_by,
            "one that waits is told, too"
        );
        sleep(dice.millis(5_000)).await;
        let always = cluster.agent("always", Mode::Always).await;
        let mut watcher = never_two(&[&one, &waits, &always]);
        within(secs(8), || always.works()).await;
        // The manager rests, and all the same they are in no doubt whose turn it is.
        sleep(secs(200)).await;
        assert!(always.works());
        assert_eq!(one.why(), "always holds the Lease kube-system/pod-teardown-gc");
        let lease = cluster.lease("pod-teardown-gc").await;
        assert_eq!(lease["spec"]["leaseTransitions"], 1);
        held(&mut watcher);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_works_keeps_the_lease_from_one_that_always_works() {
    let cluster = Cluster::new().await;
    let one = cluster.working("one", Mode::Auto, 60).await;
    let always = cluster.agent("always", Mode::Always).await;
    let first = one.turns.watch().borrow().clone();
    sleep(secs(200)).await;
    assert_eq!(*one.turns.watch().borrow(), first);
    assert!(!always.works() && !always.turns.view().lease.unwrap().stands_by);
}
