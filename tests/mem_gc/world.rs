//! A cluster with a collector.

use std::{sync::Arc, time::Duration};

use pod_teardown::{
    api::{MetadataClient, kubeconfig::read_kubeconfig},
    collector::{Unsynced, collect::collect, counts::Counts, report::WorkReport, shared::Shared},
    node::effects::Effects,
};
use serde_json::{Value, json};
use tempfile::TempDir;
pub use testbed::family::{HELD, Like, held, owned, owners_of, to};
use testbed::{
    api::ApiServer as _,
    apiserver::{Config, MemApiServer, faults::Fault, requests::Request},
    balancer::Balancer,
    rest::{Client, Patch},
};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

/// Nothing takes longer, but for what is told to.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What the collector is called by the server.
pub const COLLECTOR: &str = "collector";

pub struct Cluster {
    pub api: MemApiServer,
    pub admin: Client,
    pub unsynced: Unsynced,
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
            unsynced: Unsynced::Hold,
            collector: None,
            dir,
        }
    }

    /// The collector's requests go through this balancer.
    pub fn lead_through(&self, balancer: &Balancer) {
        let kubeconfig = balancer.kubeconfig(&self.api.url(), &self.api.collector_kubeconfig());
        std::fs::write(self.dir.path().join("kubeconfig"), kubeconfig).unwrap();
    }

    /// The collector begins, from nothing.
    pub async fn start(&mut self) {
        let file = self.dir.path().join("kubeconfig");
        let config = read_kubeconfig(&file).await.unwrap();
        let client = MetadataClient::new(&config, file, Effects::ungated()).unwrap();
        let shared = Arc::new(Shared::new(self.unsynced));
        let task = AbortOnDropHandle::new(tokio::spawn(collect(client, Arc::clone(&shared))));
        self.collector = Some((shared, task));
    }

    /// It begins, and has seen everything.
    pub async fn start_synced(&mut self) {
        self.start().await;
        self.synced().await;
    }

    pub async fn synced(&self) {
        until("all kinds are seen", async || self.unsynced().is_none()).await;
    }

    /// Why it ended, once it has.
    pub async fn ended(&mut self) -> String {
        let (_, task) = self.collector.take().unwrap();
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap()
    }

    pub fn stop(&mut self) {
        self.collector = None;
    }

    pub fn shared(&self) -> &Shared {
        &self.collector.as_ref().unwrap().0
    }

    /// Why not every kind can be seen.
    pub fn unsynced(&self) -> Option<String> {
        self.shared().lock().sight.unsynced_because(Instant::now())
    }

    /// Trouble for requests of the collector.
    pub fn trouble(&self, fault: Fault) {
        self.api.faults().inject(fault.user(COLLECTOR));
    }

    pub fn counts(&self) -> Counts {
        self.shared().lock().counts.clone()
    }

    pub fn report(&self) -> WorkReport {
        WorkReport::of(&self.shared().lock(), Instant::now())
    }

    pub async fn map(&self, name: &str, like: Like) -> Value {
        self.map_in("default", name, like).await
    }

    pub async fn map_in(&self, namespace: &str, name: &str, like: Like) -> Value {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        self.object(&path, "v1", "ConfigMap", name, like).await
    }

    pub async fn secret(&self, name: &str, like: Like) -> Value {
        self.object("/api/v1/namespaces/default/secrets", "v1", "Secret", name, like)
            .await
    }

    /// An object without a namespace.
    pub async fn volume(&self, name: &str, like: Like) -> Value {
        self.object("/api/v1/persistentvolumes", "v1", "PersistentVolume", name, like)
            .await
    }

    pub async fn object(&self, path: &str, version: &str, kind: &str, name: &str, like: Like) -> Value {
        let object = json!({
            "apiVersion": version, "kind": kind,
            "metadata": { "name": name, "ownerReferences": like.owners, "finalizers": like.finalizers },
        });
        self.admin.create(path, &object).await.unwrap().ok().unwrap()
    }

    pub fn namespace(&self, name: &str) {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.api.insert_raw(object).unwrap();
    }

    /// A secret, at once: where there are many.
    pub fn insert_secret(&self, namespace: &str, name: &str, owners: &[Value]) {
        let metadata = json!({ "name": name, "namespace": namespace, "ownerReferences": owners });
        let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata });
        self.api.insert_raw(object).unwrap();
    }

    /// Maps a, b and c: each owns the next, and c owns a.
    pub async fn circle(&self) {
        let mut maps = Vec::new();
        for name in ["a", "b", "c"] {
            maps.push(self.map(name, Like::default()).await);
        }
        for (name, owner) in [("a", &maps[2]), ("b", &maps[0]), ("c", &maps[1])] {
            self.change(&map_path(name), json!({ "ownerReferences": [to(owner, true)] }))
                .await;
        }
    }

    /// What stands there, if anything does.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let answer = self.admin.get(path).await.unwrap();
        (answer.code() == 200).then_some(answer.body)
    }

    /// Names of the owners of what stands there.
    pub async fn owners(&self, path: &str) -> Vec<String> {
        let object = self.get(path).await.unwrap();
        owners_of(&object).into_iter().map(str::to_owned).collect()
    }

    pub async fn delete(&self, path: &str, policy: &str) {
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy });
        self.admin.delete(path, Some(&options)).await.unwrap().ok().unwrap();
    }

    /// Changes an object's metadata.
    pub async fn change(&self, path: &str, metadata: Value) {
        let patch = json!({ "metadata": metadata });
        let patched = self.admin.patch(path, Patch::Merge, &patch).await;
        patched.unwrap().ok().unwrap();
    }

    pub async fn is_there(&self, name: &str) -> bool {
        self.get(&map_path(name)).await.is_some()
    }

    pub async fn gone(&self, name: &str) {
        until(&format!("{name} is gone"), async || !self.is_there(name).await).await;
    }

    /// Requests with this verb of the collector, for this resource.
    pub fn asked(&self, verb: &str, resource: &str) -> usize {
        let all = self.requests();
        let fits = |it: &&Request| it.asked.verb == verb && it.asked.resource == resource;
        all.iter().filter(fits).count()
    }

    /// What the collector asked for, of what the server remembers.
    pub fn requests(&self) -> Vec<Request> {
        let mut requests = self.api.requests();
        requests.retain(|it| it.asked.user == COLLECTOR);
        requests
    }

    /// Requests of the collector that have to do with single objects.
    pub fn about_objects(&self) -> Vec<Request> {
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

/// A reference to something that never was.
pub fn never(version: &str, kind: &str, number: u64) -> Value {
    let uid = format!("00000000-0000-4000-8000-{number:012}");
    json!({ "apiVersion": version, "kind": kind, "name": "never", "uid": uid })
}

pub async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let late = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < late, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}
