//! What most tests of this program use.

pub use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use pod_teardown::{
    cli::{ModeFlag, StopRequest},
    explanation::Explanation,
    model::trace::{BlockedReason, Step},
    ops::{
        admin::stop::{PODS, StopOutcome},
        client,
    },
};
pub use serde_json::{Value, json};
pub use testbed::{
    apiserver::{
        Config, MemApiServer,
        faults::{Action, Fault},
    },
    drivers::{
        Behavior, CsiDriver,
        csi_volumes::{Pv, staging},
    },
    rest::Patch,
    scripted_cri::{
        ExecSync, Kind, Logged, Manners, PodBuilder, Read, RemoveContainer, RemovePodSandbox, Seen, SimState,
        StopContainer, StopPodSandbox, World, expect,
    },
};
pub use tokio::time::{Instant, sleep};
pub use tonic::Code;

pub use crate::{
    devices::{Prepared, checkpoint},
    disk::Bystander,
    guard::{kubelet, kubelet_at},
    handover::{hook_runs, nothing_in_progress, request_handover, with_hook},
    log::Log,
    node::{NODE, Node, assert_fields, assert_has, assert_took, secs, wait_until},
    node_identity::{recorded_node, replaced},
    pods::{exec, hooked, plain, pod, uid},
    safety_holds::{approve, hold_items, wait_held},
    server::{inject_fault, request_codes},
    standby::{NodeWithKubelet, assert_takes_threshold},
    stop_requests::{ask, eviction, granted, outcome, refused},
};
