//! Nodes that are containers, as with kind: a cgroup namespace, hierarchies mounted in it, and the kubelet's own cgroup
//! root.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Child, Command},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns},
};
use pod_teardown::node::{
    cgroups::{Cgroups, Qos},
    effects::Outcome,
};

use super::{Pod, destroy_in, pause};
use crate::space::{UID, in_own_namespace};

/// The cgroup root of kind's nodes.
const ROOT: &str = "/kubelet";

/// The first process of a node: it is in the test's own cgroup, and its namespace shows only that.
fn node_of(pod: &mut Pod) -> usize {
    let mut enter = String::new();
    for hierarchy in pod.cgroups.hierarchies() {
        let cgroup = hierarchy.path.join(&pod.root);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            // v2 has no such file at its root, and needs none.
            if let Ok(all) = fs::read(hierarchy.path.join(file)) {
                fs::write(cgroup.join(file), all).unwrap();
            }
        }
        enter += &format!("echo 0 > {}/cgroup.procs || exit 9; ", cgroup.display());
    }
    let script = format!("{enter} exec unshare --cgroup sleep 1000");
    pod.children
        .push(Command::new("sh").args(["-c", &script]).spawn().unwrap());
    pod.children.len() - 1
}

/// Moves this thread into the cgroup namespace of the node, once that exists.
fn enter(node: &Child) {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/cgroup")).unwrap();
    while namespace(&node.id().to_string()) == namespace("thread-self") {
        pause();
    }
    let file = fs::File::open(format!("/proc/{}/ns/cgroup", node.id())).unwrap();
    setns(file, CloneFlags::CLONE_NEWCGROUP).unwrap();
}

/// Mounts all hierarchies of this machine again, as seen from this thread's cgroup namespace.
fn mount_all(target: &Path) {
    for line in fs::read_to_string("/proc/thread-self/mountinfo").unwrap().lines() {
        let (front, back) = line.split_once(" - ").unwrap();
        let back: Vec<&str> = back.split(' ').collect();
        let options: Vec<&str> = back[2]
            .split(',')
            .filter(|it| !["rw", "ro", "xattr"].contains(it))
            .collect();
        let options = match back[0] {
            "cgroup" => options.join(","),
            "cgroup2" => String::new(),
            _ => continue,
        };
        let name = front.split(' ').nth(4).unwrap().rsplit('/').next().unwrap();
        let path = target.join(name);
        fs::create_dir_all(&path).unwrap();
        mount(
            None::<&str>,
            &path,
            Some(back[0]),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .unwrap();
    }
}

#[test]
fn pod_cgroup_on_a_containerized_node_is_removed_but_the_nodes_is_kept() {
    in_own_namespace(|space| {
        let mut pod = Pod::with_root(ROOT);
        let node = node_of(&mut pod);
        let ids = ["", "container/deeper"].map(|below| pod.run(below, "exec sleep 1000"));
        enter(&pod.children[node]);
        let mounts = space.outside.join("cgroup");
        mount_all(&mounts);
        let cgroups = Cgroups::detect(Path::new("/proc/thread-self/mountinfo"), &mounts).unwrap();
        assert_eq!(cgroups.hierarchies().len(), pod.cgroups.hierarchies().len());

        assert_eq!(cgroups.pod_uids(ROOT), Ok(BTreeSet::from([UID.to_owned()])));
        assert_eq!(cgroups.pod_uids("/"), Ok(BTreeSet::new()));
        let names = cgroups.pod_cgroups(ROOT, Qos::Burstable, UID).unwrap();
        assert_eq!(
            cgroups.processes(&names[0]).unwrap(),
            BTreeSet::from(ids).into_iter().collect::<Vec<_>>()
        );
        assert_eq!(destroy_in(&cgroups, &names[0]), Ok(Outcome::Done));
        pod.assert_removed();
        assert!(pod.children[node].try_wait().unwrap().is_none());
    });
}
