//! The files of a node that the agent reads, below one directory, and a socket that a program has left.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process,
};

use serde_json::json;
use tokio::net::UnixSocket;

/// Creates directories, a mount table with one cgroup hierarchy, and the kubelet's configuration, in an empty directory.
pub fn create(dir: &Path) -> io::Result<()> {
    let path = |name: &str| -> PathBuf { dir.join(name) };
    for name in ["kubelet/pods", "logs", "root", "cgroup/kubepods", "proc", "sys/block"] {
        fs::create_dir_all(path(name))?;
    }
    // The agent searches for kubelets here, and reads the mount namespaces of itself, the runtime and PID 1.
    for process in ["self", "1", &process::id().to_string()] {
        symlink(Path::new("/proc").join(process), path("proc").join(process))?;
    }
    let mount = format!("31 1 0:27 / {} rw - cgroup2 cgroup2 rw\n", path("cgroup").display());
    fs::write(path("mountinfo"), mount)?;
    let kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "podLogsDir": path("logs"),
        // A socket would not follow a virtual clock.
        "healthzPort": 0,
    });
    fs::write(path("kubelet.yaml"), kubelet.to_string())
}

/// Creates a socket without a listener, as a killed program leaves it.
pub fn stale_socket(path: &Path) -> io::Result<()> {
    // It never listens: a child that another thread has just forked may still have a dropped listener.
    UnixSocket::new_stream()?.bind(path).map(drop)
}
