//! How the volumes of a pod would be torn down. Only reads directories and the kubelet's files; never a mounted file system.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{
    find_mapped_volumes,
    planned_teardown::PlannedTeardown,
    pod_volumes::{self, PodVolumes},
    storage::Storage,
};
use crate::node::{fault::Fault, mounts::MountTable, pod_dir::PodDir};

/// A volume, and how it would be torn down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedVolume {
    /// Name of its plugin's directory; empty for mounts and directories without a volume.
    pub plugin: String,
    /// Name of its directory.
    pub name: String,
    /// Its directory, or the link of a raw block volume.
    pub path: String,
    /// Directory of its subPath targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subpaths: Option<String>,
    /// Mounts at or below these, in the order of their unmount.
    pub mounts: Vec<PlannedMount>,
    /// How.
    pub teardown: PlannedTeardown,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedMount {
    /// Mount point.
    pub path: String,
    /// Type of file system.
    pub fs_type: String,
    /// The mounted source.
    pub source: String,
}

/// The pod's volumes, in the order of their teardown. Blocks.
pub fn planned(pod: &PodDir, storage: &Storage, table: &MountTable) -> Result<Vec<PlannedVolume>, Fault> {
    let mapped = find_mapped_volumes(storage, pod.uid())?;
    let mounts = |paths: &[&Path]| {
        let mounts = table.mounts_at_or_below(paths).into_iter();
        let mount = mounts.map(|it| PlannedMount {
            path: it.path.display().to_string(),
            fs_type: it.fs_type.to_string_lossy().into_owned(),
            source: it.source.to_string_lossy().into_owned(),
        });
        mount.collect::<Vec<_>>()
    };
    let text = |path: &Path| path.display().to_string();
    let Some(dir) = pod.open()? else {
        let mapped = pod_volumes::one_by_one(mapped).into_iter();
        let planned = mapped.map(|(volume, kind)| {
            Ok(PlannedVolume {
                plugin: volume.plugin.to_string_lossy().into_owned(),
                name: volume.name.to_string_lossy().into_owned(),
                path: text(pod.path()),
                subpaths: None,
                mounts: Vec::new(),
                teardown: kind.planned(storage, pod, &volume)?,
            })
        });
        return planned.collect();
    };
    let PodVolumes {
        known,
        one_by_one,
        stray,
        skipped,
        kept: _,
    } = PodVolumes::in_dir(&dir, mapped)?;
    let mut all = Vec::new();
    for known in &known {
        all.push(PlannedVolume {
            plugin: known.volume.plugin.to_string_lossy().into_owned(),
            name: known.volume.name.to_string_lossy().into_owned(),
            path: text(&known.path),
            subpaths: known.subpaths.as_deref().map(text),
            mounts: mounts(&known.paths()),
            teardown: PlannedTeardown::Unmount,
        });
    }
    for path in &stray {
        all.push(PlannedVolume {
            plugin: String::new(),
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            path: text(path),
            subpaths: None,
            mounts: mounts(&[path]),
            teardown: PlannedTeardown::Unmount,
        });
    }
    for single in &one_by_one {
        let paths: Vec<&Path> = single.subpaths.as_deref().into_iter().chain([&*single.path]).collect();
        all.push(PlannedVolume {
            plugin: single.volume.plugin.to_string_lossy().into_owned(),
            name: single.volume.name.to_string_lossy().into_owned(),
            path: text(&single.path),
            subpaths: single.subpaths.as_deref().map(text),
            mounts: mounts(&paths),
            teardown: single.kind.planned(storage, pod, &single.volume)?,
        });
    }
    for fault in &skipped {
        all.push(PlannedVolume {
            plugin: String::new(),
            name: String::new(),
            path: text(&fault.path),
            subpaths: None,
            mounts: mounts(&[&fault.path]),
            teardown: PlannedTeardown::Unsupported {
                why: fault.cause.to_string(),
            },
        });
    }
    Ok(all)
}
