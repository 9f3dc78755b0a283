//! What answers on the admin socket are made of.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::watch, time::timeout};

use super::{
    collector::CollectorAdmin,
    respond::{Refused, agent_stopping, unavailable},
};
use crate::{
    api::ApiClient,
    clock::BootClock,
    counters::{Counters, Counts},
    handover::{guard::Guard, report::RoleReport},
    housekeeping::LeftoverReport,
    journal::Journal,
    model::blocked::Blocked,
    node::{cri::CallDurations, effects::Gate as _, runtime::RuntimeReport},
    ops::{logging, status::StatusReport},
    teardown::{context::Context, diagnosis::facts::TerminatedBy},
    watch::WatchReport,
    workers::{Overview, PodRequests, WorkersHandle},
};

/// Shorter than the timeout of the client.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// Answers requests on the admin socket.
pub struct Admin {
    /// The node's name.
    pub node: String,
    /// When the agent was started.
    pub since: Timestamp,
    /// For requests about pods; `None` with `--mode never`.
    pub pods: Option<PodsAdmin>,
    /// For requests about the collector; `None` if this agent has none.
    pub gc: Option<CollectorAdmin>,
}

/// Answers requests about pods, by what the agent's tasks share.
#[derive(Clone)]
pub struct PodsAdmin {
    /// State of the container runtime.
    pub runtime: watch::Sender<RuntimeReport>,
    /// Decides whether the agent may act.
    pub guard: Guard,
    /// The clock of this boot.
    pub clock: BootClock,
    /// State of the watch.
    pub watch: watch::Sender<WatchReport>,
    /// Leftovers of deleted pods on this node.
    pub leftovers: watch::Sender<LeftoverReport>,
    /// The role; `None` without `--mode auto`.
    pub role: Option<watch::Sender<RoleReport>>,
    /// How long a handover is valid while no kubelet is seen.
    pub handover_validity: Duration,
    /// The pod workers.
    pub workers: WorkersHandle,
    /// The journal.
    pub journal: Journal,
    /// Counters since the start.
    pub counters: Arc<Counters>,
    /// Durations of calls to the container runtime.
    pub runtime_calls: CallDurations,
    /// The API client, once it exists.
    pub api: Arc<OnceLock<ApiClient>>,
    /// The node and the cluster for reads, once the runtime was reached.
    pub reader: Arc<OnceLock<Arc<Context>>>,
}

// === impl Admin ===

impl Admin {
    /// The status of the agent; `None` while it stops.
    pub async fn report(&self) -> Option<StatusReport> {
        let mut report = StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            since: self.since,
            node: self.node.clone(),
            log_lines_dropped: logging::dropped(),
            panics: logging::panics(),
            takes_pods: self.pods.is_some(),
            collector: self.gc.as_ref().map(CollectorAdmin::summary),
            ..StatusReport::default()
        };
        if let Some(pods) = &self.pods {
            pods.add_to(&mut report).await?;
        }
        Some(report)
    }
}

// === impl PodsAdmin ===

impl PodsAdmin {
    /// Waits for an answer of the pod workers. A command whose answer was not awaited has no effect.
    ///
    /// # Errors
    /// When the runtime was never reached, the agent stops, or there is no answer within [`ANSWER_TIMEOUT`].
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut dyn PodRequests) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        // The workers answer once the runtime has been reached.
        let RuntimeReport { version, error } = self.runtime.borrow().clone();
        if version.is_none() {
            let why = error.map_or_else(String::new, |error| format!(": {error}"));
            let why = format!("the container runtime has not been reached yet{why}");
            return Err(unavailable(why));
        }
        let answer = timeout(ANSWER_TIMEOUT, self.workers.ask(request)).await;
        let late = format!("the agent did not answer within {ANSWER_TIMEOUT:?}; see its log");
        answer.map_err(|_| unavailable(late))?.ok_or_else(agent_stopping)
    }

    /// The process that terminates the pods of this node now.
    pub(super) fn terminated_by(&self) -> TerminatedBy {
        let guard = &self.guard;
        match (guard.kubelet.kubelet(), guard.check_new()) {
            (Some(kubelet), Err(_)) if !guard.kubelet.has_fault() => {
                let role = self.role.as_ref().map(|role| role.borrow());
                let expired = role.as_ref().and_then(|role| role.certificate_expired);
                let why = expired.map_or_else(String::new, |expired| {
                    format!(", which the API server refuses: its client certificate has expired ({expired:.0})")
                });
                TerminatedBy::Kubelet(format!("pid {}{why}", kubelet.pid))
            }
            (_, Err(Blocked::Paused(paused))) => TerminatedBy::Paused(paused.why()),
            (_, Err(blocked)) => TerminatedBy::Blocked(self.with_kubelet_unit(&blocked.to_string())),
            (_, Ok(())) => TerminatedBy::Agent,
        }
    }

    /// Why the agent may not act, and why the kubelet does not work, if its unit shows that.
    pub(super) fn with_kubelet_unit(&self, why: &str) -> String {
        let role = self.role.as_ref().map(|role| role.borrow());
        let unit = role.as_ref().and_then(|role| role.kubelet_unit.as_ref());
        unit.map_or_else(|| why.to_owned(), |unit| format!("{why}; {}", unit.details()))
    }

    /// The terminating pods; `None` while the agent stops. Before the runtime has been reached, the workers do not answer, and no pod
    /// terminates.
    pub(super) async fn overview(&self) -> Option<Overview> {
        let is_reached = self.runtime.borrow().version.is_some();
        match is_reached {
            true => self.workers.ask(|pods| pods.overview()).await,
            false => Some(Overview::default()),
        }
    }

    /// Adds the status of pods; `None` while the agent stops.
    async fn add_to(&self, report: &mut StatusReport) -> Option<()> {
        report.runtime = self.runtime.borrow().clone();
        report.pods = self.overview().await?;
        let trouble = self.journal.trouble();
        let blocked = self.guard.check().err();
        report.blocked_by = blocked.as_ref().map(Blocked::kind);
        report.blocked = blocked.map(|blocked| blocked.to_string());
        report.node_uid_mismatch = self.guard.identity.other_uid().is_some();
        report.paused = self.guard.paused();
        report.credentials_expire = self.api.get().and_then(ApiClient::credentials_expiry);
        report.role = self.role.as_ref().map(|role| role.borrow().clone());
        report.watch = self.watch.borrow().clone();
        // A query for a single pod can find out between two lists.
        let hold = self.guard.absence.hold_reason();
        report.watch.absence_hold = hold.or_else(|| report.watch.absence_hold.take());
        report.housekeeping = self.leftovers.borrow().clone();
        report.journal_error = trouble.error.map(|error| error.to_string());
        let quarantined = self.journal.quarantined();
        report.quarantined_files = quarantined.iter().map(|path| path.display().to_string()).collect();
        let commits = self.journal.commit_durations();
        report.counters = Counts {
            journal_writes_failed: trouble.failed,
            journal_commits: commits.count(),
            journal_commits_us: u64::try_from(Duration::from_secs_f64(commits.sum()).as_micros()).unwrap_or(u64::MAX),
            ..self.counters.counts()
        };
        Some(())
    }
}
