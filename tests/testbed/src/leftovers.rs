//! What is left of a pod on this node: looked for in the runtime and the kernel, not remembered.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_cri::v1::{ListContainersRequest, ListPodSandboxRequest};
use procfs::process::all_processes;

use crate::containerd::Cri;
use crate::pods::NodeDirs;
use crate::{cgroups, mounts};

const UID_LABEL: &str = "io.kubernetes.pod.uid";

/// Each line names one thing that still exists. Empty: nothing is left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Such as `mount /…/pods/UID/volumes/kubernetes.io~empty-dir/cache`.
    pub remains: Vec<String>,
}

// === impl Leftovers ===

impl Leftovers {
    /// Looks everywhere that a pod of this UID can have left something. Not being able to look is a failure.
    pub async fn of(dirs: &NodeDirs, cri: Cri, uid: &str) -> Result<Self> {
        let mut found = Self::default();
        found.look_into_runtime(cri, uid).await?;
        found.look_at_mounts(&dirs.pod(uid))?;
        found.look_at_cgroups(uid)?;
        found.look_at_processes(dirs, uid)?;
        found.look_at_dirs(&dirs.pods(), |name| name == uid)?;
        let suffix = format!("_{uid}");
        found.look_at_dirs(&dirs.pod_logs_dir, |name| name.ends_with(&suffix))?;
        Ok(found)
    }

    /// As [`Self::of`] for several pods.
    pub async fn of_all(dirs: &NodeDirs, cri: Cri, uids: &[&str]) -> Result<Self> {
        let mut all = Self::default();
        for uid in uids {
            all.remains.extend(Self::of(dirs, cri.clone(), uid).await?.remains);
        }
        Ok(all)
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.remains.is_empty()
    }

    /// Whether something of a kind is left: `container`, `sandbox`, `mount`, `cgroup`, `process` or `directory`.
    pub fn has(&self, kind: &str) -> bool {
        self.count(kind) > 0
    }

    /// How many things of a kind are left; the kinds are those of [`Self::has`].
    pub fn count(&self, kind: &str) -> usize {
        self.remains
            .iter()
            .filter(|line| line.split(' ').next() == Some(kind))
            .count()
    }

    async fn look_into_runtime(&mut self, mut cri: Cri, uid: &str) -> Result<()> {
        let answer = cri
            .list_containers(ListContainersRequest::default())
            .await
            .context("list containers")?;
        for container in answer.into_inner().containers {
            if container.labels.get(UID_LABEL).is_some_and(|label| label == uid) {
                let name = container
                    .metadata
                    .as_ref()
                    .map_or("", |metadata| metadata.name.as_str());
                self.add(
                    "container",
                    &format!("{} ({name}, {})", container.id, container.state().as_str_name()),
                );
            }
        }
        let answer = cri
            .list_pod_sandbox(ListPodSandboxRequest::default())
            .await
            .context("list sandboxes")?;
        for sandbox in answer.into_inner().items {
            let in_metadata = sandbox.metadata.as_ref().is_some_and(|metadata| metadata.uid == uid);
            if in_metadata || sandbox.labels.get(UID_LABEL).is_some_and(|label| label == uid) {
                self.add(
                    "sandbox",
                    &format!("{} ({})", sandbox.id, sandbox.state().as_str_name()),
                );
            }
        }
        Ok(())
    }

    fn look_at_mounts(&mut self, pod_dir: &Path) -> Result<()> {
        for point in mounts::below(pod_dir)? {
            self.add("mount", &point.display().to_string());
        }
        Ok(())
    }

    fn look_at_cgroups(&mut self, uid: &str) -> Result<()> {
        for dir in cgroups::find(|name| is_of_pod(&name.to_string_lossy(), uid))? {
            self.add("cgroup", &dir.display().to_string());
        }
        Ok(())
    }

    /// A process of the pod is in one of its cgroups, or has something of its directory mounted: a runtime that put it
    /// into another cgroup does not hide it.
    fn look_at_processes(&mut self, dirs: &NodeDirs, uid: &str) -> Result<()> {
        let inside = format!("{}/", dirs.pod(uid).display());
        let own_namespace = fs::read_link("/proc/self/ns/mnt").context("read /proc/self/ns/mnt")?;
        // A process that ends while it is looked at is none that is left.
        for process in all_processes().context("read /proc")?.flatten() {
            let in_cgroup = process.cgroups().is_ok_and(|cgroups| {
                let mut paths = cgroups.0.iter().map(|cgroup| cgroup.pathname.as_str());
                paths.any(|path| path.split('/').any(|part| is_of_pod(part, uid)))
            });
            let elsewhere = fs::read_link(format!("/proc/{}/ns/mnt", process.pid)).is_ok_and(|it| it != own_namespace);
            // A bind mount names the host's path as its root.
            let holds = || {
                fs::read_to_string(format!("/proc/{}/mountinfo", process.pid)).is_ok_and(|text| text.contains(&inside))
            };
            let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
            // What is just about to become another pod's container has a copy of all mounts of the machine.
            let begins = name.starts_with("runc:[");
            if in_cgroup || (elsewhere && !begins && holds()) {
                self.add("process", &format!("{} ({name})", process.pid));
            }
        }
        Ok(())
    }

    fn look_at_dirs(&mut self, parent: &Path, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let entries = match fs::read_dir(parent) {
            // No pod has been on this node yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.with_context(|| format!("read {}", parent.display()))?,
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("read {}", parent.display()))?;
            if wanted(&entry.file_name().to_string_lossy()) {
                self.add("directory", &entry.path().display().to_string());
            }
        }
        Ok(())
    }

    fn add(&mut self, kind: &str, what: &str) {
        self.remains.push(format!("{kind} {what}"));
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            f.write_str("nothing is left")
        } else {
            f.write_str(&self.remains.join("\n"))
        }
    }
}

/// Whether a cgroup is the pod's: by its whole name with the cgroupfs driver, by its end with that of systemd.
fn is_of_pod(name: &str, uid: &str) -> bool {
    let slice = format!("-pod{}.slice", uid.replace('-', "_"));
    name == format!("pod{uid}") || name.ends_with(&slice)
}
