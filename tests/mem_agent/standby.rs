//! Beside a kubelet: standby while it runs, takeover when it is dead, standby again when it returns.

use std::{fs, path::PathBuf, pin::Pin, time::Duration};

use pod_teardown::{
    cli::ModeFlag,
    explanation::Explanation,
    handover::probes::ProbeState,
    model::trace::BlockedReason,
    ops::{
        admin::{stop::StopRequest, why::request_path},
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
    handover::request_handover,
    node::{NODE, Node, secs, wait_until},
    pods::{plain, uid},
    safety_holds::{approve, wait_held},
    server::inject_fault,
    stop_requests::refused,
};

/// Default of `--take-over-after`.
const THRESHOLD: Duration = secs(45);
/// Tolerance: the interval of process probes plus the duration of requests.
const TOLERANCE: Duration = Duration::from_millis(1_200);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

/// A change of the node with its kubelet.
type StageChange = fn(&mut NodeWithKubelet) -> Pin<Box<dyn Future<Output = ()> + '_>>;

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

    /// The kubelet is dead, the agent is active, and "stubborn" ignores SIGTERM.
    pub async fn active_with_stubborn_pod() -> Self {
        let mut stage = Self::new().await;
        stage
            .node
            .pod("stubborn", &plain(), |pod| drop(pod.container("main").ignores_term()));
        stage.kubelet_exits();
        stage.wait_for_takeover().await;
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
        wait_until("the agent takes over", async || self.role().await == "active").await;
        begun.elapsed()
    }
}

pub fn assert_takes_threshold(took: Duration) {
    assert!((THRESHOLD - secs(1)..THRESHOLD + TOLERANCE).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn takeover_follows_the_death_of_the_kubelet_and_nothing_is_touched_before() {
    let mut stage = NodeWithKubelet::new().await;
    stage.node.delete("web", None).await;
    stage.renew_for(secs(120)).await;
    assert_eq!(stage.role().await, "kubelet-alive");
    stage.assert_untouched();
    stage.renew().await;
    stage.kubelet_exits();
    assert_takes_threshold(stage.wait_for_takeover().await);
    stage.node.wait_torn_down("web").await;
    assert_eq!(stage.node.status().await.blocked, None);
}

#[tokio::test(start_paused = true)]
async fn pods_without_objects_are_stopped_first() {
    let mut stage = NodeWithKubelet::new().await;
    let names = ["db", "web-0", "web-1"];
    names.iter().for_each(|name| stage.node.simple_pod(name));
    stage.node.pod("zombie", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(secs(1), 0));
    });
    stage.renew_for(secs(20)).await;
    stage.kubelet_exits();
    for name in names {
        stage.node.delete(name, None).await;
    }
    // A user starts another pod that writes to the same volume.
    stage.node.delete("zombie", Some(0)).await;
    stage.wait_for_takeover().await;
    let stops = stage.node.calls(4, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(&*stops[0].1.pod_uid, uid("zombie"));
    assert!(
        stops[1..].iter().all(|(at, _)| *at >= stops[0].0 + secs(1)),
        "{stops:?}"
    );
    for name in names.into_iter().chain(["zombie"]) {
        stage.node.wait_torn_down(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_waited_for_the_takeover_are_cleaned_up_after_the_stops_of_others() {
    let mut stage = NodeWithKubelet::new().await;
    stage.node.pod("slow", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(Duration::from_millis(500), 0));
    });
    stage.renew_for(secs(20)).await;
    stage.kubelet_exits();
    for name in ["web", "slow"] {
        stage.node.delete(name, None).await;
    }
    stage.wait_for_takeover().await;
    for name in ["web", "slow"] {
        stage.node.wait_torn_down(name).await;
    }
    let effects = stage.node.cri.effects();
    let first = |kind| effects.iter().position(|(_, seen)| seen.kind == kind);
    let last_stop = effects.iter().rposition(|(_, seen)| seen.kind == Kind::StopPodSandbox);
    assert!(first(Kind::RemoveContainer) > last_stop, "{effects:?}");
}

#[tokio::test(start_paused = true)]
async fn node_reregistered_by_its_kubelet_is_detected_before_any_effect() {
    let mut stage = NodeWithKubelet::new().await;
    stage.renew_for(secs(20)).await;
    stage
        .node
        .insert(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
    stage.node.delete("web", None).await;
    stage.kubelet_exits();
    wait_held(&stage.node, "node-uid").await;
    sleep(secs(120)).await;
    stage.assert_untouched();
    approve(&stage.node, "node-uid").await.unwrap();
    stage.node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_waiting_for_a_takeover_is_reported_so_only_until_then() {
    let mut stage = NodeWithKubelet::new().await;
    stage
        .node
        .pod("stubborn", &plain(), |pod| drop(pod.container("main").ignores_term()));
    stage.renew_for(secs(20)).await;
    stage.kubelet_exits();
    stage.node.delete("stubborn", None).await;
    sleep(secs(20)).await;
    let trace = async || stage.node.status().await.pods.terminating[0].clone();
    let waiting = trace().await;
    // No grace was used: the container got no stop.
    assert_eq!(waiting.grace_left_ms, waiting.grace_seconds * 1000);
    assert_eq!(waiting.blocked[0].reason, BlockedReason::Guard, "{waiting:?}");
    stage.wait_for_takeover().await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(1)).await;
    let begun = trace().await;
    assert!(begun.grace_left_ms < begun.grace_seconds * 1000, "{begun:?}");
    assert_eq!(begun.blocked, []);
}

#[tokio::test(start_paused = true)]
async fn orphan_is_stopped_right_after_the_takeover() {
    let mut stage = NodeWithKubelet::new().await;
    stage.renew_for(secs(20)).await;
    stage.kubelet_exits();
    stage
        .node
        .pod_without_object("zombie", |pod| drop(pod.container("main")));
    // A runtime query has shown it by then.
    sleep(secs(12)).await;
    stage.assert_untouched();
    stage.wait_for_takeover().await;
    let since = Instant::now();
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    assert!(since.elapsed() < secs(1), "{:?}", since.elapsed());
    stage.node.wait_torn_down("zombie").await;
}

#[tokio::test(start_paused = true)]
async fn kubelet_restart_causes_no_takeover() {
    let mut stage = NodeWithKubelet::new().await;
    stage.node.delete("web", None).await;
    for _ in 0..5 {
        stage.renew().await;
        stage.kubelet_exits();
        sleep(secs(30)).await;
        assert_eq!(stage.role().await, "takeover-pending");
        stage.kubelet_starts();
        stage.renew_for(secs(20)).await;
        assert_eq!(stage.role().await, "kubelet-alive");
    }
    stage.assert_untouched();
}

#[tokio::test(start_paused = true)]
async fn agent_started_without_a_kubelet_waits_for_the_whole_threshold() {
    let mut stage = NodeWithKubelet::new().await;
    stage.kubelet_exits();
    sleep(secs(30)).await;
    assert_eq!(stage.node.stop().await, Ok(()));
    stage.node.delete("web", None).await;
    stage.node.start().await;
    assert_takes_threshold(stage.wait_for_takeover().await);
    stage.node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_stays_active_and_moves_no_deadline() {
    for crashes in [false, true] {
        let mut stage = NodeWithKubelet::active_with_stubborn_pod().await;
        let deleted = Instant::now();
        stage.node.delete("stubborn", None).await;
        stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
        sleep(secs(4)).await;
        if crashes {
            stage.node.crash().await;
        } else {
            // It waits for `--shutdown-timeout`.
            assert_eq!(stage.node.stop().await, Ok(()));
        }
        sleep(secs(2)).await;
        stage.node.start().await;
        let trace = stage.node.status().await.pods.terminating[0].clone();
        assert!(trace.resumed.is_some() && trace.elapsed_ms >= 6_000, "{trace:?}");
        stage.node.wait_torn_down("stubborn").await;
        let took = deleted.elapsed();
        assert!((secs(30)..secs(33)).contains(&took), "crashes: {crashes}, {took:?}");
    }
}

/// Changes without an agent, and whether the restarted agent stays active.
#[tokio::test(start_paused = true)]
async fn restarted_agent_is_standby_if_a_kubelet_may_have_run() {
    let cases: [(&str, bool, StageChange); 7] = [
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
            Box::pin(async { stage.kubelet_starts() })
        }),
        ("an outage, which ends with the Lease as it was", true, |stage| {
            Box::pin(async { inject_fault(&stage.node, Fault::new(Action::Refuse).resource("leases").times(3)) })
        }),
    ];
    for (what, stays_active, happens) in cases {
        let mut stage = NodeWithKubelet::new().await;
        stage.kubelet_exits();
        stage.wait_for_takeover().await;
        sleep(secs(20)).await;
        stage.node.crash().await;
        happens(&mut stage).await;
        stage.node.start().await;
        sleep(secs(25)).await;
        assert_eq!(
            stage.role().await == "active",
            stays_active,
            "{what}: {}",
            stage.role().await
        );
    }
}

#[tokio::test(start_paused = true)]
async fn agent_restarted_after_a_handover_is_standby() {
    let mut stage = NodeWithKubelet::new().await;
    stage.kubelet_exits();
    stage.wait_for_takeover().await;
    request_handover(&stage.node, secs(5)).await;
    sleep(secs(1)).await;
    stage.node.crash().await;
    stage.node.start().await;
    assert_takes_threshold(stage.wait_for_takeover().await);
}

#[tokio::test(start_paused = true)]
async fn api_server_outage_proves_nothing_about_the_kubelet() {
    let mut stage = NodeWithKubelet::new().await;
    stage.node.delete("web", None).await;
    inject_fault(&stage.node, Fault::new(Action::Refuse).resource("leases"));
    stage.kubelet_exits();
    sleep(secs(300)).await;
    assert_eq!(stage.role().await, "kubelet-unknown");
    stage.assert_untouched();
    stage.node.api.faults().clear();
    assert_takes_threshold(stage.wait_for_takeover().await);
    // An outage does not end the active role.
    inject_fault(&stage.node, Fault::new(Action::Refuse).resource("leases"));
    sleep(secs(120)).await;
    assert_eq!(stage.role().await, "active");
    stage.node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn lease_renewed_by_an_unseen_kubelet_prevents_and_ends_the_active_role() {
    let mut stage = NodeWithKubelet::new().await;
    stage.node.delete("web", None).await;
    stage.kubelet_exits();
    stage.renew_for(secs(300)).await;
    assert_eq!(stage.role().await, "kubelet-elsewhere");
    let held = stage.node.status().await.blocked.unwrap();
    assert!(
        held.contains("renews the Lease") && held.contains("on another machine"),
        "{held}"
    );
    stage.assert_untouched();
    stage.renew().await;
    assert_takes_threshold(stage.wait_for_takeover().await);
    stage.renew().await;
    wait_until("the agent is standby", async || stage.role().await != "active").await;
}

#[tokio::test(start_paused = true)]
async fn unresponsive_kubelet_is_left_alone_and_reported() {
    let mut stage = NodeWithKubelet::new().await;
    stage.node.delete("web", None).await;
    wait_until("the kubelet is reported unresponsive", async || {
        stage.role().await == "kubelet-unresponsive"
    })
    .await;
    sleep(secs(600)).await;
    let status = stage.node.status().await;
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
    stage.assert_untouched();
    stage.renew().await;
    wait_until("the kubelet works again", async || {
        stage.role().await == "kubelet-alive"
    })
    .await;
}

/// As with k3s and RKE2, whose containerd is a child process: without a runtime no pod is stopped.
#[tokio::test(start_paused = true)]
async fn runtime_that_exits_with_its_kubelet_is_waited_for_without_loss() {
    for with_kubelet in [true, false] {
        let mut stage = NodeWithKubelet::new().await;
        let k3s = stage.node.path("proc/4711");
        fs::write(k3s.join("comm"), "k3s-agent\n").unwrap();
        fs::write(k3s.join("cmdline"), "/usr/local/bin/k3s agent\0").unwrap();
        stage.renew_for(secs(20)).await;
        assert_eq!(stage.role().await, "kubelet-alive");
        stage.node.delete("web", None).await;
        stage.kubelet_exits();
        stage.node.cri.stop().await;
        assert_takes_threshold(stage.wait_for_takeover().await);
        stage.node.wait_blocked("web", "cannot be reached").await;
        sleep(secs(600)).await;
        assert_eq!(stage.node.get("web").await.unwrap()["status"]["phase"], "Running");
        assert!(stage.node.pod_dir("web").exists());
        stage.assert_untouched();
        if with_kubelet {
            stage.kubelet_starts();
            sleep(secs(2)).await;
            stage.node.cri.start_again().await;
            stage.renew_for(secs(60)).await;
            assert_eq!(stage.role().await, "kubelet-alive");
            stage.assert_untouched();
        } else {
            stage.node.cri.start_again().await;
            stage.node.wait_torn_down("web").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn agent_waits_for_the_kubelet_after_boot() {
    let mut stage = NodeWithKubelet::new().await;
    assert_eq!(stage.node.stop().await, Ok(()));
    stage.kubelet_exits();
    stage.node.boot_id = "boot-2".to_owned();
    stage.node.set_uptime(secs(20));
    stage.node.start().await;
    let took = stage.wait_for_takeover().await;
    assert!((secs(278)..secs(284)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn agent_that_was_suspended_has_observed_nothing() {
    let mut stage = NodeWithKubelet::new().await;
    stage.kubelet_exits();
    stage.wait_for_takeover().await;
    stage.kubelet_starts();
    stage.kubelet_works().await;
    stage.kubelet_exits();
    sleep(secs(30)).await;
    // As a stopped process or a migrated virtual machine.
    advance(secs(60)).await;
    assert_takes_threshold(stage.wait_for_takeover().await);
}

#[tokio::test(start_paused = true)]
async fn returning_kubelet_gets_its_node_at_once() {
    let mut stage = NodeWithKubelet::new().await;
    stage.kubelet_exits();
    stage.wait_for_takeover().await;
    stage.kubelet_starts();
    sleep(secs(2)).await;
    assert_eq!(stage.role().await, "kubelet-started");
    stage.node.delete("web", None).await;
    sleep(secs(60)).await;
    stage.assert_untouched();
}

#[tokio::test(start_paused = true)]
async fn standby_agent_refuses_requests_without_a_kubelet() {
    let mut stage = NodeWithKubelet::new().await;
    stage.kubelet_exits();
    wait_until("the agent waits for the threshold", async || {
        stage.role().await == "takeover-pending"
    })
    .await;
    let why = refused(&stage.node, "web/stop", &StopRequest::default()).await;
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
    let mut stage = NodeWithKubelet::active_with_stubborn_pod().await;
    stage.node.delete("stubborn", None).await;
    stage.node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    sleep(secs(1)).await;
    stage.node.crash().await;
    inject_fault(&stage.node, Fault::new(Action::Refuse));
    stage.node.launch().await;
    sleep(secs(3)).await;
    let socket = &stage.node.flags.socket.socket;
    let answer = client::get::<Explanation>(socket, &request_path("default/stubborn"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        answer.contains("an earlier run") && answer.contains("blocked: "),
        "{answer}"
    );
    stage.node.api.faults().clear();
    stage.node.wait_torn_down("stubborn").await;
}
