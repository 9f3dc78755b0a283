//! The pod as teardown sees it: the few fields that matter, projected once from the API object.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};

mod hook;
mod object;

pub use hook::{Hook, HookPort, HttpGet};
pub use object::{PodObject, RawStatuses, VolumeFacts};

/// Annotation by which a mirror pod is known, whatever its value.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Priority class of pods that a node cannot do without, and its value.
/// API: `pkg/apis/scheduling/types.go` `SystemNodeCritical`, `SystemCriticalPriority`.
const NODE_CRITICAL: (&str, i32) = ("system-node-critical", 2_000_001_000);

/// About the bytes that are kept of one pod at most. A pod with some 30 containers has fewer; a node may have 250 pods.
const LARGE: usize = 128 << 10;

/// As many pods as fill a node. Of more that are alike, only an outline is kept.
pub const FULL_NODE: usize = 250;

/// A pod's identity. Names are for people.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodUid(Arc<str>);

/// A pod's identity with the names that people know it by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// Identity.
    pub uid: PodUid,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// What of a pod decides how it is taken down.
#[derive(Debug, Clone)]
pub struct PodView {
    /// Identity and names.
    pub pod: PodRef,
    /// Set once the pod is being deleted.
    pub deletion: Option<Deletion>,
    /// `Failed` or `Succeeded`.
    pub terminal_phase: bool,
    /// Its phase is Running, or the status shows a container that runs.
    pub shows_running: bool,
    /// Stands for a static pod: never touched.
    pub mirror: bool,
    /// `spec.terminationGracePeriodSeconds`.
    pub spec_grace: Option<i64>,
    /// Has no network of its own: hooks reach it by the node's address.
    pub host_network: bool,
    /// Has priority class `system-node-critical`, or at least its priority.
    pub node_critical: bool,
    /// Addresses in the status, primary first.
    pub ips: Vec<String>,
    /// First address of the node in the status.
    pub host_ip: Option<String>,
    /// Names volumes that a controller may attach to nodes.
    pub attachable_volumes: bool,
    /// Uses devices that a driver of dynamic resources has prepared.
    pub dynamic_resources: bool,
    /// Names of the claims of dynamic resources that it uses.
    pub claims: Vec<Box<str>>,
    /// Has user ids of its own (`hostUsers: false`).
    pub user_namespace: bool,
    /// Directories of the host that it shares, as far as there is room.
    pub host_paths: Vec<Box<str>>,
    /// All containers of the spec, in its order: init, regular, ephemeral.
    pub containers: Vec<ContainerView>,
    /// KiB that all of a large object takes, of which no containers, claims, addresses and paths are kept; else 0.
    pub abridged: u32,
    /// The object as the API last showed it, as far as its status rests on it; kept only while the pod ends.
    pub object: Option<Arc<PodObject>>,
}

/// `metadata.deletionTimestamp` and `deletionGracePeriodSeconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// When the grace period is over, by the API server's clock.
    pub timestamp: Timestamp,
    /// Seconds asked for; `Some(0)` is a forced deletion.
    pub grace: Option<i64>,
}

/// One container of the spec.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerView {
    /// Its name.
    pub name: Arc<str>,
    /// Its part in the pod.
    pub role: Role,
    /// Its preStop handler.
    pub pre_stop: Option<Hook>,
    /// Named ports, for hooks that name one.
    pub ports: Vec<(String, i32)>,
}

/// Part that a container plays in its pod; decides the order of stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `spec.initContainers`, runs to its end before the regular ones.
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

// === impl PodView ===

impl PodView {
    /// Projects an API object to the fields that are kept. The whole object is kept only if it shows that the pod terminates, or
    /// if the termination is `decided` otherwise. Of a large object few fields are kept: the worker reads it again.
    pub fn project(object: PodObject, decided: bool) -> Self {
        let weight = object.weight();
        if weight <= LARGE {
            return Self::whole(object, decided);
        }
        Self {
            ips: Vec::new(),
            claims: Vec::new(),
            host_paths: Vec::new(),
            containers: Vec::new(),
            abridged: u32::try_from(weight >> 10).unwrap_or(u32::MAX),
            ..Self::of(&object)
        }
    }

    /// The same with all that a teardown uses, however much it is.
    pub fn whole(mut object: PodObject, decided: bool) -> Self {
        let mut view = Self::of(&object);
        if decided || view.ends() {
            leave_out_what_no_status_needs(&mut object);
            view.object = Some(Arc::new(object));
        }
        view
    }

    /// The same without the object, which is large.
    #[must_use]
    pub fn without_object(&self) -> Self {
        Self {
            object: None,
            ..self.clone()
        }
    }

    /// A pod of which nothing but its identity is known.
    pub fn remembered(pod: PodRef) -> Self {
        Self {
            pod,
            deletion: None,
            terminal_phase: false,
            shows_running: false,
            mirror: false,
            spec_grace: None,
            host_network: false,
            node_critical: false,
            ips: Vec::new(),
            host_ip: None,
            attachable_volumes: false,
            dynamic_resources: false,
            claims: Vec::new(),
            user_namespace: false,
            host_paths: Vec::new(),
            containers: Vec::new(),
            abridged: 0,
            object: None,
        }
    }

    /// A terminal pod of which no more is known than that, and the grace period of its spec in seconds. Its worker reads the
    /// object again, as that of a large one.
    pub fn ended(pod: PodRef, spec_grace: Option<i64>) -> Self {
        Self {
            terminal_phase: true,
            spec_grace,
            abridged: 1,
            ..Self::remembered(pod)
        }
    }

    fn of(object: &PodObject) -> Self {
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
            terminal_phase: matches!(
                status.and_then(|status| status.phase.as_deref()),
                Some("Failed" | "Succeeded")
            ),
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
            abridged: 0,
            object: None,
        }
    }

    /// Whether it has a terminal phase and is not deleted.
    pub fn has_only_ended(&self) -> bool {
        self.terminal_phase && self.deletion.is_none()
    }

    /// The few fields that decide whether the pod terminates, and how long that may take. Its worker reads the object again, as
    /// that of a large one.
    #[must_use]
    pub fn outline(&self) -> Self {
        Self {
            deletion: self.deletion,
            terminal_phase: self.terminal_phase,
            shows_running: self.shows_running,
            mirror: self.mirror,
            dynamic_resources: self.dynamic_resources,
            ..Self::ended(self.pod.clone(), self.spec_grace)
        }
    }

    /// Whether nothing of it may be on the node, so that the node is checked first: its status shows no container that runs, and
    /// it has no DRA claims, which the check does not see.
    pub fn may_be_absent(&self) -> bool {
        !self.mirror && !self.dynamic_resources && !self.shows_running
    }

    /// Whether it needs no worker if nothing of it is found on the node. One with DRA claims does: the check of the node does not
    /// see them. So does one with a container that its status shows as running: its termination must be reported.
    pub fn may_be_idle(&self) -> bool {
        self.has_only_ended() && self.may_be_absent()
    }

    /// Whether this pod is to be taken down by what its object says.
    pub fn ends(&self) -> bool {
        self.deletion.is_some() || self.terminal_phase
    }

    /// Whether everything is the same that decides how the pod is taken down, and when.
    pub fn ends_like(&self, other: &Self) -> bool {
        let Self {
            pod,
            deletion,
            terminal_phase: _,
            shows_running: _,
            mirror,
            spec_grace,
            host_network,
            node_critical: _,
            ips: _,
            host_ip: _,
            attachable_volumes,
            dynamic_resources,
            claims,
            user_namespace: _,
            host_paths: _,
            containers,
            abridged: _,
            object: _,
        } = self;
        *pod == other.pod
            && *deletion == other.deletion
            && *mirror == other.mirror
            && *spec_grace == other.spec_grace
            && *host_network == other.host_network
            && *attachable_volumes == other.attachable_volumes
            && *dynamic_resources == other.dynamic_resources
            && *claims == other.claims
            && *containers == other.containers
    }

    /// The container of this name.
    pub fn container(&self, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|container| &*container.name == name)
    }
}

/// Claims that the spec names, those that were made for the pod by a template, and the one of extended resources.
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

fn shows_running(status: &PodStatus) -> bool {
    if status.phase.as_deref() == Some("Running") {
        return true;
    }
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut entries = lists.into_iter().flatten().flatten();
    entries.any(|entry| entry.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// A node full of terminating pods holds a hundred objects.
fn leave_out_what_no_status_needs(object: &mut PodObject) {
    object.volumes = VolumeFacts::default();
    object.unreadable = Vec::new();
    if let Some(spec) = &mut object.pod.spec {
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            container.lifecycle = None;
            container.ports = None;
        }
    }
}

fn containers(spec: &PodSpec) -> Vec<ContainerView> {
    let init = spec.init_containers.iter().flatten().map(|container| {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        ContainerView::of(container, if sidecar { Role::Sidecar } else { Role::Init })
    });
    let regular = spec
        .containers
        .iter()
        .map(|container| ContainerView::of(container, Role::Regular));
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
    fn of(container: &Container, role: Role) -> Self {
        let pre_stop = container
            .lifecycle
            .as_ref()
            .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        Self {
            name: container.name.as_str().into(),
            role,
            pre_stop: pre_stop.map(Hook::of),
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
    fn every_volume_may_be_attached_but_for_kinds_that_never_are() {
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
