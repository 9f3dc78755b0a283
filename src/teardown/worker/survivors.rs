//! After the stop: nothing of the pod runs before its devices, its status and its volumes follow. A runtime whose shim has died
//! reports what it ran as exited.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::Worker;
use crate::{
    model::{
        event::Reason,
        failure::{Failure, ok_if_empty},
        pod::PodView,
        trace::Step,
    },
    node::{cri::types::RuntimePod, processes::Process},
    teardown::{
        evidence::{self, Survivors},
        known_processes::RunningProcess,
    },
};

/// Most processes that are left have got their SIGKILL, and exit within this time.
const EXIT_TIME: Duration = Duration::from_millis(200);
/// Longest wait for the exit of what this agent has killed.
const KILL_TIME: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

impl Worker {
    /// Kills what the runtime reports as exited and runs all the same, and waits for its exit.
    ///
    /// # Errors
    /// What still runs.
    pub(super) async fn check_nothing_runs(
        &self,
        view: &Arc<PodView>,
        stopped: &Arc<RuntimePod>,
    ) -> Result<(), Vec<Failure>> {
        let (began, mut killed_at) = (Instant::now(), None);
        loop {
            let runtime_pod = Arc::clone(stopped);
            let left = self.on_node(view, Step::Cgroup, move |context, view| {
                evidence::survivors(context, view, &runtime_pod)
            });
            let left = left.await?;
            if left.is_empty() {
                return Ok(());
            }
            match killed_at {
                None if began.elapsed() < EXIT_TIME => {}
                None => {
                    self.kill_survivors_of_stop(view, &left).await?;
                    killed_at = Some(Instant::now());
                }
                Some(at) if at.elapsed() < KILL_TIME => {}
                Some(_) => return Err(left.failures()),
            }
            sleep(POLL).await;
        }
    }

    async fn kill_survivors_of_stop(&self, view: &PodView, left: &Survivors) -> Result<(), Vec<Failure>> {
        let why = left.text();
        tracing::warn!(why, "Killing processes of exited containers");
        let message = format!("{why}; killed with SIGKILL");
        self.context.events.event(view, None, Reason::ProcessesKilled, &message);
        if left.in_cgroups {
            let _ = self.kill_survivors(view).await?;
        }
        let processes = left.known.iter().map(|it| it.process.clone()).collect();
        let faults = self.kill_each(view, processes, Process::kill_proven).await;
        ok_if_empty(faults.iter().map(|fault| fault.failure(Step::Kill)).collect())
    }
}

// === impl Survivors ===

impl Survivors {
    fn is_empty(&self) -> bool {
        !self.in_cgroups && self.known.is_empty()
    }

    fn text(&self) -> String {
        let known = self
            .known
            .iter()
            .map(|it| format!("{} still runs as {}", it.known.what, it.process));
        let cgroups = "processes are still in its cgroups".to_owned();
        let all = known.chain(self.in_cgroups.then_some(cgroups));
        format!(
            "the runtime reports the pod as exited, but {}",
            all.collect::<Vec<_>>().join(", ")
        )
    }

    fn failures(&self) -> Vec<Failure> {
        let cgroups = self.in_cgroups.then(|| {
            let why = "processes are in the cgroups of the pod, were killed with SIGKILL, and have not exited";
            Failure::new(Step::Kill, "", why)
        });
        let known = self.known.iter().map(RunningProcess::failure);
        known.chain(cgroups).collect()
    }
}
