//! The testbed's CSI driver really mounts and unmounts, and its files match what the agent reads.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pod_teardown::node::{
    csi_files::{self, Lifecycle, VolumeData, VolumeDataFile},
    dirs::Dir,
    effects::Effects,
    grpc::GrpcError,
    plugins::{Csi, Registry},
};
use testbed::drivers::{
    Behavior, CsiDriver,
    csi_volumes::{self, Pv},
};
use tonic::Code;

use crate::space::{Space, UID, block_on, in_own_namespace, soon, write};

const OTHER: &str = "5f0d7f0e-1b1c-4f7e-8d2b-6a9c1c7e0a02";
const PV: Pv<'static> = Pv {
    name: "pv-1",
    driver: "csi.example.com",
    handle: "vol/0123",
    staged: true,
};

async fn start(space: &Space) -> (CsiDriver, Csi) {
    let driver = CsiDriver::start(&space.root, PV.driver).unwrap();
    let registry = space.root.join("plugins_registry");
    let registry = Registry::read(&registry, &Effects::ungated()).await.unwrap();
    (driver, registry.csi(PV.driver).await.unwrap())
}

fn data(dir: &Path) -> VolumeData {
    match csi_files::read(&Dir::open(dir).unwrap().unwrap()) {
        Ok(VolumeDataFile::Read(data)) => data,
        other => panic!("{other:?}"),
    }
}

/// What is mounted below the kubelet's root.
fn mounted(space: &Space) -> Vec<PathBuf> {
    testbed::mounts::below(&space.root).unwrap()
}

#[test]
fn csi_volume_of_two_pods_has_one_stage_and_is_torn_down_by_driver_calls() {
    in_own_namespace(|space| {
        block_on(async {
            let (_driver, csi) = start(space).await;
            let pods = [UID, OTHER].map(|uid| csi_volumes::stage_and_publish(&space.root, uid, &PV).unwrap());
            let staging = pods[0].staging.clone().unwrap();
            let staged = staging.parent().unwrap();
            assert_eq!(
                staged.strip_prefix(&space.root).ok(),
                csi_files::staging_dir(PV.driver, PV.handle).as_deref()
            );
            let (one, other) = (&pods[0].target, &pods[1].target);
            assert_eq!(mounted(space), [&*staging, &**one, &**other]);
            assert_eq!(fs::read_to_string(other.join("data")).unwrap(), "precious\n");
            let expected = VolumeData {
                driver: Some(PV.driver.to_owned()),
                handle: Some(PV.handle.to_owned()),
                attachment_id: Some(csi_files::attachment_id(PV.handle, PV.driver, csi_volumes::NODE)),
                node: Some(csi_volumes::NODE.to_owned()),
                spec_name: Some(PV.name.to_owned()),
                lifecycle: Lifecycle::Persistent,
            };
            assert_eq!(data(&pods[0].volume), expected);
            assert_eq!(data(staged).handle.as_deref(), Some(PV.handle));

            let effects = Effects::ungated();
            for _ in 0..2 {
                assert_eq!(csi.unpublish(PV.handle, one, &effects).await, Ok(()));
                assert_eq!(mounted(space), [&*staging, &**other]);
            }
            assert!(!one.exists(), "the driver made it, and removes it");
            assert!(pods[0].volume.join("vol_data.json").exists(), "which is the kubelet's");
            assert_eq!(csi.unpublish(PV.handle, other, &effects).await, Ok(()));
            for _ in 0..2 {
                assert_eq!(csi.unstage(PV.handle, &staging, &effects).await, Ok(()));
                assert_eq!(mounted(space), Vec::<PathBuf>::new());
            }
            assert!(staging.exists() && staged.join("vol_data.json").exists());
        });
    });
}

#[test]
fn driver_that_pretends_leaves_the_mount_and_a_failing_one_names_it() {
    in_own_namespace(|space| {
        block_on(async {
            let (driver, csi) = start(space).await;
            let not_staged = Pv { staged: false, ..PV };
            let pod = csi_volumes::stage_and_publish(&space.root, UID, &not_staged).unwrap();
            assert!(!pod.staging.unwrap().parent().unwrap().join("vol_data.json").exists());
            driver.behave_for(1, Behavior::Pretends);
            let effects = Effects::ungated();
            assert_eq!(csi.unpublish(PV.handle, &pod.target, &effects).await, Ok(()));
            assert_eq!(mounted(space), [&*pod.target]);

            let open = fs::File::open(pod.target.join("data")).unwrap();
            let error = csi.unpublish(PV.handle, &pod.target, &effects).await.unwrap_err();
            assert!(
                matches!(
                    error,
                    GrpcError::Failed {
                        code: Code::Internal,
                        ..
                    }
                ),
                "{error}"
            );
            assert!(error.to_string().contains("EBUSY"), "{error}");
            assert_eq!(mounted(space), [&*pod.target]);
            drop(open);
            soon(async || csi.unpublish(PV.handle, &pod.target, &effects).await).await;
            assert_eq!(mounted(space), Vec::<PathBuf>::new());
        });
    });
}

#[test]
fn ephemeral_csi_volume_has_the_computed_handle_and_no_stage() {
    in_own_namespace(|space| {
        block_on(async {
            let (_driver, csi) = start(space).await;
            let pod = csi_volumes::publish_ephemeral(&space.root, UID, "scratch", PV.driver).unwrap();
            let handle = csi_files::ephemeral_handle(UID, "scratch");
            let data = data(&pod.volume);
            assert_eq!(
                (data.handle.as_deref(), data.lifecycle),
                (Some(&*handle), Lifecycle::Ephemeral)
            );
            assert_eq!((mounted(space), pod.staging), (vec![pod.target.clone()], None));
            assert_eq!(csi.unpublish(&handle, &pod.target, &Effects::ungated()).await, Ok(()));
            assert_eq!(mounted(space), Vec::<PathBuf>::new());
        });
    });
}

#[test]
fn csi_block_volume_has_two_mounts_a_link_and_a_loop_device() {
    in_own_namespace(|space| {
        block_on(async {
            let (_driver, csi) = start(space).await;
            let disk = space.outside.join("disk");
            write(&disk, &"x".repeat(1 << 16));
            let block = csi_volumes::stage_and_publish_block(&space.root, UID, &PV, &disk, true).unwrap();
            let lock = block.lock.unwrap();
            assert!(lock.is_attached());
            assert_eq!(fs::read_link(&block.link).unwrap(), block.target);
            assert_eq!(data(&block.data).handle.as_deref(), Some(PV.handle));
            assert_eq!(
                mounted(space),
                [&*block.staging.join("device"), &*block.target, &*block.device]
            );

            // The kubelet's part.
            drop(lock);
            nix::mount::umount(&block.device).unwrap();
            let effects = Effects::ungated();
            assert_eq!(csi.unpublish(PV.handle, &block.target, &effects).await, Ok(()));
            assert!(!block.target.exists());
            assert_eq!(csi.unstage(PV.handle, &block.staging, &effects).await, Ok(()));
            assert_eq!(mounted(space), Vec::<PathBuf>::new());
            assert_eq!(fs::metadata(&disk).unwrap().len(), 1 << 16);
        });
    });
}
