//! Reads a pod object: the fields that the teardown uses. A large pod is read in place, container by container.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, EphemeralContainer, Lifecycle, Pod, PodReadinessGate, PodResourceClaim, PodSpec,
    PodStatus, Probe, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{CONFIG_MIRROR, container_statuses, container_statuses_mut};
use crate::why::Why;

/// Bytes of host paths to keep for one pod. All pods of the node need them, and drivers use a few short ones.
const MOST_HOST_PATHS: usize = 8 << 10;
/// Approximate bytes of a container or its status, besides its text.
const CONTAINER: usize = 2048;
/// Approximate bytes of an element of another list, besides its text.
const ELEMENT: usize = 128;

/// A pod object with the fields that are used.
#[derive(Debug, Clone, Default)]
pub struct PodObject {
    /// The fields.
    pub pod: Pod,
    /// The status in the server's JSON: fields that are unknown here must be kept in an update.
    pub raw_status: Option<Box<RawValue>>,
    /// Properties of its volumes.
    pub volumes: VolumeFacts,
    /// Approximate bytes that all of it needs.
    pub(super) weight: usize,
}

/// Properties of the volumes of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeFacts {
    /// A controller may attach one of them to nodes.
    pub attachable: bool,
    /// Its `hostPath` directories, up to [`MOST_HOST_PATHS`] bytes.
    pub host_paths: BTreeSet<Box<str>>,
}

#[derive(Deserialize)]
struct PodJson<'a> {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<Spec>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    uid: String,
    namespace: String,
    name: String,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Option<Vec<String>>,
    annotations: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    termination_grace_period_seconds: Option<i64>,
    active_deadline_seconds: Option<i64>,
    host_network: Option<bool>,
    priority: Option<i32>,
    priority_class_name: Option<String>,
    host_users: Option<bool>,
    restart_policy: Option<String>,
    readiness_gates: Option<Vec<PodReadinessGate>>,
    resource_claims: Option<Vec<PodResourceClaim>>,
    init_containers: Option<Vec<SmallContainer>>,
    containers: Option<Vec<SmallContainer>>,
    /// They have the fields of other containers, and one more.
    ephemeral_containers: Option<Vec<SmallContainer>>,
    volumes: Option<Vec<SmallVolume>>,
}

/// A container without the fields that are not used.
#[derive(Deserialize)]
#[serde(from = "Container")]
struct SmallContainer(Container);

#[derive(Deserialize)]
#[serde(from = "Volume")]
struct SmallVolume {
    attachable: bool,
    host_path: Option<Box<str>>,
}

// === impl PodObject ===

impl PodObject {
    /// Reads an object.
    ///
    /// # Errors
    /// When a field that is used has another type than in the API, or uid, namespace or name is missing.
    pub fn read(json: &RawValue) -> Result<Self, Why> {
        let PodJson { metadata, spec, status } = serde_json::from_str(json.get()).map_err(Why::new)?;
        if [&metadata.uid, &metadata.namespace, &metadata.name]
            .iter()
            .any(|it| it.is_empty())
        {
            return Err(Why::new("it lacks uid, name or namespace"));
        }
        let raw_status = status.map(ToOwned::to_owned);
        let status = status.map(|status| serde_json::from_str::<PodStatus>(status.get()));
        let mut status = status.transpose().map_err(Why::new)?;
        status.iter_mut().for_each(drop_unchanged);
        let (spec, volumes) = spec.map(Spec::split).unzip();
        let pod = Pod {
            metadata: metadata.into(),
            spec,
            status,
        };
        Ok(Self {
            weight: weight(&pod) + raw_status.as_ref().map_or(0, |status| status.get().len()),
            pod,
            raw_status,
            volumes: volumes.unwrap_or_default(),
        })
    }

    /// Reads an object that a test has built.
    #[cfg(test)]
    pub fn from_value(value: &serde_json::Value) -> Result<Self, Why> {
        Self::read(&serde_json::value::to_raw_value(value).map_err(Why::new)?)
    }
}

/// Drops what the agent never changes: it stays in the server's JSON.
fn drop_unchanged(status: &mut PodStatus) {
    for entry in container_statuses_mut(status) {
        *entry = ContainerStatus {
            allocated_resources: None,
            allocated_resources_status: None,
            resources: None,
            stop_signal: None,
            user: None,
            volume_mounts: None,
            ..std::mem::take(entry)
        };
    }
}

/// Approximate bytes: the text of the fields that are used, and what the lists need besides.
fn weight(pod: &Pod) -> usize {
    let text = serde_json::to_vec(pod).map_or(usize::MAX / 2, |json| json.len());
    let list = |length: Option<usize>, each: usize| length.unwrap_or_default() * each;
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    let spec = spec.map_or(0, |it| {
        list(it.init_containers.as_ref().map(Vec::len), CONTAINER)
            + list(Some(it.containers.len()), CONTAINER)
            + list(it.ephemeral_containers.as_ref().map(Vec::len), CONTAINER)
            + list(it.resource_claims.as_ref().map(Vec::len), ELEMENT)
    });
    let status = status.map_or(0, |it| {
        list(Some(container_statuses(it).count()), CONTAINER) + list(it.conditions.as_ref().map(Vec::len), ELEMENT)
    });
    text + spec + status
}

// === impl Metadata ===

impl From<Metadata> for ObjectMeta {
    fn from(metadata: Metadata) -> Self {
        let is_mirror = metadata.annotations.is_some_and(|all| all.contains_key(CONFIG_MIRROR));
        Self {
            uid: Some(metadata.uid),
            namespace: Some(metadata.namespace),
            name: Some(metadata.name),
            resource_version: metadata.resource_version,
            generation: metadata.generation,
            deletion_timestamp: metadata.deletion_timestamp.map(Time),
            deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
            finalizers: metadata.finalizers,
            annotations: is_mirror.then(|| [(CONFIG_MIRROR.to_owned(), String::new())].into()),
            ..Self::default()
        }
    }
}

// === impl Spec ===

impl Spec {
    fn split(self) -> (PodSpec, VolumeFacts) {
        let containers = |list: Vec<SmallContainer>| list.into_iter().map(|it| it.0).collect();
        let ephemeral = |SmallContainer(Container { name, image, .. })| EphemeralContainer {
            name,
            image,
            ..Default::default()
        };
        let mut facts = VolumeFacts::default();
        let mut left = MOST_HOST_PATHS;
        for volume in self.volumes.unwrap_or_default() {
            facts.attachable |= volume.attachable;
            if let Some(path) = volume.host_path.filter(|path| path.len() <= left) {
                left -= path.len();
                facts.host_paths.insert(path);
            }
        }
        let spec = PodSpec {
            node_name: self.node_name,
            termination_grace_period_seconds: self.termination_grace_period_seconds,
            active_deadline_seconds: self.active_deadline_seconds,
            host_network: self.host_network,
            priority: self.priority,
            priority_class_name: self.priority_class_name,
            host_users: self.host_users,
            restart_policy: self.restart_policy,
            readiness_gates: self.readiness_gates,
            resource_claims: self.resource_claims,
            init_containers: self.init_containers.map(containers),
            containers: self.containers.map(containers).unwrap_or_default(),
            ephemeral_containers: self
                .ephemeral_containers
                .map(|list| list.into_iter().map(ephemeral).collect()),
            ..Default::default()
        };
        (spec, facts)
    }
}

impl From<Container> for SmallContainer {
    fn from(container: Container) -> Self {
        // Only the presence of a probe matters.
        let probe = |probe: Option<Probe>| probe.map(|_| Probe::default());
        let pre_stop = container.lifecycle.and_then(|lifecycle| lifecycle.pre_stop);
        Self(Container {
            name: container.name,
            image: container.image,
            restart_policy: container.restart_policy,
            startup_probe: probe(container.startup_probe),
            readiness_probe: probe(container.readiness_probe),
            lifecycle: pre_stop.map(|handler| Lifecycle {
                pre_stop: Some(handler),
                ..Default::default()
            }),
            ports: container.ports,
            ..Default::default()
        })
    }
}

impl From<Volume> for SmallVolume {
    /// Only some kinds of volumes are never attached to a node. All others, also future ones, count as attachable.
    fn from(volume: Volume) -> Self {
        let is_never_attached = volume.azure_file.is_some()
            || volume.cephfs.is_some()
            || volume.config_map.is_some()
            || volume.downward_api.is_some()
            || volume.empty_dir.is_some()
            || volume.git_repo.is_some()
            || volume.glusterfs.is_some()
            || volume.host_path.is_some()
            || volume.image.is_some()
            || volume.nfs.is_some()
            || volume.projected.is_some()
            || volume.quobyte.is_some()
            || volume.secret.is_some();
        Self {
            attachable: !is_never_attached,
            host_path: volume.host_path.map(|host_path| host_path.path.into()),
        }
    }
}

#[cfg(test)]
mod tests;
