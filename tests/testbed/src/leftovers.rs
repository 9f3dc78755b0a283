//! Leftovers of pods on this node, read from the runtime and the kernel.

use std::collections::{BTreeSet, HashMap};
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

/// Each line names one resource. Empty if nothing is left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Such as `mount /…/pods/UID/volumes/kubernetes.io~empty-dir/cache`.
    pub remains: Vec<String>,
}

impl Leftovers {
    /// Searches everything that a pod with this UID can have left. A failed search is an error.
    pub async fn of(dirs: &NodeDirs, cri: Cri, uid: &str) -> Result<Self> {
        Self::of_all(dirs, cri, [uid]).await
    }

    /// As [`Self::of`] for several pods, in one search.
    pub async fn of_all(dirs: &NodeDirs, cri: Cri, uids: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let uids = uids.into_iter().map(Into::into).collect();
        let mut look = Look {
            dirs,
            uids,
            found: Self::default(),
        };
        look.at_runtime(cri).await?;
        look.at_mounts()?;
        look.at_cgroups()?;
        look.at_processes()?;
        look.at_dirs(&dirs.pods())?;
        look.at_dirs(&dirs.pod_logs_dir)?;
        Ok(look.found)
    }

    /// Nothing is left.
    pub fn is_empty(&self) -> bool {
        self.remains.is_empty()
    }

    /// Whether something of a kind is left: `container`, `sandbox`, `mount`, `cgroup`, `process` or `directory`.
    pub fn has(&self, kind: &str) -> bool {
        self.count(kind) > 0
    }

    /// Number of leftovers of a kind; the kinds are those of [`Self::has`].
    pub fn count(&self, kind: &str) -> usize {
        self.remains
            .iter()
            .filter(|line| line.split(' ').next() == Some(kind))
            .count()
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

/// One search for some pods.
struct Look<'a> {
    dirs: &'a NodeDirs,
    uids: BTreeSet<String>,
    found: Leftovers,
}

impl Look<'_> {
    async fn at_runtime(&mut self, mut cri: Cri) -> Result<()> {
        let answer = cri
            .list_containers(ListContainersRequest::default())
            .await
            .context("list containers")?;
        for container in answer.into_inner().containers {
            let metadata = container.metadata.clone().unwrap_or_default();
            let what = format!(
                "{} ({}, {})",
                container.id,
                metadata.name,
                container.state().as_str_name()
            );
            self.add_labelled("container", &what, &container.labels, "");
        }
        let answer = cri
            .list_pod_sandbox(ListPodSandboxRequest::default())
            .await
            .context("list sandboxes")?;
        for sandbox in answer.into_inner().items {
            let metadata = sandbox.metadata.clone().unwrap_or_default();
            let what = format!("{} ({})", sandbox.id, sandbox.state().as_str_name());
            self.add_labelled("sandbox", &what, &sandbox.labels, &metadata.uid);
        }
        Ok(())
    }

    fn at_mounts(&mut self) -> Result<()> {
        let pods = self.dirs.pods();
        for point in mounts::below(&pods)? {
            let uid = point.strip_prefix(&pods)?.iter().next();
            if uid.is_some_and(|uid| self.is_wanted(&uid.to_string_lossy())) {
                self.add("mount", &point.display().to_string());
            }
        }
        Ok(())
    }

    fn at_cgroups(&mut self) -> Result<()> {
        for dir in cgroups::find(|name| self.has_cgroup(&name.to_string_lossy()))? {
            self.add("cgroup", &dir.display().to_string());
        }
        Ok(())
    }

    /// A process of a pod is in one of its cgroups, or has a mount of its directory, even if the runtime put it into
    /// another cgroup.
    fn at_processes(&mut self) -> Result<()> {
        let pods = format!("{}/", self.dirs.pods().display());
        let own_namespace = fs::read_link("/proc/self/ns/mnt").context("read /proc/self/ns/mnt")?;
        // A process that exits during the search does not count.
        for process in all_processes().context("read /proc")?.flatten() {
            let in_cgroup = process.cgroups().is_ok_and(|cgroups| {
                let mut paths = cgroups.0.iter().map(|cgroup| cgroup.pathname.as_str());
                paths.any(|path| path.split('/').any(|part| self.has_cgroup(part)))
            });
            let elsewhere = fs::read_link(format!("/proc/{}/ns/mnt", process.pid)).is_ok_and(|it| it != own_namespace);
            // A bind mount names the host's path as its root.
            let holds = || {
                fs::read_to_string(format!("/proc/{}/mountinfo", process.pid)).is_ok_and(|text| {
                    let mut inside = text.split(pods.as_str()).skip(1);
                    inside.any(|rest| rest.split_once('/').is_some_and(|(uid, _)| self.is_wanted(uid)))
                })
            };
            let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
            // A process that is about to become another pod's container has a copy of all mounts of the machine.
            let begins = name.starts_with("runc:[");
            if in_cgroup || (elsewhere && !begins && holds()) {
                self.add("process", &format!("{} ({name})", process.pid));
            }
        }
        Ok(())
    }

    /// Directories of volumes are named by the UID, those of logs by namespace, name and UID.
    fn at_dirs(&mut self, parent: &Path) -> Result<()> {
        let entries = match fs::read_dir(parent) {
            // No pod has run on this node yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.with_context(|| format!("read {}", parent.display()))?,
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("read {}", parent.display()))?;
            let name = entry.file_name();
            if name
                .to_string_lossy()
                .rsplit('_')
                .next()
                .is_some_and(|uid| self.is_wanted(uid))
            {
                self.add("directory", &entry.path().display().to_string());
            }
        }
        Ok(())
    }

    fn is_wanted(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// Whether a cgroup is one of the pods': by its whole name with the cgroupfs driver, by its suffix with systemd.
    fn has_cgroup(&self, name: &str) -> bool {
        let of_systemd = || name.strip_suffix(".slice")?.rsplit_once("-pod");
        name.strip_prefix("pod").is_some_and(|uid| self.is_wanted(uid))
            || of_systemd().is_some_and(|(_, uid)| self.is_wanted(&uid.replace('_', "-")))
    }

    fn add_labelled(&mut self, kind: &str, what: &str, labels: &HashMap<String, String>, uid: &str) {
        let uid = labels.get(UID_LABEL).map_or(uid, String::as_str);
        if self.is_wanted(uid) {
            self.add(kind, &format!("{what} of {uid}"));
        }
    }

    fn add(&mut self, kind: &str, what: &str) {
        self.found.remains.push(format!("{kind} {what}"));
    }
}
