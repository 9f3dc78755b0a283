//! Pods of the node.

use http::Method;
use pod_teardown::model::trace::Trace;
use testbed::{
    apiserver::requests::Request,
    scripted_cri::{Expected, Pattern},
};

use crate::prelude::*;

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
    pub fn pod(&self, name: &str, containers: &Value, build: impl for<'a> FnOnce(PodBuilder<'a>) -> PodBuilder<'a>) {
        self.insert(pod(name, containers));
        self.pod_without_object(name, build);
    }

    /// A pod in the runtime and on the disk only.
    pub fn pod_without_object(&self, name: &str, build: impl for<'a> FnOnce(PodBuilder<'a>) -> PodBuilder<'a>) {
        self.cri
            .change(|world| drop(build(world.pod("default", name, &uid(name)))));
        fs::create_dir_all(self.pod_dir(name).join("etc-hosts")).unwrap();
        fs::create_dir_all(self.path("logs").join(format!("default_{name}_{}/main", uid(name)))).unwrap();
        fs::create_dir_all(self.pod_cgroup(name)).unwrap();
    }

    /// A pod with one container that exits on SIGTERM at once.
    pub fn simple_pod(&self, name: &str) {
        self.pod(name, &plain(), |pod| pod.container("main"));
    }

    /// A pod with one container that ignores SIGTERM.
    pub fn stubborn_pod(&self, name: &str) {
        self.pod(name, &plain(), |pod| pod.container("main").ignores_term());
    }

    /// `web`, and `stuck`, whose sandbox cannot be stopped. All other calls but hooks succeed.
    pub fn add_stuck_and_simple_pod(&self) {
        self.simple_pod("stuck");
        self.simple_pod("web");
        let failure = expect(StopPodSandbox::of("stuck")).error(Code::Unknown, "no CNI configuration");
        self.always(failure);
        self.allow_all_but_hooks();
    }

    /// This call may come at any time.
    pub fn always(&self, call: Expected) {
        self.cri.any_number_of(call);
    }

    /// These calls may come at any time, and succeed.
    pub fn allow(&self, calls: impl IntoIterator<Item = Pattern>) {
        calls.into_iter().for_each(|call| self.always(expect(call)));
    }

    /// All calls of a teardown but hooks may come at any time.
    pub fn allow_all_but_hooks(&self) {
        self.allow([StopContainer::any(), StopPodSandbox::any()]);
        self.allow([RemoveContainer::any(), RemovePodSandbox::any()]);
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

    /// The same for several.
    pub async fn delete_all(&self, names: impl IntoIterator<Item: AsRef<str>>, grace: Option<i64>) {
        for name in names {
            self.delete(name.as_ref(), grace).await;
        }
    }

    /// The pod's object.
    pub async fn get(&self, name: &str) -> Option<Value> {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let (code, object) = self.api.ask(Method::GET, &path, &Value::Null).await;
        (code == 200).then_some(object)
    }

    /// The phase that its object shows.
    pub async fn phase(&self, name: &str) -> String {
        let object = self.get(name).await.expect("the object exists");
        object["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    /// A finalizer keeps the pod's object after its teardown.
    pub async fn hold_object(&self, name: &str) {
        let mut object = self.get(name).await.unwrap();
        object["metadata"]["finalizers"] = json!(["test/hold"]);
        self.insert(object);
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

    /// The same for several.
    pub async fn wait_all_torn_down(&self, names: impl IntoIterator<Item: AsRef<str>>) {
        for name in names {
            self.wait_torn_down(name.as_ref()).await;
        }
    }

    /// Deletes a pod, and waits until it is torn down.
    #[track_caller]
    pub fn tear_down(&self, name: &str) -> impl Future<Output = ()> {
        let torn_down = self.wait_torn_down(name);
        async move {
            self.delete(name, None).await;
            torn_down.await;
        }
    }

    /// The agent's requests to the API server, as far as it remembers them.
    pub fn agent_requests(&self) -> Vec<Request> {
        let user = format!("system:node:{NODE}");
        let mut requests = self.api.requests();
        requests.retain(|it| it.asked.user == user);
        requests
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

    /// Messages of the events with this reason about a pod.
    pub async fn messages(&self, name: &str, reason: &str) -> Vec<String> {
        let events = self.events(name).await.into_iter();
        let messages = events.filter_map(|(of, message)| (of == reason).then_some(message));
        messages.collect()
    }

    /// Number of events with this reason about a pod.
    pub async fn count_events(&self, name: &str, reason: &str) -> usize {
        self.messages(name, reason).await.len()
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
