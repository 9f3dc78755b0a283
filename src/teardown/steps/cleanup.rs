//! Removes what is left after the final delete: containers and sandboxes in the runtime, logs, the pod's directory.

use std::path::Path;

use futures::future::join_all;

use crate::{
    model::{
        failure::{Failure, Reasoned, first_message, ok_if_empty},
        pod::PodView,
        trace::Step,
    },
    node::{cri::types::RuntimePod, fault::BadPart, grpc::GrpcError, logs::PodLogs, pod_dir::PodDir},
    teardown::{
        attempt::Attempt,
        bounded_read::text,
        context::Context,
        late::report_if_late,
        locate,
        on_disk::remove_pod_dir,
        plan::{PlanFacts, Planned, PlannedAction},
    },
    trace_context,
};

/// Links to the logs of containers, for log collectors. The kubelet has no flag for this directory.
const LOG_LINKS: &str = "/var/log/containers";

// === The effect ===

/// Removes all of it.
pub async fn run(attempt: &mut Attempt<'_>) -> Result<(), Vec<Failure>> {
    let (context, view, recorder) = (&attempt.worker.context, attempt.view(), &attempt.worker.recorder);
    let slot = context.limits.cleanups.acquire().await;
    let dir = locate::pod_dir(context, view)?;
    let span = recorder.span(Step::Cleanup, "");
    let removal = remove(context, view, &dir);
    // Boxed: most of the time a worker waits for containers, and it must be small then.
    let removed = slot.run(Box::pin(trace_context::scope(span.context(), removal)));
    let call_name = "the removal of containers, sandboxes and logs";
    let result = report_if_late(recorder, (Step::Cleanup, ""), call_name, removed).await;
    span.end(&result.as_ref().map_err(|failures| first_message(failures)));
    result
}

/// Removes all of it. A failure prevents only the removal of the directory.
async fn remove(context: &Context, view: &PodView, dir: &PodDir) -> Result<(), Vec<Failure>> {
    let failed = |what: &str, error: &dyn Reasoned| Failure::new(Step::Cleanup, what, error);
    let observed = context.node.cri.pod_brief(view.pod.uid.as_str()).await;
    let observed = observed.map_err(|error| failed("", &error))?;
    let mut failures = remove_from_runtime(context, &observed).await;
    // The runtime may still write to a container's log before the container is removed.
    match pod_logs(context, view) {
        Ok(logs) => {
            if let Err(errors) = logs.remove(Path::new(LOG_LINKS), &context.node.effects).await {
                failures.extend(errors.iter().map(|error| failed("", error)));
            }
        }
        Err(error) => failures.push(failed("", &error)),
    }
    // The directory is last: without it, the pod in the runtime would look like one of another kubelet.
    if failures.is_empty()
        && let Err(errors) = remove_pod_dir(dir, &context.node.storage).await
    {
        failures.extend(errors.iter().map(|error| failed("", error)));
    }
    ok_if_empty(failures)
}

/// Removes containers before their sandboxes. Returns what failed.
async fn remove_from_runtime(context: &Context, observed: &RuntimePod) -> Vec<Failure> {
    let cri = &context.node.cri;
    let failed = |what: &str, error: GrpcError| Failure::new(Step::Cleanup, what, error);
    let containers = observed.containers.iter().map(|container| async {
        let removed = cri.remove_container(&container.id).await;
        removed.err().map(|error| failed(&container.name, error))
    });
    let failures = join_all(containers).await;
    let sandboxes = observed.sandboxes.iter().map(|sandbox| async {
        let removed = cri.remove_sandbox(&sandbox.id).await;
        removed.err().map(|error| failed("sandbox", error))
    });
    failures
        .into_iter()
        .chain(join_all(sandboxes).await)
        .flatten()
        .collect()
}

fn pod_logs(context: &Context, view: &PodView) -> Result<PodLogs, BadPart> {
    let pod = &view.pod;
    PodLogs::new(&context.node.pod_logs_dir, &pod.namespace, &pod.name, pod.uid.as_str())
}

// === The plan ===

/// The removal of containers, sandboxes, logs and the pod's directory.
pub async fn plan(facts: &PlanFacts) -> Planned {
    let in_runtime = facts.of_runtime(|pod| {
        let containers = pod.containers.iter().map(|it| PlannedAction::RemoveContainer {
            container: it.name.clone(),
            id: it.id.clone(),
        });
        let sandboxes = pod.sandboxes.iter().map(|it| it.id.clone());
        let sandboxes = sandboxes.map(|id| PlannedAction::RemoveSandbox { id });
        containers.chain(sandboxes).collect()
    });
    let remove = |path: &Path| PlannedAction::RemoveDirectory {
        path: path.display().to_string(),
    };
    let logs = facts.on_node("its log directory", move |context, view| {
        let path = pod_logs(context, view).map_err(text)?.path();
        Ok(path.exists().then(|| remove(&path)).into_iter().collect())
    });
    let directory = facts.on_node("its directory", move |context, view| {
        let dir = locate::pod_dir(context, view)?;
        let there = dir.open().map_err(text)?;
        Ok(there.map(|_| remove(dir.path())).into_iter().collect())
    });
    let (in_runtime, logs, directory) = tokio::join!(in_runtime, logs, directory);
    vec![(Step::Cleanup, [in_runtime, logs, directory].concat())]
}
