//! Removes what is left after the final delete: containers and sandboxes in the runtime, logs, the pod's directory.

use std::path::Path;

use futures::future::join_all;

use super::busy;
use crate::{
    model::{
        failure::{Failure, Reasoned, ok_if_empty},
        pod::PodView,
        trace::Step,
    },
    node::{cri::types::RuntimePod, grpc::GrpcError, logs, pod_dir::PodDir},
    teardown::{context::Context, pod_dir},
};

/// Links to the logs of containers, for log collectors. The kubelet has no flag for this directory.
const LOG_LINKS: &str = "/var/log/containers";

/// Removes all of it. A failure prevents only the removal of the directory.
pub async fn remove(context: &Context, view: &PodView, dir: &PodDir) -> Result<(), Vec<Failure>> {
    let failed = |what: &str, error: &dyn Reasoned| Failure::new(Step::Cleanup, what, error);
    let mut failures = Vec::new();
    let observed = match context.node.cri.pod_brief(view.pod.uid.as_str()).await {
        Ok(observed) => observed,
        Err(error) => return Err(vec![failed("", &error)]),
    };
    remove_from_runtime(context, &observed, &mut failures).await;
    // The runtime may still write to a container's log before the container is removed.
    let logs = logs::PodLogs::new(
        &context.node.pod_logs_dir,
        &view.pod.namespace,
        &view.pod.name,
        view.pod.uid.as_str(),
    );
    match logs {
        Ok(logs) => {
            if let Err(errors) = logs.remove(Path::new(LOG_LINKS), &context.node.effects).await {
                failures.extend(errors.iter().map(|error| failed("", error)));
            }
        }
        Err(error) => failures.push(failed("", &error)),
    }
    // The directory is last: without it, the pod in the runtime would look like one of another kubelet.
    if failures.is_empty()
        && let Err(errors) = pod_dir::remove_pod_dir(dir, &context.node.storage.mounts, &context.node.effects).await
    {
        failures.extend(errors.iter().map(|error| failed("", error)));
    }
    ok_if_empty(failures)
}

/// Removes containers before their sandboxes.
async fn remove_from_runtime(context: &Context, observed: &RuntimePod, failures: &mut Vec<Failure>) {
    let failure = async |what: &str, error: GrpcError| {
        let failure = Failure::new(Step::Cleanup, what, error);
        busy::with_holders(&context.node.storage, failure).await
    };
    let containers = observed.containers.iter().map(|container| async {
        match context.node.cri.remove_container(&container.id).await {
            Ok(()) => Ok(()),
            Err(error) => Err(failure(&container.name, error).await),
        }
    });
    failures.extend(join_all(containers).await.into_iter().filter_map(Result::err));
    let sandboxes = observed.sandboxes.iter().map(|sandbox| async {
        match context.node.cri.remove_sandbox(&sandbox.id).await {
            Ok(()) => Ok(()),
            Err(error) => Err(failure("sandbox", error).await),
        }
    });
    failures.extend(join_all(sandboxes).await.into_iter().filter_map(Result::err));
}
