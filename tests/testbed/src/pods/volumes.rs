//! A pod's volumes on disk, in the kubelet's layout: directories, mounts, ready markers.
//!
//! Contents of secrets and config maps are fake: no API server is asked.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, EmptyDirVolumeSource, KeyToPath, ProjectedVolumeSource, Volume, VolumeMount,
};

use super::qos::milli;
use crate::mounts;

/// Host path of each volume's content, by its name in the pod.
pub type VolumeDirs = BTreeMap<String, PathBuf>;

/// Plugin whose directory also has the markers of volumes based on an emptyDir.
const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
/// Key of a fake secret or config map without listed items.
const STAND_IN: &str = "data";

/// How to set a volume up.
enum Kind {
    /// An emptyDir; `Some` is one in memory, with its limit if it has one.
    Empty { memory: Option<Option<u64>> },
    /// Files that the kubelet writes: plugin, relative paths, and whether they lie on a tmpfs.
    Files {
        plugin: &'static str,
        paths: Vec<String>,
        on_tmpfs: bool,
    },
    /// A directory of the machine; nothing is created.
    Host(PathBuf),
}

/// Makes volumes of a pod below its directory.
pub fn set_up<'a>(volumes: impl Iterator<Item = &'a Volume>, pod_dir: &Path) -> Result<VolumeDirs> {
    let dirs = volumes.map(|volume| {
        let dir = set_up_one(volume, pod_dir).with_context(|| format!("set up volume {}", volume.name))?;
        Ok((volume.name.clone(), dir))
    });
    dirs.collect()
}

/// The directory or file of a volumeMount; a subPath is bind-mounted first.
pub fn source(volume: &Path, pod_dir: &Path, container: &str, index: usize, mount: &VolumeMount) -> Result<PathBuf> {
    let Some(sub_path) = mount.sub_path.as_deref().filter(|path| !path.is_empty()) else {
        return Ok(volume.to_owned());
    };
    let inside = volume.join(sub_path);
    if !inside.exists() {
        make_dir(&inside, 0o750)?;
    }
    let parent = pod_dir.join("volume-subpaths").join(&mount.name).join(container);
    let target = parent.join(index.to_string());
    make_dir(&parent, 0o750)?;
    if inside.is_dir() {
        make_dir(&target, 0o750)?;
    } else {
        write(&target, "", 0o640)?;
    }
    mounts::bind(&inside, &target)?;
    Ok(target)
}

fn set_up_one(volume: &Volume, pod_dir: &Path) -> Result<PathBuf> {
    let place = |plugin: &str| pod_dir.join("volumes").join(plugin).join(&volume.name);
    match Kind::of(volume)? {
        Kind::Empty { memory } => {
            let dir = place(EMPTY_DIR);
            make_dir(&dir, 0o777)?;
            if let Some(limit) = memory {
                mounts::tmpfs(&dir, limit)?;
                chmod(&dir, 0o777)?;
            }
            mark_ready(pod_dir, &volume.name)?;
            Ok(dir)
        }
        Kind::Files {
            plugin,
            paths,
            on_tmpfs,
        } => {
            let dir = place(plugin);
            make_dir(&dir, 0o777)?;
            if on_tmpfs {
                mounts::tmpfs(&dir, None)?;
            }
            mark_ready(pod_dir, &format!("wrapped_{}", volume.name))?;
            write_atomically(&dir, &paths)?;
            Ok(dir)
        }
        Kind::Host(path) => Ok(path),
    }
}

impl Kind {
    fn of(volume: &Volume) -> Result<Self> {
        if let Some(source) = &volume.empty_dir {
            return Self::of_empty_dir(source);
        }
        if let Some(source) = &volume.host_path {
            return Ok(Self::Host(PathBuf::from(&source.path)));
        }
        if let Some(source) = &volume.config_map {
            let paths = items(source.items.as_deref());
            return Ok(Self::Files {
                plugin: "kubernetes.io~configmap",
                paths,
                on_tmpfs: false,
            });
        }
        let (plugin, paths) = if let Some(source) = &volume.secret {
            ("kubernetes.io~secret", items(source.items.as_deref()))
        } else if let Some(source) = &volume.downward_api {
            ("kubernetes.io~downward-api", files(source.items.as_deref()))
        } else if let Some(source) = &volume.projected {
            ("kubernetes.io~projected", projected(source))
        } else {
            bail!("the testbed cannot make this kind of volume");
        };
        Ok(Self::Files {
            plugin,
            paths,
            on_tmpfs: true,
        })
    }

    fn of_empty_dir(source: &EmptyDirVolumeSource) -> Result<Self> {
        let limit = source
            .size_limit
            .as_ref()
            .and_then(milli)
            .and_then(|milli| u64::try_from(milli / 1000).ok());
        match source.medium.as_deref() {
            None | Some("") => Ok(Self::Empty { memory: None }),
            Some("Memory") => Ok(Self::Empty { memory: Some(limit) }),
            Some(medium) => bail!("the testbed cannot make an emptyDir of medium {medium}"),
        }
    }
}

fn items(items: Option<&[KeyToPath]>) -> Vec<String> {
    items.map_or_else(
        || vec![STAND_IN.to_owned()],
        |items| items.iter().map(|item| item.path.clone()).collect(),
    )
}

fn files(items: Option<&[DownwardAPIVolumeFile]>) -> Vec<String> {
    items.into_iter().flatten().map(|item| item.path.clone()).collect()
}

fn projected(source: &ProjectedVolumeSource) -> Vec<String> {
    let mut paths = Vec::new();
    for source in source.sources.iter().flatten() {
        paths.extend(source.service_account_token.as_ref().map(|token| token.path.clone()));
        paths.extend(source.config_map.iter().flat_map(|it| items(it.items.as_deref())));
        paths.extend(source.secret.iter().flat_map(|it| items(it.items.as_deref())));
        paths.extend(source.downward_api.iter().flat_map(|it| files(it.items.as_deref())));
    }
    paths
}

/// `..data` links to a timestamped directory; every visible name links through `..data`.
fn write_atomically(dir: &Path, paths: &[String]) -> Result<()> {
    let now = Timestamp::now();
    let payload = format!("..{}.{:09}", now.strftime("%Y_%m_%d_%H_%M_%S"), now.subsec_nanosecond());
    make_dir(&dir.join(&payload), 0o755)?;
    for path in paths {
        let file = dir.join(&payload).join(path);
        if let Some(parent) = file.parent() {
            make_dir(parent, 0o755)?;
        }
        write(&file, &format!("content of {path}\n"), 0o644)?;
    }
    link(Path::new(&payload), &dir.join("..data"))?;
    let tops: std::collections::BTreeSet<&str> = paths.iter().filter_map(|path| path.split('/').next()).collect();
    tops.into_iter()
        .try_for_each(|top| link(&Path::new("..data").join(top), &dir.join(top)))
}

fn mark_ready(pod_dir: &Path, name: &str) -> Result<()> {
    let dir = pod_dir.join("plugins").join(EMPTY_DIR).join(name);
    make_dir(&dir, 0o750)?;
    write(&dir.join("ready"), "", 0o640)
}

fn link(to: &Path, at: &Path) -> Result<()> {
    symlink(to, at).with_context(|| format!("link {} to {}", at.display(), to.display()))
}

/// Makes a directory with its parents; the mode is that of the last one.
pub fn make_dir(dir: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    chmod(dir, mode)
}

/// Writes a file of that mode.
pub fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    chmod(path, mode)
}

fn chmod(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of {}", path.display()))
}
