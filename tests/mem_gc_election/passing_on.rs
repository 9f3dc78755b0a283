//! Takeover of the Lease.

use jiff::ToSpan as _;
use pod_teardown::collector::Mode;
use testbed::apiserver::faults::{Action, Fault};
use tokio::time::{Instant, sleep};

use crate::cluster::{
    Agent, Cluster, FIRST, LEASES, Net, assert_at_most_one, dice, expect_no_violation, secs, wait_until,
};

/// Interval of a waiting agent, with its requests.
const WAIT: u64 = 7;

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_crashed_holder_is_taken_over_after_its_duration() {
    for seed in 0..6 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let mut one = cluster.working("one", Mode::Always, 20).await;
        sleep(dice.millis(9_000)).await;
        let other = cluster.agent("other", Mode::Always).await;
        let mut watcher = assert_at_most_one(&[&one, &other]);
        sleep(secs(60) + dice.millis(9_000)).await;
        assert!(one.works() && !other.works());
        assert_eq!(other.why(), "one holds the Lease kube-system/pod-teardown-gc");
        one.crash().await;
        let took = wait_until(secs(15 + 2 + WAIT), || other.works()).await;
        assert!(took >= secs(13), "{took:?}");
        expect_no_violation(&mut watcher);
        let lease = cluster.lease("pod-teardown-gc").await;
        assert_eq!(lease["spec"]["leaseTransitions"], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_holder_releases_the_lease_for_an_immediate_takeover() {
    for seed in 0..6 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let mut one = cluster.working("one", Mode::Always, 20).await;
        let other = cluster.agent("other", Mode::Always).await;
        let mut watcher = assert_at_most_one(&[&one, &other]);
        sleep(secs(30) + dice.millis(9_000)).await;
        one.stop().await;
        assert!(one.election.may_write().is_err());
        assert_eq!(cluster.lease("pod-teardown-gc").await["spec"]["holderIdentity"], "");
        wait_until(secs(WAIT), || other.works()).await;
        expect_no_violation(&mut watcher);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_does_not_prevent_the_release() {
    let cluster = Cluster::new().await;
    let mut one = cluster.working("one", Mode::Always, 20).await;
    let lost = Fault::new(Action::LoseResponse).verb("update").name("pod-teardown-gc");
    cluster.api.faults().inject(lost.once());
    sleep(secs(3)).await;
    one.stop().await;
    assert_eq!(cluster.lease("pod-teardown-gc").await["spec"]["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn without_an_api_server_writes_stop_by_the_clock_and_resume_with_it() {
    for trouble in [Fault::new(Action::Refuse), Fault::status(500), Fault::delay(secs(3600))] {
        let cluster = Cluster::new().await;
        let one = cluster.working("one", Mode::Always, 20).await;
        let first = one.election.watch().borrow().clone();
        sleep(secs(7)).await;
        assert_eq!(*one.election.watch().borrow(), first, "a renewal is no new turn");
        cluster.api.faults().inject(trouble.clone());
        let took = wait_until(secs(11), || one.election.may_write().is_err()).await;
        assert!(took >= secs(7), "{took:?}: {trouble:?}");
        sleep(secs(120)).await;
        assert!(!one.works() && one.election.view().standby.is_some());
        cluster.api.faults().clear();
        wait_until(secs(60), || one.works()).await;
        assert_ne!(*one.election.watch().borrow(), first);
    }
}

#[tokio::test(start_paused = true)]
async fn one_lost_answer_does_not_end_leadership() {
    let cluster = Cluster::new().await;
    let one = cluster.working("one", Mode::Always, 20).await;
    let first = one.election.watch().borrow().clone();
    for action in [Action::Refuse, Action::LoseResponse] {
        cluster.api.faults().inject(Fault::new(action).once());
        sleep(secs(20)).await;
    }
    assert_eq!(*one.election.watch().borrow(), first);
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_holder_stops_before_the_next_starts() {
    for seed in 0..8 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let one = cluster.working("one", Mode::Always, 20).await;
        let other = cluster.agent("other", Mode::Always).await;
        let mut watcher = assert_at_most_one(&[&one, &other]);
        sleep(secs(20) + dice.millis(9_000)).await;
        let net = if dice.one_in(2) { Net::Down } else { Net::Hangs };
        one.net.send_replace(net);
        wait_until(secs(11), || !one.works()).await;
        wait_until(secs(30), || other.works()).await;
        sleep(dice.millis(60_000)).await;
        one.net.send_replace(Net::Up);
        sleep(secs(60)).await;
        expect_no_violation(&mut watcher);
        assert!(other.works() && !one.works(), "{net:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn clock_skew_of_a_holder_has_no_effect() {
    for off in [(-1).hour(), 1.hour()] {
        let cluster = Cluster::new().await;
        cluster.renew("pod-teardown-gc", "other", off).await;
        let one = cluster.agent("one", Mode::Always).await;
        for _ in 0..60 {
            sleep(secs(2)).await;
            cluster.renew("pod-teardown-gc", "other", off).await;
            assert!(!one.works());
        }
        let took = wait_until(secs(15 + WAIT), || one.works()).await;
        assert!(took >= secs(15), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_makes_no_second_holder() {
    for seed in 0..6 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let one = cluster.working("one", Mode::Always, 20).await;
        let other = cluster.agent("other", Mode::Always).await;
        let mut watcher = assert_at_most_one(&[&one, &other]);
        sleep(secs(20) + dice.millis(9_000)).await;
        one.net.send_replace(Net::Down);
        let path = format!("{LEASES}/pod-teardown-gc");
        cluster.admin.delete(&path, None).await.unwrap().ok().unwrap();
        sleep(dice.millis(15_000)).await;
        one.net.send_replace(Net::Up);
        sleep(secs(60)).await;
        expect_no_violation(&mut watcher);
        assert!(one.works() != other.works());
    }
}

/// A holder that reaches the API server creates its Lease again before a new agent does.
#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_after_a_deletion_leaves_the_lease_to_its_holder() {
    for seed in 0..6 {
        let mut dice = dice(seed);
        let cluster = Cluster::new().await;
        let one = cluster.working("one", Mode::Always, 20).await;
        sleep(dice.millis(9_000)).await;
        let first = one.election.watch().borrow().clone();
        let path = format!("{LEASES}/pod-teardown-gc");
        cluster.admin.delete(&path, None).await.unwrap().ok().unwrap();
        let new = cluster.agent("new", Mode::Always).await;
        let mut watcher = assert_at_most_one(&[&one, &new]);
        sleep(secs(60)).await;
        expect_no_violation(&mut watcher);
        assert_eq!(*one.election.watch().borrow(), first);
        assert_eq!(new.why(), "one holds the Lease kube-system/pod-teardown-gc");
    }
}

#[tokio::test(start_paused = true)]
async fn of_agents_that_start_without_a_lease_one_creates_it() {
    let cluster = Cluster::new().await;
    let mut agents = Vec::new();
    for number in 0..6 {
        agents.push(cluster.agent(&format!("agent-{number}"), Mode::Always).await);
    }
    let mut watcher = assert_at_most_one(&agents.iter().collect::<Vec<_>>());
    let took = wait_until(secs(FIRST + 2), || agents.iter().any(Agent::works)).await;
    assert!(took >= secs(FIRST), "{took:?}");
    sleep(secs(60)).await;
    expect_no_violation(&mut watcher);
    let lease = cluster.lease("pod-teardown-gc").await;
    assert_eq!(lease["spec"]["leaseTransitions"], 0);
}

#[tokio::test(start_paused = true)]
async fn mode_never_waits_without_requests() {
    let cluster = Cluster::new().await;
    let one = cluster.start_agent("one", Mode::Never).await;
    sleep(secs(60)).await;
    assert!(cluster.api.requests().is_empty() && !one.works());
    assert_eq!(one.why(), "--gc never");
}

#[tokio::test(start_paused = true)]
async fn waiting_agents_send_few_requests() {
    let cluster = Cluster::new().await;
    let _one = cluster.working("one", Mode::Always, 20).await;
    let other = cluster.agent("other", Mode::Always).await;
    sleep(secs(10)).await;
    cluster.api.forget_requests();
    let start = Instant::now();
    sleep(secs(60)).await;
    let of = |verb: &str| cluster.api.requests().iter().filter(|it| it.asked.verb == verb).count();
    assert!(
        (29..=31).contains(&of("update")) && of("get") <= 12,
        "in {:?}",
        start.elapsed()
    );
    assert!(other.election.watch().borrow().is_err());
}
