//! Defaults of the flags: from the command line of the running kubelet, from the journal, or from the file layout of a known
//! distribution.

use std::path::{Path, PathBuf};

use super::{document::DocumentKind, kubelet::kubelet_configuration};
use crate::{
    cli::NodeFlags,
    journal::peek::{Peek, peek},
    node::{
        identity::Identity,
        kubelet_process::flags::{self, DEFAULT_ROOT, KubeletFlags},
    },
};

/// File layout of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The distribution.
    pub name: &'static str,
    /// The kubelet's kubeconfig.
    pub kubeconfig: &'static str,
    /// The kubelet's configuration file.
    pub config: Option<&'static str>,
    /// The directory of its drop-ins.
    pub config_dir: Option<&'static str>,
    /// The runtime's socket.
    pub runtime: &'static str,
}

const CONTAINERD: &str = "/run/containerd/containerd.sock";
const K3S: &str = "/run/k3s/containerd/containerd.sock";
/// Kubeconfig of several distributions. They differ in the configuration file.
const KUBELET_ROOT_KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";

/// All known layouts. The first match is used; several match only if one distribution was installed over another.
pub const LAYOUTS: [Layout; 7] = [
    Layout {
        name: "kubeadm",
        kubeconfig: "/etc/kubernetes/kubelet.conf",
        config: Some("/var/lib/kubelet/config.yaml"),
        config_dir: None,
        runtime: CONTAINERD,
    },
    Layout {
        name: "k3s",
        kubeconfig: "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
        config: None,
        config_dir: Some("/var/lib/rancher/k3s/agent/etc/kubelet.conf.d"),
        runtime: K3S,
    },
    Layout {
        name: "RKE2",
        kubeconfig: "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
        config: None,
        config_dir: Some("/var/lib/rancher/rke2/agent/etc/kubelet.conf.d"),
        runtime: K3S,
    },
    Layout {
        name: "OpenShift",
        kubeconfig: KUBELET_ROOT_KUBECONFIG,
        config: Some("/etc/kubernetes/kubelet.conf"),
        config_dir: Some("/etc/openshift/kubelet.conf.d"),
        runtime: "/run/crio/crio.sock",
    },
    Layout {
        name: "EKS",
        kubeconfig: KUBELET_ROOT_KUBECONFIG,
        config: Some("/etc/kubernetes/kubelet/config.json"),
        config_dir: Some("/etc/kubernetes/kubelet/config.json.d"),
        runtime: CONTAINERD,
    },
    Layout {
        name: "EKS on Amazon Linux 2",
        kubeconfig: KUBELET_ROOT_KUBECONFIG,
        config: Some("/etc/kubernetes/kubelet/kubelet-config.json"),
        config_dir: None,
        runtime: CONTAINERD,
    },
    Layout {
        name: "GKE",
        kubeconfig: KUBELET_ROOT_KUBECONFIG,
        config: Some("/home/kubernetes/kubelet-config.yaml"),
        config_dir: None,
        runtime: CONTAINERD,
    },
];

/// The flags with their defaults: from the running kubelet, else from the kubelet that the journal has recorded, else from the
/// layout of the distribution.
pub fn complete_flags(flags: &NodeFlags, root: &Path, proc: &Path) -> NodeFlags {
    // A node that was reinstalled has other files.
    let files_exist = |start: &KubeletFlags| {
        let mut files = [&start.kubeconfig, &start.config].into_iter().flatten();
        start.serves_node() && files.all(|path| path.exists())
    };
    let recorded = || match peek(&flags.state_dir, &Identity::read(root)) {
        Ok(Peek::Good(node)) => node.kubelet.filter(files_exist),
        Ok(Peek::InUse | Peek::Unusable { .. }) | Err(_) => None,
    };
    let found = || {
        flags::read_single_kubelet(proc)
            .filter(KubeletFlags::serves_node)
            .or_else(recorded)
    };
    // The kubelet of another directory is another node's.
    let has_same_root = |start: &KubeletFlags| {
        flags
            .kubelet_root
            .as_deref()
            .is_none_or(|ours| is_same_path(ours, start.root()))
    };
    let start = found().filter(has_same_root);
    complete_with(flags, root, start)
}

fn complete_with(flags: &NodeFlags, root: &Path, start: Option<KubeletFlags>) -> NodeFlags {
    let mut all = flags.clone();
    if let Some(start) = start {
        all.kubeconfig = all.kubeconfig.or_else(|| start.kubeconfig.clone());
        all.kubelet_config = all.kubelet_config.or_else(|| start.config.clone());
        all.kubelet_config_dir = all.kubelet_config_dir.or_else(|| start.config_dir.clone());
        all.kubelet_root = all.kubelet_root.or_else(|| Some(start.root().to_owned()));
        all.cri_endpoint = all.cri_endpoint.or_else(|| start.runtime.as_deref().map(unix_endpoint));
        all.node_name = all
            .node_name
            .or_else(|| start.hostname_override.as_deref().map(str::to_lowercase));
        all.kubelet_start = Some(start);
    } else if let Some(layout) = detect(root)
// Use it completely or not at all: with another kubeconfig the other files are elsewhere, too.
        && flags.kubeconfig.as_deref().is_none_or(|given| is_same_path(given, &below(root, layout.kubeconfig)))
        && flags.kubelet_root.as_deref().is_none_or(|given| is_same_path(given, &below(root, DEFAULT_ROOT)))
    {
        let existing = |path: Option<&str>| path.map(|path| below(root, path)).filter(|path| path.exists());
        all.kubeconfig = Some(below(root, layout.kubeconfig));
        all.kubelet_config = all.kubelet_config.or_else(|| existing(layout.config));
        all.kubelet_config_dir = all.kubelet_config_dir.or_else(|| existing(layout.config_dir));
        // The configuration may name another runtime, as with k3s --container-runtime-endpoint.
        let configured = kubelet_configuration(all.kubelet_config.as_deref(), all.kubelet_config_dir.as_deref());
        if configured.is_ok_and(|configured| configured.container_runtime_endpoint.is_none()) {
            let usual = unix_endpoint(&below(root, layout.runtime).to_string_lossy());
            all.cri_endpoint.get_or_insert(usual);
        }
    }
    all
}

/// The layout of the node with this root file system: its kubeconfig and its configuration file exist and have the right kind.
pub fn detect(root: &Path) -> Option<&'static Layout> {
    LAYOUTS.iter().find(|layout| {
        let kind = |path| DocumentKind::of_file(&below(root, path));
        let is_config = |path| kind(path).is_some_and(|kind| kind.is_kubelet_configuration());
        layout.config.is_none_or(is_config) && kind(layout.kubeconfig).is_some_and(|kind| kind.is_kubeconfig())
    })
}

/// Makes an endpoint of a path.
pub(super) fn unix_endpoint(path: &str) -> String {
    if path.contains("://") {
        path.to_owned()
    } else {
        format!("unix://{path}")
    }
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn is_same_path(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{super::tests::flags, *};

    const KUBECONFIG: &str = "{kind: Config, apiVersion: v1}";
    const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn with(files: &[(&str, &str)]) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            for (path, text) in files {
                let path = below(machine.0.path(), path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            machine
        }

        fn complete(&self, args: &[&str]) -> NodeFlags {
            let state = self.0.path().join("state").display().to_string();
            let args = [&["--state-dir", &state], args].concat();
            complete_flags(&flags(&args), self.0.path(), &self.0.path().join("proc"))
        }

        fn below(&self, path: Option<PathBuf>) -> Option<String> {
            let path = path?;
            let path = path.to_str().unwrap().trim_start_matches("unix://").to_owned();
            Some(
                path.strip_prefix(self.0.path().to_str().unwrap())
                    .unwrap_or(&path)
                    .to_owned(),
            )
        }
    }

    #[test]
    fn known_distribution_needs_no_flag_and_its_drop_ins_apply() {
        let root = |name: &str| format!("{CONFIG}cgroupRoot: {name}\n");
        let (last, first) = (root("/last"), root("/first"));
        let json =
            r#"{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", "cgroupRoot": "/last"}"#;
        let kubelet = "/var/lib/kubelet/kubeconfig";
        for (name, files, config, dir, runtime) in [
            (
                "kubeadm",
                vec![
                    ("/etc/kubernetes/kubelet.conf", KUBECONFIG),
                    ("/var/lib/kubelet/config.yaml", &*last),
                ],
                Some("/var/lib/kubelet/config.yaml"),
                None,
                CONTAINERD,
            ),
            (
                "EKS",
                vec![
                    (kubelet, KUBECONFIG),
                    ("/etc/kubernetes/kubelet/config.json", &*first),
                    ("/etc/kubernetes/kubelet/config.json.d/40-nodeadm.conf", json),
                ],
                Some("/etc/kubernetes/kubelet/config.json"),
                Some("/etc/kubernetes/kubelet/config.json.d"),
                CONTAINERD,
            ),
            (
                "OpenShift",
                vec![(kubelet, KUBECONFIG), ("/etc/kubernetes/kubelet.conf", &*last)],
                Some("/etc/kubernetes/kubelet.conf"),
                None,
                "/run/crio/crio.sock",
            ),
            (
                "k3s",
                vec![
                    ("/var/lib/rancher/k3s/agent/kubelet.kubeconfig", KUBECONFIG),
                    (
                        "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf",
                        json,
                    ),
                ],
                None,
                Some("/var/lib/rancher/k3s/agent/etc/kubelet.conf.d"),
                K3S,
            ),
        ] {
            let machine = Machine::with(&files);
            let layout = detect(machine.0.path()).unwrap();
            assert_eq!(layout.name, name);
            let all = machine.complete(&[]);
            let configured =
                kubelet_configuration(all.kubelet_config.as_deref(), all.kubelet_config_dir.as_deref()).unwrap();
            assert_eq!(configured.cgroup_root.as_deref(), Some("/last"), "{name}");
            assert_eq!(
                machine.below(all.kubeconfig).as_deref(),
                Some(layout.kubeconfig),
                "{name}"
            );
            assert_eq!(machine.below(all.kubelet_config).as_deref(), config, "{name}");
            assert_eq!(machine.below(all.kubelet_config_dir).as_deref(), dir, "{name}");
            assert_eq!(
                machine.below(all.cri_endpoint.map(PathBuf::from)).as_deref(),
                Some(runtime),
                "{name}"
            );
        }
    }

    #[test]
    fn flag_overrides_a_layout_which_is_used_completely_or_not_at_all() {
        let machine = Machine::with(&[
            ("/etc/kubernetes/kubelet.conf", KUBECONFIG),
            ("/var/lib/kubelet/config.yaml", CONFIG),
        ]);
        let all = machine.complete(&["--cri-endpoint", "unix:///mine.sock"]);
        assert_eq!(all.cri_endpoint.as_deref(), Some("unix:///mine.sock"));
        assert!(all.kubelet_config.is_some());
        for flag in ["--kubeconfig", "--kubelet-root"] {
            let all = machine.complete(&[flag, "/mine"]);
            assert_eq!((all.kubelet_config, all.cri_endpoint), (None, None), "{flag}");
        }
        let runtime = format!("{CONFIG}containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n");
        let k3s = Machine::with(&[
            ("/var/lib/rancher/k3s/agent/kubelet.kubeconfig", KUBECONFIG),
            (
                "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf",
                &runtime,
            ),
        ]);
        assert_eq!(k3s.complete(&[]).cri_endpoint, None, "the configuration names it");
        let nothing = Machine::with(&[("/etc/kubernetes/kubelet.conf", CONFIG)]);
        assert_eq!(nothing.complete(&[]).kubeconfig, None, "it is no kubeconfig");
    }

    #[tokio::test]
    async fn kubelet_flags_override_a_layout_even_if_the_kubelet_does_not_run() {
        let machine = Machine::with(&[("/theirs", KUBECONFIG), ("/config", CONFIG)]);
        let (theirs, config) = (machine.0.path().join("theirs"), machine.0.path().join("config"));
        let start = KubeletFlags {
            kubeconfig: Some(theirs.clone()),
            config: Some(config.clone()),
            runtime: Some("/run/theirs.sock".to_owned()),
            hostname_override: Some("N7".to_owned()),
            ..KubeletFlags::default()
        };
        let journal = crate::journal::Journal::open(&machine.0.path().join("state"), &Identity::read(machine.0.path()));
        let journal = journal.unwrap();
        journal.change_node(|node| node.kubelet = Some(start.clone()));
        journal.durable().await.unwrap();
        assert_eq!(
            machine.complete(&[]).kubelet_start,
            None,
            "an agent has the journal open"
        );
        drop(journal);
        tokio::task::yield_now().await;
        let late = std::time::Duration::from_secs(60);
        let all = tokio::time::timeout(late, async {
            loop {
                let all = machine.complete(&[]);
                if all.kubelet_start.is_some() {
                    return all;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        });
        let all = all.await.unwrap();
        assert_eq!(all.kubelet_start, Some(start));
        assert_eq!(all.kubeconfig, Some(theirs.clone()));
        assert_eq!(all.kubelet_config, Some(config));
        assert_eq!(all.cri_endpoint.as_deref(), Some("unix:///run/theirs.sock"));
        assert_eq!(all.node_name.as_deref(), Some("n7"));
        let another = machine.complete(&["--kubelet-root", "/another"]);
        assert_eq!(another.kubelet_start, None, "it has another directory");
        fs::remove_file(theirs).unwrap();
        assert_eq!(machine.complete(&[]).kubelet_start, None, "the node was reinstalled");
    }
}
