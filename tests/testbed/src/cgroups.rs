//! cgroup directories in every hierarchy of this machine: all of v1, and the unified one.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use procfs::process::Process;
use tokio::process::Command;

/// Environment variable for the cgroup driver, default cgroupfs: `systemd`.
const DRIVER: &str = "TESTBED_CGROUP_DRIVER";

/// The last process of a removed container may take a moment to exit.
const BUSY_ROUNDS: u32 = 40;

/// Which component creates the cgroups of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The kubelet and the runtime, as directories.
    Cgroupfs,
    /// systemd, as slices and scopes.
    Systemd,
}

/// Mount points of the hierarchies, each once.
pub fn hierarchies() -> Result<Vec<PathBuf>> {
    let table = Process::myself()
        .and_then(|process| process.mountinfo())
        .context("read /proc/self/mountinfo")?;
    let mut roots: Vec<PathBuf> = table
        .into_iter()
        .filter(|mount| matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2"))
        .map(|mount| mount.mount_point)
        .collect();
    roots.sort();
    roots.dedup();
    Ok(roots)
}

/// Creates a cgroup, given as an absolute path within a hierarchy, in all of them, with its parents.
pub fn create(cgroup: &str) -> Result<()> {
    for root in hierarchies()? {
        let mut dir = root;
        for name in cgroup.split('/').filter(|name| !name.is_empty()) {
            let parent = dir.clone();
            dir.push(name);
            match fs::create_dir(&dir) {
                Ok(()) => inherit_cpuset(&parent, &dir)?,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("create {}", dir.display())),
            }
        }
    }
    Ok(())
}

/// Writes to a file of a cgroup in those hierarchies that have it.
pub fn set(cgroup: &str, file: &str, value: &str) -> Result<()> {
    for root in hierarchies()? {
        let path = within(&root, cgroup).join(file);
        if path.exists() {
            fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))?;
        }
    }
    Ok(())
}

/// Freezes all processes in a cgroup; on v1 if there is a freezer.
pub fn freeze(cgroup: &str) -> Result<()> {
    let has_freezer = |root: &PathBuf| within(root, cgroup).join("freezer.state").exists();
    if hierarchies()?.iter().any(has_freezer) {
        set(cgroup, "freezer.state", "FROZEN")
    } else {
        set(cgroup, "cgroup.freeze", "1")
    }
}

/// Removes a cgroup and its children from all hierarchies. A missing one is no error.
pub async fn remove(cgroup: &str) -> Result<()> {
    for root in hierarchies()? {
        let dir = within(&root, cgroup);
        let mut round = 0;
        while let Err(error) = remove_tree(&dir) {
            if error.kind() != ErrorKind::ResourceBusy || round == BUSY_ROUNDS {
                return Err(error).with_context(|| format!("remove {}", dir.display()));
            }
            round += 1;
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
    }
    Ok(())
}

/// All cgroup directories whose name is `wanted`, in any hierarchy, without their children.
pub fn find(wanted: impl Fn(&OsStr) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut unread = hierarchies()?;
    while let Some(dir) = unread.pop() {
        for child in children(&dir).with_context(|| format!("read {}", dir.display()))? {
            let list = if child.file_name().is_some_and(&wanted) {
                &mut found
            } else {
                &mut unread
            };
            list.push(child);
        }
    }
    found.sort();
    Ok(found)
}

/// Processes in a cgroup directory and in those below it.
pub fn processes(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for child in children(dir).unwrap_or_default() {
        pids.extend(processes(&child));
    }
    pids
}

impl Driver {
    /// The driver from the environment.
    pub fn from_env() -> Result<Self> {
        match std::env::var(DRIVER) {
            Err(_) => Ok(Self::Cgroupfs),
            Ok(name) if name == "systemd" => Ok(Self::Systemd),
            Ok(name) => bail!("{DRIVER}={name}: there is only systemd"),
        }
    }

    /// As a kubelet's configuration names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }

    /// The path within each hierarchy of a cgroup that a kubelet calls so, part by part.
    pub fn path(self, parts: &[&str]) -> String {
        let mut path = String::new();
        let mut slice = String::new();
        for part in parts {
            path.push('/');
            match self {
                Self::Cgroupfs => path.push_str(part),
                Self::Systemd => {
                    slice.push_str(if slice.is_empty() { "" } else { "-" });
                    slice.push_str(&part.replace('-', "_"));
                    path.push_str(&slice);
                    path.push_str(".slice");
                }
            }
        }
        path
    }

    /// Makes a cgroup, as [`Self::path`] gave it.
    pub async fn create(self, cgroup: &str) -> Result<()> {
        match self {
            Self::Cgroupfs => create(cgroup),
            Self::Systemd => systemctl("start", cgroup).await,
        }
    }

    /// Removes it and those below it.
    pub async fn remove(self, cgroup: &str) -> Result<()> {
        match self {
            Self::Cgroupfs => remove(cgroup).await,
            Self::Systemd => systemctl("stop", cgroup).await,
        }
    }
}

/// A slice needs no file: its name is enough.
async fn systemctl(verb: &str, cgroup: &str) -> Result<()> {
    let unit = cgroup.rsplit('/').next().unwrap_or_default();
    let output = Command::new("systemctl").args([verb, unit]).output().await;
    let output = output.context("start systemctl")?;
    ensure!(
        output.status.success(),
        "systemctl {verb} {unit}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

fn within(root: &Path, cgroup: &str) -> PathBuf {
    root.join(cgroup.trim_start_matches('/'))
}

/// The cpuset controller of v1 creates a child without CPUs, in which nothing can run.
fn inherit_cpuset(parent: &Path, child: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = child.join(file);
        if fs::read_to_string(&own).is_ok_and(|text| text.trim().is_empty()) {
            let inherited = parent.join(file);
            // The root of v2 has no such file.
            if !inherited.exists() {
                continue;
            }
            let value = fs::read(&inherited).with_context(|| format!("read {}", inherited.display()))?;
            // On v2 empty means "as the parent".
            if !value.trim_ascii().is_empty() {
                fs::write(&own, value).with_context(|| format!("write {}", own.display()))?;
            }
        }
    }
    Ok(())
}

fn remove_tree(dir: &Path) -> std::io::Result<()> {
    for child in children(dir)? {
        remove_tree(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Directories in a directory; none if it vanished.
fn children(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let dirs = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        entry.file_type().ok()?.is_dir().then(|| entry.path())
    });
    Ok(dirs.collect())
}
