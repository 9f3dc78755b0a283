//! Paths of this node.

use std::path::PathBuf;

use nix::unistd::{SysconfVar, sysconf};

use super::identity::Identity;
use crate::{clock::BootClock, model::problem::Problem};

/// Directory with all processes.
pub const PROC: &str = "/proc";
/// The mount table of this process, which is the host's: `mount_namespace` checks it.
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

    /// Its identity in this boot.
    pub fn identity(&self) -> Identity {
        Identity {
            boot_id: Some(self.clock.boot_id.clone()),
            ..Identity::read(&self.root)
        }
    }
}

/// Number of processors of this node, also if this process may use fewer. One if it is unknown.
fn processors() -> usize {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online.and_then(|online| usize::try_from(online).ok()).unwrap_or(1)
}
