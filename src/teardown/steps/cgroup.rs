//! Empties the pod's cgroups and removes them in every hierarchy. Volumes go first: the content of a memory volume is charged to the
//! cgroup. After that no file or process has one of the user IDs of the pod's user namespace, and their range is released. It is a
//! file in the pod's directory, removed as a whole: a kubelet does not start if it cannot read one.

use std::{fs, io};

use crate::{
    model::{
        failure::{Failure, first_message, ok_if_empty},
        pod::PodView,
        trace::Step,
    },
    node::fault::Fault,
    teardown::{
        attempt::Attempt,
        bounded_read::text,
        context::Context,
        locate,
        plan::{PlanFacts, Planned, PlannedAction},
        volumes::storage::Storage,
    },
};

/// Name of the file with the user IDs.
const USER_IDS: &str = "userns";

/// Without the pod's object it is unknown whether the pod has a user namespace.
fn may_have_user_ids(view: &PodView) -> bool {
    view.user_namespace || view.containers.is_empty()
}

/// Kills what is left in the cgroups, removes them, and releases the user IDs.
pub async fn run(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (worker, node) = (attempt.worker, &attempt.worker.context.node);
    let span = worker.recorder.span(Step::Cgroup, "");
    let mut failures = Vec::new();
    for cgroup in worker.on_node(attempt.view(), Step::Cgroup, locate::cgroups).await? {
        if let Err(faults) = node.cgroups.destroy(&cgroup, &node.effects).await {
            failures.extend(faults.iter().map(|fault| fault.failure(Step::Cgroup)));
        }
    }
    let result = ok_if_empty(failures);
    span.end(&result.as_ref().map_err(|failures| first_message(failures)));
    result?;
    release_user_ids(attempt).await
}

/// Removes the file. A missing one is success.
async fn release_user_ids(attempt: &Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (context, view) = (&attempt.worker.context, attempt.view());
    if !may_have_user_ids(view) {
        return Ok(());
    }
    let pod = locate::pod_dir(context, view)?;
    let path = pod.path().join(USER_IDS);
    let remove = move |storage: &Storage| {
        if let Some(dir) = pod.open()? {
            dir.remove_file(USER_IDS.as_ref(), &storage.effects)?;
        }
        Ok(())
    };
    let released = context.node.storage.run_blocking("remove", path, remove).await;
    let failure = |fault: &Fault| Failure::new(Step::Cleanup, "", fault);
    released.map_err(|faults| faults.iter().map(failure).collect())
}

/// One action for each cgroup, in all hierarchies, and the removal of the file with the user IDs, if there is one.
pub async fn plan(facts: &PlanFacts) -> Planned {
    let cgroups = |context: &Context, view: &PodView| {
        let mut actions = Vec::new();
        for cgroup in locate::cgroups(context, view)? {
            let directories = context.node.cgroups.directories(&cgroup);
            let paths: Vec<_> = directories.iter().map(|path| path.display().to_string()).collect();
            let cgroup = cgroup.path().display().to_string();
            actions.extend((!paths.is_empty()).then_some(PlannedAction::RemoveCgroup { cgroup, paths }));
        }
        Ok(actions)
    };
    let user_ids = |context: &Context, view: &PodView| {
        let dir = locate::pod_dir(context, view)?;
        let path = dir.path().join(USER_IDS);
        match fs::symlink_metadata(&path) {
            _ if !may_have_user_ids(view) => Ok(Vec::new()),
            Ok(_) => Ok(vec![PlannedAction::ReleaseUserIds {
                path: path.display().to_string(),
            }]),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Vec::new())
            }
            Err(error) => Err(text(error)),
        }
    };
    let what = "the file with the user IDs of its user namespace";
    vec![
        (Step::Cgroup, facts.on_node("its cgroups", cgroups).await),
        (Step::Cleanup, facts.on_node(what, user_ids).await),
    ]
}
