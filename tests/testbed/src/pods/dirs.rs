//! Directories, logs and cgroups of a test's kubelet.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;

use super::identity::Identity;
use super::qos::QosClass;
use super::volumes::write;
use crate::workspace::Workspace;
use crate::{cgroups::Driver, mounts};

/// Paths in a kubelet's configuration.
#[derive(Debug, Clone)]
pub struct NodeDirs {
    /// `--root-dir`: mounted on itself and shared.
    pub kubelet_root: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// `cgroupRoot`, such as `/ptb123x0`; `kubepods` lies below it.
    pub cgroup_root: String,
    /// `cgroupDriver`.
    pub cgroup_driver: Driver,
}

impl NodeDirs {
    /// Creates them in a workspace, which removes them. One workspace has one kubelet.
    pub async fn create(workspace: &Workspace) -> Result<Self> {
        let dirs = Self {
            kubelet_root: workspace.dir().join("kubelet"),
            pod_logs_dir: workspace.dir().join("pod-logs"),
            cgroup_root: format!("/{}", workspace.id()),
            cgroup_driver: Driver::from_env()?,
        };
        for dir in [&dirs.kubelet_root, &dirs.pod_logs_dir] {
            fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        mounts::share(&dirs.kubelet_root)?;
        // As at a kubelet's start: before its first pod.
        fs::create_dir(dirs.pods()).with_context(|| format!("create {}", dirs.pods().display()))?;
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let cgroup = dirs.cgroup_driver.path(&dirs.qos_cgroup(class));
            dirs.cgroup_driver.create(&cgroup).await?;
        }
        write(&dirs.config_file(), &dirs.config(), 0o644)?;
        Ok(dirs)
    }

    /// Path of the kubelet's configuration, as with kubeadm.
    pub fn config_file(&self) -> PathBuf {
        self.kubelet_root.join("config.yaml")
    }

    /// `<root>/pods`.
    pub fn pods(&self) -> PathBuf {
        self.kubelet_root.join("pods")
    }

    /// `<root>/pods/<UID>`.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// `<podLogsDir>/<namespace>_<name>_<UID>`.
    pub fn logs(&self, identity: &Identity) -> PathBuf {
        self.pod_logs_dir
            .join(format!("{}_{}_{}", identity.namespace, identity.name, identity.uid))
    }

    /// The pod's cgroup within each hierarchy.
    pub fn cgroup(&self, pod: &Pod, uid: &str) -> String {
        let name = format!("pod{uid}");
        let mut parts = self.qos_cgroup(QosClass::of(pod));
        parts.push(&name);
        self.cgroup_driver.path(&parts)
    }

    fn config(&self) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             cgroupDriver: {}\ncgroupRoot: {}\npodLogsDir: {}\n",
            self.cgroup_driver.name(),
            self.cgroup_root,
            self.pod_logs_dir.display()
        )
    }

    fn qos_cgroup(&self, class: QosClass) -> Vec<&str> {
        let mut parts = vec![self.cgroup_root.trim_start_matches('/'), "kubepods"];
        parts.extend(match class {
            QosClass::Guaranteed => None,
            QosClass::Burstable => Some("burstable"),
            QosClass::BestEffort => Some("besteffort"),
        });
        parts
    }
}
