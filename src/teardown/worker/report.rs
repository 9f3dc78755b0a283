//! Reports the failures of an attempt: log, counters, events, trace. Before that it adds the pods of the processes that they name.

use std::{collections::BTreeMap, time::Duration};

use strum::VariantArray as _;
use tokio::time::Instant;

use crate::{
    clock::rounded,
    model::{
        event::Reason,
        failure::Failure,
        pod::PodView,
        trace::{Obstacle, Step},
    },
    node::process_pod::pod_of,
    teardown::{NOT_KILLED, attempt::Worker, boundary::Counted},
};

/// A pod is reported as blocked if an attempt fails so long after the grace period.
const BLOCKED_AFTER: Duration = Duration::from_secs(30);

impl Worker {
    /// Adds the pods of the processes that have to exit first.
    pub(super) async fn complete(&self, mut failures: Vec<Failure>) -> Vec<Failure> {
        let pids: Vec<_> = failures.iter().flat_map(|failure| failure.holders.clone()).collect();
        if pids.is_empty() {
            return failures;
        }
        let node = &self.context.node;
        let (proc, logs) = (node.storage.proc.clone(), node.pod_logs_dir.clone());
        let find = move || {
            let pod = |pid| Some((pid, pod_of(&proc, &logs, pid)?));
            pids.into_iter().filter_map(pod).collect::<BTreeMap<_, _>>()
        };
        let pods = node.reads.run_blocking(find).await.unwrap_or_default();
        for Failure { holders, cause, .. } in &mut failures {
            for (pid, pod) in holders.iter().filter_map(|pid| pods.get_key_value(pid)) {
                *cause += &format!("; process {pid} belongs to pod {pod}");
            }
        }
        failures
    }

    /// The next attempt begins after `pause` at the latest.
    pub(super) fn report(&self, view: &PodView, failures: &[Failure], pause: Duration) {
        self.context.events.count(Counted::AttemptFailed(failures));
        for failure in failures {
            tracing::warn!(step = %failure.step, what = (!failure.what.is_empty()).then_some(failure.what.as_str()), cause = failure.cause, retry_in = ?rounded(pause), "Teardown step failed; will retry");
        }
        let failures_in = |steps: &[Step]| {
            let failures = failures.iter().filter(|failure| steps.contains(&failure.step));
            failures.map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let stop = failures_in(&[Step::Term, Step::Kill, Step::Sandbox, Step::Devices, Step::Cgroup]);
        self.send_event(view, Reason::FailedKillPod, NOT_KILLED, &stop);
        if self.recorder.exceeds_grace_period() {
            let late = "the runtime has not killed the pod within its grace period";
            self.send_event(view, Reason::ExceededGracePeriod, late, &stop);
        }
        let volumes = failures_in(&[Step::Volumes]);
        self.send_event(view, Reason::FailedUnMount, "error tearing down volumes", &volumes);
        if Instant::now() > self.period.deadline() + BLOCKED_AFTER {
            let all = failures_in(Step::VARIANTS);
            self.send_event(view, Reason::TeardownBlocked, "the pod does not terminate", &all);
        }
        let retry_at = self.context.node.clock.now().wall.checked_add(pause).ok();
        let blocked = |failure| Obstacle {
            retry_at,
            ..Obstacle::from(failure)
        };
        let mismatch = |failure: &Failure| Some((failure.mismatch.clone()?, failure.to_string()));
        self.recorder.set_mismatch(failures.iter().find_map(mismatch));
        self.recorder.set_blocked(failures.iter().map(blocked).collect());
    }

    /// Nothing blocks the pod.
    pub(super) fn clear_blocked(&self) {
        self.recorder.set_blocked(Vec::new());
        self.recorder.set_mismatch(None);
    }

    fn send_event(&self, view: &PodView, reason: Reason, what: &str, failures: &str) {
        if !failures.is_empty() {
            let message = format!("{what}: {failures}");
            self.context.events.event(view, None, reason, &message);
        }
    }
}
