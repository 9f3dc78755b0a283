//! Reads the API with the user's kubeconfig.

use std::{env, fmt::Debug, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Node, Pod},
};
use kube::{
    Api, Client, Config,
    api::{ListParams, ObjectList},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;

use crate::{api::with_causes, cli::kubectl::ClusterFlags};

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// Longest time for one answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The objects around a pod.
#[derive(Debug)]
pub struct Surroundings {
    /// `None` if no Node is assigned.
    pub node: Option<Result<Node, ReadError>>,
    /// When the Lease of the Node was renewed; `None` if unknown.
    pub lease_renewed: Option<Timestamp>,
    /// The events about the pod.
    pub events: Result<Vec<Event>, ReadError>,
}

/// A read that failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig: {0}; set KUBECONFIG, --kubeconfig or --context as for kubectl")]
    Kubeconfig(String),
    /// The object does not exist.
    #[error("{0} not found")]
    NotFound(String),
    /// Any other error: what was read, and why it failed.
    #[error("cannot read {0}: {1}")]
    Failed(String, String),
}

/// A client with the kubeconfig of these flags, else with kubectl's: the files of `KUBECONFIG` that exist, else `~/.kube/config`.
///
/// # Errors
/// When there is no usable kubeconfig.
pub async fn client(flags: &ClusterFlags) -> Result<Client, ReadError> {
    let client = async {
        let file = match (
            &flags.kubeconfig,
            env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()),
        ) {
            (Some(file), _) => Kubeconfig::read_from(file)?,
            (None, Some(paths)) => {
                let mut files = env::split_paths(&paths).filter(|path| path.exists());
                files.try_fold(Kubeconfig::default(), |merged, path| {
                    merged.merge(Kubeconfig::read_from(path)?)
                })?
            }
            (None, None) => Kubeconfig::read()?,
        };
        let options = KubeConfigOptions {
            context: flags.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = Config::from_custom_kubeconfig(file, &options).await?;
        // A user waits: an answer such as 429 is shown at once.
        config.default_retry = false;
        Ok::<_, Box<dyn std::error::Error>>(Client::try_from(config)?)
    };
    client
        .await
        .map_err(|error| ReadError::Kubeconfig(with_causes(&*error)))
}

/// The objects around a pod.
pub async fn surroundings(client: &Client, pod: &Pod) -> Surroundings {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let selector = format!("involvedObject.uid={}", pod.metadata.uid.as_deref().unwrap_or_default());
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let events = list("events", &events, &selector, |_| true);
    let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let name = name.filter(|name| !name.is_empty());
    let node = async {
        let nodes = Api::<Node>::all(client.clone());
        Some(get(&format!("Node {}", name?), nodes.get(name?)).await)
    };
    // A user who may not read Leases gets an answer without it.
    let lease_renewed = async {
        let leases = Api::<Lease>::namespaced(client.clone(), "kube-node-lease");
        let lease = get("its Lease", leases.get(name?)).await.ok()?;
        Some(lease.spec?.renew_time?.0)
    };
    let (events, node, lease_renewed): (_, _, Option<Timestamp>) = tokio::join!(events, node, lease_renewed);
    Surroundings {
        node,
        lease_renewed,
        events,
    }
}

/// The objects of a list for which `is_kept` holds, page by page.
///
/// # Errors
/// When they cannot be read.
pub async fn list<K: Clone + Debug + DeserializeOwned>(
    what: &str,
    api: &Api<K>,
    selector: &str,
    is_kept: impl Fn(&K) -> bool,
) -> Result<Vec<K>, ReadError> {
    let mut kept = Vec::new();
    let mut page = ListParams::default().fields(selector).limit(PAGE);
    loop {
        let ObjectList { items, metadata, .. } = get(what, api.list(&page)).await?;
        kept.extend(items.into_iter().filter(&is_kept));
        match metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(kept),
        }
    }
}

/// The answer to a request.
///
/// # Errors
/// When the object does not exist or cannot be read.
pub async fn get<T>(what: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T, ReadError> {
    let failed = |error: String| ReadError::Failed(what.to_owned(), error);
    let answer = tokio::time::timeout(TIMEOUT, request).await;
    match answer.map_err(|_| failed(format!("no answer within {} s", TIMEOUT.as_secs())))? {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(ReadError::NotFound(what.to_owned())),
        Err(kube::Error::Api(status)) => Err(failed(status.message.clone())),
        Err(error) => Err(failed(with_causes(&error))),
    }
}
