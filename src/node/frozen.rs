//! Frozen file systems, see fsfreeze(8): a write to one sleeps in the kernel until it is thawed.
//!
//! No file of the kernel shows that a file system is frozen. So a thread removes an entry that cannot exist, which first waits for
//! the thaw like every change.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{
    mounts::Mount,
    unmounts::{Call, CallError, CallsInFlight},
};
use crate::words::shell_quoted;

/// The kernel function in which a write waits for the thaw, since Linux 5.6.
pub const WAITS_IN: &str = "percpu_rwsem_wait";
/// Time for the removal of an entry that cannot exist.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of file systems that are probed.
const MAX_PROBED: usize = 8;
/// Longer than any name on these file systems.
const IMPOSSIBLE_NAME: [u8; 256] = [b'x'; 256];

/// A frozen file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Its device.
    pub device: String,
}

// === impl Frozen ===

impl Frozen {
    /// The command that thaws it.
    pub fn command(&self) -> String {
        format!("fsfreeze -u {}", shell_quoted(&self.path))
    }
}

/// The frozen file systems among these mounts. Blocks.
pub fn find<'a>(mounts: impl IntoIterator<Item = &'a Mount>, in_flight: &Arc<CallsInFlight>) -> Vec<Frozen> {
    let mut seen = BTreeSet::new();
    let on_devices = mounts.into_iter().filter(|mount| can_freeze(mount));
    let distinct = on_devices.filter(|mount| seen.insert(mount.device));
    let frozen = distinct
        .take(MAX_PROBED)
        .filter(|mount| is_frozen(&mount.path, in_flight));
    frozen
        .map(|mount| Frozen {
            path: mount.path.clone(),
            device: mount.source.to_string_lossy().into_owned(),
        })
        .collect()
}

/// Whether it is a directory of a file system on a block device, which only the kernel answers for.
fn can_freeze(mount: &Mount) -> bool {
    let known: [&[u8]; 6] = [b"ext2", b"ext3", b"ext4", b"xfs", b"btrfs", b"f2fs"];
    mount.source.as_bytes().starts_with(b"/dev/") && known.contains(&mount.fs_type.as_bytes())
}

fn is_frozen(path: &Path, in_flight: &Arc<CallsInFlight>) -> bool {
    let dir = path.to_owned();
    let probe = move || {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let dir = open(&dir, flags, Mode::empty())?;
        unlinkat(dir, OsStr::from_bytes(&IMPOSSIBLE_NAME), UnlinkatFlags::RemoveDir)
    };
    // The thread may be that of an earlier probe.
    let probed = in_flight.run_with_timeout(path, Call::ProbeFreeze, PROBE_TIMEOUT, probe);
    matches!(probed, Err(CallError::Hangs(_))) && is_any_probe_waiting()
}

fn is_any_probe_waiting() -> bool {
    let name = Call::ProbeFreeze.to_string();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let read = |task: &Path, file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
    tasks
        .map(|task| task.path())
        .any(|task| read(&task, "comm").trim_end() == name && read(&task, "wchan") == WAITS_IN)
}
