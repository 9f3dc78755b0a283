//! The machine that the agent works on, and what it must be like for that.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

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

/// So often is looked for a runtime that has gone.
const AGAIN: Duration = Duration::from_secs(1);
/// Where processes are listed.
pub const PROC: &str = "/proc";
/// The mount table of this process, which is that of the host: `same_mount_namespace` sees to it.
pub const MOUNTINFO: &str = "/proc/self/mountinfo";
/// Where cgroup hierarchies are mounted.
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Where the kernel lists block devices.
pub const SYS_BLOCK: &str = "/sys/block";

/// Where a machine shows itself.
#[derive(Clone)]
pub struct Host {
    /// Below which its identity is read.
    pub root: PathBuf,
    /// Where its processes are listed.
    pub proc: PathBuf,
    /// Its mount table.
    pub mountinfo: PathBuf,
    /// Where its cgroup hierarchies are mounted.
    pub cgroups: PathBuf,
    /// Where its block devices are listed.
    pub sys_block: PathBuf,
    /// Its clock.
    pub clock: BootClock,
}

// === impl Host ===

impl Host {
    /// This machine.
    pub fn local() -> Result<Self, Problem> {
        let clock =
            BootClock::new().map_err(|error| Problem::configuration(format!("boot id: {error}"), "mount /proc"))?;
        Ok(Self {
            root: "/".into(),
            proc: PROC.into(),
            mountinfo: MOUNTINFO.into(),
            cgroups: CGROUP_ROOT.into(),
            sys_block: SYS_BLOCK.into(),
            clock,
        })
    }
}

/// An unmount in another mount namespace than the runtime's would be a lie. One that is away just now is waited for.
pub async fn same_mount_namespace(proc: &Path, endpoint: &CriEndpoint) -> Result<(), Problem> {
    loop {
        match check_mount_namespace(mount_namespace::compare(proc, endpoint.path()).await) {
            Err(problem) if problem.kind == ProblemKind::Absent => {
                tracing::warn!(why = problem.what, "Container runtime has gone; waiting for it");
                sleep(AGAIN).await;
            }
            answer => return answer,
        }
    }
}

/// What the comparison of mount namespaces comes to.
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
            "have the container runtime and the kubelet work in the mount namespace of PID 1, on OpenShift without kubens; such a \
             node is not supported",
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

/// The cgroup driver of this node, in the kubelet's order: the runtime's word, then the configuration's. Where nobody
/// says, what lies on the node does.
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
    let told = cri.cgroup_driver().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "Runtime does not tell its cgroup driver");
        None
    });
    let systemd = match (told, kubelet) {
        (Some(told), _) => return told,
        (None, Some(kubelet)) if !kubelet.is_empty() => kubelet != "cgroupfs",
        (None, _) => cgroups.has_slices(cgroup_root),
    };
    if systemd {
        CgroupDriver::Systemd
    } else {
        CgroupDriver::Cgroupfs
    }
}
