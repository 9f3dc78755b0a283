//! Reads the API with the user's kubeconfig.

use std::{env, error::Error, path::Path, time::Duration};

use http::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::objects::{EventObject, NodeObject, PodObject};
use crate::api::{escape, with_causes};

/// Objects in one page of a list.
const PAGE: usize = 500;

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

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    continue_token: Option<String>,
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
        let client = Client::try_from(config);
        let client = client.map_err(|error| failed(&error))?;
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
    pub async fn nodes(&self) -> Result<Vec<NodeObject>, ReadError> {
        self.list("nodes", "/api/v1/nodes", "").await
    }

    /// A Node.
    ///
    /// # Errors
    /// When it does not exist or cannot be read.
    pub async fn node(&self, name: &str) -> Result<NodeObject, ReadError> {
        let path = format!("/api/v1/nodes/{}", escape(name));
        self.get(format!("Node {name}"), &path).await
    }

    /// When the Lease of a Node was renewed.
    ///
    /// # Errors
    /// When it does not exist or cannot be read.
    pub async fn lease_renewed(&self, node: &str) -> Result<Option<jiff::Timestamp>, ReadError> {
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}",
            escape(node)
        );
        let lease: Value = self.get(format!("the Lease of {node}"), &path).await?;
        Ok(lease["spec"]["renewTime"].as_str().and_then(|time| time.parse().ok()))
    }

    /// The pods of all nodes.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn pods(&self) -> Result<Vec<PodObject>, ReadError> {
        self.list("pods", "/api/v1/pods", "").await
    }

    /// A pod.
    ///
    /// # Errors
    /// When it does not exist or cannot be read.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<PodObject, ReadError> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", escape(namespace), escape(name));
        self.get(format!("pod {namespace}/{name}"), &path).await
    }

    /// Events of all namespaces or of one, which match this field selector.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn events(&self, namespace: Option<&str>, selector: &str) -> Result<Vec<EventObject>, ReadError> {
        let path = match namespace {
            None => "/api/v1/events".to_owned(),
            Some(namespace) => format!("/api/v1/namespaces/{}/events", escape(namespace)),
        };
        self.list("events", &path, selector).await
    }

    async fn list<T: DeserializeOwned>(&self, what: &str, path: &str, selector: &str) -> Result<Vec<T>, ReadError> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let (selector, next) = (escape(selector), escape(&token));
            let uri = format!("{path}?limit={PAGE}&fieldSelector={selector}&continue={next}");
            let page: Page<T> = self.get(what.to_owned(), &uri).await?;
            all.extend(page.items);
            match page.metadata.continue_token.filter(|next| !next.is_empty()) {
                Some(next) => token = next,
                None => return Ok(all),
            }
        }
    }

    async fn get<T: DeserializeOwned>(&self, what: String, uri: &str) -> Result<T, ReadError> {
        let failed = |error: String| ReadError::Failed {
            what: what.clone(),
            error,
        };
        let request = Request::get(uri).body(Vec::new());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let answer = tokio::time::timeout(TIMEOUT, self.client.request(request)).await;
        match answer.map_err(|_| failed(format!("no answer within {} s", TIMEOUT.as_secs())))? {
            Ok(object) => Ok(object),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(ReadError::NotFound(what)),
            Err(kube::Error::Api(status)) => Err(failed(status.message.clone())),
            Err(error) => Err(failed(with_causes(&error))),
        }
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
