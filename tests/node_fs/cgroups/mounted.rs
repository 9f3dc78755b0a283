//! Cgroups of pods that are mount points, as container runtimes in containers leave them.

use std::path::PathBuf;

use nix::mount::{MntFlags, umount2};
use pod_teardown::node::{effects::Outcome, fault::Cause};

use super::Pod;
use crate::space::{bind, in_own_namespace};

/// Mounts that are unmounted on drop, before the cgroups are removed.
struct Mounted(Vec<PathBuf>);

impl Mounted {
    fn bind(what: &[PathBuf], on: Vec<PathBuf>) -> Self {
        for (what, on) in what.iter().zip(&on) {
            bind(what, on);
        }
        Self(on)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for path in self.0.drain(..) {
            let _ = umount2(&path, MntFlags::MNT_DETACH);
        }
    }
}

#[test]
fn mounts_of_a_pods_own_cgroup_are_unmounted_and_it_is_removed() {
    in_own_namespace(|_| {
        let mut pod = Pod::new();
        pod.run("main", "exec sleep 1000");
        let (own, child) = (pod.paths(""), pod.paths("main"));
        let _mounted = Mounted::bind(&own, own.clone());
        let _below = Mounted::bind(&child, child.clone());
        assert_eq!(pod.processes().len(), 1);
        assert_eq!(pod.destroy(), Ok(Outcome::Done));
        pod.assert_removed();
    });
}

#[test]
fn mount_of_another_cgroup_is_named_and_no_process_in_it_is_killed() {
    in_own_namespace(|_| {
        let (mut pod, mut other) = (Pod::new(), Pod::new());
        pod.run("main", "exec sleep 1000");
        let foreign = other.run("", "exec sleep 1000");
        for below in ["", "main"] {
            let covered = pod.paths(below);
            let mounted = Mounted::bind(&other.paths(""), covered.clone());
            let faults = pod.try_destroy().unwrap_err();
            assert_eq!(faults.len(), covered.len(), "{faults:?}");
            for (fault, covered) in faults.iter().zip(&covered) {
                let Cause::CgroupCovered { path, .. } = &fault.cause else {
                    panic!("{fault}")
                };
                assert_eq!(path, covered);
                assert!(
                    fault.to_string().ends_with(&format!("umount {}", path.display())),
                    "{fault}"
                );
            }
            assert!(pod.cgroups.processes(&pod.name).is_err());
            assert!(pod.cgroups.exists(&pod.name));
            assert!(other.children[0].try_wait().unwrap().is_none());
            drop(mounted);
        }
        assert_eq!(other.processes(), [foreign]);
        assert_eq!(pod.destroy(), Ok(Outcome::Done));
        pod.assert_removed();
    });
}
