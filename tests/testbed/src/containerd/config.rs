//! Configuration texts: of the daemon, for both generations of its format, and of the network.

use serde_json::{Value, json};

use super::binary::Binary;
use super::network::Network;
use super::{PAUSE_IMAGE, Paths};
use crate::cgroups::Driver;

/// The daemon's configuration.
pub fn daemon(paths: &Paths, binary: &Binary, driver: Driver) -> String {
    let systemd = driver == Driver::Systemd;
    let Paths {
        root, state, socket, ..
    } = paths;
    let cri = if binary.release.0 >= 2 {
        cri_v3(paths, binary, systemd)
    } else {
        cri_v2(paths, systemd)
    };
    let version = if binary.release.0 >= 2 { 3 } else { 2 };
    // Disabled plugins: one would create a directory below /opt, the others only cost time.
    format!(
        r#"version = {version}
root = {root:?}
state = {state:?}
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = {socket:?}

[debug]
  level = "warn"

{cri}"#
    )
}

/// containerd 1: one CRI plugin.
fn cri_v2(paths: &Paths, systemd: bool) -> String {
    let Paths {
        cni,
        plugins,
        runc,
        runc_program,
        ..
    } = paths;
    format!(
        r#"[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {PAUSE_IMAGE:?}
  # Not every test machine grants CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {plugins:?}
    conf_dir = {cni:?}
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = {runc:?}
      BinaryName = {runc_program:?}
      SystemdCgroup = {systemd}
"#
    )
}

/// containerd 2: images and runtime are plugins of their own, and NRI would listen on a socket outside of our directory.
fn cri_v3(paths: &Paths, binary: &Binary, systemd: bool) -> String {
    let Paths {
        cni,
        plugins,
        runc,
        runc_program,
        ..
    } = paths;
    let bin_dir = if binary.release >= (2, 1) {
        format!("bin_dirs = [{plugins:?}]")
    } else {
        format!("bin_dir = {plugins:?}")
    };
    format!(
        r#"[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = {PAUSE_IMAGE:?}
[plugins."io.containerd.cri.v1.runtime"]
  # Not every test machine grants CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    {bin_dir}
    conf_dir = {cni:?}
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      Root = {runc:?}
      BinaryName = {runc_program:?}
      SystemdCgroup = {systemd}
"#
    )
}

/// The pods' network: a bridge that exists already, so that no plugin turns on forwarding on the machine.
pub fn network(network: &Network, paths: &Paths) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": network.name(),
        "plugins": [{
            "type": "bridge",
            "bridge": network.name(),
            "ipam": {
                "type": "host-local",
                "dataDir": paths.ipam,
                "ranges": [[{"subnet": network.subnet(), "gateway": network.host_ip()}]],
            },
        }],
    })
}
