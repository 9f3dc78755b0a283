//! Resources of the machine for one test: a directory, and a name for its bridge and its cgroups.
//!
//! A watchdog process removes everything when the value is dropped: it waits for the end of a pipe, so it also works when
//! the owner is killed. If the watchdog is killed as well, the next [`Workspace::claim`] finds and removes the leftovers.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};

/// Short: the name must fit into the 15 bytes of an interface name.
const PREFIX: &str = "ptb";
const RELEASE: &str = include_str!("workspace/release.sh");
/// Lock file in the directory: held while its owner lives, in any namespace. The kernel releases it.
const OWNER_FILE: &str = "owner";
/// Its name before it is locked.
const NO_OWNER_YET: &str = "owner.new";

/// See the module's documentation.
#[derive(Debug)]
pub struct Workspace {
    id: String,
    dir: PathBuf,
    watchdog: Option<Child>,
    _owner: Flock<File>,
}

impl Workspace {
    /// Removes leftovers of dead runs, then creates a workspace. Blocks for a moment.
    pub fn claim() -> Result<Self> {
        // What cannot be removed is reported, but does not prevent the test.
        if let Err(error) = Self::sweep() {
            eprintln!("testbed: {error:#}");
        }
        let parent = parent_dir()?;
        let (id, dir) = make_dir(&parent)?;
        let owner = own(&dir).with_context(|| format!("lock {}", dir.display()))?;
        // From here on, a failure removes the directory.
        let mut workspace = Self {
            id,
            dir,
            watchdog: None,
            _owner: owner,
        };
        workspace.watchdog = Some(spawn_release(&workspace.dir, Stdio::piped())?);
        Ok(workspace)
    }

    /// The name of its bridge and of its cgroups, and the last component of its directory.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes everything, and reports what could not be removed.
    pub async fn release(mut self) -> Result<()> {
        tokio::task::spawn_blocking(move || self.release_now())
            .await
            .context("give back a testbed directory")?
    }

    /// Removes leftovers of dead runs. Workspaces with a living owner are kept.
    pub fn sweep() -> Result<()> {
        let parent = parent_dir()?;
        let entries = fs::read_dir(&parent).with_context(|| format!("read {}", parent.display()))?;
        let dead = entries.filter_map(|entry| {
            let dir = entry.ok()?.path();
            (is_ours(dir.file_name()?.to_str()?) && !owner_lives(&dir)).then_some(dir)
        });
        let mut result = Ok(());
        for dir in dead {
            // All are tried; the first failure is returned.
            result = result.and(spawn_release(&dir, Stdio::null()).and_then(|script| finish(script, &dir)));
        }
        result
    }

    fn release_now(&mut self) -> Result<()> {
        let Some(mut watchdog) = self.watchdog.take() else {
            return Ok(());
        };
        drop(watchdog.stdin.take());
        if finish(watchdog, &self.dir).is_ok() {
            return Ok(());
        }
        // The watchdog was killed, or timed out.
        finish(spawn_release(&self.dir, Stdio::null())?, &self.dir)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if let Err(error) = self.release_now() {
            eprintln!("testbed: {error:#}");
        }
    }
}

fn parent_dir() -> Result<PathBuf> {
    let dir = std::env::temp_dir();
    fs::canonicalize(&dir).with_context(|| format!("resolve {}", dir.display()))
}

fn make_dir(parent: &Path) -> Result<(String, PathBuf)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{PREFIX}{}x{nth}", std::process::id());
        let dir = parent.join(&id);
        match fs::create_dir(&dir) {
            Ok(()) => return Ok((id, dir)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("create {}", dir.display())),
        }
    }
}

/// The file is visible only after it is locked.
fn own(dir: &Path) -> Result<Flock<File>> {
    let unlocked = dir.join(NO_OWNER_YET);
    let file = File::create(&unlocked)?;
    let owner = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
    fs::rename(&unlocked, dir.join(OWNER_FILE))?;
    Ok(owner)
}

/// Whether a directory has a workspace's name, `ptb<pid>x<n>`.
fn is_ours(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('x'));
    parts.is_some_and(|(pid, nth)| pid.parse::<u32>().is_ok() && nth.parse::<u32>().is_ok())
}

/// A directory without an owner is just being created.
fn owner_lives(dir: &Path) -> bool {
    let Ok(owner) = File::open(dir.join(OWNER_FILE)) else {
        return true;
    };
    Flock::lock(owner, FlockArg::LockExclusiveNonblock).is_err()
}

fn spawn_release(dir: &Path, stdin: Stdio) -> Result<Child> {
    use std::os::unix::process::CommandExt;
    Command::new("sh")
        .args(["-c", RELEASE, "give-back"])
        .arg(dir)
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Ctrl-C on a terminal is for the owner; the watchdog has to clean up then.
        .process_group(0)
        .spawn()
        .context("start sh")
}

fn finish(script: Child, dir: &Path) -> Result<()> {
    let output = script.wait_with_output().context("wait for sh")?;
    if !output.status.success() {
        bail!(
            "give back {}: {}: {}",
            dir.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait::eventually;

    #[test]
    fn only_what_is_called_so_is_ours() {
        assert!(is_ours("ptb12x0"));
        for name in ["ptb12", "ptbx1", "ptb12x", "tb12x1", "ptb12x1.old", ""] {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn a_ground_that_is_dropped_takes_its_directory_along() {
        let workspace = Workspace::claim().unwrap();
        let dir = workspace.dir().to_owned();
        assert!(dir.join(OWNER_FILE).is_file());
        drop(workspace);
        assert!(!dir.exists());
    }

    #[tokio::test]
    async fn a_directory_whose_owner_is_dead_is_swept_and_that_of_a_living_one_is_not() {
        let dead = parent_dir().unwrap().join(format!("{PREFIX}{}x0", u32::MAX));
        fs::create_dir(&dead).unwrap();
        let owner = own(&dead).unwrap();
        assert!(owner_lives(&dead));
        Workspace::sweep().unwrap();
        assert!(dead.exists());
        drop(owner);
        // Each claim sweeps. A child that another thread has forked may have the lock until exec.
        let claimed = eventually(
            Duration::from_secs(30),
            "the dead one's directory to be swept",
            async || {
                let living = Workspace::claim()?;
                Ok((!dead.exists()).then_some(living))
            },
        );
        let living = claimed.await.unwrap();
        Workspace::sweep().unwrap();
        assert!(living.dir().is_dir());
    }

    #[test]
    fn a_directory_that_is_being_made_is_not_swept() {
        let dir = tempfile::tempdir().unwrap();
        assert!(owner_lives(dir.path()));
        fs::write(dir.path().join(NO_OWNER_YET), "").unwrap();
        assert!(owner_lives(dir.path()));
    }
}
