//! Scans the node for pods: runtime, kubelet's directory, logs, mounts, cgroups. It changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsStr,
    fmt, fs, io,
    path::Path,
    sync::Arc,
};

use futures::FutureExt as _;
use tokio::time::Instant;

use crate::{
    journal::Journal,
    model::pod::PodUid,
    node::{
        cgroups::Cgroups,
        cri::PodUids,
        dirs::Dir,
        dra_checkpoint,
        fault::{Fault, errno},
        kubelet_root::KubeletRoot,
        pod_dir::PodDir,
    },
    teardown::{context::Context, journal::PodJournalExt as _, volumes::mapped_pods},
    watch::{RuntimePodSummary, RuntimePods},
};

/// What a scan has found for one UID.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodArtifacts {
    /// Sandboxes.
    pub runtime: Option<RuntimePodSummary>,
    /// The kubelet's directory of the pod.
    pub directory: bool,
    /// A mount in that directory, even if the directory is not visible.
    pub mount: bool,
    /// A device mounted for it outside of that directory.
    pub device: bool,
    /// A cgroup in any hierarchy.
    pub cgroup: bool,
    /// Log directories, by namespace and name.
    pub logs: Vec<(String, String)>,
}

/// Scans everything.
///
/// # Errors
/// If anything cannot be read: a partial scan proves nothing.
pub async fn scan(context: &Context, journal: &Journal) -> Result<BTreeMap<PodUid, PodArtifacts>, String> {
    let (root, logs_dir) = (context.node.storage.root.clone(), context.node.pod_logs_dir.clone());
    let storage = Arc::clone(&context.node.storage);
    let (cgroups, cgroup_root) = (context.node.cgroups.clone(), context.node.cgroup_root.clone());
    let on_disk = move || -> Result<BTreeMap<PodUid, PodArtifacts>, Fault> {
        let mut found = BTreeMap::<PodUid, PodArtifacts>::new();
        let mut mark = |uid: &str, set: &dyn Fn(&mut PodArtifacts)| set(found.entry(uid.into()).or_default());
        for uid in directories(root.pods())? {
            if PodDir::new(&root, &uid).is_ok() {
                mark(&uid, &|artifacts| artifacts.directory = true);
            }
        }
        for uid in mapped_pods(&storage)? {
            if PodDir::new(&root, &uid).is_ok() {
                mark(&uid, &|artifacts| artifacts.device = true);
            }
        }
        let table = storage.mounts.read()?;
        for uid in table.pods().filter_map(OsStr::to_str) {
            if PodDir::new(&root, uid).is_ok() {
                mark(uid, &|artifacts| artifacts.mount = true);
            }
        }
        for uid in cgroups.pod_uids(&cgroup_root)? {
            mark(&uid, &|artifacts| artifacts.cgroup = true);
        }
        for name in directories(&logs_dir)? {
            if let Some((namespace, name, uid)) = log_dir(&name) {
                mark(uid, &|artifacts| {
                    artifacts.logs.push((namespace.to_owned(), name.to_owned()));
                });
            }
        }
        Ok(found)
    };
    let found = context
        .node
        .reads
        .run_blocking(on_disk)
        .await
        .map_err(|error| error.to_string())?;
    let mut found = found.map_err(|fault| fault.to_string())?;
    let began = Instant::now();
    let named: BTreeSet<_> = found
        .keys()
        .map(ToString::to_string)
        .chain(journaled_uids(journal))
        .collect();
    let known: PodUids = Arc::new(move || std::future::ready(named.clone()).boxed());
    let sandboxes = context.node.cri.list_sandboxes(&known).await;
    let sandboxes = sandboxes.map_err(|error| error.to_string())?;
    for (uid, runtime_pod) in RuntimePods::of(began, sandboxes).pods {
        found.entry(uid).or_default().runtime = Some(runtime_pod);
    }
    Ok(found)
}

/// UIDs in the journal, directories and cgroups.
pub fn named_pods(root: &KubeletRoot, cgroups: &Cgroups, cgroup_root: &str, journal: &Journal) -> BTreeSet<String> {
    let unread = |fault: Fault| tracing::warn!(%fault, "Pods on this node cannot be read");
    let directories = directories(root.pods()).map_err(unread).unwrap_or_default();
    let cgroups = cgroups.pod_uids(cgroup_root).map_err(unread).unwrap_or_default();
    directories
        .into_iter()
        .chain(cgroups)
        .chain(journaled_uids(journal))
        .collect()
}

fn journaled_uids(journal: &Journal) -> impl Iterator<Item = String> {
    let seen = journal.all_seen().into_iter().map(|(uid, _)| uid.to_string());
    seen.chain(journal.unfinished().into_iter().map(|view| view.pod.uid.to_string()))
}

/// Names of everything on the node that may be a pod's UID: in the runtime, below the kubelet's directory, among mounts, cgroups,
/// logs and prepared claims. Any other UID has nothing on the node.
///
/// # Errors
/// If any of these cannot be read.
pub(crate) async fn names_on_node(context: &Context, journal: &Journal) -> Result<HashSet<PodUid>, String> {
    let mut names: HashSet<PodUid> = scan(context, journal).await?.into_keys().collect();
    // A list that is too large is read only in part above, but is an error here.
    let in_runtime = context.node.cri.pods().await.map_err(|error| error.to_string())?;
    names.extend(in_runtime.iter().map(|uid| uid.as_str().into()));
    let (root, storage) = (context.node.storage.root.clone(), Arc::clone(&context.node.storage));
    let on_disk = move || -> Result<HashSet<PodUid>, String> {
        let to_text = |fault: Fault| fault.to_string();
        // A mount may exist without a visible directory.
        let mounts = storage.all_mounts.read().map_err(to_text)?;
        let parts = mounts.all().flat_map(|mount| mount.path.iter());
        let mut names: HashSet<PodUid> = parts.filter_map(|part| Some(part.to_str()?.into())).collect();
        let failed = |error: io::Error| to_text(Fault::new("read", root.pods(), errno(&error)));
        for entry in fs::read_dir(root.pods()).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().map(PodUid::from));
        }
        let directory = Dir::open(root.path()).map_err(to_text)?;
        let checkpoint = directory
            .map(|it| dra_checkpoint::read(&it))
            .transpose()
            .map_err(to_text)?;
        if let Some(checkpoint) = checkpoint.flatten() {
            if let Some(problem) = checkpoint.problems.first() {
                return Err(problem.to_string());
            }
            let prepared_for = checkpoint.claims.iter().flat_map(|claim| &claim.pods);
            names.extend(prepared_for.map(|uid| uid.as_str().into()));
        }
        Ok(names)
    };
    let on_disk = context
        .node
        .reads
        .run_blocking(on_disk)
        .await
        .map_err(|error| error.to_string())?;
    names.extend(on_disk?);
    Ok(names)
}

/// Names of subdirectories, not of links; empty if the directory does not exist.
fn directories(path: &Path) -> Result<Vec<String>, Fault> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries,
    };
    let fault = |error: io::Error| Fault::new("read", path, errno(&error));
    let mut names = Vec::new();
    for entry in entries.map_err(fault)? {
        let entry = entry.map_err(fault)?;
        if entry.file_type().map_err(fault)?.is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

/// Namespace, name and UID in the name of a pod's log directory. None of them has a `_`.
fn log_dir(name: &str) -> Option<(&str, &str, &str)> {
    let mut parts = name.split('_');
    let named = (parts.next()?, parts.next()?, parts.next()?);
    let empty = [named.0, named.1, named.2].contains(&"");
    (parts.next().is_none() && !empty).then_some(named)
}

// === impl PodArtifacts ===

impl PodArtifacts {
    /// Without log directories of another namespace or name.
    pub fn of(&self, namespace: &str, name: &str) -> Self {
        let mut artifacts = self.clone();
        artifacts.logs.retain(|(ns, pod)| ns == namespace && pod == name);
        artifacts
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for PodArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.runtime.is_some(), "sandbox"),
            (self.directory, "directory"),
            (self.mount, "mount"),
            (self.device, "raw block device"),
            (self.cgroup, "cgroup"),
            (!self.logs.is_empty(), "logs"),
        ];
        let there: Vec<_> = all.iter().filter(|(there, _)| *there).map(|(_, what)| *what).collect();
        f.write_str(&there.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_directory_of_a_pod_has_a_name_of_three_parts() {
        assert_eq!(log_dir("ns_web-0_12-ab"), Some(("ns", "web-0", "12-ab")));
        for name in ["", "ns_web", "ns__12", "_web_12", "ns_web_", "a_b_c_d", "audit"] {
            assert_eq!(log_dir(name), None, "{name:?}");
        }
    }
}
