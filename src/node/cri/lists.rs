//! Lists of the runtime.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::future::try_join;
use k8s_cri::v1;

use super::{
    client::{Client, Cri, REQUEST_DEADLINE},
    convert,
    types::{PodSandbox, RuntimePod, keys},
};
use crate::node::grpc::GrpcError;

// === impl Cri ===

impl Cri {
    /// Every sandbox of the node, newest first within a pod.
    ///
    /// # Errors
    /// When a call fails, or the list is larger than a message.
    pub async fn list_sandboxes(&self) -> Result<Vec<PodSandbox>, GrpcError> {
        Ok(convert::node_sandboxes(self.sandboxes("").await?))
    }

    /// UIDs of all pods with a sandbox or a container.
    ///
    /// # Errors
    /// As [`Self::list_sandboxes`].
    pub async fn pods(&self) -> Result<BTreeSet<String>, GrpcError> {
        Ok(self.all_brief().await?.into_keys().collect())
    }

    /// All pods by UID, as the two lists show them: without the status of each container. See [`Self::pod_brief`].
    ///
    /// # Errors
    /// As [`Self::list_sandboxes`].
    pub async fn all_brief(&self) -> Result<BTreeMap<String, RuntimePod>, GrpcError> {
        let (sandboxes, containers) = try_join(self.sandboxes(""), self.containers("")).await?;
        let mut pods = BTreeMap::<String, (Vec<v1::PodSandbox>, Vec<v1::Container>)>::new();
        for sandbox in sandboxes {
            let in_metadata = || sandbox.metadata.as_ref().map(|metadata| &metadata.uid);
            if let Some(uid) = sandbox.labels.get(keys::POD_UID).or_else(in_metadata) {
                pods.entry(uid.clone()).or_default().0.push(sandbox);
            }
        }
        for container in containers {
            if let Some(uid) = container.labels.get(keys::POD_UID) {
                pods.entry(uid.clone()).or_default().1.push(container);
            }
        }
        let pods = pods.into_iter().map(|(uid, (sandboxes, containers))| {
            let containers = containers.into_iter().map(convert::listed_container);
            (uid, convert::pod(sandboxes, containers))
        });
        Ok(pods.collect())
    }

    /// Sandboxes of one pod, or of all pods if `uid` is empty.
    pub(super) async fn sandboxes(&self, uid: &str) -> Result<Vec<v1::PodSandbox>, GrpcError> {
        let filter = Some(v1::PodSandboxFilter {
            label_selector: uid_label(uid),
            ..Default::default()
        });
        let request = v1::ListPodSandboxRequest { filter };
        let send = async |mut client: Client| client.list_pod_sandbox(request).await;
        Ok(self.call("ListPodSandbox", uid, REQUEST_DEADLINE, send).await?.items)
    }

    /// Containers of one pod, or of all pods if `uid` is empty.
    pub(super) async fn containers(&self, uid: &str) -> Result<Vec<v1::Container>, GrpcError> {
        let filter = Some(v1::ContainerFilter {
            label_selector: uid_label(uid),
            ..Default::default()
        });
        let request = v1::ListContainersRequest { filter };
        let send = async |mut client: Client| client.list_containers(request).await;
        let answer = self.call("ListContainers", uid, REQUEST_DEADLINE, send).await?;
        Ok(answer.containers)
    }
}

fn uid_label(uid: &str) -> HashMap<String, String> {
    let label = (!uid.is_empty()).then(|| (keys::POD_UID.to_owned(), uid.to_owned()));
    label.into_iter().collect()
}
