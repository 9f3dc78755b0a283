//! Scans the node for pods: runtime, kubelet's directory, logs, mounts, cgroups. It changes nothing.

use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsStr,
    fmt, fs, io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::time::timeout;

use crate::{
    model::pod::{PodRef, PodUid},
    node::{
        cri::types::PodSandbox,
        dirs::Dir,
        dra_checkpoint,
        fault::{Fault, errno},
        grpc::GrpcError,
        pod_dir::PodDir,
    },
    teardown::{context::Context, volumes::mapped_pods},
    why::Why,
};

/// Longest read of the disk: what the runtime shows must not wait for a file system that hangs.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

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

/// A pod in the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimePodSummary {
    /// Identity and names in the sandbox's metadata.
    pub pod: PodRef,
    /// All its sandboxes have the config source `api`: it is a pod of an API server.
    pub from_api: bool,
    /// One of its sandboxes has another config source: it is a static pod.
    pub is_static: bool,
    /// One of its sandboxes is ready.
    pub has_ready_sandbox: bool,
}

/// Scans everything. The second value is why the disk cannot be read; then what was found there is missing.
///
/// # Errors
/// If the runtime does not answer.
pub async fn scan(context: &Context) -> Result<(BTreeMap<PodUid, PodArtifacts>, Option<Why>), GrpcError> {
    let sandboxes = context.node.cri.list_sandboxes().await?;
    let (root, logs_dir) = (context.node.storage.root.clone(), context.node.pod_logs_dir.clone());
    let storage = Arc::clone(&context.node.storage);
    let (cgroups, cgroup_root) = (context.node.cgroups.clone(), context.node.cgroup_root.clone());
    let on_disk = move || -> Result<BTreeMap<PodUid, PodArtifacts>, Fault> {
        let mut found = BTreeMap::<PodUid, PodArtifacts>::new();
        let mut mark = |uid: &str, set: &dyn Fn(&mut PodArtifacts)| set(found.entry(uid.into()).or_default());
        let is_uid = |name: &&str| PodDir::new(&root, name).is_ok();
        for uid in directories(root.pods())?.iter().map(String::as_str).filter(is_uid) {
            mark(uid, &|artifacts| artifacts.directory = true);
        }
        for uid in mapped_pods(&storage)?.iter().map(|uid| &**uid).filter(is_uid) {
            mark(uid, &|artifacts| artifacts.device = true);
        }
        let table = storage.mounts.read()?;
        for uid in table.pods().filter_map(OsStr::to_str).filter(is_uid) {
            mark(uid, &|artifacts| artifacts.mount = true);
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
    let found = match timeout(DISK_TIMEOUT, context.node.reads.run_blocking(on_disk)).await {
        Ok(Ok(found)) => found.map_err(Why::new),
        Ok(Err(why)) => Err(Why::new(why)),
        Err(_) => Err(format!("it takes longer than {DISK_TIMEOUT:?}").into()),
    };
    let (mut found, unread) = found.map_or_else(|why| (BTreeMap::new(), Some(why)), |found| (found, None));
    for (uid, runtime_pod) in runtime_pods(sandboxes) {
        found.entry(uid).or_default().runtime = Some(runtime_pod);
    }
    Ok((found, unread))
}

/// The pods of these sandboxes. Sandboxes without the metadata of a pod are left out.
pub fn runtime_pods(sandboxes: Vec<PodSandbox>) -> BTreeMap<PodUid, RuntimePodSummary> {
    let mut pods = BTreeMap::<PodUid, RuntimePodSummary>::new();
    for it in sandboxes {
        if [&it.pod_uid, &it.namespace, &it.name].into_iter().any(String::is_empty) {
            continue;
        }
        let runtime_pod = pods.entry(it.pod_uid.as_str().into());
        let runtime_pod = runtime_pod.or_insert_with_key(|uid| RuntimePodSummary {
            pod: PodRef {
                uid: uid.clone(),
                namespace: it.namespace.into(),
                name: it.name.into(),
            },
            from_api: true,
            is_static: false,
            has_ready_sandbox: false,
        });
        // Sandboxes of one pod with different config sources prove nothing.
        runtime_pod.from_api &= it.sandbox.is_from_api();
        runtime_pod.is_static |= it.sandbox.is_from_elsewhere();
        runtime_pod.has_ready_sandbox |= it.sandbox.is_ready;
    }
    pods
}

/// Names of everything on the node that may be a pod's UID: in the runtime, below the kubelet's directory, among mounts, cgroups,
/// logs and prepared claims. Any other UID has nothing on the node.
///
/// # Errors
/// If any of these cannot be read.
pub(crate) async fn names_on_node(context: &Context) -> Result<HashSet<PodUid>, Why> {
    let (found, unread) = scan(context).await.map_err(Why::new)?;
    if let Some(why) = unread {
        return Err(why);
    }
    let in_runtime = context.node.cri.all_brief().await.map_err(Why::new)?;
    let (root, storage) = (context.node.storage.root.clone(), Arc::clone(&context.node.storage));
    let on_disk = move || -> Result<HashSet<PodUid>, Fault> {
        // A mount may exist without a visible directory.
        let mounts = storage.all_mounts.read()?;
        let parts = mounts.all().flat_map(|mount| mount.path.iter());
        let mut names: HashSet<PodUid> = parts.filter_map(|part| Some(part.to_str()?.into())).collect();
        let failed = |error: io::Error| Fault::new("read", root.pods(), errno(&error));
        for entry in fs::read_dir(root.pods()).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().map(PodUid::from));
        }
        let checkpoint = Dir::open(root.path())?.map(|dir| dra_checkpoint::read(&dir));
        let claims = checkpoint.transpose()?.flatten().unwrap_or_default();
        let prepared_for = claims.iter().flat_map(|claim| &claim.pods);
        names.extend(prepared_for.map(|uid| uid.as_str().into()));
        Ok(names)
    };
    let on_disk = context.node.reads.run_blocking(on_disk).await;
    let mut names = on_disk.map_err(Why::new)?.map_err(Why::new)?;
    names.extend(found.into_keys());
    names.extend(in_runtime.keys().map(|uid| uid.as_str().into()));
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
    use jiff::Timestamp;

    use super::*;
    use crate::node::cri::types::Sandbox;

    fn sandbox(uid: &str, name: &str, source: Option<&str>) -> PodSandbox {
        PodSandbox {
            pod_uid: uid.to_owned(),
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            sandbox: Sandbox {
                id: format!("sandbox of {uid}"),
                attempt: 0,
                is_ready: true,
                created_at: Timestamp::UNIX_EPOCH,
                config_source: source.map(str::to_owned),
                ips: Vec::new(),
            },
        }
    }

    #[test]
    fn pod_comes_from_the_api_server_only_if_all_its_sandboxes_say_so() {
        let found = runtime_pods(vec![
            sandbox("1", "web", Some("api")),
            sandbox("1", "web", Some("api")),
            sandbox("2", "static", Some("file")),
            sandbox("3", "foreign", None),
            sandbox("4", "both", Some("api")),
            sandbox("4", "both", Some("file")),
            sandbox("", "nameless", Some("api")),
            sandbox("5", "", Some("api")),
        ]);
        let from_api: Vec<_> = found
            .iter()
            .map(|(uid, runtime_pod)| (uid.as_str(), runtime_pod.from_api, runtime_pod.is_static))
            .collect();
        let expected = [
            ("1", true, false),
            ("2", false, true),
            ("3", false, false),
            ("4", false, true),
        ];
        assert_eq!(from_api, expected);
    }

    #[test]
    fn log_directory_of_a_pod_has_a_name_of_three_parts() {
        assert_eq!(log_dir("ns_web-0_12-ab"), Some(("ns", "web-0", "12-ab")));
        for name in ["", "ns_web", "ns__12", "_web_12", "ns_web_", "a_b_c_d", "audit"] {
            assert_eq!(log_dir(name), None, "{name:?}");
        }
    }
}
