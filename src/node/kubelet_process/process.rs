//! Kubelet processes, and the kubelet of this node.

use std::{fmt, net::SocketAddr, path::PathBuf};

use nix::errno::Errno;

use crate::{model::foreign::ForeignText, node::kubelet_root::KubeletRoot};

/// A kubelet that works, or may work, on this node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletProcess {
    /// Its process id.
    pub pid: i32,
    /// Its command line.
    pub command: ForeignText,
    /// Why it counts.
    pub why: MatchReason,
    /// Whether it is a program that embeds a kubelet, such as k3s.
    pub is_wrapper: bool,
}

/// Why a kubelet counts as this node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchReason {
    /// Its root directory is the agent's `--kubelet-root`.
    SameDirectory,
    /// It has another root directory on this machine, and names no other runtime: it may be this node's.
    SameNode,
    /// Its directory could not be read, so it counts.
    Unreadable(Errno),
    /// It embeds a kubelet whose root directory is not on its command line, so it counts.
    UnknownDirectory,
}

/// Paths and address of this node's kubelet.
#[derive(Debug, Clone)]
pub struct LocalKubelet {
    /// The kubelet's root directory.
    pub root: KubeletRoot,
    /// The runtime's socket.
    pub runtime: PathBuf,
    /// Address of the kubelet's healthz endpoint, if it has one.
    pub healthz: Option<SocketAddr>,
}

// === impl KubeletProcess ===

impl KubeletProcess {
    /// Its process id, and the remedy if it may not be this node's kubelet.
    pub fn brief(&self) -> String {
        let remedy = match self.why {
            MatchReason::SameNode => {
                "; its --root-dir is not the agent's --kubelet-root: set --kubelet-root to its --root-dir, or, if it is the \
                 kubelet of another node, start it with --container-runtime-endpoint on its command line"
            }
            MatchReason::SameDirectory | MatchReason::Unreadable(_) | MatchReason::UnknownDirectory => "",
        };
        format!("(pid {}){remedy}", self.pid)
    }
}

impl fmt::Display for KubeletProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.command, self.brief())
    }
}
