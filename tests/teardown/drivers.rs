//! The drivers of a stage, and pods with a volume and a device of them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testbed::{
    drivers::{
        CsiCall, CsiDriver, DraCall, DraDriver, DraService,
        claims::{Prepared, write_checkpoint},
        csi_volumes::{Pv, stage_and_publish},
    },
    mounts,
    pods::StartedPod,
    rest::Patch,
    stage::Stage,
};

use super::{pods::push, scene::Scene};

pub const CSI: &str = "disk.example.com";
pub const DRA: &str = "gpu.example.com";

/// The pod's name of its volume, and the name of the claim.
const DATA: &str = "data";

/// Volume and device of one pod.
#[derive(Debug)]
pub struct Storage {
    /// Namespace and UID.
    pub pod: (String, String),
    /// Name of the PersistentVolume.
    pub volume: String,
    pub handle: String,
    /// Where the volume is mounted for the pod and for the node.
    pub target: PathBuf,
    pub staging: PathBuf,
    /// Name and UID of the device's claim.
    pub claim: (String, String),
    /// Number of calls of the drivers before.
    pub asked_before: (usize, usize),
}

/// Adds a volume and a device to the first container of a pod.
pub fn demand(pod: &mut Value) {
    let spec = &mut pod["spec"];
    push(
        &mut spec["volumes"],
        json!({ "name": DATA, "persistentVolumeClaim": { "claimName": DATA } }),
    );
    spec["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimTemplateName": "gpu" }]);
    let container = &mut spec["containers"][0];
    push(
        &mut container["volumeMounts"],
        json!({ "name": DATA, "mountPath": "/data" }),
    );
    container["resources"]["claims"] = json!([{ "name": "gpu" }]);
}

/// Drivers that really mount, for all pods of their node.
pub struct Drivers {
    root: PathBuf,
    csi: CsiDriver,
    dra: DraDriver,
}

impl Drivers {
    pub fn start(stage: &Stage) -> Result<Self> {
        let root = stage.starter.dirs().kubelet_root.clone();
        Ok(Self {
            csi: CsiDriver::start(&root, CSI)?,
            dra: DraDriver::start(&root, DRA, &[DraService::V1])?,
            root,
        })
    }

    /// Runs a pod with storage like a kubelet. `beside` is the storage of other pods, which stays prepared.
    pub async fn run(&self, scene: &Scene, mut pod: Value, beside: Option<&Storage>) -> Result<(StartedPod, Storage)> {
        let stage = &scene.stage;
        pod["metadata"]["namespace"] = scene.namespace.as_str().into();
        pod["spec"]["nodeName"] = stage.node.as_str().into();
        scene.give_out(&mut pod)?;
        let stored = stage.admin.create_pod(&pod).await?;
        let storage = self.equip(stage, &stored, beside).await?;
        let volumes = [(DATA.to_owned(), storage.target.clone())];
        let started = stage.starter.start_with(&stored, volumes.into()).await?;
        stage.report(&started).await?;
        scene.ready(&started).await?;
        Ok((started, storage))
    }

    /// Does the work of scheduler, controllers, kubelet and drivers before a pod starts.
    async fn equip(&self, stage: &Stage, pod: &Value, beside: Option<&Storage>) -> Result<Storage> {
        let pod_uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        let (volume, handle) = (format!("pv-{namespace}"), format!("disks/{namespace}"));
        let claim = self.claim_device(stage, namespace, pod).await?;
        Self::bind_volume(stage, namespace, &volume, &handle).await?;
        let pv = Pv {
            name: &volume,
            driver: CSI,
            handle: &handle,
            staged: true,
        };
        let published = stage_and_publish(&self.root, pod_uid, &pv)?;
        let storage = Storage {
            pod: (namespace.to_owned(), pod_uid.to_owned()),
            target: published.target,
            staging: published.staging.context("the volume is staged")?,
            volume,
            handle,
            claim,
            asked_before: (self.volumes_asked().len(), self.claims_asked().len()),
        };
        let all: Vec<&Storage> = beside.into_iter().chain([&storage]).collect();
        self.prepare(&all)?;
        let in_use: Vec<_> = all.iter().map(|it| it.unique_name()).collect();
        let attached = in_use.iter().map(|name| json!({ "name": name, "devicePath": "" }));
        let status = json!({ "status": { "volumesInUse": in_use, "volumesAttached": attached.collect::<Value>() } });
        let node = format!("/api/v1/nodes/{}/status", stage.node);
        stage.admin.patch(&node, Patch::Merge, &status).await?.ok()?;
        Ok(storage)
    }

    /// Name and UID of a claim that was created from the pod's template.
    async fn claim_device(&self, stage: &Stage, namespace: &str, pod: &Value) -> Result<(String, String)> {
        let metadata = &pod["metadata"];
        let pod_name = metadata["name"].as_str().unwrap_or_default();
        let name = format!("{pod_name}-gpu-x7k2p");
        let claims = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims");
        let object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "devices": { "requests": [{ "name": "request", "exactly": { "deviceClassName": DRA } }] } },
        });
        let created = stage.admin.create(&claims, &object).await?.ok()?;
        let result = json!({ "request": "request", "driver": DRA, "pool": "pool", "device": "device-0" });
        let status = json!({ "status": {
            "allocation": { "devices": { "results": [result] } },
            "reservedFor": [{ "resource": "pods", "name": pod_name, "uid": metadata["uid"] }],
        }});
        let path = format!("{claims}/{name}/status");
        stage.admin.patch(&path, Patch::Merge, &status).await?.ok()?;
        let made = json!({ "status": { "resourceClaimStatuses": [{ "name": "gpu", "resourceClaimName": name }] } });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod_name}/status");
        stage.admin.patch(&path, Patch::Merge, &made).await?.ok()?;
        let uid = created["metadata"]["uid"].as_str().unwrap_or_default();
        Ok((name, uid.to_owned()))
    }

    async fn bind_volume(stage: &Stage, namespace: &str, volume: &str, handle: &str) -> Result<()> {
        let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": DATA, "namespace": namespace },
            "spec": {
                "volumeName": volume,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        let bound = stage.admin.create(&claims, &claim).await?.ok()?;
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": volume },
            "spec": {
                "capacity": { "storage": "1Gi" },
                "accessModes": ["ReadWriteOnce"],
                "csi": { "driver": CSI, "volumeHandle": handle },
                "claimRef": { "namespace": namespace, "name": DATA, "uid": bound["metadata"]["uid"] },
            },
        });
        let created = stage.admin.create("/api/v1/persistentvolumes", &object);
        created.await?.ok()?;
        Ok(())
    }

    /// The kubelet's checkpoint.
    fn prepare(&self, all: &[&Storage]) -> Result<()> {
        let users: Vec<[&str; 1]> = all.iter().map(|it| [it.pod.1.as_str()]).collect();
        let prepared = all.iter().zip(&users).map(|(storage, users)| Prepared {
            namespace: &storage.pod.0,
            name: &storage.claim.0,
            uid: &storage.claim.1,
            pods: users,
            drivers: &[DRA],
        });
        write_checkpoint(&self.root, &prepared.collect::<Vec<_>>())
    }

    /// The driver of volumes.
    pub fn csi(&self) -> &CsiDriver {
        &self.csi
    }

    /// Calls for volumes so far.
    pub fn volumes_asked(&self) -> Vec<CsiCall> {
        self.csi.effects()
    }

    /// Calls for claims so far.
    pub fn claims_asked(&self) -> Vec<DraCall> {
        self.dra.called().into_iter().map(|called| called.call).collect()
    }
}

impl Storage {
    /// Name in `volumesInUse`.
    pub fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{CSI}^{}", self.handle)
    }

    /// Whether `volumesInUse` has the volume.
    pub async fn is_in_use(&self, stage: &Stage) -> Result<bool> {
        let node = stage.admin.get(&format!("/api/v1/nodes/{}", stage.node)).await?.ok()?;
        let in_use = node["status"]["volumesInUse"].as_array();
        Ok(in_use.is_some_and(|all| all.contains(&self.unique_name().into())))
    }

    /// Mounts of the volume in the mount table.
    pub fn mounted(&self) -> Result<Vec<PathBuf>> {
        let mut mounted = mounts::below(&self.target)?;
        mounted.extend(mounts::below(&self.staging)?);
        Ok(mounted)
    }

    /// First call of its driver.
    pub fn unpublish(&self) -> CsiCall {
        CsiCall::Unpublish {
            volume_id: self.handle.clone(),
            target_path: self.target.clone(),
        }
    }

    /// Second call of its driver.
    pub fn unstage(&self) -> CsiCall {
        CsiCall::Unstage {
            volume_id: self.handle.clone(),
            staging_target_path: self.staging.clone(),
        }
    }

    /// Calls of the volume's driver since then.
    pub fn volumes_asked(&self, drivers: &Drivers) -> Vec<CsiCall> {
        drivers.volumes_asked().split_off(self.asked_before.0)
    }

    /// Calls of the device's driver since then.
    pub fn claims_asked(&self, drivers: &Drivers) -> Vec<DraCall> {
        drivers.claims_asked().split_off(self.asked_before.1)
    }
}
