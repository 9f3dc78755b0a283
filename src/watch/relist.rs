//! Lists the pods of the runtime periodically, and soon after each container event. Named after the kubelet's PLEG relist.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, future::pending};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    model::pod::{PodRef, PodUid},
    node::cri::{Cri, PodUids, client::ContainerEvents, types::PodSandbox},
};

/// Interval between two lists. Nothing urgent depends on it: workers list their pods themselves.
const INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval between two lists.
const MIN_INTERVAL: Duration = Duration::from_secs(2);

/// All pods of the runtime at one moment.
#[derive(Debug, Clone)]
pub struct RuntimePods {
    /// When the list began. Pods that were removed later may still be in it.
    pub began: Instant,
    /// By UID. Sandboxes without the metadata of a pod are left out.
    pub pods: BTreeMap<PodUid, RuntimePodSummary>,
}

/// A pod in the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimePodSummary {
    /// Identity and names in the sandbox's metadata.
    pub pod: PodRef,
    /// All its sandboxes have the config source `api`: it is a pod of an API server.
    pub from_api: bool,
    /// One of its sandboxes has another config source: it is a static pod.
    pub is_static: bool,
    /// One of its sandboxes is ready.
    pub has_ready_sandbox: bool,
}

/// Lists the pods of the runtime until it is dropped.
#[derive(Clone)]
pub struct Relist {
    cri: Cri,
    seen: watch::Sender<Arc<RuntimePods>>,
    known: PodUids,
}

// === impl RuntimePods ===

impl RuntimePods {
    /// The value before the first list.
    pub fn none() -> Self {
        Self::of(Instant::now(), Vec::new())
    }

    /// The pods of these sandboxes, from a list that began at `began`.
    pub fn of(began: Instant, sandboxes: Vec<PodSandbox>) -> Self {
        let mut pods = BTreeMap::<PodUid, RuntimePodSummary>::new();
        for sandbox in sandboxes {
            let PodSandbox {
                pod_uid,
                namespace,
                name,
                sandbox,
            } = sandbox;
            if [&pod_uid, &namespace, &name].into_iter().any(String::is_empty) {
                continue;
            }
            let runtime_pod = pods
                .entry(pod_uid.as_str().into())
                .or_insert_with_key(|uid| RuntimePodSummary {
                    pod: PodRef {
                        uid: uid.clone(),
                        namespace: namespace.into(),
                        name: name.into(),
                    },
                    from_api: true,
                    is_static: false,
                    has_ready_sandbox: false,
                });
            // Sandboxes of one pod with different config sources prove nothing.
            runtime_pod.from_api &= sandbox.is_from_api();
            runtime_pod.is_static |= sandbox.is_from_elsewhere();
            runtime_pod.has_ready_sandbox |= sandbox.is_ready();
        }
        Self { began, pods }
    }
}

// === impl Relist ===

impl Relist {
    /// Sends each list to `seen`. `known`: the pods to list if the runtime cannot list all.
    pub fn new(cri: Cri, seen: watch::Sender<Arc<RuntimePods>>, known: PodUids) -> Self {
        Self { cri, seen, known }
    }

    /// Lists the pods again and again.
    pub async fn run(self) {
        let mut events = None;
        let mut last_error = None;
        loop {
            let began = Instant::now();
            match self.cri.list_sandboxes(&self.known).await {
                Ok(sandboxes) => {
                    if last_error.take().is_some() {
                        tracing::info!("Runtime lists its pods again");
                    }
                    self.seen.send_replace(Arc::new(RuntimePods::of(began, sandboxes)));
                    // Changes before the list are in it; later ones cause an event.
                    events = events.or_else(|| Some(self.cri.container_events()));
                }
                Err(error) => {
                    let why = error.to_string();
                    if last_error.as_ref() != Some(&why) {
                        tracing::warn!(%error, "Runtime fails to list its pods; unmanaged pods are unknown");
                    }
                    last_error = Some(why);
                    events = None;
                }
            }
            sleep(MIN_INTERVAL).await;
            tokio::select! {
                biased;
                () = sleep(INTERVAL - MIN_INTERVAL) => {}
                () = wait_for_event(&mut events) => {}
            }
        }
    }
}

/// Waits for container events. Without a stream it waits forever: the interval causes the next list.
async fn wait_for_event(events: &mut Option<ContainerEvents>) {
    let Some(stream) = events else {
        return pending().await;
    };
    match stream.next().await {
        // Events come in bursts.
        Some(Ok(())) => while let Some(Some(Ok(()))) = stream.next().now_or_never() {},
        Some(Err(error)) if error.is_unknown_call() => {
            tracing::debug!("Runtime does not support container events");
            *events = Some(futures::stream::pending().boxed());
            pending::<()>().await;
        }
        Some(Err(_)) | None => {
            // The next list opens a new stream.
            *events = None;
            pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::node::cri::types::{Sandbox, SandboxState, keys};

    fn sandbox(uid: &str, name: &str, source: Option<&str>) -> PodSandbox {
        PodSandbox {
            pod_uid: uid.to_owned(),
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            sandbox: Sandbox {
                id: format!("sandbox of {uid}"),
                attempt: 0,
                state: SandboxState::Ready,
                created_at: Timestamp::UNIX_EPOCH,
                annotations: source
                    .map(|source| (keys::CONFIG_SOURCE.to_owned(), source.to_owned()))
                    .into_iter()
                    .collect(),
                ips: Vec::new(),
            },
        }
    }

    #[test]
    fn pod_comes_from_the_api_server_only_if_all_its_sandboxes_say_so() {
        let look = RuntimePods::of(
            Instant::now(),
            vec![
                sandbox("1", "web", Some("api")),
                sandbox("1", "web", Some("api")),
                sandbox("2", "static", Some("file")),
                sandbox("3", "foreign", None),
                sandbox("4", "both", Some("api")),
                sandbox("4", "both", Some("file")),
                sandbox("", "nameless", Some("api")),
                sandbox("5", "", Some("api")),
            ],
        );
        let mut from_api: Vec<_> = look
            .pods
            .iter()
            .map(|(uid, runtime_pod)| (uid.as_str(), runtime_pod.from_api, runtime_pod.is_static))
            .collect();
        from_api.sort_unstable();
        let expected = [
            ("1", true, false),
            ("2", false, true),
            ("3", false, false),
            ("4", false, true),
        ];
        assert_eq!(from_api, expected);
    }
}
