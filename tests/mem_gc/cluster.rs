//! A cluster with a collector.

use pod_teardown::{
    api::{Dial, MetadataClient, kubeconfig::read_kubeconfig},
    collector::{collect::collect, counts::Counts, report::WorkReport, shared::Shared},
    node::effects::Effects,
};
use tempfile::TempDir;
use testbed::{api::ApiServer as _, apiserver::requests::Request, network, rest::Client};
use tokio_util::task::AbortOnDropHandle;

use crate::prelude::*;

pub use testbed::owner_references::{ObjectSpec, TEST_FINALIZER, owned, owners_of, to, with_finalizer};

/// Maximum wait of [`until`].
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// The collector's user name.
pub const COLLECTOR: &str = "collector";

pub struct Cluster {
    pub api: MemApiServer,
    pub admin: Client,
    collector: Option<(Arc<Shared>, AbortOnDropHandle<String>)>,
    dir: TempDir,
}

impl Cluster {
    pub async fn new() -> Self {
        let api = MemApiServer::start(Config::default()).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("kubeconfig"), api.collector_kubeconfig()).unwrap();
        Self {
            admin: api.admin().unwrap(),
            api,
            collector: None,
            dir,
        }
    }

    /// Sends the collector's requests through this balancer.
    pub fn use_balancer(&self, balancer: &Balancer) {
        let kubeconfig = balancer.kubeconfig(&self.api.collector_kubeconfig());
        std::fs::write(self.dir.path().join("kubeconfig"), kubeconfig).unwrap();
    }

    /// Starts the collector with an empty state.
    pub async fn start(&mut self) {
        let file = self.dir.path().join("kubeconfig");
        let config = read_kubeconfig(&file).await.unwrap();
        let dial: Dial = Arc::new(|server| Ok(Box::new(network::connect(server)?)));
        let client = MetadataClient::new(&config, file, Effects::ungated(), Some(dial)).unwrap();
        let shared = Arc::new(Shared::default());
        let task = AbortOnDropHandle::new(tokio::spawn(collect(client, Arc::clone(&shared))));
        self.collector = Some((shared, task));
    }

    /// Starts the collector and waits until all kinds are synced.
    pub async fn start_synced(&mut self) {
        self.start().await;
        self.wait_for_sync().await;
    }

    pub async fn wait_for_sync(&self) {
        until!(self.unsynced().is_none());
    }

    /// Waits until the collector stops by itself, and returns the reason.
    pub async fn wait_for_stop(&mut self) -> String {
        let (_, task) = self.collector.take().unwrap();
        tokio::time::timeout(TIMEOUT, task).await.unwrap().unwrap()
    }

    pub fn stop(&mut self) {
        self.collector = None;
    }

    pub fn shared(&self) -> &Shared {
        &self.collector.as_ref().unwrap().0
    }

    /// Which kinds are not synced.
    pub fn unsynced(&self) -> Option<String> {
        self.shared().lock().sync_state.unsynced_reason(Instant::now())
    }

    /// Injects a fault into the collector's requests.
    pub fn inject(&self, fault: Fault) {
        self.api.faults().inject(fault.user(COLLECTOR));
    }

    pub fn counts(&self) -> Counts {
        self.shared().lock().counts.clone()
    }

    pub fn report(&self) -> WorkReport {
        WorkReport::new(&self.shared().lock(), Instant::now())
    }

    pub async fn map(&self, name: &str, spec: ObjectSpec) -> Value {
        self.map_in("default", name, spec).await
    }

    pub async fn map_in(&self, namespace: &str, name: &str, spec: ObjectSpec) -> Value {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        self.object(&path, "v1", "ConfigMap", name, spec).await
    }

    pub async fn secret(&self, name: &str, spec: ObjectSpec) -> Value {
        self.object("/api/v1/namespaces/default/secrets", "v1", "Secret", name, spec)
            .await
    }

    /// A cluster-scoped object.
    pub async fn volume(&self, name: &str, spec: ObjectSpec) -> Value {
        self.object("/api/v1/persistentvolumes", "v1", "PersistentVolume", name, spec)
            .await
    }

    pub async fn object(&self, path: &str, version: &str, kind: &str, name: &str, spec: ObjectSpec) -> Value {
        let object = json!({
            "apiVersion": version, "kind": kind,
            "metadata": { "name": name, "ownerReferences": spec.owners, "finalizers": spec.finalizers },
        });
        self.admin.create(path, &object).await.unwrap().ok().unwrap()
    }

    pub fn namespace(&self, name: &str) {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.api.insert_raw(object).unwrap();
    }

    /// Inserts a secret without a request.
    pub fn insert_secret(&self, namespace: &str, name: &str, owners: &[Value]) {
        let metadata = json!({ "name": name, "namespace": namespace, "ownerReferences": owners });
        let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata });
        self.api.insert_raw(object).unwrap();
    }

    /// ConfigMaps a, b and c in an ownership cycle.
    pub async fn create_cycle(&self) {
        let mut maps = Vec::new();
        for name in ["a", "b", "c"] {
            maps.push(self.map(name, ObjectSpec::default()).await);
        }
        for (name, owner) in [("a", &maps[2]), ("b", &maps[0]), ("c", &maps[1])] {
            self.change(&map_path(name), json!({ "ownerReferences": [to(owner, true)] }))
                .await;
        }
    }

    /// The object at this path.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let answer = self.admin.get(path).await.unwrap();
        (answer.code() == 200).then_some(answer.body)
    }

    /// Names of the owners of the object at this path.
    pub async fn owners(&self, path: &str) -> Vec<String> {
        let object = self.get(path).await.unwrap();
        owners_of(&object).into_iter().map(str::to_owned).collect()
    }

    pub async fn delete(&self, path: &str, policy: &str) {
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy });
        self.admin.delete(path, Some(&options)).await.unwrap().ok().unwrap();
    }

    /// Patches an object's metadata.
    pub async fn change(&self, path: &str, metadata: Value) {
        let patch = json!({ "metadata": metadata });
        let patched = self.admin.patch(path, Patch::Merge, &patch).await;
        patched.unwrap().ok().unwrap();
    }

    pub async fn exists(&self, name: &str) -> bool {
        self.get(&map_path(name)).await.is_some()
    }

    pub async fn wait_for_deletion(&self, name: &str) {
        until!(!self.exists(name).await);
    }

    /// Number of the collector's requests with this verb for this resource.
    pub fn count_requests(&self, verb: &str, resource: &str) -> usize {
        let all = self.requests();
        let fits = |it: &&Request| it.asked.verb == verb && it.asked.resource == resource;
        all.iter().filter(fits).count()
    }

    /// The collector's requests, as far as the server remembers them.
    pub fn requests(&self) -> Vec<Request> {
        let mut requests = self.api.requests();
        requests.retain(|it| it.asked.user == COLLECTOR);
        requests
    }

    /// The collector's requests for single objects.
    pub fn object_requests(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|it| !it.asked.name.is_empty());
        requests
    }
}

pub fn map_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/configmaps/{name}")
}

pub fn secret_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/secrets/{name}")
}

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A reference to an object that never existed.
pub fn absent_owner(version: &str, kind: &str, number: u64) -> Value {
    let uid = format!("00000000-0000-4000-8000-{number:012}");
    json!({ "apiVersion": version, "kind": kind, "name": "never", "uid": uid })
}

pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}
