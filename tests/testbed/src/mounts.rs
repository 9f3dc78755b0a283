//! Mounts below a directory, and their removal.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use procfs::FromRead as _;
use procfs::process::{MountInfos, MountOptFields};

/// A mount that is detached when this is dropped.
pub struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        umount2(&self.0, MntFlags::MNT_DETACH).ok();
    }
}

/// Mount points at and below a directory, in the order of mounting: the last one is unmounted first.
pub fn below(dir: &Path) -> Result<Vec<PathBuf>> {
    // Not /proc/self, which is the main thread's namespace.
    let table = MountInfos::from_file("/proc/thread-self/mountinfo").context("read /proc/thread-self/mountinfo")?;
    Ok(table
        .into_iter()
        .map(|mount| mount.mount_point)
        .filter(|point| point.starts_with(dir))
        .collect())
}

/// Mounts a tmpfs, of this many bytes if limited, and without swap if supported, as the kubelet does.
pub fn tmpfs(dir: &Path, limit: Option<u64>) -> Result<()> {
    let size = limit.map(|bytes| format!("size={bytes}"));
    let with_noswap: Vec<&str> = size.as_deref().into_iter().chain(["noswap"]).collect();
    let attempt = |options: &str| mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some(options));
    attempt(&with_noswap.join(","))
        .or_else(|_| attempt(size.as_deref().unwrap_or_default()))
        .with_context(|| format!("mount tmpfs on {}", dir.display()))
}

/// Mounts a directory or file on another.
pub fn bind(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("bind {} on {}", from.display(), to.display()))
}

/// Makes mounts below a directory shared, as the kubelet does with its root: bind-mounts it on itself, unless it is on a
/// shared mount already.
pub fn share(dir: &Path) -> Result<()> {
    if is_on_shared(dir)? {
        return Ok(());
    }
    bind(dir, dir)?;
    mount(
        None::<&str>,
        dir,
        None::<&str>,
        MsFlags::MS_SHARED | MsFlags::MS_REC,
        None::<&str>,
    )
    .with_context(|| format!("share mounts below {}", dir.display()))
}

fn is_on_shared(dir: &Path) -> Result<bool> {
    let table = MountInfos::from_file("/proc/thread-self/mountinfo").context("read /proc/thread-self/mountinfo")?;
    // Of several on one path the last is on top.
    let holds = table.into_iter().filter(|mount| dir.starts_with(&mount.mount_point));
    let nearest = holds.max_by_key(|mount| mount.mount_point.components().count());
    Ok(nearest.is_some_and(|mount| {
        mount
            .opt_fields
            .iter()
            .any(|field| matches!(field, MountOptFields::Shared(_)))
    }))
}

/// Unmounts everything at and below a directory. Mounts that vanish meanwhile are no error.
pub fn detach_below(dir: &Path) -> Result<()> {
    for point in below(dir)?.iter().rev() {
        match umount2(point, MntFlags::empty()) {
            Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
            Err(error) => return Err(error).with_context(|| format!("unmount {}", point.display())),
        }
    }
    Ok(())
}

/// Unmounts everything below a directory, then removes it. A missing directory is no error.
pub fn remove_dir(dir: &Path) -> Result<()> {
    detach_below(dir)?;
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
