//! Facts for a plan. A fact that could not be read has the reason instead.

use std::{sync::Arc, time::Duration};

use crate::{
    model::{pod::PodView, termination::Terminator},
    node::cri::types::RuntimePod,
    teardown::{dependents::Dependents, grace::OwnGrace, journal::PodEntry, volumes::PlannedVolume},
};

/// Facts about one pod.
#[derive(Debug, Clone)]
pub struct PlanFacts {
    /// The pod, with its object if that could be read.
    pub view: Arc<PodView>,
    /// Why the object could not be read now.
    pub object_unread: Option<String>,
    /// Why nothing may be touched now.
    pub blocked: Vec<String>,
    /// What the journal has of it.
    pub entry: Option<PodEntry>,
    /// The process that terminates it now.
    pub terminator: Terminator,
    /// This agent's grace period.
    pub grace: OwnGrace,
    /// The terminating pods that need it as a driver or a node service; `None` if it is neither.
    pub dependents: Result<Option<Dependents>, String>,
    /// How long it waits for them.
    pub driver_hold: Duration,
    /// The pod in the runtime.
    pub runtime: Result<RuntimePod, String>,
    /// Name of the runtime.
    pub runtime_name: String,
    /// Its prepared claims.
    pub claims: Result<Vec<ClaimFacts>, String>,
    /// Its volumes, and how they are torn down.
    pub volumes: Result<Vec<PlannedVolume>, String>,
    /// A volume of it may be attached to this node by a controller.
    pub may_hold_attached: bool,
    /// Its cgroups, one path for each hierarchy.
    pub cgroups: Result<Vec<CgroupFacts>, String>,
    /// The file with its user IDs, if the teardown removes one.
    pub user_ids: Result<Option<String>, String>,
    /// Its directory, if that exists.
    pub directory: Result<Option<String>, String>,
    /// Its log directory, if that exists.
    pub logs: Result<Option<String>, String>,
}

/// A cgroup in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupFacts {
    /// Its path in each hierarchy.
    pub cgroup: String,
    /// Its path on this node.
    pub path: String,
}

/// A prepared claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimFacts {
    /// `NAMESPACE/NAME`.
    pub claim: String,
    /// Drivers that unprepare it.
    pub drivers: Vec<String>,
    /// UID of another pod that uses it.
    pub used_by: Option<String>,
}
