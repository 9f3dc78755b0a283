//! The container of a process, from its cgroups.

/// The container ID in the text of `/proc/PID/cgroup`: a directory `ID` with the cgroupfs driver, a scope
/// `RUNTIME-ID.scope` with the systemd driver, `SLICE:RUNTIME:ID` if the drivers of kubelet and runtime differ.
pub fn container_of(cgroup: &str) -> Option<String> {
    // The innermost: a node may itself run in a container.
    let in_line = |line: &str| line.split(['/', ':']).rev().find_map(id).map(str::to_owned);
    cgroup.lines().find_map(in_line)
}

fn id(directory: &str) -> Option<&str> {
    let unit = directory.strip_suffix(".scope").unwrap_or(directory);
    let id = unit.rsplit('-').next()?;
    let is_id = id.len() == 64 && id.bytes().all(|it| it.is_ascii_digit() || (b'a'..=b'f').contains(&it));
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_is_found_in_the_cgroups_of_both_drivers() {
        let (id, node) = ("0123456789abcdef".repeat(4), "f".repeat(64));
        let pod = "pod5f0d7f0e_1b1c_4f7e_8d2b_6a9c1c7e0a01";
        for line in [
            format!("0::/kubepods/burstable/pod5f0d7f0e-1b1c-4f7e-8d2b-6a9c1c7e0a01/{id}"),
            format!("0::/kubepods.slice/kubepods-{pod}.slice/cri-containerd-{id}.scope"),
            format!("0::/kubepods.slice/kubepods-{pod}.slice/crio-{id}.scope/container"),
            format!(
                "0::/docker/{node}/kubelet.slice/kubelet-kubepods-{pod}.slice/cri-containerd-{id}.scope/init.scope"
            ),
            format!("9:memory:/system.slice/kubepods-{pod}.slice:cri-containerd:{id}"),
            format!("9:name=systemd:/\n8:pids:/kubepods/pod1/{id}\n0::/"),
        ] {
            assert_eq!(container_of(&line), Some(id.clone()), "{line}");
        }
        for line in [
            "0::/",
            "0::/system.slice/sshd.service",
            "",
            "0::/kubepods/pod1/0123",
            "nonsense",
        ] {
            assert_eq!(container_of(line), None, "{line}");
        }
    }
}
