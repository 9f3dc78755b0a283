//! The pod of a process, from its cgroup and the log directories of pods.

use std::{fs, path::Path};

use super::{cgroups::uid_in, procfs};

/// The pod that a process belongs to, as `NAMESPACE/NAME`, or as `with UID` if it has no log directory below `pod_logs`. `None` if the
/// process is of no pod, or has exited.
pub fn pod_of(proc: &Path, pod_logs: &Path, pid: i32) -> Option<String> {
    let uid = uid_of(&fs::read_to_string(procfs::dir(proc, pid).join("cgroup")).ok()?)?;
    let of_logs = |name: &str| {
        let (namespace, rest) = name.split_once('_')?;
        let (pod, found) = rest.rsplit_once('_')?;
        (found == uid).then(|| format!("{namespace}/{pod}"))
    };
    let entries = fs::read_dir(pod_logs).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| of_logs(entry.file_name().to_str()?)).next();
    Some(named.unwrap_or_else(|| format!("with UID {uid}")))
}

/// The UID in the text of `/proc/PID/cgroup`: of the innermost pod, since a node may itself run in a pod.
fn uid_of(cgroup: &str) -> Option<String> {
    let in_line = |line: &str| {
        let parts: Vec<_> = line.split('/').collect();
        let is_below = |at: usize| parts[..=at].iter().any(|part| part.contains("kubepods"));
        (0..parts.len())
            .rev()
            .find_map(|at| uid_in(parts[at]).filter(|_| is_below(at)))
    };
    cgroup.lines().find_map(in_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "5f0d7f0e-1b1c-4f7e-8d2b-6a9c1c7e0a01";

    #[test]
    fn process_is_named_as_its_pod_with_both_cgroup_drivers() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, logs) = (dir.path().join("proc"), dir.path().join("logs"));
        fs::create_dir_all(proc.join("7")).unwrap();
        fs::create_dir_all(logs.join("shop_other_00000000-1b1c-4f7e-8d2b-6a9c1c7e0a01")).unwrap();
        let pod = |cgroup: &str| {
            fs::write(proc.join("7/cgroup"), cgroup).unwrap();
            pod_of(&proc, &logs, 7)
        };
        let cgroupfs = format!("0::/kubepods/burstable/pod{UID}/0123\n");
        assert_eq!(pod(&cgroupfs), Some(format!("with UID {UID}")));
        fs::create_dir_all(logs.join(format!("shop_db-0_{UID}"))).unwrap();
        let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        for of_pod in [
            cgroupfs,
            format!("0::/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-0123.scope\n"),
            format!("9:pids:/kubepods/pod{UID}\n8:memory:/\n0::/\n"),
        ] {
            assert_eq!(pod(&of_pod).as_deref(), Some("shop/db-0"), "{of_pod}");
        }
        for other in [
            "0::/system.slice/sshd.service\n",
            "0::/podman/pod1\n",
            "",
            "0::/kubepods\n",
        ] {
            assert_eq!(pod(other), None, "{other}");
        }
        assert_eq!(pod_of(&proc, &logs, 8), None, "it has exited");
    }
}
