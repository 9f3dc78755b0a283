//! File systems of servers, mounted for one pod: unmounted, and only the empty mount point goes.

use super::super::kind::VolumeKind;

/// One such kind, by its plugin's directory.
pub struct Network(&'static str);

pub const NFS: Network = Network("kubernetes.io~nfs");
/// This and the following are what kubelets of earlier versions leave.
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
