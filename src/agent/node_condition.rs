//! Reports the agent's role in the cluster: the Node's condition and events about the Node.
//!
//! It changes nothing of a pod, so it also works beside a kubelet. Nothing is sent while the Node's identity is not proven.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{ApiClient, ApiError},
    clock::WallClock,
    events::Events,
    handover::{
        cluster::read_node,
        condition::{RoleCondition, reported_event},
        guard::Guard,
        report::RoleReport,
    },
    model::event::Reason,
    node::effects::Gate as _,
    tasks::{finish_or_abort, run_with_restarts, spawn},
};

/// How often the role is compared with the condition.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How often an unchanged condition is sent again, as the kubelet does with its own conditions.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(300);
/// Minimum time between two messages of one reason. A message may contain a number that changes at each check.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time for the last report, and for the last events.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports the role in the cluster.
pub struct NodeConditionReporter {
    /// May write while effects on pods are blocked; see [`Guard::node_effects`].
    pub api: ApiClient,
    /// Knows whether the agent may act.
    pub guard: Guard,
    /// Records events about the Node.
    pub events: Events,
    /// The role; `None` with `--mode always`.
    pub role: Option<watch::Sender<RoleReport>>,
    /// For timestamps.
    pub wall: WallClock,
}

/// What was sent last.
#[derive(Default)]
struct Sent {
    condition: Option<(RoleCondition, Instant)>,
    /// Why the last attempt failed.
    failure: Option<String>,
    /// `None` until the condition in the API was read.
    event: Option<Option<Reason>>,
}

// === impl NodeConditionReporter ===

impl NodeConditionReporter {
    /// Reports each change until it is stopped, and then that the agent stops. Failures are retried; the last report and the last
    /// events are best effort.
    pub async fn run(self, stop: CancellationToken, event_sender: impl Future<Output = ()> + Send + 'static) {
        let event_sender = spawn(event_sender);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = run_with_restarts("node condition", || self.report_changes()) => {}
        }
        let mut sent = Sent::default();
        let stopped = self.send(RoleCondition::stopped(), &mut sent);
        timeout(STOP_TIMEOUT, stopped).await.ok();
        drop(self);
        finish_or_abort(event_sender, STOP_TIMEOUT).await;
    }

    async fn report_changes(&self) {
        let mut sent = Sent::default();
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let role = self.role.as_ref().map(|role| role.borrow().clone());
            let blocked = self.guard.check().err().map(|blocked| blocked.to_string());
            let paused = self.guard.paused().map(|paused| paused.why());
            let condition = RoleCondition::new(role.as_ref(), blocked.as_deref(), paused.as_deref());
            let is_current = |(last, at): &(RoleCondition, Instant)| {
                let interval = match last.message == condition.message {
                    true => HEARTBEAT_INTERVAL,
                    false => MESSAGE_INTERVAL,
                };
                (last.status, last.reason) == (condition.status, condition.reason) && at.elapsed() < interval
            };
            if self.guard.identity.check().is_err() || sent.condition.as_ref().is_some_and(is_current) {
                continue;
            }
            let result = self.send(condition, &mut sent).await;
            let failure = result.err().map(|error| error.to_string());
            // A failure that repeats at each tick is logged once.
            if let Some(error) = failure.as_ref().filter(|error| sent.failure.as_ref() != Some(error)) {
                tracing::warn!(error, "Condition of the Node cannot be sent; will retry");
            }
            sent.failure = failure;
        }
    }

    async fn send(&self, condition: RoleCondition, sent: &mut Sent) -> Result<(), ApiError> {
        let node = read_node(&self.guard, &self.api).await?;
        let before = *sent.event.get_or_insert_with(|| reported_event(&node));
        let patch = condition.patch(&node, self.wall.now());
        self.api.patch_node_status(&patch).await?;
        if let Some(reason) = condition.event().filter(|reason| before != Some(*reason)) {
            self.events.record(&involved(&node), reason, &condition.message);
            sent.event = Some(Some(reason));
        }
        sent.condition = Some((condition, Instant::now()));
        Ok(())
    }
}

fn involved(node: &Node) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: node.metadata.name.clone(),
        uid: node.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
