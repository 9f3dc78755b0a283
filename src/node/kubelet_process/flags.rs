//! Flags on a kubelet's command line that the agent uses as well.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    arguments::Arguments,
    kind::{Kind, kind, may_mount},
};
use crate::{
    model::foreign::ForeignText,
    node::{lock::readable, procfs},
};

/// Flags of a kubelet. Paths are absolute, in the host's root file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletFlags {
    /// The command line that the flags are from.
    pub command: ForeignText,
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--config-dir`.
    pub config_dir: Option<PathBuf>,
    /// `--root-dir`.
    pub root_dir: Option<PathBuf>,
    /// `--container-runtime-endpoint`.
    pub runtime: Option<String>,
    /// `--cgroup-root`, which counts more than the configuration.
    pub cgroup_root: Option<String>,
    /// `--healthz-bind-address`, likewise.
    pub healthz_bind_address: Option<IpAddr>,
    /// `--healthz-port`, likewise.
    pub healthz_port: Option<u16>,
    /// `--hostname-override`.
    pub hostname_override: Option<String>,
    /// The systemd service that it was started by, if any.
    pub unit: Option<String>,
}

/// Settings of the agent that must agree with these flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedFlags {
    /// By the kubelet's flag of the same meaning. The port of healthz is 0 for none.
    pub flags: KubeletFlags,
    /// `--kubelet-root` without symlinks.
    pub resolved_root: PathBuf,
}

/// A setting in which the kubelet and the agent differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What differs.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// A flag of the kubelet, the agent's flag of the same meaning, and what is compared of them.
type Compared = (&'static str, &'static str, fn(&KubeletFlags) -> Option<String>);

/// What is compared with the agent's settings.
const COMPARED: [Compared; 7] = [
    ("--kubeconfig", "--kubeconfig", |it| text(it.kubeconfig.as_deref())),
    ("--config", "--kubelet-config", |it| text(it.config.as_deref())),
    ("--config-dir", "--kubelet-config-dir", |it| {
        text(it.config_dir.as_deref())
    }),
    ("--root-dir", "--kubelet-root", |it| text(Some(it.root()))),
    ("--container-runtime-endpoint", "--cri-endpoint", |it| {
        let url = it.runtime.as_deref()?;
        Some(url.strip_prefix("unix://").unwrap_or(url).to_owned())
    }),
    ("--cgroup-root", "--cgroup-root", |it| it.cgroup_root.clone()),
    ("--hostname-override", "--node-name", |it| {
        it.hostname_override.as_deref().map(str::to_lowercase)
    }),
];

/// The kubelet's default for `--root-dir`.
pub const DEFAULT_ROOT: &str = "/var/lib/kubelet";

/// Flags of the only kubelet process in the agent's mount namespace; `None` with none or several. A program that embeds a kubelet
/// has no such flags.
pub fn read_single_kubelet(proc: &Path) -> Option<KubeletFlags> {
    let has_a_name = |pid: &i32| matches!(kind(&procfs::dir(proc, *pid)), Ok(Some(_)));
    let pids = procfs::pids(proc).ok()?.into_iter();
    let mut all = pids.filter(has_a_name).filter_map(|pid| read(proc, pid));
    let only = all.next()?;
    all.next().is_none().then_some(only)
}

/// Flags of this process. `None` if it is no kubelet by its name and flags, or has another mount namespace or root than the agent.
pub fn read(proc: &Path, pid: i32) -> Option<KubeletFlags> {
    let dir = procfs::dir(proc, pid);
    let kind = kind(&dir).ok()?.unwrap_or(Kind::Listener);
    if !may_mount(proc, &dir) || !has_our_paths(proc, &dir) {
        return None;
    }
    let command = fs::read(dir.join("cmdline")).ok()?;
    let arguments = Arguments(&command);
    match kind {
        Kind::Kubelet => {}
        Kind::Candidate | Kind::Listener if arguments.has_kubelet_flag() => {}
        Kind::Candidate | Kind::Listener | Kind::Wrapper(_) => return None,
    }
    let cwd = fs::read_link(dir.join("cwd")).unwrap_or_default();
    let path = |flag| {
        let path = arguments.path(flag).filter(|path| !path.as_os_str().is_empty())?;
        Some(cwd.join(path))
    };
    let text = |flag| Some(arguments.value(flag)?.to_str()?.to_owned()).filter(|text| !text.is_empty());
    Some(KubeletFlags {
        kubeconfig: path("kubeconfig"),
        config: path("config"),
        config_dir: path("config-dir"),
        root_dir: path("root-dir"),
        runtime: text("container-runtime-endpoint"),
        cgroup_root: text("cgroup-root"),
        healthz_bind_address: text("healthz-bind-address").and_then(|text| text.parse().ok()),
        healthz_port: text("healthz-port").and_then(|text| text.parse().ok()),
        hostname_override: text("hostname-override"),
        unit: service_of(&fs::read_to_string(dir.join("cgroup")).unwrap_or_default()),
        command: readable(&command),
    })
}

/// The service in the cgroup of a process: systemd names cgroups by their units.
fn service_of(cgroups: &str) -> Option<String> {
    let mut services = cgroups.lines().filter_map(|line| {
        let mut names = line.rsplit('/');
        names.find(|name| name.ends_with(".service"))
    });
    services.next_back().map(str::to_owned)
}

/// Whether a path leads that process to the same file as the agent: it has the agent's mount namespace, and its root is `/`.
pub(super) fn has_our_paths(proc: &Path, dir: &Path) -> bool {
    let theirs = procfs::namespace(dir, "mnt");
    let root = fs::read_link(dir.join("root")).ok();
    theirs.is_some()
        && theirs == procfs::namespace(&proc.join("self"), "mnt")
        && root.as_deref() == Some(Path::new("/"))
}

// === impl KubeletFlags ===

impl KubeletFlags {
    /// Its root directory.
    pub fn root(&self) -> &Path {
        self.root_dir.as_deref().unwrap_or(Path::new(DEFAULT_ROOT))
    }

    /// Whether it has a flag for credentials or configuration, as the kubelet of a node. `kubelet --version` does not.
    pub fn serves_node(&self) -> bool {
        self.kubeconfig.is_some() || self.config.is_some()
    }

    /// Every flag that differs from the agent's settings, with its remedy. A flag that is not set is not compared.
    pub fn differences(&self, expected: &ExpectedFlags) -> Vec<Difference> {
        let differs = |(name, flag, value): &Compared| {
            let ours = value(&expected.flags).unwrap_or_else(|| "nothing".to_owned());
            let is_resolved = *name == "--root-dir" && self.root() == expected.resolved_root;
            let theirs = value(self).filter(|theirs| !is_same(theirs, &ours) && !is_resolved)?;
            let theirs = ForeignText::new(&theirs);
            Some(Difference {
                what: format!("the kubelet was started with {name} {theirs}; the agent uses {flag} {ours}"),
                remedy: format!("start the agent with {flag} {theirs}, or without {flag}: it then uses the kubelet's"),
            })
        };
        let probed = expected.flags.healthz_port.unwrap_or_default();
        let port = self.healthz_port.filter(|port| *port != probed).map(|port| Difference {
            what: format!("the kubelet was started with --healthz-port {port}; the agent probes port {probed}"),
            remedy: "run `systemctl restart pod-teardown`: the agent reads the kubelet's flags when it starts"
                .to_owned(),
        });
        COMPARED.iter().filter_map(differs).chain(port).collect()
    }
}

fn text(path: Option<&Path>) -> Option<String> {
    Some(path?.to_string_lossy().into_owned())
}

/// Compares texts: a path may lead to a server that does not answer. `/var/run` is `/run` on every node.
fn is_same(theirs: &str, ours: &str) -> bool {
    let plain = |text: &str| match Path::new(text).strip_prefix("/var/run") {
        Ok(below) => Path::new("/run").join(below),
        Err(_) => text.into(),
    };
    plain(theirs) == plain(ours)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(proc: &Path, pid: i32, comm: &str, arguments: &[&str]) -> PathBuf {
        let dir = procfs::dir(proc, pid);
        fs::create_dir_all(dir.join("ns")).unwrap();
        fs::write(dir.join("comm"), comm).unwrap();
        fs::write(dir.join("cmdline"), arguments.join("\0") + "\0").unwrap();
        symlink("mnt:[1]", dir.join("ns/mnt")).unwrap();
        symlink("/", dir.join("root")).unwrap();
        symlink("/opt/node", dir.join("cwd")).unwrap();
        dir
    }

    fn machine() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("self/ns")).unwrap();
        symlink("mnt:[1]", proc.path().join("self/ns/mnt")).unwrap();
        proc
    }

    #[test]
    fn unit_of_a_kubelet_is_read_from_its_cgroup() {
        for (cgroups, unit) in [
            ("0::/system.slice/kubelet.service\n", Some("kubelet.service")),
            (
                "4:memory:/\n1:name=systemd:/system.slice/kubelet.service\n0::/\n",
                Some("kubelet.service"),
            ),
            (
                "1:name=systemd:/docker/7/system.slice/snap.kubelet-eks.daemon.service\n",
                Some("snap.kubelet-eks.daemon.service"),
            ),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("", None),
        ] {
            assert_eq!(service_of(cgroups).as_deref(), unit, "{cgroups}");
        }
    }

    #[test]
    fn flags_of_a_running_kubelet_have_absolute_paths() {
        let machine = machine();
        let proc = machine.path();
        process(proc, 5, "kubelet-csr-app", &["kubelet-csr-approver", "--kubeconfig=/x"]);
        process(
            proc,
            6,
            "k3s-server",
            &["k3s", "server", "--config=/etc/rancher/k3s/config.yaml"],
        );
        assert_eq!(read_single_kubelet(proc), None);
        let arguments = [
            "/usr/bin/kubelet",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--config",
            "conf/kubelet.yaml",
            "--config_dir=/etc/drop",
            "--root-dir=/data/kubelet",
            "--container-runtime-endpoint=unix:///run/cri.sock",
            "--cgroup-root=/kube",
            "--healthz-port=10348",
            "--hostname-override=N1",
        ];
        process(proc, 7, "kubelet", &arguments);
        let start = read_single_kubelet(proc).unwrap();
        assert_eq!(start.config.as_deref(), Some(Path::new("/opt/node/conf/kubelet.yaml")));
        assert_eq!(start.config_dir.as_deref(), Some(Path::new("/etc/drop")));
        assert_eq!(start.root(), Path::new("/data/kubelet"));
        assert_eq!(start.runtime.as_deref(), Some("unix:///run/cri.sock"));
        assert_eq!(
            (start.cgroup_root.as_deref(), start.healthz_port),
            (Some("/kube"), Some(10348))
        );
        assert_eq!(*start.command, arguments.join(" "));
        // Of two kubelets it is unknown which one is this node's. Paths in a container are not the host's.
        let second = process(proc, 8, "kubelet", &["kubelet"]);
        assert_eq!(read_single_kubelet(proc), None);
        fs::remove_file(second.join("ns/mnt")).unwrap();
        symlink("mnt:[2]", second.join("ns/mnt")).unwrap();
        assert_eq!(read_single_kubelet(proc), Some(start));
    }

    #[test]
    fn flags_that_disagree_are_named_with_a_remedy() {
        let expected = ExpectedFlags {
            flags: KubeletFlags {
                kubeconfig: Some("/etc/kubernetes/kubelet.conf".into()),
                root_dir: Some(DEFAULT_ROOT.into()),
                runtime: Some("/run/cri.sock".into()),
                cgroup_root: Some("/".to_owned()),
                healthz_port: Some(10248),
                hostname_override: Some("n1".to_owned()),
                ..KubeletFlags::default()
            },
            resolved_root: DEFAULT_ROOT.into(),
        };
        let same = KubeletFlags {
            kubeconfig: Some("/etc/kubernetes/kubelet.conf".into()),
            runtime: Some("unix:///var/run/cri.sock".to_owned()),
            hostname_override: Some("N1".to_owned()),
            ..KubeletFlags::default()
        };
        assert_eq!(same.differences(&expected), []);
        assert_eq!(
            KubeletFlags::default().differences(&expected),
            [],
            "it has no such flag"
        );
        let other = KubeletFlags {
            kubeconfig: Some("/k".into()),
            config: Some("/c".into()),
            config_dir: Some("/d".into()),
            root_dir: Some("/r".into()),
            runtime: Some("unix:///s".to_owned()),
            cgroup_root: Some("/kubelet".to_owned()),
            healthz_port: Some(1),
            hostname_override: Some("n2".to_owned()),
            ..KubeletFlags::default()
        };
        let differences = other.differences(&expected);
        for (theirs, flag) in [
            ("--kubeconfig /k", "--kubeconfig /k"),
            ("--config /c", "--kubelet-config /c"),
            ("--config-dir /d", "--kubelet-config-dir /d"),
            ("--root-dir /r", "--kubelet-root /r"),
            ("--container-runtime-endpoint /s", "--cri-endpoint /s"),
            ("--cgroup-root /kubelet", "--cgroup-root /kubelet"),
            ("--healthz-port 1", "systemctl restart pod-teardown"),
            ("--hostname-override n2", "--node-name n2"),
        ] {
            let named = |it: &Difference| it.what.contains(theirs) && it.remedy.contains(flag);
            assert!(differences.iter().any(named), "{theirs}: {differences:#?}");
        }
        assert_eq!(differences.len(), 8);
    }
}
