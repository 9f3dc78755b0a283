//! Pods that are drivers of volumes or devices. Without them the volumes and claims of other pods cannot be released, and without
//! a kubelet they are not restarted. So they terminate last.
//!
//! `sockets below plugins_registry → the pod whose hostPath has one → other terminating pods that need it`

use std::{collections::BTreeSet, path::Path, sync::Arc};

use crate::{
    model::{
        failure::{Failure, Reasoned},
        pod::PodView,
        trace::Step,
    },
    node::{
        dirs::Dir,
        dra_checkpoint,
        fault::Fault,
        kubelet_root::KubeletRoot,
        plugins::{Kind, Registered, Registry, registry::DIRECTORY},
    },
    teardown::{
        context::Context,
        volumes::{csi_users, storage::Storage},
    },
};

/// Below the kubelet's root: directory of drivers' sockets.
const PLUGINS: &str = "plugins";

/// A driver, by its name.
type Driver = (Kind, String);

/// UIDs of pods with volumes or claims of the drivers in this pod; `None` if it has none.
pub async fn users_of(context: &Context, view: &PodView) -> Result<Option<Users>, Vec<Failure>> {
    let root = &context.node.storage.root;
    if !host_paths(view).any(|path| may_hold_sockets(root, path)) {
        return Ok(None);
    }
    let failure = |why: &dyn Reasoned| vec![Failure::new(Step::Term, "", why)];
    let registry = Registry::read(&root.path().join(DIRECTORY), &context.node.effects).await;
    let registry = registry.map_err(|fault| failure(&fault))?;
    let own = registry.registered.iter().filter(|driver| is_in(root, view, driver));
    let own = own.filter_map(|driver| Some((driver.kind?, driver.name.clone())));
    let own: Vec<Driver> = own.collect();
    if own.is_empty() {
        // A driver that does not answer in time may be in this pod.
        if let Some(error) = registry.unresponsive.iter().find(|error| !error.is_unreachable()) {
            return Err(failure(error));
        }
        let fault = registry.faults.first();
        return fault.map_or(Ok(None), |fault| Err(failure(fault)));
    }
    let (storage, uid) = (Arc::clone(&context.node.storage), view.pod.uid.to_string());
    let read = move || users(&storage, &uid, &own);
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

/// Whether the pod shares a directory of this driver's sockets with the host, as far as its name shows. It need not be registered.
#[cfg(feature = "agent")]
pub fn seems_to_be(root: &KubeletRoot, view: &PodView, driver: &str) -> bool {
    let is_named = |path: &Path| path.components().any(|part| part.as_os_str() == driver);
    host_paths(view).any(|path| may_hold_sockets(root, path) && is_named(path))
}

/// The paths that the pod shares with the host.
fn host_paths(view: &PodView) -> impl Iterator<Item = &Path> {
    view.host_paths.iter().map(|path| Path::new(&**path))
}

/// Whether the driver's socket is in a directory that the pod shares with the host. If that is outside of the kubelet's
/// directories, the pod must also share the driver's registration socket.
fn is_in(root: &KubeletRoot, view: &PodView, driver: &Registered) -> bool {
    let registers = || host_paths(view).any(|path| may_hold_sockets(root, path) && lies_in(root, &driver.socket, path));
    let is_narrow = |path: &Path| !lies_in(root, root.path(), path);
    host_paths(view).any(|path| {
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

/// The other pods with a volume or a claim of these drivers. A volume that nothing identifies may be of any CSI driver.
fn users(storage: &Storage, uid: &str, drivers: &[Driver]) -> Result<Users, Fault> {
    let mut users = Users::default();
    let is_of = |kind, name: &String| drivers.iter().any(|driver| (driver.0, &driver.1) == (kind, name));
    if drivers.iter().any(|(kind, _)| *kind == Kind::Csi) {
        let is_user = |driver: Option<&String>| driver.is_none_or(|driver| is_of(Kind::Csi, driver));
        users.volumes = csi_users(storage, is_user)?;
    }
    let root = Dir::open(storage.root.path())?;
    let claims = root.map(|root| dra_checkpoint::read(&root)).transpose()?.flatten();
    for claim in claims.into_iter().flatten() {
        if claim.drivers.iter().any(|driver| is_of(Kind::Dra, driver)) {
            users.claims.extend(claim.pods);
        }
    }
    users.volumes.remove(uid);
    users.claims.remove(uid);
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
            kind: Some(Kind::Csi),
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
