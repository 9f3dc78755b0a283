//! Evidence that only a kubelet shows. A process whose name begins with `kubelet` is one if it shows any of them. And whether a
//! kubelet answers on an address.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use nix::{errno::Errno, fcntl::OFlag};
use serde::Deserialize;

use super::{
    arguments::Arguments,
    kind::{kind, may_mount},
    process::LocalKubelet,
    root,
    sockets::{self, Listeners},
};
use crate::node::{fault, procfs};

/// The port of a kubelet's API.
const PORT: u16 = 10250;
/// A configuration is far shorter.
const MAX_SIZE: u64 = 1 << 20;

/// Whether its flags or its listening sockets are a kubelet's.
///
/// # Errors
/// When the sockets cannot be read.
pub(super) fn is_shown(dir: &Path, arguments: &Arguments<'_>, local: &LocalKubelet) -> Result<bool, Errno> {
    if arguments.has_kubelet_flag() {
        return Ok(true);
    }
    let listens = || {
        let (inodes, net) = (sockets::inodes(dir)?, dir.join("net"));
        let health = local.healthz.map_or(PORT, |at| at.port());
        Ok(!inodes.is_empty()
            && (sockets::listening(&net)?.keys().any(|inode| inodes.contains(inode))
                || sockets::any_tcp(&net, &inodes, |at| at.port() == PORT || at.port() == health)?))
    };
    listens().map_err(|error: io::Error| fault::errno(&error))
}

/// All sockets of the agent's network namespace on which only a kubelet listens. Kubelet and agent are in the host's.
pub(super) fn listeners(proc: &Path) -> io::Result<Listeners> {
    sockets::listening(&proc.join("self/net"))
}

/// Whether one of these sockets has a path below the kubelet's root directory. Walks nothing.
pub(super) fn is_below(listeners: &Listeners, local: &LocalKubelet) -> bool {
    let root = &local.root;
    let mut roots = listeners.values().filter_map(|path| path.ancestors().nth(2));
    roots.any(|path| path == root.path() || path == root.given())
}

/// The kubelet directories of these sockets that the process has, by its own paths.
pub(super) fn roots(dir: &Path, listeners: &Listeners) -> io::Result<Vec<PathBuf>> {
    let paths = sockets::owned(dir, listeners)?;
    let roots: BTreeSet<_> = paths.iter().filter_map(|path| path.ancestors().nth(2)).collect();
    Ok(roots.into_iter().map(Path::to_owned).collect())
}

/// Whether its `--config` is a kubelet's. An unreadable one is not.
pub(super) fn is_configured(dir: &Path, arguments: &Arguments<'_>) -> bool {
    #[derive(Deserialize)]
    struct Document {
        kind: String,
    }
    let Some(path) = arguments.path("config") else {
        return false;
    };
    let read = || {
        // A pipe is not waited for.
        let file = root::open(&root::base(dir, &path)?, &path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
        let file = File::from(file);
        if !file.metadata()?.is_file() {
            return Err(Errno::EINVAL.into());
        }
        io::read_to_string(file.take(MAX_SIZE))
    };
    let document = read().ok();
    let document = document.and_then(|text| serde_saphyr::from_str::<Document>(&text).ok());
    document.is_some_and(|document| document.kind == "KubeletConfiguration")
}

/// Whether a process that may be a kubelet listens at `at`: one that may mount, and whose name is that of a kubelet or of a
/// program that runs one inside. The process `known` is tried first; it may have any name if it has a kubelet's sockets.
///
/// # Errors
/// When the sockets of such a process cannot be read.
pub fn is_kubelets_answer(proc: &Path, at: SocketAddr, known: Option<i32>) -> io::Result<bool> {
    let sockets = |dir: &Path| match kind(dir)?.is_some() && may_mount(proc, dir) {
        true => sockets::inodes(dir),
        false => Ok(BTreeSet::new()),
    };
    let is_such =
        |local: SocketAddr| local.port() == at.port() && (local.ip() == at.ip() || local.ip().is_unspecified());
    let listens = |sockets: &BTreeSet<u64>| {
        Ok(!sockets.is_empty() && sockets::any_tcp(&proc.join("self/net"), sockets, is_such)?)
    };
    let listens_as_kubelet = |dir: &Path| {
        let listeners = listeners(proc)?;
        io::Result::Ok(!listeners.is_empty() && may_mount(proc, dir) && !roots(dir, &listeners)?.is_empty())
    };
    if let Some(known) = known
        && let known = procfs::dir(proc, known)
        && (listens(&sockets(&known)?)? || (listens_as_kubelet(&known)? && listens(&sockets::inodes(&known)?)?))
    {
        return Ok(true);
    }
    let mut all = BTreeSet::new();
    for pid in procfs::pids(proc)? {
        all.extend(sockets(&procfs::dir(proc, pid))?);
    }
    listens(&all)
}
