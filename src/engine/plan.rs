//! Plans a termination without changes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    model::{
        failure::{self, Failure},
        pod::PodView,
        problem::Problem,
        trace::Step,
    },
    teardown::{
        context::Context,
        evidence,
        grace::{self, RequestedGrace},
        journal::PodJournalExt as _,
        locate,
    },
};

/// What exists of a pod on this node, in the order of its teardown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What blocks the termination.
    pub blocked: Vec<Failure>,
    /// The grace period.
    pub grace: Duration,
    /// Containers whose preStop hook would run.
    pub hooks: Vec<String>,
    /// Running containers.
    pub containers: Vec<String>,
    /// IDs of the pod's sandboxes.
    pub sandboxes: Vec<String>,
    /// Volumes in the pod's directory, as `PLUGIN/NAME`.
    pub volumes: Vec<String>,
    /// Mount points in the pod's directory.
    pub mounts: Vec<PathBuf>,
    /// Paths of the pod's cgroups in their hierarchies.
    pub cgroups: Vec<PathBuf>,
    /// The pod's directory, if it exists.
    pub directory: Option<PathBuf>,
}

pub(super) async fn plan(context: &Arc<Context>, view: &PodView) -> Result<Plan, Problem> {
    let unread = |error: String| Problem::configuration(error, "try again once the node can be read");
    let uid = &view.pod.uid;
    let observed = context.node.cri.pod_brief(uid.as_str()).await;
    let observed = observed.map_err(|error| unread(error.to_string()))?;
    let entry = context.journal.pod(uid);
    let has_run = |id: &str| {
        let hook = entry.as_ref().and_then(|entry| entry.hooks.get(id));
        hook.is_some_and(|hook| hook.ended)
    };
    let has_hook = |name: &str| {
        let mut containers = view.containers.iter();
        containers.any(|it| *it.name == *name && it.pre_stop.is_some())
    };
    let running = observed.possibly_running().map(|it| it.name.clone()).collect();
    let hooks = observed
        .possibly_running()
        .filter(|it| has_hook(&it.name) && !has_run(&it.id));
    let mut plan = Plan {
        blocked: Vec::new(),
        grace: grace::effective(
            entry.as_ref().map(|entry| entry.grace),
            RequestedGrace::for_pod(view, None),
        ),
        hooks: hooks.map(|it| it.name.clone()).collect(),
        containers: running,
        sandboxes: observed.sandboxes.iter().map(|it| it.id.clone()).collect(),
        volumes: Vec::new(),
        mounts: Vec::new(),
        cgroups: Vec::new(),
        directory: None,
    };
    let (context, view) = (Arc::clone(context), view.clone());
    let reads = context.node.reads.clone();
    let read = move || -> Result<Plan, Vec<Failure>> {
        let failed = |fault| vec![Failure::new(Step::Volumes, "", fault)];
        plan.blocked = evidence::check_agreement(&context, &view, true, Step::Term, &observed)
            .err()
            .unwrap_or_default();
        let dir = locate::pod_dir(&context, &view)?;
        plan.mounts = dir.mounted(&*context.node.storage.mounts.read().map_err(failed)?);
        for cgroup in locate::cgroups(&context, &view) {
            plan.cgroups.push(cgroup?.path().to_owned());
        }
        if dir.open().map_err(failed)?.is_some() {
            let volumes = dir.volumes().map_err(failed)?.into_iter();
            plan.volumes = volumes.map(|it| it.relative().display().to_string()).collect();
            plan.directory = Some(dir.path().to_owned());
        }
        Ok(plan)
    };
    let plan = reads
        .run_blocking(read)
        .await
        .map_err(|error| unread(error.to_string()))?;
    plan.map_err(|failures| unread(failure::first_message(&failures)))
}
