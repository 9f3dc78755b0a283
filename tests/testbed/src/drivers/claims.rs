//! The checkpoint that a kubelet leaves for prepared claims.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// A claim that is prepared for pods.
#[derive(Debug, Clone, Copy)]
pub struct Prepared<'a> {
    pub uid: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// UIDs of the pods.
    pub pods: &'a [&'a str],
    /// The drivers, each with a device.
    pub drivers: &'a [&'a str],
}

/// Writes the checkpoint below a kubelet's root, replacing an existing one.
pub fn write_checkpoint(root: &Path, claims: &[Prepared<'_>]) -> Result<()> {
    let claims: Vec<Value> = claims.iter().map(Prepared::state).collect();
    let data = json!({
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": claims,
    })
    .to_string();
    let checkpoint = json!({"Data": data, "Checksum": crc32fast::hash(data.as_bytes())});
    std::fs::write(root.join("dra_manager_state"), checkpoint.to_string()).context("write the checkpoint of claims")
}

impl Prepared<'_> {
    fn state(&self) -> Value {
        let device = json!({"Devices": [{
            "PoolName": "pool", "DeviceName": "device-0", "ShareID": null, "RequestNames": ["request"],
            "CDIDeviceIDs": [format!("example.com/device={}", self.uid)],
        }]});
        json!({
            "ClaimUID": self.uid,
            "ClaimName": self.name,
            "Namespace": self.namespace,
            "PodUIDs": self.pods.iter().map(|uid| ((*uid).to_owned(), json!({}))).collect::<Map<_, _>>(),
            "DriverState": self.drivers.iter().map(|name| ((*name).to_owned(), device.clone())).collect::<Map<_, _>>(),
        })
    }
}
