//! Pods of the node.

use std::{fs, path::PathBuf};

use http::Method;
use pod_teardown::model::trace::Trace;
use serde_json::{Value, json};
use testbed::scripted_cri::{PodBuilder, RemoveContainer, RemovePodSandbox, StopContainer, StopPodSandbox, expect};
use tonic::Code;

use crate::node::{NODE, Node, wait_until};

/// UID of the pod of this name.
pub fn uid(name: &str) -> String {
    format!("uid-{name}")
}

/// The object of a running pod with these containers.
pub fn pod(name: &str, containers: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "uid": uid(name) },
        "spec": { "nodeName": NODE, "terminationGracePeriodSeconds": 30, "containers": containers },
        "status": { "phase": "Running", "podIP": "10.88.0.7", "startTime": "2026-01-01T00:00:00Z" },
    })
}

/// One container without a hook.
pub fn plain() -> Value {
    json!([{ "name": "main", "image": "registry.test/busybox:1" }])
}

/// One container with a preStop hook.
pub fn hooked(hook: &Value) -> Value {
    json!([{ "name": "main", "image": "registry.test/busybox:1", "lifecycle": { "preStop": hook } }])
}

/// An exec hook.
pub fn exec() -> Value {
    json!({ "exec": { "command": ["drain"] } })
}

// === impl Node ===

impl Node {
    /// A pod in the API and the runtime, with its directories and cgroup.
    pub fn pod(&self, name: &str, containers: &Value, build: impl FnOnce(PodBuilder<'_>)) {
        self.insert(pod(name, containers));
        self.pod_without_object(name, build);
    }

    /// A pod in the runtime and on the disk only.
    pub fn pod_without_object(&self, name: &str, build: impl FnOnce(PodBuilder<'_>)) {
        self.cri.change(|world| build(world.pod("default", name, &uid(name))));
        fs::create_dir_all(self.pod_dir(name).join("etc-hosts")).unwrap();
        fs::create_dir_all(self.path("logs").join(format!("default_{name}_{}/main", uid(name)))).unwrap();
        fs::create_dir_all(self.pod_cgroup(name)).unwrap();
    }

    /// A pod with one container that exits on SIGTERM at once.
    pub fn simple_pod(&self, name: &str) {
        self.pod(name, &plain(), |pod| drop(pod.container("main")));
    }

    /// `web`, and `stuck`, whose sandbox cannot be stopped. All other calls but hooks succeed.
    pub fn add_stuck_and_simple_pod(&self) {
        self.simple_pod("stuck");
        self.simple_pod("web");
        let failure = expect(StopPodSandbox::of("stuck")).error(Code::Unknown, "no CNI configuration");
        self.cri.any_number_of(failure);
        self.allow_all_but_hooks();
    }

    /// All calls of a teardown but hooks may come at any time.
    pub fn allow_all_but_hooks(&self) {
        for pattern in [
            StopContainer::any(),
            StopPodSandbox::any(),
            RemoveContainer::any(),
            RemovePodSandbox::any(),
        ] {
            self.cri.any_number_of(expect(pattern));
        }
    }

    /// Inserts an object into the API without validation.
    pub fn insert(&self, object: Value) {
        self.api.insert_raw(object).unwrap();
    }

    /// The pod's directory.
    pub fn pod_dir(&self, name: &str) -> PathBuf {
        self.path("kubelet/pods").join(uid(name))
    }

    /// The pod's cgroup.
    pub fn pod_cgroup(&self, name: &str) -> PathBuf {
        self.path("cgroup/kubepods/besteffort")
            .join(format!("pod{}", uid(name)))
    }

    /// Deletes a pod by the API.
    pub async fn delete(&self, name: &str, grace: Option<i64>) {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let mut options = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = grace.into();
        }
        let (code, answer) = self.api.ask(Method::DELETE, &path, &options).await;
        assert!((200..300).contains(&code), "{code} {answer}");
    }

    /// The pod's object.
    pub async fn get(&self, name: &str) -> Option<Value> {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let (code, object) = self.api.ask(Method::GET, &path, &Value::Null).await;
        (code == 200).then_some(object)
    }

    /// Waits until the pod's object is deleted.
    #[track_caller]
    pub fn wait_deleted(&self, name: &str) -> impl Future<Output = ()> {
        wait_until("the pod's object is deleted", async || self.get(name).await.is_none())
    }

    /// Waits until the pod's object, containers, sandbox, logs and directory are gone.
    #[track_caller]
    pub fn wait_torn_down(&self, name: &str) -> impl Future<Output = ()> {
        let uid = uid(name);
        let logs = self.path("logs").join(format!("default_{name}_{uid}"));
        wait_until("the pod is torn down", async move || {
            let in_runtime = self.cri.look(|world| {
                world.sandboxes.values().any(|it| it.pod_uid == uid)
                    || world.containers.values().any(|it| it.pod_uid == uid)
            });
            !in_runtime && !logs.exists() && !self.pod_dir(name).exists() && self.get(name).await.is_none()
        })
    }

    /// Reasons and messages of the events about a pod.
    pub async fn events(&self, name: &str) -> Vec<(String, String)> {
        let events = self.admin.get("/api/v1/namespaces/default/events").await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = events.body["items"].as_array().cloned().unwrap_or_default();
        let about = events.iter().filter(|event| event["involvedObject"]["name"] == name);
        about
            .map(|event| (text(&event["reason"]), text(&event["message"])))
            .collect()
    }

    /// Number of events with this reason about a pod.
    pub async fn count_events(&self, name: &str, reason: &str) -> usize {
        let events = self.events(name).await;
        events.iter().filter(|(of, _)| of == reason).count()
    }

    /// The trace of a terminating pod.
    pub async fn trace(&self, name: &str) -> Option<Trace> {
        let status = self.try_status().await?;
        status.pods.terminating.into_iter().find(|trace| trace.name == name)
    }

    /// Waits until the pod is blocked with a message that contains `words`.
    #[track_caller]
    pub fn wait_blocked(&self, name: &str, words: &str) -> impl Future<Output = ()> {
        let what = format!("the status of {name} says {words:?}");
        async move {
            wait_until(&what, async || {
                let trace = self.trace(name).await;
                trace.is_some_and(|trace| trace.blocked.iter().any(|blocked| blocked.to_string().contains(words)))
            })
            .await;
        }
    }
}
