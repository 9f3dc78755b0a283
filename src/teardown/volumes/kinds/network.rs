//! Network file systems, mounted for one pod. They are unmounted, and only the empty mount point is removed.

use super::super::kind::VolumeKind;

/// A kind, with its plugin's directory.
pub struct Network(&'static str);

pub const NFS: Network = Network("kubernetes.io~nfs");
/// Kinds of earlier versions of the kubelet.
pub const CEPH_FS: Network = Network("kubernetes.io~cephfs");
pub const GLUSTER_FS: Network = Network("kubernetes.io~glusterfs");
pub const AZURE_FILE: Network = Network("kubernetes.io~azure-file");
pub const QUOBYTE: Network = Network("kubernetes.io~quobyte");

// === impl Network ===

impl VolumeKind for Network {
    fn plugin(&self) -> &'static str {
        self.0
    }
}
