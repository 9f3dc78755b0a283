//! A pod's directory without its volumes.

use std::fs;

use pod_teardown::{
    node::{effects::Effects, fault::Cause},
    teardown::on_disk::remove_pod_dir,
};

use crate::space::{Space, assert_precious, bind, block_on, in_own_namespace, tmpfs, write};

fn remove(space: &Space) -> Result<(), Vec<pod_teardown::node::fault::Fault>> {
    block_on(remove_pod_dir(&space.pod, &space.storage(&Effects::ungated())))
}

#[test]
fn directory_with_a_volume_or_mount_is_refused() {
    in_own_namespace(|space| {
        write(&space.pod.path().join("etc-hosts"), "precious");
        let volume = space.volume("configmap", "c");
        let errors = remove(space).unwrap_err();
        assert_eq!((&errors[0].path, &errors[0].cause), (&volume, &Cause::StillThere));
        fs::remove_dir(&volume).unwrap();

        let bound = space.pod.path().join("plugins/p");
        fs::create_dir_all(&bound).unwrap();
        bind(&space.outside, &bound);
        assert_eq!(remove(space).unwrap_err()[0].path, bound);
        assert_precious(space.pod.path().join("etc-hosts"));
    });
}

#[test]
fn pod_directory_that_is_a_mount_point_is_never_entered() {
    in_own_namespace(|space| {
        tmpfs(space.pod.path());
        write(&space.pod.path().join("etc-hosts"), "precious");
        assert_eq!(remove(space).unwrap_err()[0].cause, Cause::OtherFileSystem);
        assert_precious(space.pod.path().join("etc-hosts"));
    });
}
