//! Facts for a diagnosis. A fact that could not be read has the reason instead.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use k8s_cri::v1::RuntimeCondition;

use crate::{
    model::{pod::PodView, termination::Terminator},
    node::{
        cri::types::RuntimePod,
        holders::Holders,
        mounts::{Cover, Mount},
        plugins::Kind,
        process_state::ProcessState,
        processes::Shim,
    },
    teardown::{
        bounded_read::{Fact, ObjectUnread},
        grace::OwnGrace,
    },
};

/// Facts about one pod.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The pod, with its object if that could be read.
    pub view: Arc<PodView>,
    /// Why the object could not be read now.
    pub object_unread: Option<ObjectUnread>,
    /// Which process terminates it.
    pub terminated_by: TerminatedBy,
    /// The grace period of this agent.
    pub grace: OwnGrace,
    /// The pod in the runtime.
    pub runtime: Fact<RuntimePod>,
    /// The runtime's socket refuses connections.
    pub is_runtime_unreachable: bool,
    /// The runtime's own conditions.
    pub conditions: Fact<Vec<RuntimeCondition>>,
    /// Processes that the runtime names.
    pub named: NamedFacts,
    /// Seconds until this agent kills what the runtime has not killed; `None` if it does not.
    pub kill_in_seconds: Option<u64>,
    /// The pod's cgroups.
    pub cgroups: Fact<CgroupFacts>,
    /// Mounts below the pod's directory, each with the mount that hides it, if one does.
    pub mounts: Fact<Vec<(Mount, Option<Cover>)>>,
    /// Users of these mounts that are not known as the pod's own processes, by mount ID.
    pub holders: Fact<HashMap<u64, Holders>>,
    /// The pods of these users, as `NAMESPACE/NAME`, by PID.
    pub pods: HashMap<i32, String>,
    /// Paths of volumes and block devices in the pod's directory.
    pub volume_paths: Fact<Vec<String>>,
    /// Drivers of its volumes and claims that cannot be called.
    pub drivers: Fact<Vec<MissingDriver>>,
}

/// The process that terminates the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminatedBy {
    /// This agent.
    Agent,
    /// A kubelet, with its process.
    Kubelet(String),
    /// No kubelet, and this agent may not, for this reason.
    Blocked(String),
    /// No kubelet, and a user has paused this agent, as described here.
    Paused(String),
}

/// Processes that the runtime names.
#[derive(Debug, Clone, Default)]
pub struct NamedFacts {
    /// Those that run, by ID of their container or sandbox: the PID; PID, command and cgroup as a text.
    pub processes: BTreeMap<String, (i32, String)>,
    /// IDs of containers whose process has exited, whatever the runtime reports.
    pub exited: BTreeSet<String>,
    /// Shims of its sandboxes that are stopped.
    pub stopped_shims: Vec<Shim>,
}

/// The pod's cgroups.
#[derive(Debug, Clone)]
pub struct CgroupFacts {
    /// Their paths.
    pub paths: Vec<String>,
    /// Paths of frozen cgroups.
    pub frozen: Fact<Vec<String>>,
    /// Processes.
    pub processes: Fact<Processes>,
}

/// Processes in the pod's cgroups.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    /// Those that were read. A process counts as uninterruptible if it was twice.
    pub all: Vec<ProcessState>,
    /// Number of others.
    pub more: usize,
}

/// A driver that cannot be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingDriver {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub driver: String,
    /// The volume or claim that needs it.
    pub needed_by: String,
    /// The volume's mounts, in the order of their unmount.
    pub mounted: Vec<String>,
    /// How it was detected.
    pub why: String,
    /// Whether every registration socket has answered or refuses connections.
    pub is_certain: bool,
    /// Pods of this node that seem to be the driver, with their states.
    pub pods: Vec<String>,
}

// === impl TerminatedBy ===

impl TerminatedBy {
    /// Who that is, without details.
    pub fn terminator(&self) -> Terminator {
        match self {
            Self::Agent => Terminator::Agent,
            Self::Kubelet(_) => Terminator::Kubelet,
            Self::Blocked(_) | Self::Paused(_) => Terminator::NoProcess,
        }
    }
}

// === impl Facts ===

impl Facts {
    /// Whether all of the pod's own processes are known: another one that uses a mount of it is outside of the pod.
    pub fn are_own_processes_known(&self) -> bool {
        let own = self.cgroups.as_ref().ok().and_then(|it| it.processes.as_ref().ok());
        self.runtime.is_ok() || own.is_some_and(|own| own.more == 0)
    }

    /// Whether only a driver that is missing unmounts this.
    pub fn waits_for_driver(&self, mount_point: &Path) -> bool {
        let missing = self.drivers.iter().flatten().filter(|driver| driver.is_certain);
        let mut mounted = missing.flat_map(|driver| &driver.mounted);
        mounted.any(|path| Path::new(path) == mount_point)
    }

    /// Finalizers of the object.
    pub fn finalizers(&self) -> &[String] {
        let object = self.view.object.last_known();
        let finalizers = object.and_then(|object| object.pod.metadata.finalizers.as_deref());
        finalizers.unwrap_or_default()
    }
}
