//! Beside a kubelet: standby while it runs, takeover when it is dead, standby again when it returns.

use std::ops::{Deref, DerefMut};

use crate::prelude::*;
use pod_teardown::{handover::probes::ProbeState, ops::admin::why::request_path};

/// Default of `--take-over-after`.
const THRESHOLD: Duration = secs(45);
/// Tolerance: the interval of process probes plus the duration of requests.
const TOLERANCE: Duration = Duration::from_millis(1_200);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

/// A node with a running kubelet and a standby agent.
pub struct NodeWithKubelet {
    pub node: Node,
    process: Option<PathBuf>,
    renewals: u64,
}

impl NodeWithKubelet {
    /// With a simple pod and an agent that has seen the kubelet.
    pub async fn new() -> Self {
        let mut node = Node::with_pods(&["web"]).await;
        node.flags.mode = ModeFlag::Auto;
        let process = Some(kubelet(&node));
        let mut node = Self {
            node,
            process,
            renewals: 0,
        };
        node.renew().await;
        node.start().await;
        node.cri.allow_everything();
        node
    }

    /// The kubelet is dead, the agent is active, and "stubborn" ignores SIGTERM.
    pub async fn active_with_stubborn_pod() -> Self {
        let mut node = Self::new().await;
        node.stubborn_pod("stubborn");
        node.kubelet_exits();
        node.wait_for_takeover().await;
        node
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
            self.node.insert(lease);
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

    /// The kubelet renews its Lease until the agent sees that it works.
    pub async fn kubelet_works(&mut self) {
        while self.role().await != "kubelet-alive" {
            self.renew().await;
            sleep(secs(5)).await;
        }
    }

    /// The Lease is renewed for so long.
    pub async fn renew_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.renew().await;
            sleep(secs(10)).await;
        }
    }

    /// The kubelet dies.
    pub fn kubelet_exits(&mut self) {
        fs::remove_dir_all(self.process.take().unwrap()).unwrap();
    }

    /// The kubelet starts again.
    pub fn kubelet_starts(&mut self) {
        self.process = Some(kubelet(&self.node));
    }

    pub async fn role(&self) -> String {
        let status = self.node.status().await;
        let role = status.role.unwrap();
        role.reason
            .map_or_else(|| role.role.to_string(), |reason| reason.to_string())
    }

    /// The agent has had no effect.
    pub fn assert_untouched(&self) {
        assert_eq!(self.node.cri.effects(), Vec::new());
    }

    /// Waits for the takeover; returns how long it took.
    pub async fn wait_for_takeover(&self) -> Duration {
        let begun = Instant::now();
        wait_until!(self.role().await == "active");
        begun.elapsed()
    }
}

impl Deref for NodeWithKubelet {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl DerefMut for NodeWithKubelet {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.node
    }
}

pub fn assert_takes_threshold(took: Duration) {
    assert!((THRESHOLD - secs(1)..THRESHOLD + TOLERANCE).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn takeover_follows_the_death_of_the_kubelet_and_nothing_is_touched_before() {
    let mut node = NodeWithKubelet::new().await;
    node.delete("web", None).await;
    node.renew_for(secs(120)).await;
    assert_eq!(node.role().await, "kubelet-alive");
    node.assert_untouched();
    node.renew().await;
    node.kubelet_exits();
    assert_takes_threshold(node.wait_for_takeover().await);
    node.wait_torn_down("web").await;
    assert_eq!(node.status().await.blocked, None);
}

#[tokio::test(start_paused = true)]
async fn node_reregistered_by_its_kubelet_is_detected_before_any_effect() {
    let mut node = NodeWithKubelet::new().await;
    node.renew_for(secs(20)).await;
    node.insert(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
    node.delete("web", None).await;
    node.kubelet_exits();
    wait_held(&node, "node-uid").await;
    sleep(secs(120)).await;
    node.assert_untouched();
    approve(&node, "node-uid").await.unwrap();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_waiting_for_a_takeover_is_reported_so_only_until_then() {
    let mut node = NodeWithKubelet::new().await;
    node.stubborn_pod("stubborn");
    node.renew_for(secs(20)).await;
    node.kubelet_exits();
    node.delete("stubborn", None).await;
    sleep(secs(20)).await;
    let trace = async || node.status().await.pods.terminating[0].clone();
    let waiting = trace().await;
    // No grace was used: the container got no stop.
    assert_eq!(waiting.grace_left_ms, waiting.grace_seconds * 1000);
    assert_eq!(waiting.blocked[0].reason, BlockedReason::Guard, "{waiting:?}");
    node.wait_for_takeover().await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(1)).await;
    let begun = trace().await;
    assert!(begun.grace_left_ms < begun.grace_seconds * 1000, "{begun:?}");
    assert_eq!(begun.blocked, []);
}

#[tokio::test(start_paused = true)]
async fn orphan_is_stopped_right_after_the_takeover() {
    let mut node = NodeWithKubelet::new().await;
    node.renew_for(secs(20)).await;
    node.kubelet_exits();
    node.pod_without_object("zombie", |pod| pod.container("main"));
    // A runtime query has shown it by then.
    sleep(secs(12)).await;
    node.assert_untouched();
    node.wait_for_takeover().await;
    let since = Instant::now();
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    assert!(since.elapsed() < secs(1), "{:?}", since.elapsed());
    node.wait_torn_down("zombie").await;
}

#[tokio::test(start_paused = true)]
async fn kubelet_restart_causes_no_takeover() {
    let mut node = NodeWithKubelet::new().await;
    node.delete("web", None).await;
    for _ in 0..5 {
        node.renew().await;
        node.kubelet_exits();
        sleep(secs(30)).await;
        assert_eq!(node.role().await, "takeover-pending");
        node.kubelet_starts();
        node.renew_for(secs(20)).await;
        assert_eq!(node.role().await, "kubelet-alive");
    }
    node.assert_untouched();
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_stays_active_and_moves_no_deadline() {
    for crashes in [false, true] {
        let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
        let deleted = Instant::now();
        node.delete("stubborn", None).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        sleep(secs(4)).await;
        if crashes {
            node.crash().await;
        } else {
            // It waits for `--shutdown-timeout`.
            assert_eq!(node.stop().await, Ok(()));
        }
        sleep(secs(2)).await;
        node.start().await;
        let trace = node.status().await.pods.terminating[0].clone();
        assert!(trace.resumed.is_some() && trace.elapsed_ms >= 6_000, "{trace:?}");
        node.wait_torn_down("stubborn").await;
        let took = deleted.elapsed();
        assert!((secs(30)..secs(33)).contains(&took), "crashes: {crashes}, {took:?}");
    }
}

/// Changes without an agent, and whether the restarted agent stays active.
#[tokio::test(start_paused = true)]
async fn restarted_agent_is_standby_if_a_kubelet_may_have_run() {
    for (change, stays_active) in [
        ("nothing", true),
        ("a long time", false),
        ("a kubelet that was there for long enough to renew its Lease", false),
        ("a kubelet whose Lease was deleted afterwards", false),
        ("a boot", false),
        ("a kubelet that works", false),
        ("an outage, which ends with the Lease as it was", true),
    ] {
        let mut node = NodeWithKubelet::new().await;
        node.kubelet_exits();
        node.wait_for_takeover().await;
        sleep(secs(20)).await;
        node.crash().await;
        match change {
            "a long time" => sleep(secs(60)).await,
            "a boot" => node.boot_id = "boot-2".to_owned(),
            "a kubelet that works" => node.kubelet_starts(),
            _ if change.ends_with("renew its Lease") => node.renew().await,
            _ if change.ends_with("deleted afterwards") => drop(node.admin.delete(LEASE, None).await.unwrap()),
            _ if stays_active && change != "nothing" => {
                inject_fault(&node, Fault::new(Action::Refuse).resource("leases").times(3));
            }
            _ => {}
        }
        node.start().await;
        sleep(secs(25)).await;
        let role = node.role().await;
        assert_eq!(role == "active", stays_active, "{change}: {role}");
    }
}

#[tokio::test(start_paused = true)]
async fn agent_restarted_after_a_handover_is_standby() {
    let mut node = NodeWithKubelet::new().await;
    node.kubelet_exits();
    node.wait_for_takeover().await;
    request_handover(&node, secs(5)).await;
    sleep(secs(1)).await;
    node.restart().await;
    assert_takes_threshold(node.wait_for_takeover().await);
}

#[tokio::test(start_paused = true)]
async fn api_server_outage_proves_nothing_about_the_kubelet() {
    let mut node = NodeWithKubelet::new().await;
    node.delete("web", None).await;
    inject_fault(&node, Fault::new(Action::Refuse).resource("leases"));
    node.kubelet_exits();
    sleep(secs(300)).await;
    assert_eq!(node.role().await, "kubelet-unknown");
    node.assert_untouched();
    node.api.faults().clear();
    assert_takes_threshold(node.wait_for_takeover().await);
    // An outage does not end the active role.
    inject_fault(&node, Fault::new(Action::Refuse).resource("leases"));
    sleep(secs(120)).await;
    assert_eq!(node.role().await, "active");
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn lease_renewed_by_an_unseen_kubelet_prevents_and_ends_the_active_role() {
    let mut node = NodeWithKubelet::new().await;
    node.delete("web", None).await;
    node.kubelet_exits();
    node.renew_for(secs(300)).await;
    assert_eq!(node.role().await, "kubelet-elsewhere");
    let held = node.status().await.blocked.unwrap();
    assert_has(&held, &["the Lease is renewed", "on another machine"]);
    node.assert_untouched();
    node.renew().await;
    assert_takes_threshold(node.wait_for_takeover().await);
    node.renew().await;
    wait_until!(node.role().await != "active");
}

#[tokio::test(start_paused = true)]
async fn unresponsive_kubelet_is_left_alone_and_reported() {
    let mut node = NodeWithKubelet::new().await;
    node.delete("web", None).await;
    wait_until!(node.role().await == "kubelet-unresponsive");
    sleep(secs(600)).await;
    let status = node.status().await;
    assert!(
        status
            .role
            .unwrap()
            .message
            .unwrap()
            .contains("the kubelet is unresponsive")
    );
    let held = status.blocked.unwrap();
    assert!(held.contains("is unresponsive; repair it"), "{held}");
    node.assert_untouched();
    node.renew().await;
    wait_until!(node.role().await == "kubelet-alive");
}

/// As with k3s and RKE2, whose containerd is a child process: without a runtime no pod is stopped.
#[tokio::test(start_paused = true)]
async fn runtime_that_exits_with_its_kubelet_is_waited_for_without_loss() {
    for with_kubelet in [true, false] {
        let mut node = NodeWithKubelet::new().await;
        let k3s = node.path("proc/4711");
        fs::write(k3s.join("comm"), "k3s-agent\n").unwrap();
        fs::write(k3s.join("cmdline"), "/usr/local/bin/k3s agent\0").unwrap();
        node.renew_for(secs(20)).await;
        assert_eq!(node.role().await, "kubelet-alive");
        node.delete("web", None).await;
        node.kubelet_exits();
        node.cri.stop().await;
        assert_takes_threshold(node.wait_for_takeover().await);
        node.wait_blocked("web", "cannot be reached").await;
        sleep(secs(600)).await;
        assert_eq!(node.phase("web").await, "Running");
        assert!(node.pod_dir("web").exists());
        node.assert_untouched();
        if with_kubelet {
            node.kubelet_starts();
            sleep(secs(2)).await;
            node.cri.start_again().await;
            node.renew_for(secs(60)).await;
            assert_eq!(node.role().await, "kubelet-alive");
            node.assert_untouched();
        } else {
            node.cri.start_again().await;
            node.wait_torn_down("web").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn standby_agent_refuses_requests_without_a_kubelet() {
    let mut node = NodeWithKubelet::new().await;
    node.kubelet_exits();
    wait_until!(node.role().await == "takeover-pending");
    let why = refused(&node, "web/stop", &StopRequest::default()).await;
    assert!(why.contains("standby"), "{why}");
}

/// Empty values do not count as a renewal.
#[tokio::test(start_paused = true)]
async fn missing_lease_shows_no_kubelet() {
    let mut node = Node::with_pods(&["web"]).await;
    node.flags.mode = ModeFlag::Auto;
    node.delete("web", None).await;
    node.start().await;
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
    let probes = node.status().await.role.unwrap().probes;
    let lease = probes.iter().find(|it| it.probe == "lease").unwrap();
    assert_eq!((lease.state, lease.seen.as_str()), (ProbeState::Down, "is not there"));
}

#[tokio::test(start_paused = true)]
async fn pod_is_explained_from_the_journal_before_the_first_list() {
    let mut node = NodeWithKubelet::active_with_stubborn_pod().await;
    node.delete("stubborn", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(1)).await;
    node.crash().await;
    inject_fault(&node, Fault::new(Action::Refuse));
    node.launch().await;
    sleep(secs(3)).await;
    let answer = node
        .query::<Explanation>(&request_path("default/stubborn"))
        .await
        .unwrap_err();
    assert_has(&answer, &["an earlier run", "blocked: "]);
    node.api.faults().clear();
    node.wait_torn_down("stubborn").await;
}
