//! Reads a pod object field by field.
//!
//! Only fields that the teardown uses are read, one by one. A field that cannot be read is unknown, its path is reported, and the
//! other fields stay valid. The object is read in place: fields that are not used need no memory.

use std::{borrow::Cow, cell::RefCell, collections::BTreeSet, fmt};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, EphemeralContainer, HostIP, Lifecycle, LifecycleHandler, Pod, PodCondition,
    PodExtendedResourceClaimStatus, PodIP, PodReadinessGate, PodResourceClaim, PodResourceClaimStatus, PodSpec,
    PodStatus, Probe,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{CONFIG_MIRROR, UNKNOWN_EXIT_CODE, hook::ELEMENT};

/// Paths of unreadable fields to keep for one pod.
const MOST_PATHS: usize = 16;
/// Bytes of host paths to keep for one pod. All pods of the node need them, and drivers use a few short ones.
const MOST_HOST_PATHS: usize = 8 << 10;
/// Approximate bytes of a container.
const CONTAINER: usize = 2048;

/// Kinds of volumes that are never attached to a node. All other kinds, also future ones, count as attachable.
const NEVER_ATTACHED: [&str; 13] = [
    "azureFile",
    "cephfs",
    "configMap",
    "downwardAPI",
    "emptyDir",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "image",
    "nfs",
    "projected",
    "quobyte",
    "secret",
];

/// A pod object with the fields that are used.
#[derive(Debug, Clone, Default)]
pub struct PodObject {
    /// The fields that could be read.
    pub pod: Pod,
    /// The lists of container statuses in the server's JSON.
    pub statuses: RawStatuses,
    /// Properties of its volumes.
    pub volumes: VolumeFacts,
    /// Paths of fields that cannot be read.
    pub unreadable: Vec<String>,
}

/// The lists of container statuses in the server's JSON: fields that are unknown here must be kept in an update.
#[derive(Debug, Clone, Default)]
pub struct RawStatuses {
    /// `containerStatuses`.
    pub regular: Option<Box<RawValue>>,
    /// `initContainerStatuses`.
    pub init: Option<Box<RawValue>>,
    /// `ephemeralContainerStatuses`.
    pub ephemeral: Option<Box<RawValue>>,
}

/// Properties of the volumes of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeFacts {
    /// A controller may attach one of them to nodes.
    pub attachable: bool,
    /// Its `hostPath` directories, up to [`MOST_HOST_PATHS`] bytes.
    pub host_paths: BTreeSet<Box<str>>,
}

/// Reads fields, and collects the paths of those that cannot be read.
#[derive(Default)]
struct Reader {
    unreadable: RefCell<Vec<String>>,
}

/// The fields of one JSON object.
struct Object<'r, 'a> {
    reader: &'r Reader,
    path: String,
    fields: Fields<'a>,
}

#[derive(Default)]
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

// === impl PodObject ===

impl PodObject {
    /// Reads an object.
    ///
    /// # Errors
    /// When it is not a JSON object, has no uid, namespace or name, or its annotations cannot be read: they mark mirror pods.
    pub fn read(json: &RawValue) -> Result<Self, String> {
        let reader = Reader::default();
        let fields = serde_json::from_str(json.get()).map_err(|error| error.to_string())?;
        let top = Object {
            reader: &reader,
            path: String::new(),
            fields,
        };
        let metadata = metadata(&top.object("metadata"))?;
        let has_name = |field: &Option<String>| field.as_ref().is_some_and(|text| !text.is_empty());
        if ![&metadata.uid, &metadata.namespace, &metadata.name]
            .into_iter()
            .all(has_name)
        {
            return Err("it lacks uid, name or namespace".to_owned());
        }
        let raw = |status: &Object<'_, '_>, list| status.raw(list).map(ToOwned::to_owned);
        let status = top.object("status");
        let spec = top.object("spec");
        let mut read = Self {
            statuses: RawStatuses {
                regular: raw(&status, "containerStatuses"),
                init: raw(&status, "initContainerStatuses"),
                ephemeral: raw(&status, "ephemeralContainerStatuses"),
            },
            volumes: volumes(&spec),
            pod: Pod {
                metadata,
                spec: top.has("spec").then(|| pod_spec(&spec)),
                status: top.has("status").then(|| pod_status(&status)),
            },
            unreadable: Vec::new(),
        };
        read.unreadable = reader.unreadable.take();
        Ok(read)
    }

    /// Approximate bytes that all of it needs.
    pub(super) fn weight(&self) -> usize {
        let status = self.pod.status.as_ref();
        let spec = self.pod.spec.as_ref();
        let containers = spec.map_or(0, |spec| {
            let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            let ephemeral = spec.ephemeral_containers.as_ref().map_or(0, Vec::len);
            ephemeral * CONTAINER + all.map(weight_of).sum::<usize>()
        });
        let lists = spec.map_or(0, |spec| {
            spec.resource_claims.as_ref().map_or(0, Vec::len) + spec.readiness_gates.as_ref().map_or(0, Vec::len)
        });
        let shown = status.map_or(0, |status| {
            let conditions = status.conditions.iter().flatten();
            let texts = conditions
                .flat_map(|condition| [&condition.message, &condition.reason])
                .chain([&status.message]);
            let lists = status.conditions.as_ref().map_or(0, Vec::len)
                + status.pod_ips.as_ref().map_or(0, Vec::len)
                + status.host_ips.as_ref().map_or(0, Vec::len)
                + status.resource_claim_statuses.as_ref().map_or(0, Vec::len);
            lists * ELEMENT + texts.flatten().map(String::len).sum::<usize>()
        });
        let raw = [&self.statuses.regular, &self.statuses.init, &self.statuses.ephemeral];
        let raw = raw.into_iter().flatten().map(|raw| raw.get().len()).sum::<usize>();
        let paths = self.volumes.host_paths.iter().map(|path| path.len()).sum::<usize>();
        containers + lists * ELEMENT + shown + raw * 2 + paths
    }

    /// Reads an object that a test has built.
    #[cfg(test)]
    pub fn from_value(value: &serde_json::Value) -> Result<Self, String> {
        Self::read(&serde_json::value::to_raw_value(value).map_err(|error| error.to_string())?)
    }
}

fn metadata(metadata: &Object<'_, '_>) -> Result<ObjectMeta, String> {
    let annotations = metadata
        .raw("annotations")
        .map(|raw| serde_json::from_str::<Fields<'_>>(raw.get()));
    let annotations = annotations.transpose();
    let annotations =
        annotations.map_err(|_| "its annotations cannot be read, and a mirror of a static pod is known by them")?;
    let is_mirror = annotations.is_some_and(|annotations| annotations.get(CONFIG_MIRROR).is_some());
    Ok(ObjectMeta {
        uid: metadata.field("uid"),
        namespace: metadata.field("namespace"),
        name: metadata.field("name"),
        resource_version: metadata.field("resourceVersion"),
        generation: metadata.field("generation"),
        // An unreadable timestamp is a deletion, too.
        deletion_timestamp: metadata.time("deletionTimestamp"),
        deletion_grace_period_seconds: metadata.field("deletionGracePeriodSeconds"),
        finalizers: metadata.field("finalizers"),
        annotations: is_mirror.then(|| [(CONFIG_MIRROR.to_owned(), String::new())].into()),
        ..Default::default()
    })
}

fn pod_spec(spec: &Object<'_, '_>) -> PodSpec {
    PodSpec {
        node_name: spec.field("nodeName"),
        termination_grace_period_seconds: spec.field("terminationGracePeriodSeconds"),
        active_deadline_seconds: spec.field("activeDeadlineSeconds"),
        host_network: spec.field("hostNetwork"),
        priority: spec.field("priority"),
        priority_class_name: spec.field("priorityClassName"),
        host_users: spec.field("hostUsers"),
        restart_policy: spec.field("restartPolicy"),
        readiness_gates: spec.list("readinessGates", |gate| {
            Some(PodReadinessGate {
                condition_type: gate.required("conditionType")?,
            })
        }),
        resource_claims: spec.list("resourceClaims", |claim| {
            Some(PodResourceClaim {
                name: claim.required("name")?,
                resource_claim_name: claim.field("resourceClaimName"),
                ..Default::default()
            })
        }),
        init_containers: spec.list("initContainers", container),
        containers: spec.list("containers", container).unwrap_or_default(),
        ephemeral_containers: spec.list("ephemeralContainers", |container| {
            Some(EphemeralContainer {
                name: container.required("name")?,
                image: container.field("image"),
                ..Default::default()
            })
        }),
        ..Default::default()
    }
}

fn container(container: &Object<'_, '_>) -> Option<Container> {
    // Only the presence of a probe matters. An unreadable handler fails.
    let probe = |field| container.has(field).then(Probe::default);
    let lifecycle = container.object("lifecycle");
    let pre_stop = lifecycle.has("preStop").then(|| lifecycle.field("preStop"));
    Some(Container {
        name: container.required("name")?,
        image: container.field("image"),
        restart_policy: container.field("restartPolicy"),
        restart_policy_rules: container.field("restartPolicyRules"),
        startup_probe: probe("startupProbe"),
        readiness_probe: probe("readinessProbe"),
        lifecycle: pre_stop.map(|handler: Option<LifecycleHandler>| Lifecycle {
            pre_stop: Some(handler.unwrap_or_default()),
            ..Default::default()
        }),
        ports: container.list("ports", |port| {
            Some(ContainerPort {
                name: port.field("name"),
                container_port: port.required("containerPort")?,
                ..Default::default()
            })
        }),
        ..Default::default()
    })
}

fn pod_status(status: &Object<'_, '_>) -> PodStatus {
    PodStatus {
        phase: status.field("phase"),
        reason: status.field("reason"),
        message: status.field("message"),
        pod_ip: status.field("podIP"),
        pod_ips: status.list("podIPs", |ip| Some(PodIP { ip: ip.required("ip")? })),
        host_ip: status.field("hostIP"),
        host_ips: status.list("hostIPs", |ip| Some(HostIP { ip: ip.required("ip")? })),
        start_time: status.time("startTime"),
        observed_generation: status.field("observedGeneration"),
        conditions: status.list("conditions", |condition| {
            Some(PodCondition {
                type_: condition.required("type")?,
                status: condition.required("status")?,
                reason: condition.field("reason"),
                message: condition.field("message"),
                last_probe_time: condition.time("lastProbeTime"),
                last_transition_time: condition.time("lastTransitionTime"),
                observed_generation: condition.field("observedGeneration"),
            })
        }),
        container_statuses: status.list("containerStatuses", container_status),
        init_container_statuses: status.list("initContainerStatuses", container_status),
        ephemeral_container_statuses: status.list("ephemeralContainerStatuses", container_status),
        resource_claim_statuses: status.list("resourceClaimStatuses", |claim| {
            Some(PodResourceClaimStatus {
                name: claim.required("name")?,
                resource_claim_name: claim.field("resourceClaimName"),
            })
        }),
        extended_resource_claim_status: status.has("extendedResourceClaimStatus").then(|| {
            let claim = status.object("extendedResourceClaimStatus");
            PodExtendedResourceClaimStatus {
                resource_claim_name: claim.field("resourceClaimName").unwrap_or_default(),
                ..Default::default()
            }
        }),
        ..Default::default()
    }
}

/// Without the fields that the agent never changes: they stay in the server's JSON.
fn container_status(entry: &Object<'_, '_>) -> Option<ContainerStatus> {
    Some(ContainerStatus {
        name: entry.required("name")?,
        image: entry.field("image").unwrap_or_default(),
        image_id: entry.field("imageID").unwrap_or_default(),
        container_id: entry.field("containerID"),
        ready: entry.field("ready").unwrap_or_default(),
        started: entry.field("started"),
        restart_count: entry.field("restartCount").unwrap_or_default(),
        state: container_state(entry, "state"),
        last_state: container_state(entry, "lastState"),
        ..Default::default()
    })
}

fn container_state(entry: &Object<'_, '_>, field: &str) -> Option<ContainerState> {
    let state = entry.has(field).then(|| entry.object(field))?;
    let part = |part| state.has(part).then(|| state.object(part));
    Some(ContainerState {
        waiting: part("waiting").map(|waiting| ContainerStateWaiting {
            reason: waiting.field("reason"),
            message: waiting.field("message"),
        }),
        running: part("running").map(|running| ContainerStateRunning {
            started_at: running.field("startedAt"),
        }),
        terminated: part("terminated").map(|end| ContainerStateTerminated {
            container_id: end.field("containerID"),
            exit_code: end
                .raw("exitCode")
                .map_or(0, |_| end.field("exitCode").unwrap_or(UNKNOWN_EXIT_CODE)),
            finished_at: end.field("finishedAt"),
            message: end.field("message"),
            reason: end.field("reason"),
            signal: end.field("signal"),
            started_at: end.field("startedAt"),
        }),
    })
}

fn weight_of(container: &Container) -> usize {
    let hook = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let command = hook
        .and_then(|hook| hook.exec.as_ref()?.command.as_deref())
        .unwrap_or_default();
    let get = hook.and_then(|hook| hook.http_get.as_ref());
    let headers = get.and_then(|get| get.http_headers.as_deref()).unwrap_or_default();
    let texts = command.iter().map(|text| ELEMENT + text.len());
    let texts = texts.chain(
        headers
            .iter()
            .map(|header| ELEMENT + header.name.len() + header.value.len()),
    );
    let lists =
        container.ports.as_ref().map_or(0, Vec::len) + container.restart_policy_rules.as_ref().map_or(0, Vec::len);
    let path = get.and_then(|get| get.path.as_ref()).map_or(0, String::len);
    CONTAINER + lists * ELEMENT + path + texts.sum::<usize>()
}

/// An unreadable volume counts as attachable.
fn volumes(spec: &Object<'_, '_>) -> VolumeFacts {
    let mut facts = VolumeFacts::default();
    let (mut read, mut left) = (0, MOST_HOST_PATHS);
    spec.list("volumes", |volume| -> Option<()> {
        read += 1;
        facts.attachable |= !NEVER_ATTACHED.iter().any(|kind| volume.has(kind));
        if volume.has("hostPath") {
            let path: Option<Box<str>> = volume.object("hostPath").field("path");
            let path = path.filter(|path| path.len() <= left);
            left -= path.as_ref().map_or(0, |path| path.len());
            facts.host_paths.extend(path);
        }
        None
    });
    facts.attachable |= read < spec.count("volumes");
    facts
}

// === impl Reader ===

impl Reader {
    fn cannot_read(&self, path: impl FnOnce() -> String) {
        let mut unreadable = self.unreadable.borrow_mut();
        if unreadable.len() < MOST_PATHS {
            unreadable.push(path());
        }
    }
}

// === impl Object ===

impl<'r, 'a> Object<'r, 'a> {
    /// A field in JSON; `null` counts as absent.
    fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.fields.get(name)
    }

    fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    fn path_of(&self, name: impl fmt::Display) -> String {
        if self.path.is_empty() {
            name.to_string()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    fn field<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let read = serde_json::from_str(self.raw(name)?.get());
        read.inspect_err(|_| self.reader.cannot_read(|| self.path_of(name)))
            .ok()
    }

    /// A required field; its absence is reported.
    fn required<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        if !self.has(name) {
            self.reader.cannot_read(|| self.path_of(name));
        }
        self.field(name)
    }

    /// A time. An unreadable one becomes the latest possible time, so that it counts as set and is never sent.
    fn time(&self, name: &str) -> Option<Time> {
        let latest = || Time(Timestamp::from_second(Timestamp::MAX.as_second()).unwrap_or(Timestamp::MAX));
        self.raw(name).map(|_| self.field(name).unwrap_or_else(latest))
    }

    /// An object; without fields if it is absent or unreadable.
    fn object(&self, name: &str) -> Object<'r, 'a> {
        let path = self.path_of(name);
        Self::read(self.reader, path, self.raw(name)).unwrap_or_else(|path| Object {
            reader: self.reader,
            path,
            fields: Fields::default(),
        })
    }

    /// A list of objects, without unreadable ones.
    fn list<T>(&self, name: &str, mut read: impl FnMut(&Object<'r, 'a>) -> Option<T>) -> Option<Vec<T>> {
        let elements: Vec<&RawValue> = match serde_json::from_str(self.raw(name)?.get()) {
            Ok(elements) => elements,
            Err(_) => {
                self.reader.cannot_read(|| self.path_of(name));
                return None;
            }
        };
        let elements = elements.into_iter().enumerate().filter_map(|(index, element)| {
            let path = self.path_of(format_args!("{name}[{index}]"));
            let element = Self::read(self.reader, path, Some(element)).ok()?;
            read(&element)
        });
        let mut list: Vec<T> = elements.collect();
        list.shrink_to_fit();
        Some(list)
    }

    /// Number of elements of a list; 1 for an unreadable one.
    fn count(&self, name: &str) -> usize {
        let elements = |raw: &RawValue| serde_json::from_str::<Vec<IgnoredAny>>(raw.get());
        self.raw(name)
            .map_or(0, |raw| elements(raw).map_or(1, |elements| elements.len()))
    }

    fn read(reader: &'r Reader, path: String, raw: Option<&'a RawValue>) -> Result<Object<'r, 'a>, String> {
        let Some(raw) = raw else { return Err(path) };
        match serde_json::from_str(raw.get()) {
            Ok(fields) => Ok(Object { reader, path, fields }),
            Err(_) => {
                reader.cannot_read(|| path.clone());
                Err(path)
            }
        }
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let named = self.0.iter().find(|(field, _)| field == name);
        named.map(|(_, value)| *value).filter(|value| value.get() != "null")
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;

        /// Borrowed if it has no escapes.
        #[derive(Deserialize)]
        struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

        impl<'de> Visitor<'de> for Map {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Map)
    }
}

#[cfg(test)]
mod tests;
