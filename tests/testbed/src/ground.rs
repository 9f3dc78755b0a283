//! A piece of the machine that belongs to one test: a directory, and a name under which its bridge and its cgroups go.
//!
//! Everything of it is given back when the value is dropped, by a watchdog process that waits for the end of a pipe: it
//! does the same work when the owner is killed. What even that leaves behind (the watchdog killed as well) is found by
//! its directory and swept by the next [`Ground::claim`].

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use procfs::process::Process;

/// Short, since the whole name must fit into the 15 bytes of an interface name.
const PREFIX: &str = "ptb";
const GIVE_BACK: &str = include_str!("ground/give_back.sh");
/// Within the directory: when the owning process was started, so that a reused pid is not taken for the owner.
const OWNER_FILE: &str = "owner";

/// See the module's documentation.
#[derive(Debug)]
pub struct Ground {
    id: String,
    dir: PathBuf,
    watchdog: Option<Child>,
}

// === impl Ground ===

impl Ground {
    /// Sweeps what dead runs have left, then takes a new piece. Blocks for a moment.
    pub fn claim() -> Result<Self> {
        // What cannot be removed is said, but is no reason to do nothing.
        if let Err(error) = Self::sweep() {
            eprintln!("testbed: {error:#}");
        }
        let parent = parent_dir()?;
        let owner = Process::myself().context("read /proc/self")?;
        let started = owner.stat().context("read /proc/self/stat")?.starttime;
        let (id, dir) = make_dir(&parent, owner.pid())?;
        // From here on a failure gives the directory back.
        let mut ground = Self {
            id,
            dir,
            watchdog: None,
        };
        let marker = ground.dir.join(OWNER_FILE);
        fs::write(&marker, format!("{started}\n")).with_context(|| format!("write {}", marker.display()))?;
        ground.watchdog = Some(spawn_give_back(&ground.dir, Stdio::piped())?);
        Ok(ground)
    }

    /// The name of its bridge and of its cgroups, and the last component of its directory.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Gives everything back, and tells what could not be.
    pub async fn give_back(mut self) -> Result<()> {
        tokio::task::spawn_blocking(move || self.let_go())
            .await
            .context("give back a testbed directory")?
    }

    /// Gives back what dead runs have left. Nothing is touched whose owner lives.
    pub fn sweep() -> Result<()> {
        let parent = parent_dir()?;
        let entries = fs::read_dir(&parent).with_context(|| format!("read {}", parent.display()))?;
        let dead = entries.filter_map(|entry| {
            let dir = entry.ok()?.path();
            let pid = owner_pid(dir.file_name()?.to_str()?)?;
            (!owner_lives(&dir, pid)).then_some(dir)
        });
        let mut result = Ok(());
        for dir in dead {
            // All are tried; the first failure is told.
            result = result.and(spawn_give_back(&dir, Stdio::null()).and_then(|script| finish(script, &dir)));
        }
        result
    }

    fn let_go(&mut self) -> Result<()> {
        let Some(mut watchdog) = self.watchdog.take() else {
            return Ok(());
        };
        drop(watchdog.stdin.take());
        if finish(watchdog, &self.dir).is_ok() {
            return Ok(());
        }
        // Somebody killed the watchdog, or the machine was too slow for its patience.
        finish(spawn_give_back(&self.dir, Stdio::null())?, &self.dir)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            eprintln!("testbed: {error:#}");
        }
    }
}

fn parent_dir() -> Result<PathBuf> {
    let dir = std::env::temp_dir();
    fs::canonicalize(&dir).with_context(|| format!("resolve {}", dir.display()))
}

fn make_dir(parent: &Path, pid: i32) -> Result<(String, PathBuf)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let id = format!("{PREFIX}{pid}x{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = parent.join(&id);
        match fs::create_dir(&dir) {
            Ok(()) => return Ok((id, dir)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("create {}", dir.display())),
        }
    }
}

/// The pid in a directory name of ours, `ptb<pid>x<n>`.
fn owner_pid(name: &str) -> Option<i32> {
    let (pid, nth) = name.strip_prefix(PREFIX)?.split_once('x')?;
    nth.parse::<u32>().ok()?;
    pid.parse().ok()
}

fn owner_lives(dir: &Path, pid: i32) -> bool {
    let Ok(stat) = Process::new(pid).and_then(|process| process.stat()) else {
        return false;
    };
    // Without the file, or with a line that is not whole, the owner is just making it.
    let owner = fs::read_to_string(dir.join(OWNER_FILE)).unwrap_or_default();
    owner
        .strip_suffix('\n')
        .is_none_or(|started| started == stat.starttime.to_string())
}

fn spawn_give_back(dir: &Path, stdin: Stdio) -> Result<Child> {
    use std::os::unix::process::CommandExt;
    Command::new("sh")
        .args(["-c", GIVE_BACK, "give-back"])
        .arg(dir)
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Ctrl-C on a terminal is for the owner; the watchdog has work to do then.
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
    use super::*;

    #[test]
    fn only_names_of_ours_have_an_owner() {
        assert_eq!(owner_pid("ptb12x0"), Some(12));
        for name in ["ptb12", "ptbx1", "ptb12x", "tb12x1", "ptb12x1.old", ""] {
            assert_eq!(owner_pid(name), None, "{name}");
        }
    }

    #[test]
    fn a_ground_that_is_dropped_takes_its_directory_along() {
        let ground = Ground::claim().unwrap();
        let dir = ground.dir().to_owned();
        assert!(dir.join(OWNER_FILE).is_file());
        drop(ground);
        assert!(!dir.exists());
    }

    #[test]
    fn a_directory_whose_owner_is_dead_is_swept_and_that_of_a_living_one_is_not() {
        let mut child = Command::new("true").spawn().unwrap();
        let dead = parent_dir().unwrap().join(format!("{PREFIX}{}x0", child.id()));
        child.wait().unwrap();
        fs::create_dir(&dead).unwrap();
        let living = Ground::claim().unwrap();
        assert!(!dead.exists());
        Ground::sweep().unwrap();
        assert!(living.dir().is_dir());
    }

    #[test]
    fn a_process_that_reused_the_pid_is_not_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        fs::write(dir.path().join(OWNER_FILE), "1\n").unwrap();
        assert!(!owner_lives(dir.path(), pid));
    }

    #[test]
    fn a_directory_that_is_being_made_has_an_owner_who_lives() {
        let dir = tempfile::tempdir().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(owner_lives(dir.path(), pid));
        for begun in ["", "1"] {
            fs::write(dir.path().join(OWNER_FILE), begun).unwrap();
            assert!(owner_lives(dir.path(), pid), "{begun:?}");
        }
    }
}
