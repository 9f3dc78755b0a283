//! The pod: the few fields that teardown uses, projected once from the API object.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};

mod hook;
mod object;

pub use hook::Hook;
pub use object::{PodObject, VolumeFacts};

/// Exit code of a container whose exit is unknown: never a success.
pub const UNKNOWN_EXIT_CODE: i32 = 137;
/// Reason of a container whose exit is unknown (kubelet: `pkg/kubelet/container/runtime.go` `ContainerReasonStatusUnknown`).
pub const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// Annotation of mirror pods, with any value.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Priority class of pods that a node needs, and its value.
/// API: `pkg/apis/scheduling/types.go` `SystemNodeCritical`, `SystemCriticalPriority`.
const NODE_CRITICAL: (&str, i32) = ("system-node-critical", 2_000_001_000);

/// Approximate bytes that are kept of one pod at most. About 30 containers fit; a node may have 250 pods.
const LARGE: usize = 128 << 10;

/// Pods of a full node. Of further ones only an outline is kept.
pub const FULL_NODE: usize = 250;

/// UID of a pod, which identifies it.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid(Arc<str>);

/// UID of a pod, with its namespace and name for output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// UID.
    pub uid: PodUid,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// The fields of a pod that its termination depends on.
#[derive(Debug, Clone, Default)]
pub struct PodView {
    /// UID, namespace and name.
    pub pod: PodRef,
    /// Set if the pod is being deleted.
    pub deletion: Option<Deletion>,
    /// Its phase is `Failed` or `Succeeded`.
    pub terminal_phase: bool,
    /// Its phase is Running, or its status shows a running container.
    pub shows_running: bool,
    /// It mirrors a static pod and is never touched.
    pub mirror: bool,
    /// `spec.terminationGracePeriodSeconds`.
    pub spec_grace: Option<i64>,
    /// It uses the host network: hooks reach it by the node's address.
    pub host_network: bool,
    /// Its priority is at least that of `system-node-critical`.
    pub node_critical: bool,
    /// Addresses in the status, primary first.
    pub ips: Vec<String>,
    /// First address of the node in the status.
    pub host_ip: Option<String>,
    /// It has volumes that a controller may attach to nodes.
    pub attachable_volumes: bool,
    /// It uses dynamic resources (DRA).
    pub dynamic_resources: bool,
    /// Names of its ResourceClaims.
    pub claims: Vec<Box<str>>,
    /// It has a user namespace (`hostUsers: false`).
    pub user_namespace: bool,
    /// Its `hostPath` directories, up to a total of some KiB.
    pub host_paths: Vec<Box<str>>,
    /// All containers of the spec, in its order: init, regular, ephemeral.
    pub containers: Vec<ContainerView>,
    /// What the API server has of it.
    pub object: ApiObject,
}

/// What the API server has of a pod.
#[derive(Debug, Clone, Default)]
pub enum ApiObject {
    /// The fields of its object that the status depends on.
    Present(Arc<PodObject>),
    /// An object that is not kept: the pod does not terminate by it, or it is large. The view has what a stop needs.
    #[default]
    NotKept,
    /// An object of which the view is only an outline: a large one, or one of thousands of terminal pods. It is read before the first
    /// step.
    Unread,
    /// Nothing: the object is proven to be deleted. With its last state, if an event showed it.
    Gone(Option<Arc<PodObject>>),
    /// There is no API server.
    NoServer,
}

/// `metadata.deletionTimestamp` and `deletionGracePeriodSeconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// When the grace period expires, by the API server's clock.
    pub timestamp: Timestamp,
    /// Grace period in seconds; `Some(0)` is a force deletion.
    pub grace: Option<i64>,
}

/// One container of the spec.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerView {
    /// Name.
    pub name: Arc<str>,
    /// Kind of the container.
    pub role: Role,
    /// Its preStop hook.
    pub pre_stop: Option<Hook>,
    /// Its named ports, for hooks that use a port name.
    pub ports: Vec<(String, i32)>,
}

/// Kind of a container; it decides the order of stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `spec.initContainers`, runs to completion before the regular ones.
    Init,
    /// `spec.initContainers` with restartPolicy Always.
    Sidecar,
    /// `spec.containers`.
    Regular,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

// === impl PodUid ===

impl PodUid {
    /// The UID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PodUid {
    fn from(uid: &str) -> Self {
        Self(uid.into())
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl ApiObject ===

impl ApiObject {
    /// The object, or its last state.
    pub fn last_known(&self) -> Option<&Arc<PodObject>> {
        match self {
            Self::Present(object) | Self::Gone(Some(object)) => Some(object),
            Self::NotKept | Self::Unread | Self::Gone(None) | Self::NoServer => None,
        }
    }

    /// Its status, or the last one.
    pub fn status(&self) -> Option<&PodStatus> {
        self.last_known()?.pod.status.as_ref()
    }

    /// Whether no API server has it.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Gone(_) | Self::NoServer)
    }
}

// === impl PodView ===

impl PodView {
    /// Projects an API object to the fields that are kept. The whole object is kept only if it shows that the pod terminates, or
    /// if the termination is `decided` otherwise. Of a large object few fields are kept: the worker reads it again.
    pub fn project(object: PodObject, decided: bool) -> Self {
        if object.weight <= LARGE {
            return Self::whole(object, decided);
        }
        Self {
            ips: Vec::new(),
            claims: Vec::new(),
            host_paths: Vec::new(),
            containers: Vec::new(),
            object: ApiObject::Unread,
            ..Self::from_object(&object)
        }
    }

    /// As [`Self::whole`], without the object if it is large: the grace period may be long.
    pub fn for_stop(object: PodObject) -> Self {
        let is_large = object.weight > LARGE;
        let view = Self::whole(object, true);
        if is_large { view.without_object() } else { view }
    }

    /// As [`Self::project`], with all fields that a teardown uses, even of a large object.
    pub fn whole(mut object: PodObject, decided: bool) -> Self {
        let mut view = Self::from_object(&object);
        if decided || view.must_terminate() {
            drop_fields_without_effect_on_status(&mut object);
            view.object = ApiObject::Present(Arc::new(object));
        }
        view
    }

    /// A copy without the object, which is large.
    #[must_use]
    pub fn without_object(&self) -> Self {
        let object = match &self.object {
            ApiObject::Present(_) => ApiObject::NotKept,
            ApiObject::Gone(_) => ApiObject::Gone(None),
            other => other.clone(),
        };
        Self { object, ..self.clone() }
    }

    /// The pod after its object was deleted.
    #[must_use]
    pub fn gone(&self) -> Self {
        Self {
            object: ApiObject::Gone(self.object.last_known().cloned()),
            ..self.clone()
        }
    }

    /// A pod of which only the identity is known.
    pub fn identity_only(pod: PodRef) -> Self {
        Self { pod, ..Self::default() }
    }

    fn from_object(object: &PodObject) -> Self {
        let PodObject { pod, volumes, .. } = object;
        let meta = &pod.metadata;
        let text = |field: &Option<String>| Arc::<str>::from(field.as_deref().unwrap_or_default());
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let mut ips: Vec<String> = status.and_then(|status| status.pod_ip.clone()).into_iter().collect();
        for ip in status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten() {
            if !ips.contains(&ip.ip) {
                ips.push(ip.ip.clone());
            }
        }
        Self {
            pod: PodRef {
                uid: PodUid(text(&meta.uid)),
                namespace: text(&meta.namespace),
                name: text(&meta.name),
            },
            deletion: meta.deletion_timestamp.as_ref().map(|at| Deletion {
                timestamp: at.0,
                grace: meta.deletion_grace_period_seconds,
            }),
            terminal_phase: status
                .and_then(|status| status.phase.as_deref())
                .is_some_and(is_terminal_phase),
            shows_running: status.is_some_and(shows_running),
            mirror: meta
                .annotations
                .as_ref()
                .is_some_and(|map| map.contains_key(CONFIG_MIRROR)),
            spec_grace: spec.and_then(|spec| spec.termination_grace_period_seconds),
            host_network: spec.and_then(|spec| spec.host_network).unwrap_or(false),
            node_critical: spec.is_some_and(is_node_critical),
            ips,
            host_ip: status.and_then(|status| status.host_ip.clone()),
            attachable_volumes: volumes.attachable,
            dynamic_resources: spec.is_some_and(|spec| spec.resource_claims.as_ref().is_some_and(|it| !it.is_empty()))
                || status.is_some_and(|status| status.extended_resource_claim_status.is_some()),
            claims: claims(pod),
            user_namespace: spec.is_some_and(|spec| spec.host_users == Some(false)),
            host_paths: volumes.host_paths.iter().cloned().collect(),
            containers: spec.map(containers).unwrap_or_default(),
            object: ApiObject::default(),
        }
    }

    /// Whether it has a terminal phase and is not deleted.
    pub fn is_terminal_and_not_deleted(&self) -> bool {
        self.terminal_phase && self.deletion.is_none()
    }

    /// The few fields that decide whether the pod terminates, and its grace period. Its worker reads the object again, as for a large
    /// one.
    #[must_use]
    pub fn outline(&self) -> Self {
        Self {
            deletion: self.deletion,
            terminal_phase: self.terminal_phase,
            shows_running: self.shows_running,
            mirror: self.mirror,
            dynamic_resources: self.dynamic_resources,
            spec_grace: self.spec_grace,
            object: ApiObject::Unread,
            ..Self::identity_only(self.pod.clone())
        }
    }

    /// Whether it may have left nothing on the node, so that the node is checked first: its status shows no running container, and it
    /// has no DRA claims, which that check does not cover.
    pub fn may_be_absent(&self) -> bool {
        !self.mirror && !self.dynamic_resources && !self.shows_running
    }

    /// Whether it needs no worker if nothing of it is found on the node. A pod with DRA claims needs one: the check of the node does
    /// not cover them. A pod whose status shows a running container needs one, too: its termination must be reported.
    pub fn may_be_idle(&self) -> bool {
        self.is_terminal_and_not_deleted() && self.may_be_absent()
    }

    /// Whether the API shows its deletion: requested or done.
    pub fn is_deletion_shown(&self) -> bool {
        self.object.is_absent() || self.deletion.is_some()
    }

    /// Whether its object says that it has to terminate.
    pub fn must_terminate(&self) -> bool {
        self.deletion.is_some() || self.terminal_phase
    }

    /// The container of this name.
    pub fn container(&self, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|container| &*container.name == name)
    }
}

/// ResourceClaims: named in the spec, generated from a template, and the one for extended resources.
fn claims(pod: &Pod) -> Vec<Box<str>> {
    let spec = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let named = spec.filter_map(|claim| claim.resource_claim_name.as_deref());
    let status = pod.status.as_ref();
    let made = status
        .and_then(|status| status.resource_claim_statuses.as_deref())
        .unwrap_or_default();
    let made = made.iter().filter_map(|claim| claim.resource_claim_name.as_deref());
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let extended = extended.map(|claim| claim.resource_claim_name.as_str());
    named.chain(made).chain(extended).map(Box::from).collect()
}

fn is_node_critical(spec: &PodSpec) -> bool {
    let (class, priority) = NODE_CRITICAL;
    spec.priority_class_name.as_deref() == Some(class) || spec.priority.is_some_and(|it| it >= priority)
}

/// The statuses of all containers: init, regular, ephemeral.
pub fn container_statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}

/// Whether a status shows its container as running.
pub fn is_running(entry: &ContainerStatus) -> bool {
    entry.state.as_ref().is_some_and(|state| state.running.is_some())
}

/// As [`container_statuses`].
pub fn container_statuses_mut(status: &mut PodStatus) -> impl Iterator<Item = &mut ContainerStatus> {
    let lists = [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}

/// Whether a pod never leaves this phase.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Failed" | "Succeeded")
}

fn shows_running(status: &PodStatus) -> bool {
    status.phase.as_deref() == Some("Running") || container_statuses(status).any(is_running)
}

/// Drops fields that the status does not depend on: a full node keeps hundreds of objects.
fn drop_fields_without_effect_on_status(object: &mut PodObject) {
    object.volumes = VolumeFacts::default();
    if let Some(spec) = &mut object.pod.spec {
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            container.lifecycle = None;
            container.ports = None;
        }
    }
}

/// A restartable init container, with its own policy Always (`IsRestartableInitContainer`).
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

fn containers(spec: &PodSpec) -> Vec<ContainerView> {
    let init = spec.init_containers.iter().flatten().map(|container| {
        let role = if is_sidecar(container) {
            Role::Sidecar
        } else {
            Role::Init
        };
        ContainerView::from_spec(container, role)
    });
    let regular = spec
        .containers
        .iter()
        .map(|container| ContainerView::from_spec(container, Role::Regular));
    let ephemeral = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|container| ContainerView {
            name: container.name.as_str().into(),
            role: Role::Ephemeral,
            pre_stop: None,
            ports: Vec::new(),
        });
    init.chain(regular).chain(ephemeral).collect()
}

// === impl ContainerView ===

impl ContainerView {
    fn from_spec(container: &Container, role: Role) -> Self {
        let pre_stop = container
            .lifecycle
            .as_ref()
            .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        Self {
            name: container.name.as_str().into(),
            role,
            pre_stop: pre_stop.map(Hook::from_handler),
            ports: container
                .ports
                .iter()
                .flatten()
                .filter_map(|port| Some((port.name.clone()?, port.container_port)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with_volume(volume: &Value) -> PodView {
        let pod = json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": "u" },
            "spec": { "containers": [], "volumes": [volume] },
        });
        PodView::project(PodObject::from_value(&pod).unwrap(), false)
    }

    #[test]
    fn all_volumes_count_as_attachable_except_kinds_that_never_are() {
        for (volume, attachable) in [
            (
                json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }),
                true,
            ),
            (json!({ "name": "v", "ephemeral": {} }), true),
            (json!({ "name": "v", "csi": { "driver": "d" } }), true),
            (json!({ "name": "v", "gcePersistentDisk": { "pdName": "d" } }), true),
            (
                json!({ "name": "v", "awsElasticBlockStore": { "volumeID": "d" } }),
                true,
            ),
            (
                json!({ "name": "v", "azureDisk": { "diskName": "d", "diskURI": "u" } }),
                true,
            ),
            (json!({ "name": "v", "cinder": { "volumeID": "d" } }), true),
            (json!({ "name": "v", "vsphereVolume": { "volumePath": "p" } }), true),
            (json!({ "name": "v", "rbd": { "image": "i", "monitors": [] } }), true),
            (json!({ "name": "v", "kindOfTheFuture": {} }), true),
            (json!({ "name": "v", "emptyDir": {} }), false),
            (json!({ "name": "v", "hostPath": { "path": "/" } }), false),
            (json!({ "name": "v", "projected": {} }), false),
            (json!({ "name": "v", "nfs": { "server": "s", "path": "/" } }), false),
        ] {
            assert_eq!(with_volume(&volume).attachable_volumes, attachable, "{volume}");
        }
    }
}
