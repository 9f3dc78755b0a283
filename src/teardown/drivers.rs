//! Pods that are drivers of volumes or devices. Without them the volumes and claims of other pods cannot be released, and without
//! a kubelet they are not restarted. So they terminate last.
//!
//! `sockets below plugins_registry → the pod whose hostPath has one → other terminating pods that need it`

use std::{collections::BTreeSet, ffi::OsStr, path::Path, sync::Arc};

use crate::{
    model::{
        failure::{Failure, Reasoned},
        pod::PodView,
        trace::Step,
    },
    node::{
        csi_files::{self, VolumeDataFile},
        dirs::Dir,
        dra_checkpoint,
        fault::Fault,
        kubelet_root::KubeletRoot,
        mounts::MountTable,
        plugins::{Kind, Registered, registry::DIRECTORY},
        pod_dir::{entries_by_plugin, names, other_pods},
    },
    teardown::{context::Context, journal::PodJournalExt as _},
};

/// Below the kubelet's root: directory of drivers' sockets.
const PLUGINS: &str = "plugins";

/// UIDs of pods with volumes or claims of the drivers in this pod; `None` if it has none.
pub async fn users_of(context: &Context, view: &PodView) -> Result<Option<Users>, Vec<Failure>> {
    let root = &context.node.storage.root;
    if !view
        .host_paths
        .iter()
        .any(|path| may_hold_sockets(root, Path::new(&**path)))
    {
        return Ok(None);
    }
    let failure = |why: &dyn Reasoned| vec![Failure::new(Step::Term, "", why)];
    let registrars = &context.node.storage.registrars;
    let registry = registrars
        .read(&root.path().join(DIRECTORY), &context.node.effects)
        .await;
    let registry = registry.map_err(|fault| failure(&fault))?;
    let own: BTreeSet<Driver> = registry
        .registered
        .iter()
        .filter(|driver| is_in(root, view, driver))
        .filter_map(Driver::from_registered)
        .collect();
    if own.is_empty() {
        // A driver that does not answer in time may be in this pod.
        let mut unresponsive = registry.unresponsive.iter().map(|driver| &driver.error);
        if let Some(error) = unresponsive.find(|error| !error.is_unreachable()) {
            return Err(failure(error));
        }
        return match registry.faults.first() {
            Some(fault) => Err(failure(fault)),
            None => Ok(None),
        };
    }
    let (paths, uid, mounts) = (
        root.clone(),
        view.pod.uid.to_string(),
        Arc::clone(&context.node.storage.mounts),
    );
    let read = move || users(&paths, &*mounts.read()?, &uid, &own);
    let needed = context.node.reads.run_blocking(read).await;
    let needed = needed.map_err(|why| failure(&why))?;
    needed.map(Some).map_err(|fault| failure(&fault))
}

/// Whether the claims of a terminating pod are unprepared. They are if it has a terminal phase and no worker.
fn are_claims_unprepared(context: &Context, other: &PodView) -> bool {
    let entry = context.journal.pod(&other.pod.uid);
    entry.map_or(other.terminal_phase, |entry| entry.claims_unprepared)
}

/// UIDs of the pods that need a driver.
#[derive(Debug, Default)]
pub struct Users {
    volumes: BTreeSet<String>,
    /// By the kubelet's checkpoint. It still has pods whose claims were unprepared since.
    claims: BTreeSet<String>,
}

// === impl Users ===

impl Users {
    /// Whether this pod is one of them.
    pub fn include(&self, context: &Context, pod: &PodView) -> bool {
        let uid = pod.pod.uid.as_str();
        self.volumes.contains(uid) || self.claims.contains(uid) && !are_claims_unprepared(context, pod)
    }
}

/// A driver, by its volumes or devices.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Driver {
    Csi(String),
    Dra(String),
}

// === impl Driver ===

impl Driver {
    fn from_registered(registered: &Registered) -> Option<Self> {
        let name = registered.name.clone();
        match registered.kind {
            Kind::Csi => Some(Self::Csi(name)),
            Kind::Dra => Some(Self::Dra(name)),
            Kind::Other => None,
        }
    }
}

/// Whether the pod shares a directory of this driver's sockets with the host, as far as its name shows. It need not be registered.
#[cfg(feature = "agent")]
pub fn seems_to_be(root: &KubeletRoot, view: &PodView, driver: &str) -> bool {
    view.host_paths.iter().any(|path| {
        let path = Path::new(&**path);
        may_hold_sockets(root, path) && path.components().any(|part| part.as_os_str() == driver)
    })
}

/// Whether the driver's socket is in a directory that the pod shares with the host. If that is outside of the kubelet's
/// directories, the pod must also share the driver's registration socket.
fn is_in(root: &KubeletRoot, view: &PodView, driver: &Registered) -> bool {
    let paths = || view.host_paths.iter().map(|path| Path::new(&**path));
    let registers = || paths().any(|path| may_hold_sockets(root, path) && lies_in(root, &driver.socket, path));
    let is_narrow = |path: &Path| !lies_in(root, root.path(), path);
    paths().any(|path| {
        let may_hold = may_hold_sockets(root, path) || is_narrow(path) && registers();
        may_hold && lies_in(root, &driver.endpoint, path)
    })
}

/// Whether one path is the other or is below it, by any of their usual names.
fn lies_in(root: &KubeletRoot, path: &Path, dir: &Path) -> bool {
    let plain = |path: &Path| {
        let aliases = [(root.given(), root.path()), (Path::new("/var/run"), Path::new("/run"))];
        let of = |(name, real): &(&Path, &Path)| path.strip_prefix(name).ok().map(|below| real.join(below));
        aliases.iter().find_map(of).unwrap_or_else(|| path.to_owned())
    };
    plain(path).starts_with(plain(dir))
}

/// Whether the path is the kubelet's `plugins` or `plugins_registry`, or below these. A pod that shares more of the host is not a
/// driver, but manages the node.
fn may_hold_sockets(root: &KubeletRoot, path: &Path) -> bool {
    [root.given(), root.path()]
        .iter()
        .any(|root| path.starts_with(root.join(PLUGINS)) || path.starts_with(root.join(DIRECTORY)))
}

/// The other pods with a volume or a claim of these drivers.
fn users(root: &KubeletRoot, table: &MountTable, uid: &str, drivers: &BTreeSet<Driver>) -> Result<Users, Fault> {
    let mut users = Users::default();
    let drives_volumes = drivers.iter().any(|driver| matches!(driver, Driver::Csi(_)));
    // A file without driver and handle may be about any volume.
    let is_of = |found: VolumeDataFile| match found {
        VolumeDataFile::Read(csi_files::VolumeData {
            driver: Some(driver), ..
        }) => drivers.contains(&Driver::Csi(driver)),
        VolumeDataFile::Read(_) | VolumeDataFile::Invalid(_) | VolumeDataFile::Missing => drives_volumes,
    };
    let devices = Dir::open(&root.path().join(csi_files::STAGING).join(csi_files::BLOCK))?;
    let mut unseen: BTreeSet<&OsStr> = table.pods().filter(|pod| *pod != uid).collect();
    for pod in other_pods(root, uid)? {
        let pod = pod?;
        unseen.remove(OsStr::new(&pod.name()));
        let mut found = Vec::new();
        if let Some(volumes) = pod.open_below(Path::new(names::VOLUMES).join(names::CSI))? {
            for volume in volumes.names()? {
                // Only directories are volumes.
                found.extend(volumes.open_below(volume)?.as_ref().map(csi_files::read).transpose()?);
            }
        }
        for (_, volume) in entries_by_plugin(&pod, names::DEVICES)?
            .into_iter()
            .filter(|(plugin, _)| plugin == names::CSI)
        {
            let data = devices
                .as_ref()
                .map(|devices| devices.open_below(Path::new(&volume).join("data")));
            found.push(match data.transpose()?.flatten() {
                Some(data) => csi_files::read(&data)?,
                None => VolumeDataFile::Missing,
            });
        }
        if found.into_iter().any(is_of) {
            users.volumes.insert(pod.name());
        }
    }
    // A mount of a pod whose directory is not visible may be of any driver.
    if drives_volumes {
        users
            .volumes
            .extend(unseen.iter().map(|pod| pod.to_string_lossy().into_owned()));
    }
    let checkpoint = Dir::open(root.path())?
        .map(|root| dra_checkpoint::read(&root))
        .transpose()?;
    for claim in checkpoint.flatten().iter().flat_map(|checkpoint| &checkpoint.claims) {
        if claim
            .drivers
            .iter()
            .any(|driver| drivers.contains(&Driver::Dra(driver.clone())))
        {
            users
                .claims
                .extend(claim.pods.iter().filter(|pod| *pod != uid).cloned());
        }
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::PodRef;

    #[test]
    fn pod_is_a_driver_by_the_directory_of_its_socket_and_not_by_the_kubelets_root() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("pods")).unwrap();
        let root = KubeletRoot::resolve(temp.path()).unwrap();
        let below = |path: &str| root.path().join(path).display().to_string();
        let driver = Registered {
            kind: Kind::Csi,
            name: "d".into(),
            endpoint: below("plugins/d/csi.sock").into(),
            versions: Vec::new(),
            socket: "/s".into(),
        };
        let mut elsewhere = driver.clone();
        elsewhere.endpoint = "/var/run/d/csi.sock".into();
        elsewhere.socket = below("plugins_registry/d-reg.sock").into();
        for (paths, expected) in [
            (vec!["/run/d".to_owned(), below("plugins_registry")], true),
            (
                vec!["/var/run/d".to_owned(), below("plugins_registry/d-reg.sock")],
                true,
            ),
            // A pod without the registration socket only manages drivers.
            (vec!["/run/d".to_owned()], false),
            (vec!["/run/other".to_owned(), below("plugins_registry")], false),
            (vec!["/".to_owned(), below("plugins_registry")], false),
        ] {
            let mut view = PodView::identity_only(PodRef {
                uid: "u".into(),
                namespace: "ns".into(),
                name: "n".into(),
            });
            view.host_paths = paths.iter().map(|path| path.clone().into()).collect();
            assert_eq!(is_in(&root, &view, &elsewhere), expected, "{paths:?}");
        }
        for (path, expected) in [
            (below("plugins/d"), true),
            (below("plugins"), true),
            (below("plugins/other"), false),
            (below("plugins_registry"), false),
            (below(""), false),
            ("/".to_owned(), false),
        ] {
            let mut view = PodView::identity_only(PodRef {
                uid: "u".into(),
                namespace: "ns".into(),
                name: "n".into(),
            });
            view.host_paths = vec![path.clone().into()];
            assert_eq!(is_in(&root, &view, &driver), expected, "{path}");
        }
    }
}
