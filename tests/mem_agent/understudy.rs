//! Beside a kubelet: standing by while it lives, taking over when it is gone, and letting go when it comes back.

use std::{fs, path::PathBuf, pin::Pin, time::Duration};

use pod_teardown::{
    cli::PodsFlag,
    explanation::Explanation,
    model::trace::BlockedReason,
    ops::{
        admin::{stop::StopRequest, why::question},
        client,
    },
};
use serde_json::json;
use testbed::{
    apiserver::faults::{Action, Fault},
    scripted_cri::Kind,
};
use tokio::time::{Instant, advance, sleep};

use crate::{
    guard::kubelet,
    hand_back::hand_back,
    held::{is_held, release},
    node::{NODE, Node, secs, until},
    pods::{plain, uid},
    requests::refused,
    server::trouble,
};

/// `--take-over-after` where nothing is said.
const THRESHOLD: Duration = secs(45);
/// How late it may be seen that it is over: from the end of the process to the look that notices it, and what it takes to ask.
const LATE: Duration = Duration::from_millis(1_200);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

/// What happens to a stage.
type Happening = fn(&mut Stage) -> Pin<Box<dyn Future<Output = ()> + '_>>;

/// A node whose agent stands by for a kubelet, which lives.
pub struct Stage {
    pub node: Node,
    process: Option<PathBuf>,
    renewals: u64,
}

impl Stage {
    /// With a polite pod, and an agent that has seen the kubelet.
    pub async fn set() -> Self {
        let mut node = Node::with_pods(&["web"]).await;
        node.flags.pods = PodsFlag::Auto;
        let process = Some(kubelet(&node));
        let mut stage = Self {
            node,
            process,
            renewals: 0,
        };
        stage.renew().await;
        stage.node.start().await;
        stage.node.cri.allow_everything();
        stage
    }

    /// The kubelet is dead, the agent has the node, and "deaf" ends only when it is killed.
    pub async fn taken_over_with_a_deaf_pod() -> Self {
        let mut stage = Self::set().await;
        stage
            .node
            .pod("deaf", &plain(), |pod| drop(pod.container("main").ignores_term()));
        stage.dies();
        stage.taken_over().await;
        stage
    }

    /// The kubelet renews its Lease.
    pub async fn renew(&mut self) {
        self.renewals += 1;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": NODE, "namespace": "kube-node-lease", "uid": "lease-uid" },
            "spec": { "holderIdentity": NODE, "renewTime": format!("2026-01-01T00:00:{:02}.000000Z", self.renewals % 60) },
        });
        if self.renewals == 1 {
            self.node.object(lease);
        } else {
            let patch = json!({ "spec": lease["spec"] });
            let answer = self
                .node
                .admin
                .patch(LEASE, testbed::rest::Patch::Merge, &patch)
                .await
                .unwrap();
            assert_eq!(answer.code(), 200, "{:?}", answer.body);
        }
    }

    /// The kubelet lives, or somebody who renews its Lease, for so long.
    async fn renews_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.renew().await;
            sleep(secs(10)).await;
        }
    }

    /// The kubelet dies.
    pub fn dies(&mut self) {
        fs::remove_dir_all(self.process.take().unwrap()).unwrap();
    }

    /// It is started again.
    pub fn returns(&mut self) {
        self.process = Some(kubelet(&self.node));
    }

    pub async fn turn(&self) -> String {
        let status = self.node.status().await;
        status.understudy.unwrap().turn
    }

    /// Nobody has touched anything.
    fn nothing_was_touched(&self) {
        assert_eq!(self.node.cri.effects(), Vec::new());
    }

    /// Waits until the agent has taken over, and tells how long that took.
    pub async fn taken_over(&self) -> Duration {
        let begun = Instant::now();
        until("the agent takes over", async || self.turn().await == "ours").await;
        begun.elapsed()
    }
}

pub fn in_time(took: Duration) {
    assert!((THRESHOLD - secs(1)..THRESHOLD + LATE).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn takeover_follows_the_death_of_the_kubelet_and_nothing_is_touched_before() {
    let mut stage = Stage::set().await;
    stage.node.delete("web", None).await;
    stage.renews_for(secs(120)).await;
    assert_eq!(stage.turn().await, "kubelet");
    stage.nothing_was_touched();
    stage.renew().await;
    stage.dies();
    in_time(stage.taken_over().await);
    stage.node.nothing_left("web").await;
    assert_eq!(stage.node.status().await.held, None);
}

#[tokio::test(start_paused = true)]
async fn pods_without_objects_are_stopped_first() {
    let mut stage = Stage::set().await;
    let names = ["db", "web-0", "web-1"];
    names.iter().for_each(|name| stage.node.polite_pod(name));
    stage.node.pod("zombie", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(secs(1), 0));
    });
    stage.renews_for(secs(20)).await;
    stage.dies();
    for name in names {
        stage.node.delete(name, None).await;
    }
    // Somebody does not want to wait, and starts another that writes to the same volume.
    stage.node.delete("zombie", Some(0)).await;
    stage.taken_over().await;
    let stops = stage.node.calls(4, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(&*stops[0].1.pod_uid, uid("zombie"));
    assert!(
        stops[1..].iter().all(|(at, _)| *at >= stops[0].0 + secs(1)),
        "{stops:?}"
    );
    for name in names.into_iter().chain(["zombie"]) {
        stage.node.nothing_left(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn node_reregistered_by_its_kubelet_is_detected_before_any_effect() {
    let mut stage = Stage::set().await;
    stage.renews_for(secs(20)).await;
    stage
        .node
        .object(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
    stage.node.delete("web", None).await;
    stage.dies();
    is_held(&stage.node, "node-uid").await;
    sleep(secs(120)).await;
    stage.nothing_was_touched();
    release(&stage.node, "node-uid").await.unwrap();
    stage.node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_waiting_for_a_takeover_is_reported_so_only_until_then() {
    let mut stage = Stage::set().await;
    stage
        .node
        .pod("deaf", &plain(), |pod| drop(pod.container("main").ignores_term()));
    stage.renews_for(secs(20)).await;
    stage.dies();
    stage.node.delete("deaf", None).await;
    sleep(secs(20)).await;
    let story = async || stage.node.status().await.pods.terminating[0].clone();
    let waiting = story().await;
    // Nothing of it was used: nobody has told the container anything.
    assert_eq!(waiting.grace_left_ms, waiting.grace_seconds * 1000);
    assert_eq!(waiting.blocked[0].reason, BlockedReason::Guard, "{waiting:?}");
    stage.taken_over().await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(1)).await;
    let begun = story().await;
    assert!(begun.grace_left_ms < begun.grace_seconds * 1000, "{begun:?}");
    assert_eq!(begun.blocked, []);
}

#[tokio::test(start_paused = true)]
async fn orphan_is_stopped_right_after_the_takeover() {
    let mut stage = Stage::set().await;
    stage.renews_for(secs(20)).await;
    stage.dies();
    stage.node.left_over("zombie", |pod| drop(pod.container("main")));
    // A look at the runtime has shown it by then.
    sleep(secs(12)).await;
    stage.nothing_was_touched();
    stage.taken_over().await;
    let since = Instant::now();
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    assert!(since.elapsed() < secs(1), "{:?}", since.elapsed());
    stage.node.nothing_left("zombie").await;
}

#[tokio::test(start_paused = true)]
async fn kubelet_restart_causes_no_takeover() {
    let mut stage = Stage::set().await;
    stage.node.delete("web", None).await;
    for _ in 0..5 {
        stage.renew().await;
        stage.dies();
        sleep(secs(30)).await;
        assert_eq!(stage.turn().await, "not-yet");
        stage.returns();
        stage.renews_for(secs(20)).await;
        assert_eq!(stage.turn().await, "kubelet");
    }
    stage.nothing_was_touched();
}

#[tokio::test(start_paused = true)]
async fn agent_started_without_a_kubelet_waits_for_the_whole_threshold() {
    let mut stage = Stage::set().await;
    stage.dies();
    sleep(secs(30)).await;
    assert_eq!(stage.node.stop().await, Ok(()));
    stage.node.delete("web", None).await;
    stage.node.start().await;
    in_time(stage.taken_over().await);
    stage.node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_stays_active_and_moves_no_deadline() {
    for crashes in [false, true] {
        let mut stage = Stage::taken_over_with_a_deaf_pod().await;
        let deleted = Instant::now();
        stage.node.delete("deaf", None).await;
        stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        sleep(secs(4)).await;
        if crashes {
            stage.node.crash().await;
        } else {
            // It waits for as long as `--shutdown-timeout` says.
            assert_eq!(stage.node.stop().await, Ok(()));
        }
        sleep(secs(2)).await;
        stage.node.start().await;
        let story = stage.node.status().await.pods.terminating[0].clone();
        assert!(story.resumed.is_some() && story.elapsed_ms >= 6_000, "{story:?}");
        stage.node.nothing_left("deaf").await;
        let took = deleted.elapsed();
        assert!((secs(30)..secs(33)).contains(&took), "crashes: {crashes}, {took:?}");
    }
}

/// What may have happened while no agent looked, and whether it still goes on with its turn.
#[tokio::test(start_paused = true)]
async fn restarted_agent_is_standby_if_a_kubelet_may_have_run() {
    let cases: [(&str, bool, Happening); 7] = [
        ("nothing", true, |_| Box::pin(async {})),
        ("a long time", false, |_| Box::pin(sleep(secs(60)))),
        (
            "a kubelet that was there for long enough to renew its Lease",
            false,
            |stage| Box::pin(stage.renew()),
        ),
        ("a kubelet whose Lease was deleted afterwards", false, |stage| {
            Box::pin(async {
                assert_eq!(stage.node.admin.delete(LEASE, None).await.unwrap().code(), 200);
            })
        }),
        ("a boot", false, |stage| {
            Box::pin(async { stage.node.boot_id = "boot-2".to_owned() })
        }),
        ("a kubelet that works", false, |stage| {
            Box::pin(async { stage.returns() })
        }),
        ("an outage, which ends with the Lease as it was", true, |stage| {
            Box::pin(async { trouble(&stage.node, Fault::new(Action::Refuse).resource("leases").times(3)) })
        }),
    ];
    for (what, goes_on, happens) in cases {
        let mut stage = Stage::set().await;
        stage.dies();
        stage.taken_over().await;
        sleep(secs(20)).await;
        stage.node.crash().await;
        happens(&mut stage).await;
        stage.node.start().await;
        sleep(secs(25)).await;
        assert_eq!(stage.turn().await == "ours", goes_on, "{what}: {}", stage.turn().await);
    }
}

#[tokio::test(start_paused = true)]
async fn agent_restarted_after_a_handover_is_standby() {
    let mut stage = Stage::set().await;
    stage.dies();
    stage.taken_over().await;
    hand_back(&stage.node, secs(5)).await;
    sleep(secs(1)).await;
    stage.node.crash().await;
    stage.node.start().await;
    in_time(stage.taken_over().await);
}

#[tokio::test(start_paused = true)]
async fn api_server_outage_proves_nothing_about_the_kubelet() {
    let mut stage = Stage::set().await;
    stage.node.delete("web", None).await;
    trouble(&stage.node, Fault::new(Action::Refuse).resource("leases"));
    stage.dies();
    sleep(secs(300)).await;
    assert_eq!(stage.turn().await, "unknown");
    stage.nothing_was_touched();
    stage.node.api.faults().clear();
    in_time(stage.taken_over().await);
    // Once it is the agent's turn, an outage takes it from nobody.
    trouble(&stage.node, Fault::new(Action::Refuse).resource("leases"));
    sleep(secs(120)).await;
    assert_eq!(stage.turn().await, "ours");
    stage.node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn lease_renewed_by_an_unseen_kubelet_prevents_and_ends_the_active_role() {
    let mut stage = Stage::set().await;
    stage.node.delete("web", None).await;
    stage.dies();
    stage.renews_for(secs(300)).await;
    assert_eq!(stage.turn().await, "unseen");
    let held = stage.node.status().await.held.unwrap();
    assert!(
        held.contains("renews the Lease") && held.contains("on another machine"),
        "{held}"
    );
    stage.nothing_was_touched();
    stage.renew().await;
    in_time(stage.taken_over().await);
    stage.renew().await;
    until("the agent lets go", async || stage.turn().await != "ours").await;
}

#[tokio::test(start_paused = true)]
async fn unresponsive_kubelet_is_left_alone_and_reported() {
    let mut stage = Stage::set().await;
    stage.node.delete("web", None).await;
    until("the kubelet is said to be wedged", async || {
        stage.turn().await == "wedged"
    })
    .await;
    sleep(secs(600)).await;
    let status = stage.node.status().await;
    assert!(status.understudy.unwrap().stands_by.unwrap().contains("it is wedged"));
    let held = status.held.unwrap();
    assert!(held.contains("is wedged; mend it"), "{held}");
    stage.nothing_was_touched();
    stage.renew().await;
    until("it works again", async || stage.turn().await == "kubelet").await;
}

/// As with k3s and RKE2, whose containerd is a child process: without a runtime no pod is stopped, and nothing is lost.
#[tokio::test(start_paused = true)]
async fn runtime_that_exits_with_its_kubelet_is_waited_for_without_loss() {
    for with_kubelet in [true, false] {
        let mut stage = Stage::set().await;
        let k3s = stage.node.path("proc/4711");
        fs::write(k3s.join("comm"), "k3s-agent\n").unwrap();
        fs::write(k3s.join("cmdline"), "/usr/local/bin/k3s agent\0").unwrap();
        stage.renews_for(secs(20)).await;
        assert_eq!(stage.turn().await, "kubelet");
        stage.node.delete("web", None).await;
        stage.dies();
        stage.node.cri.stop().await;
        in_time(stage.taken_over().await);
        stage.node.failing("web", "cannot be reached").await;
        sleep(secs(600)).await;
        assert_eq!(stage.node.get("web").await.unwrap()["status"]["phase"], "Running");
        assert!(stage.node.pod_dir("web").exists());
        stage.nothing_was_touched();
        if with_kubelet {
            stage.returns();
            sleep(secs(2)).await;
            stage.node.cri.start_again().await;
            stage.renews_for(secs(60)).await;
            assert_eq!(stage.turn().await, "kubelet");
            stage.nothing_was_touched();
        } else {
            stage.node.cri.start_again().await;
            stage.node.nothing_left("web").await;
        }
    }
}

/// Each of them lives for so short a time as one whose configuration is wrong.
#[tokio::test(start_paused = true)]
async fn kubelet_that_fails_to_start_repeatedly_is_reported_unresponsive_until_stopped() {
    let mut stage = Stage::set().await;
    stage.node.delete("web", None).await;
    for round in 0..30 {
        stage.dies();
        for _ in 0..10 {
            sleep(secs(1)).await;
            let turn = stage.turn().await;
            assert!(round < 7 || turn == "wedged", "round {round}: {turn}");
        }
        stage.returns();
        sleep(secs(2)).await;
        let turn = stage.turn().await;
        assert!(round < 7 || turn == "wedged", "round {round}: {turn}");
    }
    let told = stage.node.status().await.understudy.unwrap().stands_by.unwrap();
    assert!(
        told.contains("again and again") && told.contains("systemctl stop kubelet"),
        "{told}"
    );
    stage.nothing_was_touched();
    stage.dies();
    in_time(stage.taken_over().await);
    stage.node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn agent_waits_for_the_kubelet_after_boot() {
    let mut stage = Stage::set().await;
    assert_eq!(stage.node.stop().await, Ok(()));
    stage.dies();
    stage.node.boot_id = "boot-2".to_owned();
    stage.node.booted(secs(20));
    stage.node.start().await;
    let took = stage.taken_over().await;
    assert!((secs(278)..secs(284)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn agent_that_was_suspended_has_observed_nothing() {
    let mut stage = Stage::set().await;
    stage.dies();
    stage.taken_over().await;
    stage.returns();
    until("the agent lets go", async || stage.turn().await == "kubelet").await;
    stage.dies();
    sleep(secs(30)).await;
    // As of a process that was stopped, or a machine that was moved.
    advance(secs(60)).await;
    in_time(stage.taken_over().await);
}

#[tokio::test(start_paused = true)]
async fn returning_kubelet_gets_its_node_at_once() {
    let mut stage = Stage::set().await;
    stage.dies();
    stage.taken_over().await;
    stage.returns();
    sleep(secs(2)).await;
    assert_eq!(stage.turn().await, "kubelet");
    stage.node.delete("web", None).await;
    sleep(secs(60)).await;
    stage.nothing_was_touched();
}

#[tokio::test(start_paused = true)]
async fn standby_agent_refuses_requests_without_a_kubelet() {
    let mut stage = Stage::set().await;
    stage.dies();
    until("the agent waits", async || stage.turn().await == "not-yet").await;
    let why = refused(&stage.node, "web/kill", &StopRequest::default()).await;
    assert!(why.contains("standing by"), "{why}");
}

/// Of values that say nothing, none is taken for a sign of life.
#[tokio::test(start_paused = true)]
async fn missing_lease_shows_no_kubelet() {
    let mut node = Node::with_pods(&["web"]).await;
    node.flags.pods = PodsFlag::Auto;
    node.delete("web", None).await;
    node.start().await;
    node.cri.allow_everything();
    node.nothing_left("web").await;
    let probes = node.status().await.understudy.unwrap().probes;
    let lease = probes.iter().find(|it| it.probe == "lease").unwrap();
    assert_eq!((lease.shows.as_str(), lease.seen.as_str()), ("silent", "is not there"));
}

#[tokio::test(start_paused = true)]
async fn pod_is_explained_from_the_journal_before_the_first_list() {
    let mut stage = Stage::taken_over_with_a_deaf_pod().await;
    stage.node.delete("deaf", None).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(1)).await;
    stage.node.crash().await;
    trouble(&stage.node, Fault::new(Action::Refuse));
    stage.node.launch().await;
    sleep(secs(3)).await;
    let socket = &stage.node.flags.socket.socket;
    let name = "default/deaf".parse().unwrap();
    let told = client::get::<Explanation>(socket, &question(&name))
        .await
        .unwrap_err()
        .to_string();
    assert!(told.contains("begun before") && told.contains("held: "), "{told}");
    stage.node.api.faults().clear();
    stage.node.nothing_left("deaf").await;
}
