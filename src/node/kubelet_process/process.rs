//! Kubelet processes, and the kubelet of this node.

use std::{fmt, net::SocketAddr, path::PathBuf};

use nix::errno::Errno;

use crate::{model::foreign::ForeignText, node::kubelet_root::KubeletRoot};

/// A kubelet that works, or may work, on our pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletProcess {
    /// Its process id.
    pub pid: i32,
    /// Its command line.
    pub command: ForeignText,
    /// Why it counts.
    pub why: MatchReason,
    /// Whether it is a program that holds a kubelet among other things.
    pub is_wrapper: bool,
}

/// Why a kubelet counts as one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchReason {
    /// Its directory is ours.
    SameDirectory,
    /// It has another directory on this machine, and the same runtime as far as it says: it may be this node's.
    SameNode,
    /// Its directory could not be read, so it counts.
    Unreadable(Errno),
    /// It holds a kubelet on this machine whose directory is not on its command line, so it counts.
    UnknownDirectory,
}

/// Paths and address of this node's kubelet.
#[derive(Debug, Clone)]
pub struct LocalKubelet {
    /// Our kubelet's directory.
    pub root: KubeletRoot,
    /// Our runtime's socket.
    pub runtime: PathBuf,
    /// Address of our kubelet's healthz endpoint, if it has one.
    pub healthz: Option<SocketAddr>,
}

impl fmt::Display for KubeletProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)?;
        if self.why == MatchReason::SameNode {
            f.write_str(
                "; its --root-dir is not the agent's --kubelet-root: set --kubelet-root to its --root-dir, or, if it is the \
                 kubelet of another node, start it with --container-runtime-endpoint on its command line",
            )?;
        }
        Ok(())
    }
}
