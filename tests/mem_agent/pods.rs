//! Pods of the node: made, deleted, and looked for.

use std::{fs, path::PathBuf};

use http::Method;
use pod_teardown::model::trace::Trace;
use serde_json::{Value, json};
use testbed::scripted_cri::PodBuilder;

use crate::node::{NODE, Node, wait_until};

/// UID of the pod of this name.
pub fn uid(name: &str) -> String {
    format!("uid-{name}")
}

/// A running pod with these containers, as the API has it.
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

/// A hook that is a command.
pub fn exec() -> Value {
    json!({ "exec": { "command": ["drain"] } })
}

// === impl Node ===

impl Node {
    /// A pod in the API and in the runtime, with its log directory and the directory that a kubelet keeps for it.
    pub fn pod(&self, name: &str, containers: &Value, build: impl FnOnce(PodBuilder<'_>)) {
        self.insert(pod(name, containers));
        self.pod_without_object(name, build);
    }

    /// A pod that only the runtime and the disk know.
    pub fn pod_without_object(&self, name: &str, build: impl FnOnce(PodBuilder<'_>)) {
        self.cri.change(|world| build(world.pod("default", name, &uid(name))));
        fs::create_dir_all(self.pod_dir(name).join("etc-hosts")).unwrap();
        fs::create_dir_all(self.path("logs").join(format!("default_{name}_{}/main", uid(name)))).unwrap();
        fs::create_dir_all(self.pod_cgroup(name)).unwrap();
    }

    /// A pod with one container that ends at once on its stop signal.
    pub fn simple_pod(&self, name: &str) {
        self.pod(name, &plain(), |pod| drop(pod.container("main")));
    }

    /// An object in the API, past all validation.
    pub fn insert(&self, object: Value) {
        self.api.insert_raw(object).unwrap();
    }

    /// The pod's directory below the kubelet's.
    pub fn pod_dir(&self, name: &str) -> PathBuf {
        self.path("kubelet/pods").join(uid(name))
    }

    /// The pod's cgroup, in the one hierarchy that there is.
    pub fn pod_cgroup(&self, name: &str) -> PathBuf {
        self.path("cgroup/kubepods/besteffort")
            .join(format!("pod{}", uid(name)))
    }

    /// Asks for a pod's deletion.
    pub async fn delete(&self, name: &str, grace: Option<i64>) {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let mut options = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = grace.into();
        }
        let (code, answer) = self.api.ask(Method::DELETE, &path, &options).await;
        assert!((200..300).contains(&code), "{code} {answer}");
    }

    /// The pod as the API has it.
    pub async fn get(&self, name: &str) -> Option<Value> {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let (code, object) = self.api.ask(Method::GET, &path, &Value::Null).await;
        (code == 200).then_some(object)
    }

    /// Waits until the pod's object is gone.
    #[track_caller]
    pub fn wait_deleted(&self, name: &str) -> impl Future<Output = ()> {
        wait_until("the pod's object is gone", async || self.get(name).await.is_none())
    }

    /// Waits until nothing of the pod is left: object, containers, sandbox, logs, directory.
    #[track_caller]
    pub fn wait_torn_down(&self, name: &str) -> impl Future<Output = ()> {
        let uid = uid(name);
        let logs = self.path("logs").join(format!("default_{name}_{uid}"));
        wait_until("nothing of the pod is left", async move || {
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

    /// How many events of this reason there are about a pod.
    pub async fn count_events(&self, name: &str, reason: &str) -> usize {
        let events = self.events(name).await;
        events.iter().filter(|(of, _)| of == reason).count()
    }

    /// The story of a pod that is being taken down.
    pub async fn trace(&self, name: &str) -> Option<Trace> {
        let status = self.try_status().await?;
        status.pods.terminating.into_iter().find(|story| story.name == name)
    }

    /// Waits until the pod's teardown names a failure that contains `words`.
    #[track_caller]
    pub fn wait_blocked(&self, name: &str, words: &str) -> impl Future<Output = ()> {
        let what = format!("the status of {name} says {words:?}");
        async move {
            wait_until(&what, async || {
                let story = self.trace(name).await;
                story.is_some_and(|story| story.blocked.iter().any(|blocked| blocked.to_string().contains(words)))
            })
            .await;
        }
    }
}
