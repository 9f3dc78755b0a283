//! A process's command line, and the kubelet's flags in it. It is foreign text.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Passes a flag to the kubelet inside a k3s or RKE2 process.
const WRAPPER_FLAG: &[u8] = b"--kubelet-arg=";
/// Flags that only a kubelet has, of any release. Not `--kubeconfig` or `--feature-gates`, which drivers and approvers have, too.
const KUBELET_FLAGS: [&[u8]; 66] = [
    b"allowed-unsafe-sysctls",
    b"bootstrap-kubeconfig",
    b"cgroup-driver",
    b"cgroup-root",
    b"cgroups-per-qos",
    b"cluster-dns",
    b"config-dir",
    b"container-log-max-files",
    b"container-log-max-size",
    b"container-runtime",
    b"container-runtime-endpoint",
    b"cpu-cfs-quota",
    b"cpu-manager-policy",
    b"enable-controller-attach-detach",
    b"enforce-node-allocatable",
    b"eviction-hard",
    b"eviction-max-pod-grace-period",
    b"eviction-minimum-reclaim",
    b"eviction-pressure-transition-period",
    b"eviction-soft",
    b"eviction-soft-grace-period",
    b"exit-on-lock-contention",
    b"fail-cgroupv1",
    b"fail-swap-on",
    b"file-check-frequency",
    b"hairpin-mode",
    b"hostname-override",
    b"image-credential-provider-bin-dir",
    b"image-credential-provider-config",
    b"image-gc-high-threshold",
    b"image-gc-low-threshold",
    b"image-service-endpoint",
    b"kube-reserved",
    b"kube-reserved-cgroup",
    b"kubelet-cgroups",
    b"local-storage-capacity-isolation",
    b"make-iptables-util-chains",
    b"manifest-url",
    b"manifest-url-header",
    b"max-pods",
    b"memory-manager-policy",
    b"network-plugin",
    b"node-ip",
    b"node-labels",
    b"node-status-max-images",
    b"node-status-update-frequency",
    b"pod-infra-container-image",
    b"pod-manifest-path",
    b"pod-max-pids",
    b"pods-per-core",
    b"protect-kernel-defaults",
    b"qos-reserved",
    b"register-node",
    b"register-schedulable",
    b"register-with-taints",
    b"reserved-cpus",
    b"reserved-memory",
    b"root-dir",
    b"rotate-server-certificates",
    b"runtime-cgroups",
    b"seccomp-default",
    b"serialize-image-pulls",
    b"system-reserved",
    b"system-reserved-cgroup",
    b"topology-manager-policy",
    b"volume-plugin-dir",
];

/// The command line as the kernel shows it: a NUL after each argument.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a>(pub &'a [u8]);

// === impl Arguments ===

impl<'a> Arguments<'a> {
    /// The value of a flag; the last one counts. A kubelet reads `_` in its name as `-`.
    pub fn value(&self, wanted: &str) -> Option<&'a OsStr> {
        let mut found = None;
        let mut arguments = self.iter();
        while let Some(argument) = arguments.next() {
            let flag = argument.strip_prefix(WRAPPER_FLAG).unwrap_or(argument);
            let flag = flag.strip_prefix(b"--").unwrap_or(flag);
            let (name, value) = split(flag);
            if is(name, wanted.as_bytes()) {
                let value = value.or_else(|| arguments.next()).unwrap_or_default();
                found = Some(OsStr::from_bytes(value));
            }
        }
        found
    }

    /// The same of a flag that names a path.
    pub fn path(&self, wanted: &str) -> Option<PathBuf> {
        self.value(wanted).map(PathBuf::from)
    }

    /// The runtime's socket, as far as it is named.
    pub fn runtime(&self) -> Option<&'a Path> {
        let endpoint = self.value("container-runtime-endpoint")?.as_bytes();
        let path = endpoint.strip_prefix(b"unix://").unwrap_or(endpoint);
        Some(Path::new(OsStr::from_bytes(path)))
    }

    /// Whether one of its flags is one that only a kubelet has.
    pub(super) fn has_kubelet_flag(&self) -> bool {
        let mut flags = self.iter().filter_map(|argument| argument.strip_prefix(b"--"));
        flags.any(|flag| KUBELET_FLAGS.iter().any(|only| is(split(flag).0, only)))
    }

    /// Whether the command line has one of these subcommands. Some programs rewrite their command line as one text. An empty
    /// command line counts: the main thread has exited, and others still run.
    pub(super) fn runs_kubelet(&self, subcommands: &[&[u8]]) -> bool {
        let mut words = self.0.split(|byte| b"\0 ".contains(byte));
        subcommands.is_empty() || self.0.is_empty() || words.any(|word| subcommands.contains(&word))
    }

    fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.0.split(|&byte| byte == 0)
    }
}

fn split(flag: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut parts = flag.splitn(2, |&byte| byte == b'=');
    (parts.next().unwrap_or_default(), parts.next())
}

fn is(name: &[u8], wanted: &[u8]) -> bool {
    let dashed = name.iter().map(|&byte| if byte == b'_' { b'-' } else { byte });
    dashed.eq(wanted.iter().copied())
}
