//! Paths of this node, and checks that the agent can work on it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::{SysconfVar, sysconf};
use tokio::time::sleep;

use crate::{
    clock::BootClock,
    model::problem::{Problem, ProblemKind},
    node::{
        cgroups::Cgroups,
        cri::{Cri, CriEndpoint, types::CgroupDriver},
        mount_namespace::{self, MountNamespace, NamespaceOwner},
    },
};

/// Interval between checks for a missing runtime.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Directory with all processes.
pub const PROC: &str = "/proc";
/// The mount table of this process, which is the host's: `same_mount_namespace` checks it.
pub const MOUNTINFO: &str = "/proc/self/mountinfo";
/// Directory with the cgroup hierarchies.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Directory with all block devices.
pub const SYS_BLOCK: &str = "/sys/block";

/// Where the agent reads the state of a node.
#[derive(Clone)]
pub struct Host {
    /// Root directory for the node's identity files.
    pub root: PathBuf,
    /// Directory with all processes.
    pub proc: PathBuf,
    /// The mount table.
    pub mountinfo: PathBuf,
    /// Directory with the cgroup hierarchies.
    pub cgroups: PathBuf,
    /// Directory with all block devices.
    pub sys_block: PathBuf,
    /// Number of its processors.
    pub processors: usize,
    /// Its clock.
    pub clock: BootClock,
}

// === impl Host ===

impl Host {
    /// This node.
    ///
    /// # Errors
    /// When the boot ID cannot be read.
    pub fn local() -> Result<Self, Problem> {
        let clock =
            BootClock::new().map_err(|error| Problem::configuration(format!("boot id: {error}"), "mount /proc"))?;
        Ok(Self {
            root: "/".into(),
            proc: PROC.into(),
            mountinfo: MOUNTINFO.into(),
            cgroups: CGROUP_ROOT.into(),
            sys_block: SYS_BLOCK.into(),
            processors: processors(),
            clock,
        })
    }
}

/// Number of processors of this node, also if this process may use fewer. One if it is unknown.
fn processors() -> usize {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online.and_then(|online| usize::try_from(online).ok()).unwrap_or(1)
}

/// Checks that the agent and the runtime share a mount namespace: unmounts in another one would have no effect. Waits
/// while the runtime is down.
pub async fn same_mount_namespace(proc: &Path, endpoint: &CriEndpoint) -> Result<(), Problem> {
    loop {
        match check_mount_namespace(mount_namespace::compare(proc, endpoint.path()).await) {
            Err(problem) if problem.kind == ProblemKind::Absent => {
                tracing::warn!(why = problem.what, "Container runtime is down; waiting for it");
                sleep(RETRY_INTERVAL).await;
            }
            answer => return answer,
        }
    }
}

/// Converts the result of the comparison to a problem.
pub fn check_mount_namespace(found: MountNamespace) -> Result<(), Problem> {
    match found {
        MountNamespace::Ok => Ok(()),
        MountNamespace::RuntimeDown(why) => Err(Problem {
            kind: ProblemKind::Absent,
            what: format!("mount namespace: {why}"),
            remedy: "start the container runtime".to_owned(),
        }),
        MountNamespace::Other(owner @ NamespaceOwner::IsolatedRuntime { .. }) => Err(Problem::configuration(
            format!(
                "{owner} is in a mount namespace that PID 1 does not share, as with OpenShift's kubens: what this process unmounts \
                 would stay mounted there"
            ),
            "run the container runtime and the kubelet in the mount namespace of PID 1, on OpenShift without kubens: another \
             setup is not supported",
        )),
        MountNamespace::Other(owner) => Err(Problem::configuration(
            format!("this process is not in the mount namespace of {owner}: what it unmounts would stay mounted there"),
            "run it on the host, without PrivateMounts=, PrivateTmp=, ProtectSystem= and the like in its unit",
        )),
        MountNamespace::Unknown(why) => Err(Problem::configuration(
            format!("mount namespace: {why}"),
            "run the agent as root, with /proc of the host",
        )),
    }
}

/// The cgroup driver of this node, in the kubelet's order: from the runtime, then from the configuration. If neither
/// names it, it is derived from the existing cgroups.
pub async fn detect_cgroup_driver(
    given: Option<CgroupDriver>,
    cri: &Cri,
    kubelet: Option<&str>,
    cgroups: &Cgroups,
    cgroup_root: &str,
) -> CgroupDriver {
    if let Some(given) = given {
        return given;
    }
    let reported = cri.cgroup_driver().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "Runtime does not report its cgroup driver");
        None
    });
    let systemd = match (reported, kubelet) {
        (Some(reported), _) => return reported,
        (None, Some(kubelet)) if !kubelet.is_empty() => kubelet != "cgroupfs",
        (None, _) => cgroups.has_slices(cgroup_root),
    };
    if systemd {
        CgroupDriver::Systemd
    } else {
        CgroupDriver::Cgroupfs
    }
}
