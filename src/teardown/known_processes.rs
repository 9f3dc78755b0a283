//! Processes that the runtime has named for a pod whose stop failed, and that were proven to be the pod's. They are remembered: when a
//! shim dies, the runtime reports its containers as exited, although their processes may run.

use std::time::Duration;

use super::{
    context::Context,
    journal::{KnownProcess, PodJournalExt as _},
    named_processes::NamedProcesses,
};
use crate::{
    model::{
        failure::{Failure, RUNNING},
        pod::{PodUid, PodView},
        trace::Step,
        waits_for::WaitsFor,
    },
    node::processes::Process,
};

/// A known process that runs.
#[derive(Debug, Clone)]
pub struct RunningProcess {
    /// What is known of it.
    pub known: KnownProcess,
    /// The process.
    pub process: Process,
}

/// Records the running processes that the runtime names, with proof.
pub fn record(context: &Context, uid: &PodUid, named: &NamedProcesses) {
    let boot_id = context.node.clock.boot_id();
    let known = named.all.iter().filter(|named| named.is_named).filter_map(|named| {
        let process = named.proven()?;
        Some(KnownProcess {
            what: named.what.clone(),
            pid: process.pid,
            start: process.start,
            boot_id: boot_id.to_owned(),
        })
    });
    context.journal.record_processes(uid, known.collect());
}

/// The recorded processes of this pod that run. Blocks.
///
/// # Errors
/// When one of them cannot be read.
pub fn running(context: &Context, view: &PodView) -> Result<Vec<RunningProcess>, Vec<Failure>> {
    let (proc, boot_id) = (&context.node.storage.proc, context.node.clock.boot_id());
    let mut running = Vec::new();
    for known in context.journal.processes(&view.pod.uid) {
        if known.boot_id != boot_id {
            continue;
        }
        let found = Process::find(proc, known.pid, Duration::MAX).map_err(|error| {
            let why = format!("process {} of {} cannot be read: {error}", known.pid, known.what);
            vec![Failure::new(Step::Kill, "", why)]
        })?;
        running.extend(
            found
                .filter(|process| process.start == known.start)
                .map(|process| RunningProcess { known, process }),
        );
    }
    Ok(running)
}

// === impl RunningProcess ===

impl RunningProcess {
    /// The failure of a stop after which it runs.
    pub fn failure(&self) -> Failure {
        let Self { known, process } = self;
        let why = format!(
            "the runtime reports {} as exited, and its {process} runs; it was killed with SIGKILL, and has not exited",
            known.what
        );
        let failure = Failure {
            reason: RUNNING.into(),
            ..Failure::new(Step::Kill, "", why)
        };
        failure.waiting_for([WaitsFor::Exit(known.pid)])
    }
}
