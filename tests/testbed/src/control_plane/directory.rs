//! The directory of one control plane: in memory if possible, and always removed.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

const PREFIX: &str = "pod-teardown-control-plane-";
/// Held for as long as the directory is in use; the kernel releases it when its owner exits.
const LOCK: &str = "in-use";
/// Its name before it is locked.
const UNLOCKED: &str = "in-use.new";
const IN_MEMORY: &str = "/dev/shm";

/// A directory that is removed on drop.
#[derive(Debug)]
pub struct Directory {
    directory: TempDir,
    _lock: Flock<File>,
}

impl Directory {
    /// Creates one, and removes those whose owners were killed.
    pub fn new() -> Result<Self> {
        let root = root();
        sweep(&root);
        let directory = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(&root)
            .with_context(|| format!("making a directory in {}", root.display()))?;
        // Visible only after it is locked: the sweep of another process would remove the directory before that.
        let unlocked = directory.path().join(UNLOCKED);
        let lock = File::create(&unlocked).context("making the lock of the directory")?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, e)| e)
            .context("locking the directory")?;
        fs::rename(&unlocked, directory.path().join(LOCK)).context("showing the lock of the directory")?;
        Ok(Self { directory, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn root() -> PathBuf {
    let in_memory = Path::new(IN_MEMORY);
    if in_memory.is_dir() {
        in_memory.to_owned()
    } else {
        env::temp_dir()
    }
}

/// A directory without a lock file is just being created; one whose lock is held is in use.
fn sweep(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        if Flock::lock(lock, FlockArg::LockExclusiveNonblock).is_ok() {
            // Another process may remove it at the same time.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
