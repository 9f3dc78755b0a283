//! After the stop: nothing of the pod runs before its devices, its status and its volumes follow. A runtime whose shim has died
//! reports what it ran as exited.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::overrule;
use crate::{
    model::{
        event::Reason,
        failure::{Failure, RUNNING, ok_if_empty},
        pod::PodView,
        trace::Step,
    },
    teardown::{
        attempt::{Attempt, Worker},
        evidence::{self, Survivors},
        locate,
    },
};

/// Most processes that are left have got their SIGKILL, and exit within this time.
const EXIT_TIME: Duration = Duration::from_millis(200);
/// Longest wait for the exit of what this agent has killed.
const KILL_TIME: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

/// Kills what the runtime reports as exited and runs all the same, and waits for its exit.
///
/// # Errors
/// What still runs.
pub async fn run(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (worker, view) = (attempt.worker, attempt.view());
    let (began, mut killed_at) = (Instant::now(), None);
    loop {
        let stopped = Arc::clone(&attempt.stopped.pod);
        let read = move |context: &_, view: &_| evidence::survivors(context, view, &stopped);
        let left = worker.on_node(view, Step::Cgroup, read).await?;
        if left.is_empty() {
            return Ok(());
        }
        match killed_at {
            None if began.elapsed() < EXIT_TIME => {}
            None => {
                kill(worker, view, &left).await?;
                killed_at = Some(Instant::now());
            }
            Some(at) if at.elapsed() < KILL_TIME => {}
            Some(_) => return Err(left.failures()),
        }
        sleep(POLL).await;
    }
}

async fn kill(worker: &Worker, view: &Arc<PodView>, left: &Survivors) -> Result<(), Vec<Failure>> {
    let why = left.text();
    tracing::warn!(why, "Killing processes of exited containers");
    let message = format!("{why}; killed with SIGKILL");
    let events = &worker.context.events;
    events.event(view, None, Reason::ProcessesKilled, &message);
    if left.in_cgroups {
        ok_if_empty(locate::kill_cgroups(worker, view).await.1)?;
    }
    let processes = left.known.iter().map(|(_, process)| process.clone()).collect();
    ok_if_empty(overrule::kill_each(worker, view, processes, None).await)
}

// === impl Survivors ===

impl Survivors {
    fn is_empty(&self) -> bool {
        !self.in_cgroups && self.known.is_empty()
    }

    fn text(&self) -> String {
        let known = self.known.iter();
        let known = known.map(|(what, process)| format!("{what} still runs as {process}"));
        let cgroups = "processes are still in its cgroups".to_owned();
        let all: Vec<_> = known.chain(self.in_cgroups.then_some(cgroups)).collect();
        format!("the runtime reports the pod as exited, but {}", all.join(", "))
    }

    fn failures(&self) -> Vec<Failure> {
        let cgroups = self.in_cgroups.then(|| {
            let why = "processes are in the cgroups of the pod, were killed with SIGKILL, and have not exited";
            Failure::new(Step::Kill, "", why)
        });
        let known = self.known.iter().map(|(what, process)| {
            let why = format!(
                "the runtime reports {what} as exited, and its {process} runs; it was killed with SIGKILL, and has not exited"
            );
            let failure = Failure::new(Step::Kill, "", why).with_reason(RUNNING);
            let holders = vec![process.pid];
            Failure { holders, ..failure }
        });
        known.chain(cgroups).collect()
    }
}
