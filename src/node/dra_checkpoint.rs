//! The kubelet's checkpoint of prepared ResourceClaims. Never written here: a kubelet that finds an error in it does not
//! start.
//!
//! It may lack claims that are in use, and contain claims whose preparation never started.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
};

use serde::{Deserialize, de::IgnoredAny};

use super::{
    dirs::Dir,
    fault::{Cause, Fault},
    plugins::ClaimRef,
};
use crate::why::Why;

/// The file's name in the kubelet's root directory.
pub const FILE: &str = "dra_manager_state";

/// Value in `skipNodeOperations`: the driver needs no unprepare call.
const SKIP_UNPREPARE: &str = "NodeUnprepareResources";
/// Value in `skipNodeOperations`: the driver needs no call at all.
const SKIP_ALL: &str = "*";

/// Maximum size in bytes: a few thousand claims with many devices each.
const MAX_SIZE: u64 = 64 << 20;

/// A claim in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedClaim {
    /// Which one.
    pub claim: ClaimRef,
    /// UIDs of the pods that use it.
    pub pods: BTreeSet<String>,
    /// The drivers that have to unprepare it, including those without prepared devices. Drivers that skip the operation
    /// for all of their devices are left out.
    pub drivers: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Envelope {
    data: String,
    checksum: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    claim_info_state_list: Option<Vec<ClaimInfo>>,
}

#[derive(Deserialize)]
struct ClaimInfo {
    #[serde(rename = "ClaimUID")]
    uid: String,
    #[serde(rename = "ClaimName")]
    name: String,
    #[serde(rename = "Namespace")]
    namespace: String,
    #[serde(rename = "PodUIDs")]
    pods: Option<BTreeMap<String, IgnoredAny>>,
    #[serde(rename = "DriverState")]
    drivers: Option<BTreeMap<String, Option<DriverState>>>,
}

#[derive(Deserialize)]
struct DriverState {
    /// Operations that the driver does not need for any of its devices: feature gate `DRAOptionalNodeOperations`.
    #[serde(rename = "skipNodeOperations")]
    skipped: Option<Vec<String>>,
}

/// Reads the claims that the kubelet prepared, or started to prepare; `None` if no kubelet with DRA ever ran here.
///
/// # Errors
/// When the file cannot be read, or may be wrong or incomplete.
pub fn read(root: &Dir) -> Result<Option<Vec<PreparedClaim>>, Fault> {
    let invalid = |why: Why| {
        let why = format!("{why}; the pod waits for a kubelet, which starts only after that file is moved away");
        Fault::new("read", root.path().join(FILE), Cause::Message(why))
    };
    let bytes = root.read_file(OsStr::new(FILE), MAX_SIZE)?;
    bytes.map(|bytes| parse(&bytes).map_err(invalid)).transpose()
}

/// Parses a checkpoint.
///
/// # Errors
/// When it cannot be parsed, or was modified or truncated.
pub fn parse(bytes: &[u8]) -> Result<Vec<PreparedClaim>, Why> {
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(Why::new)?;
    let (actual, expected) = (crc32fast::hash(envelope.data.as_bytes()), envelope.checksum);
    if expected != u64::from(actual) {
        return Err(format!("its checksum is {actual} and should be {expected}").into());
    }
    let data: Data = serde_json::from_str(&envelope.data).map_err(Why::new)?;
    let claims = data.claim_info_state_list.unwrap_or_default();
    Ok(claims.into_iter().map(PreparedClaim::from).collect())
}

// === impl DriverState ===

impl DriverState {
    /// kubelet: `pkg/kubelet/cm/dra/state/state.go` `DriverState.Skips`.
    fn skips_unprepare(&self) -> bool {
        let mut skipped = self.skipped.iter().flatten();
        skipped.any(|operation| operation == SKIP_UNPREPARE || operation == SKIP_ALL)
    }
}

// === impl PreparedClaim ===

impl From<ClaimInfo> for PreparedClaim {
    fn from(info: ClaimInfo) -> Self {
        let skips = |state: &Option<DriverState>| state.as_ref().is_some_and(DriverState::skips_unprepare);
        let drivers = info.drivers.unwrap_or_default().into_iter();
        let drivers = drivers.filter(|(_, state)| !skips(state));
        Self {
            claim: ClaimRef {
                namespace: info.namespace,
                uid: info.uid,
                name: info.name,
            },
            pods: info.pods.unwrap_or_default().into_keys().collect(),
            drivers: drivers.map(|(driver, _)| driver).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // A checkpoint as a kubelet 1.36 writes it, with the crc32 of zlib.
    const WRITTEN: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"c1\",\"ClaimName\":\"gpu\",\"Namespace\":\"shop\",\"PodUIDs\":{\"u1\":{},\"u2\":{}},\"DriverState\":{\"gpu.example.com\":{\"Devices\":[{\"PoolName\":\"p\",\"DeviceName\":\"d\",\"ShareID\":null,\"RequestNames\":[\"r\"],\"CDIDeviceIDs\":[\"x\"]}]},\"net.example.com\":{\"Devices\":null}}}]}","Checksum":CRC}"#;
    const CHECKSUM: &str = "2319698127";

    fn sealed(data: &str) -> Vec<u8> {
        json!({"Data": data, "Checksum": crc32fast::hash(data.as_bytes())})
            .to_string()
            .into_bytes()
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn gpu() -> PreparedClaim {
        PreparedClaim {
            claim: ClaimRef {
                namespace: "shop".to_owned(),
                uid: "c1".to_owned(),
                name: "gpu".to_owned(),
            },
            pods: names(&["u1", "u2"]),
            drivers: names(&["gpu.example.com", "net.example.com"]),
        }
    }

    #[test]
    fn claims_are_read_with_pods_and_all_drivers() {
        assert_eq!(parse(WRITTEN.replace("CRC", CHECKSUM).as_bytes()), Ok(vec![gpu()]));
    }

    #[test]
    fn modified_truncated_or_invalid_checkpoint_is_an_error() {
        let error = parse(WRITTEN.replace("CRC", "7").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), format!("its checksum is {CHECKSUM} and should be 7"));
        let whole = WRITTEN.replace("CRC", CHECKSUM);
        for cut in 0..whole.len() {
            assert!(parse(&whole.as_bytes()[..cut]).is_err(), "{cut}");
        }
        for data in [
            "",
            "7",
            "[]x",
            "{\"ClaimInfoStateList\":7}",
            "{\"ClaimInfoStateList\":[{\"ClaimUID\":7}]}",
        ] {
            assert!(parse(&sealed(data)).is_err(), "{data}");
        }
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let data = json!({"kind": "DRACheckpoint", "newInList": [1], "ClaimInfoStateList": [
            {"ClaimUID": "c1", "ClaimName": "gpu", "Namespace": "shop", "PodUIDs": {"u1": {"new": 1}, "u2": {}}, "New": {},
             "DriverState": {"gpu.example.com": {"Devices": [{"New": "x"}], "new": true}, "net.example.com": {"new": []}}},
        ]})
        .to_string();
        let sealed = json!({"Data": data, "Checksum": crc32fast::hash(data.as_bytes()), "New": {"a": 1}});
        assert_eq!(parse(sealed.to_string().as_bytes()), Ok(vec![gpu()]));
    }

    #[test]
    fn checkpoint_without_claims_is_valid() {
        for data in ["{}", "{\"ClaimInfoStateList\":null}", "{\"ClaimInfoStateList\":[]}"] {
            assert_eq!(parse(&sealed(data)), Ok(Vec::new()));
        }
    }

    #[test]
    fn missing_file_is_no_checkpoint() {
        let temp = tempfile::tempdir().unwrap();
        let root = Dir::open(&temp.path().canonicalize().unwrap()).unwrap().unwrap();
        assert_eq!(read(&root), Ok(None));
        std::fs::write(temp.path().join(FILE), sealed("{}")).unwrap();
        assert_eq!(read(&root), Ok(Some(Vec::new())));
    }
}
