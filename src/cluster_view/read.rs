//! Reads the API with the user's kubeconfig.

use std::{env, error::Error, path::Path, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Node, Pod},
};
use kube::{
    Api, Client, Config,
    api::{ListParams, ObjectList},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::de::DeserializeOwned;

use super::pod::Surroundings;
use crate::api::with_causes;

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// Longest time for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A read that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig: {0}; set KUBECONFIG, --kubeconfig or --context as for kubectl")]
    Kubeconfig(String),
    /// The object does not exist.
    #[error("{0} not found")]
    NotFound(String),
    /// Any other error.
    #[error("cannot read {what}: {error}")]
    Failed {
        /// What was read.
        what: String,
        /// The error.
        error: String,
    },
}

/// Reads the API of a cluster.
#[derive(Clone)]
pub struct ClusterReader {
    client: Client,
}

// === impl ClusterReader ===

impl ClusterReader {
    /// Reads with this kubeconfig, else with kubectl's: `KUBECONFIG`, `~/.kube/config`.
    ///
    /// # Errors
    /// When there is no usable kubeconfig.
    pub async fn new(kubeconfig: Option<&Path>, context: Option<String>) -> Result<Self, ReadError> {
        let failed = |error: &dyn Error| ReadError::Kubeconfig(with_causes(error));
        let file = match kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => kubeconfig_of_environment(),
        };
        let options = KubeConfigOptions {
            context,
            ..KubeConfigOptions::default()
        };
        let file = file.map_err(|error| failed(&error))?;
        let config = Config::from_custom_kubeconfig(file, &options).await;
        let mut config = config.map_err(|error| failed(&error))?;
        // A user waits: an answer such as 429 is shown at once.
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| failed(&error))?;
        Ok(Self { client })
    }

    /// The namespace of the kubeconfig's context.
    pub fn default_namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// All Nodes.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn nodes(&self) -> Result<Vec<Node>, ReadError> {
        list("nodes", &Api::all(self.client.clone()), "", |_| true).await
    }

    /// The pods that are being deleted.
    ///
    /// # Errors
    /// When pods cannot be read.
    pub async fn deleted_pods(&self) -> Result<Vec<Pod>, ReadError> {
        let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        list("pods", &Api::all(self.client.clone()), "", is_deleted).await
    }

    /// The events about pods that an agent reports as blocked.
    ///
    /// # Errors
    /// When events cannot be read.
    pub async fn events_of_blocked_pods(&self) -> Result<Vec<Event>, ReadError> {
        let selector = "reason=TeardownBlocked";
        list("events", &Api::all(self.client.clone()), selector, |_| true).await
    }

    /// A pod.
    ///
    /// # Errors
    /// When it does not exist or cannot be read.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, ReadError> {
        let pods = Api::namespaced(self.client.clone(), namespace);
        answer(&format!("pod {namespace}/{name}"), pods.get(name)).await
    }

    /// The objects around a pod.
    pub async fn surroundings(&self, pod: &Pod) -> Surroundings {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let selector = format!("involvedObject.uid={}", pod.metadata.uid.as_deref().unwrap_or_default());
        let events = Api::namespaced(self.client.clone(), namespace);
        let events = list("events", &events, &selector, |_| true);
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let (events, node, lease_renewed) = tokio::join!(events, self.node(name), self.lease_renewed(name));
        Surroundings {
            node,
            lease_renewed,
            events: events.map_err(|error| error.to_string()),
        }
    }

    async fn node(&self, name: Option<&str>) -> Option<Result<Option<Node>, String>> {
        let name = name.filter(|name| !name.is_empty())?;
        let nodes = Api::<Node>::all(self.client.clone());
        Some(match answer(&format!("Node {name}"), nodes.get(name)).await {
            Err(ReadError::NotFound(_)) => Ok(None),
            node => node.map(Some).map_err(|error| error.to_string()),
        })
    }

    /// When the Lease of a Node was renewed. A user who may not read Leases gets an answer without it.
    async fn lease_renewed(&self, node: Option<&str>) -> Option<Timestamp> {
        let node = node.filter(|name| !name.is_empty())?;
        let leases = Api::<Lease>::namespaced(self.client.clone(), "kube-node-lease");
        let lease = answer("its Lease", leases.get(node)).await.ok()?;
        Some(lease.spec?.renew_time?.0)
    }
}

/// The objects of a list for which `is_kept` holds, page by page.
async fn list<K: Clone + std::fmt::Debug + DeserializeOwned>(
    what: &str,
    api: &Api<K>,
    selector: &str,
    is_kept: impl Fn(&K) -> bool,
) -> Result<Vec<K>, ReadError> {
    let mut kept = Vec::new();
    let mut page = ListParams::default().fields(selector).limit(PAGE);
    loop {
        let ObjectList { items, metadata, .. } = answer(what, api.list(&page)).await?;
        kept.extend(items.into_iter().filter(&is_kept));
        match metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(kept),
        }
    }
}

async fn answer<T>(what: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T, ReadError> {
    let failed = |error: String| ReadError::Failed {
        what: what.to_owned(),
        error,
    };
    let answer = tokio::time::timeout(TIMEOUT, request).await;
    match answer.map_err(|_| failed(format!("no answer within {} s", TIMEOUT.as_secs())))? {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(ReadError::NotFound(what.to_owned())),
        Err(kube::Error::Api(status)) => Err(failed(status.message.clone())),
        Err(error) => Err(failed(with_causes(&error))),
    }
}

/// The files that `KUBECONFIG` lists, else `~/.kube/config`. As with kubectl, a listed file that does not exist counts as empty
/// if another one exists.
fn kubeconfig_of_environment() -> Result<Kubeconfig, KubeconfigError> {
    let listed = env::var_os("KUBECONFIG").unwrap_or_default();
    let mut files = env::split_paths(&listed).filter(|path| path.exists()).peekable();
    if files.peek().is_none() {
        return Kubeconfig::read();
    }
    files.try_fold(Kubeconfig::default(), |merged, path| {
        merged.merge(Kubeconfig::read_from(path)?)
    })
}
