//! The directories, files and mounts that a kubelet leaves for CSI volumes, and for block volumes a link and a loop
//! device. Also mounts on behalf of the driver, which is not called.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ring::digest::{SHA256, digest};
use serde_json::json;

use crate::mounts;
use crate::pods::volumes::{make_dir, write};

/// The plugin's directory in a pod's `volumes` and `volumeDevices`.
const PLUGIN: &str = "kubernetes.io~csi";
/// Below a kubelet's root: staged volumes.
const STAGED: &str = "plugins/kubernetes.io/csi";
/// The node named in the files.
pub const NODE: &str = "node-1";

/// A PersistentVolume of a CSI driver.
#[derive(Debug, Clone, Copy)]
pub struct Pv<'a> {
    pub name: &'a str,
    pub driver: &'a str,
    /// The volume handle.
    pub handle: &'a str,
    /// Whether the driver stages it.
    pub staged: bool,
}

/// Paths of a volume with a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The pod's mount.
    pub target: PathBuf,
    /// Its directory, with `mount` and `vol_data.json`.
    pub volume: PathBuf,
    /// The staging mount, in a directory with another `vol_data.json`; missing for an ephemeral volume.
    pub staging: Option<PathBuf>,
}

/// Paths of a block volume.
#[derive(Debug)]
pub struct PublishedBlock {
    /// The staging directory; the device is mounted on a file in it.
    pub staging: PathBuf,
    /// The driver's mount for the pod.
    pub target: PathBuf,
    /// The kubelet's own mount of that.
    pub device: PathBuf,
    /// The pod's link to the target.
    pub link: PathBuf,
    /// The directory that holds `vol_data.json`.
    pub data: PathBuf,
    /// The loop device on the kubelet's mount, if requested.
    pub lock: Option<LoopDevice>,
}

/// A loop device; detached on drop if still attached.
#[derive(Debug)]
pub struct LoopDevice {
    /// Such as `/dev/loop3`.
    pub path: PathBuf,
    backing: PathBuf,
}

/// A volume as a pod uses it: staged first if its driver stages and no other pod has done so.
pub fn stage_and_publish(root: &Path, uid: &str, pv: &Pv<'_>) -> Result<Published> {
    let staging = staging(root, pv);
    make_dir(&staging, 0o750)?;
    if pv.staged && !mounts::below(&staging)?.contains(&staging) {
        // The kubelet writes no such file for drivers that do not stage.
        write_data(
            parent(&staging),
            &json!({"driverName": pv.driver, "volumeHandle": pv.handle}),
        )?;
        content(&staging)?;
    }
    let published = publish(
        root,
        uid,
        pv.name,
        &data(pv.driver, pv.handle, pv.name, Some("Persistent")),
    )?;
    if pv.staged {
        mounts::bind(&staging, &published.target)?;
    } else {
        content(&published.target)?;
    }
    Ok(Published {
        staging: Some(staging),
        ..published
    })
}

/// An inline volume of the pod with this name.
pub fn publish_ephemeral(root: &Path, uid: &str, volume: &str, driver: &str) -> Result<Published> {
    let handle = ephemeral_handle(uid, volume);
    let published = publish(root, uid, volume, &data(driver, &handle, volume, Some("Ephemeral")))?;
    content(&published.target)?;
    Ok(published)
}

/// A block volume as a pod uses it; `device` is the disk, or a file instead.
pub fn stage_and_publish_block(
    root: &Path,
    uid: &str,
    pv: &Pv<'_>,
    device: &Path,
    locked: bool,
) -> Result<PublishedBlock> {
    let base = root.join(STAGED).join("volumeDevices");
    let staging = base.join("staging").join(pv.name);
    let own = base.join(pv.name);
    let target = base.join("publish").join(pv.name).join(uid);
    let kubelets = own.join("dev").join(uid);
    make_dir(&own.join("data"), 0o750)?;
    write_data(&own.join("data"), &data(pv.driver, pv.handle, pv.name, None))?;
    make_dir(&staging, 0o750)?;
    let staged = staging.join("device");
    if !mounts::below(&staging)?.contains(&staged) {
        bind_file(device, &staged)?;
    }
    bind_file(&staged, &target)?;
    bind_file(&target, &kubelets)?;
    let links = root.join("pods").join(uid).join("volumeDevices").join(PLUGIN);
    make_dir(&links, 0o750)?;
    let link = links.join(pv.name);
    symlink(&target, &link).with_context(|| format!("link {}", link.display()))?;
    Ok(PublishedBlock {
        lock: locked.then(|| LoopDevice::attach(&kubelets)).transpose()?,
        staging,
        target,
        device: kubelets,
        link,
        data: own.join("data"),
    })
}

/// Staging path of a volume with a file system.
pub fn staging(root: &Path, pv: &Pv<'_>) -> PathBuf {
    let named = root.join(STAGED).join(pv.driver).join(sha256(pv.handle));
    named.join("globalmount")
}

pub fn ephemeral_handle(uid: &str, volume: &str) -> String {
    format!("csi-{}", sha256(&format!("{uid}{volume}")))
}

fn publish(root: &Path, uid: &str, name: &str, data: &serde_json::Value) -> Result<Published> {
    let volume = root.join("pods").join(uid).join("volumes").join(PLUGIN).join(name);
    let target = volume.join("mount");
    make_dir(&volume, 0o750)?;
    write_data(&volume, data)?;
    make_dir(&target, 0o750)?;
    Ok(Published {
        target,
        volume,
        staging: None,
    })
}

/// The kubelet's file beside a pod's volume; a block volume has no mode.
fn data(driver: &str, handle: &str, name: &str, mode: Option<&str>) -> serde_json::Value {
    let mut data = json!({
        "attachmentID": format!("csi-{}", sha256(&format!("{handle}{driver}{NODE}"))),
        "driverName": driver,
        "nodeName": NODE,
        "specVolID": name,
        "volumeHandle": handle,
    });
    if let Some(mode) = mode {
        data["volumeLifecycleMode"] = mode.into();
    }
    data
}

fn write_data(dir: &Path, data: &serde_json::Value) -> Result<()> {
    write(&dir.join("vol_data.json"), &format!("{data}\n"), 0o644)
}

/// Mounts a file system with data, as a driver does.
fn content(on: &Path) -> Result<()> {
    mounts::tmpfs(on, None)?;
    write(&on.join("data"), "precious\n", 0o644)
}

fn bind_file(from: &Path, to: &Path) -> Result<()> {
    make_dir(parent(to), 0o750)?;
    write(to, "", 0o640)?;
    mounts::bind(from, to)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn losetup(options: &[&str], path: &Path) -> Result<String> {
    let said = Command::new("losetup").args(options).arg(path).output();
    let said = said.context("run losetup")?;
    let error = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success(), "losetup {options:?} {}: {error}", path.display());
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

fn sha256(text: &str) -> String {
    let digest = digest(&SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl LoopDevice {
    pub fn attach(backing: &Path) -> Result<Self> {
        let backing = backing.to_owned();
        let path = losetup(&["--find", "--show"], &backing)?;
        Ok(Self {
            path: path.trim().into(),
            backing,
        })
    }

    /// Whether it is still attached to its file.
    pub fn is_attached(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default();
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        // The kernel shows the path as it was opened, and marks a deleted one. It has no path for a detached mount.
        let is_own = |path: &Path| path == self.backing || path == Path::new("/");
        fs::read_to_string(backing).is_ok_and(|text| is_own(Path::new(text.trim_end().trim_end_matches(" (deleted)"))))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if self.is_attached()
            && let Err(error) = losetup(&["--detach"], &self.path)
        {
            tracing::warn!(%error, "Loop device stays");
        }
    }
}
