//! What the runtime holds of pods, looked at every so often, and soon after it says that something happened.

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

/// Between two looks. Nothing urgent is found by them: pods that end are looked at by their workers.
const EVERY: Duration = Duration::from_secs(10);
/// The shortest time between two looks, however much happens.
const SETTLE: Duration = Duration::from_secs(2);

/// One look at all pods of the runtime.
#[derive(Debug, Clone)]
pub struct RuntimePods {
    /// When it began: what ended later may still be in it.
    pub began: Instant,
    /// By UID. What names no pod is left out.
    pub pods: BTreeMap<PodUid, Sighted>,
}

/// A pod as the runtime shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighted {
    /// By the words of whoever made it.
    pub pod: PodRef,
    /// A kubelet made it because the API server told it to.
    pub from_api: bool,
    /// A kubelet made it, or one of its sandboxes, because somebody else told it to: it is a static pod.
    pub from_elsewhere: bool,
    /// One of its sandboxes stands.
    pub lives: bool,
}

/// Looks at the runtime until nobody wants to know any more.
#[derive(Clone)]
pub struct Relist {
    cri: Cri,
    seen: watch::Sender<Arc<RuntimePods>>,
    known: PodUids,
}

// === impl RuntimePods ===

impl RuntimePods {
    /// Before the first look.
    pub fn none() -> Self {
        Self::of(Instant::now(), Vec::new())
    }

    /// A look that began then.
    pub fn of(began: Instant, sandboxes: Vec<PodSandbox>) -> Self {
        let mut pods = BTreeMap::<PodUid, Sighted>::new();
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
            let sighted = pods.entry(pod_uid.as_str().into()).or_insert_with_key(|uid| Sighted {
                pod: PodRef {
                    uid: uid.clone(),
                    namespace: namespace.into(),
                    name: name.into(),
                },
                from_api: true,
                from_elsewhere: false,
                lives: false,
            });
            // Sandboxes of one pod that contradict each other prove nothing.
            sighted.from_api &= sandbox.is_from_api();
            sighted.from_elsewhere |= sandbox.is_from_elsewhere();
            sighted.lives |= sandbox.is_ready();
        }
        Self { began, pods }
    }
}

// === impl Relist ===

impl Relist {
    /// Tells `seen` of each look.
    /// `known`: which pods are asked for where the runtime cannot list all.
    pub fn new(cri: Cri, seen: watch::Sender<Arc<RuntimePods>>, known: PodUids) -> Self {
        Self { cri, seen, known }
    }

    /// Looks, waits, and looks again.
    pub async fn run(self) {
        let mut events = None;
        let mut trouble = None;
        loop {
            let began = Instant::now();
            match self.cri.list_sandboxes(&self.known).await {
                Ok(sandboxes) => {
                    if trouble.take().is_some() {
                        tracing::info!("Runtime lists its pods again");
                    }
                    self.seen.send_replace(Arc::new(RuntimePods::of(began, sandboxes)));
                    // What happened before a look is in it, what happens from now on is told.
                    events = events.or_else(|| Some(self.cri.container_events()));
                }
                Err(error) => {
                    let why = error.to_string();
                    if trouble.as_ref() != Some(&why) {
                        tracing::warn!(%error, "Runtime does not list its pods; what it holds besides those of the API server is not known");
                    }
                    trouble = Some(why);
                    events = None;
                }
            }
            sleep(SETTLE).await;
            tokio::select! {
                biased;
                () = sleep(EVERY - SETTLE) => {}
                () = told(&mut events) => {}
            }
        }
    }
}

/// Returns when the runtime has told of something. One that does not tell, or no more, is looked at all the same.
async fn told(events: &mut Option<ContainerEvents>) {
    let Some(stream) = events else {
        return pending().await;
    };
    match stream.next().await {
        // Many come together.
        Some(Ok(())) => while let Some(Some(Ok(()))) = stream.next().now_or_never() {},
        Some(Err(error)) if error.is_unknown_call() => {
            tracing::debug!("Runtime tells no events");
            *events = Some(futures::stream::pending().boxed());
            pending::<()>().await;
        }
        Some(Err(_)) | None => {
            // The next look opens another.
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
    fn only_a_sandbox_that_says_so_comes_from_the_api_server_and_all_of_a_pod_have_to() {
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
            .map(|(uid, sighted)| (uid.as_str(), sighted.from_api, sighted.from_elsewhere))
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
