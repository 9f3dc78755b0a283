//! Whether a kubelet answers on an address.

use std::{collections::BTreeSet, io, net::SocketAddr, path::Path};

use super::{capabilities, evidence, kind::kind, sockets};
use crate::node::procfs;

/// Whether a process that may be a kubelet listens at `at`: one that may mount, and whose name is that of a kubelet or of a
/// program that runs one inside. The process `known` is tried first; it may have any name if it has a kubelet's sockets.
///
/// # Errors
/// When the sockets of such a process cannot be read.
pub fn is_kubelets_answer(proc: &Path, at: SocketAddr, known: Option<i32>) -> io::Result<bool> {
    let sockets = |dir: &Path| match kind(dir)?.is_some() && capabilities::may_mount(proc, dir) {
        true => sockets::inodes(dir),
        false => Ok(BTreeSet::new()),
    };
    let is_such =
        |local: SocketAddr| local.port() == at.port() && (local.ip() == at.ip() || local.ip().is_unspecified());
    let listens = |sockets: &BTreeSet<u64>| {
        Ok(!sockets.is_empty() && sockets::any_tcp(&proc.join("self/net"), sockets, is_such)?)
    };
    let listens_as_kubelet = |dir: &Path| {
        let listeners = evidence::listeners(proc)?;
        io::Result::Ok(
            !listeners.is_empty()
                && capabilities::may_mount(proc, dir)
                && !evidence::roots(dir, &listeners)?.is_empty(),
        )
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
