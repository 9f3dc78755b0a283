//! The kubelet's checkpoint of prepared ResourceClaims. Never written here: a kubelet that finds an error in it does not
//! start.
//!
//! It may lack claims that are in use, and contain claims whose preparation never started.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::value::RawValue;

use super::{
    dirs::Dir,
    fault::{Cause, Fault},
    plugins::ClaimRef,
};

/// The file's name in the kubelet's root directory.
pub const FILE: &str = "dra_manager_state";

/// Value in `skipNodeOperations`: the driver needs no unprepare call.
const SKIP_UNPREPARE: &str = "NodeUnprepareResources";
/// Value in `skipNodeOperations`: the driver needs no call at all.
const SKIP_ALL: &str = "*";

/// Maximum size in bytes: a few thousand claims with many devices each.
const MAX_SIZE: u64 = 64 << 20;

/// The claims that the kubelet prepared, or started to prepare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Claims that can be parsed.
    pub claims: Vec<PreparedClaim>,
    /// Why the claims may be wrong or incomplete.
    pub problems: Vec<CheckpointProblem>,
}

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

/// Why a checkpoint is unreliable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointProblem {
    /// It was modified or truncated.
    #[error("its checksum is {actual} and should be {expected}")]
    Checksum {
        /// The checksum in the file.
        expected: u64,
        /// The computed checksum.
        actual: u32,
    },
    /// The file or one of its claims cannot be parsed.
    #[error("{0}")]
    Unreadable(String),
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
    claim_info_state_list: Option<Vec<Box<RawValue>>>,
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

/// Reads the checkpoint in the kubelet's root directory; `None` if no kubelet with DRA ever ran here.
///
/// # Errors
/// When the file cannot be read.
pub fn read(root: &Dir) -> Result<Option<Checkpoint>, Fault> {
    match root.read_file(OsStr::new(FILE), MAX_SIZE) {
        Ok(bytes) => Ok(bytes.map(|bytes| parse(&bytes))),
        Err(Fault {
            cause: cause @ (Cause::TooLarge(_) | Cause::NotRegularFile),
            ..
        }) => Ok(Some(Checkpoint::unreadable(CheckpointProblem::Unreadable(
            cause.to_string(),
        )))),
        Err(fault) => Err(fault),
    }
}

/// Parses a checkpoint as far as possible.
pub fn parse(bytes: &[u8]) -> Checkpoint {
    let envelope: Envelope = match json(bytes) {
        Ok(envelope) => envelope,
        Err(problem) => return Checkpoint::unreadable(problem),
    };
    let actual = crc32fast::hash(envelope.data.as_bytes());
    let mut checkpoint = match json::<Data>(envelope.data.as_bytes()) {
        Ok(data) => Checkpoint::from_claims(&data.claim_info_state_list.unwrap_or_default()),
        Err(problem) => Checkpoint::unreadable(problem),
    };
    if envelope.checksum != u64::from(actual) {
        let expected = envelope.checksum;
        checkpoint
            .problems
            .insert(0, CheckpointProblem::Checksum { expected, actual });
    }
    checkpoint
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CheckpointProblem> {
    serde_json::from_slice(bytes).map_err(|error| CheckpointProblem::Unreadable(error.to_string()))
}

// === impl Checkpoint ===

impl Checkpoint {
    /// The claims that are prepared for a pod.
    pub fn of_pod<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a PreparedClaim> {
        self.claims.iter().filter(move |claim| claim.pods.contains(uid))
    }

    fn from_claims(claims: &[Box<RawValue>]) -> Self {
        let mut checkpoint = Self::default();
        for claim in claims {
            match json::<ClaimInfo>(claim.get().as_bytes()) {
                Ok(claim) => checkpoint.claims.push(claim.into()),
                Err(problem) => checkpoint.problems.push(problem),
            }
        }
        checkpoint
    }

    fn unreadable(problem: CheckpointProblem) -> Self {
        Self {
            claims: Vec::new(),
            problems: vec![problem],
        }
    }
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
        Self {
            claim: ClaimRef {
                namespace: info.namespace,
                uid: info.uid,
                name: info.name,
            },
            pods: info.pods.unwrap_or_default().into_keys().collect(),
            drivers: drivers
                .filter(|(_, state)| !skips(state))
                .map(|(driver, _)| driver)
                .collect(),
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
        let checkpoint = parse(WRITTEN.replace("CRC", CHECKSUM).as_bytes());
        assert_eq!(checkpoint.problems, []);
        assert_eq!(checkpoint.claims, [gpu()]);
        assert_eq!(checkpoint.of_pod("u2").count(), 1);
        assert_eq!(checkpoint.of_pod("u3").count(), 0);
    }

    #[test]
    fn wrong_checksum_is_a_problem_but_claims_are_read() {
        let checkpoint = parse(WRITTEN.replace("CRC", "7").as_bytes());
        assert_eq!(checkpoint.claims, [gpu()]);
        let actual = CHECKSUM.parse().unwrap();
        assert_eq!(
            checkpoint.problems,
            [CheckpointProblem::Checksum { expected: 7, actual }]
        );
    }

    #[test]
    fn invalid_claim_does_not_hide_the_others() {
        let data = json!({"ClaimInfoStateList": [
            {"ClaimUID": 7},
            {"ClaimUID": "c1", "ClaimName": "gpu", "Namespace": "shop", "PodUIDs": {"u1": {}, "u2": {}},
             "DriverState": {"gpu.example.com": {"Devices": []}, "net.example.com": null}},
            "x",
        ]});
        let checkpoint = parse(&sealed(&data.to_string()));
        assert_eq!(checkpoint.claims, [gpu()]);
        assert_eq!(checkpoint.problems.len(), 2);
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let data = json!({"kind": "DRACheckpoint", "newInList": [1], "ClaimInfoStateList": [
            {"ClaimUID": "c1", "ClaimName": "gpu", "Namespace": "shop", "PodUIDs": {"u1": {"new": 1}, "u2": {}}, "New": {},
             "DriverState": {"gpu.example.com": {"Devices": [{"New": "x"}], "new": true}, "net.example.com": {"new": []}}},
        ]})
        .to_string();
        let sealed = json!({"Data": data, "Checksum": crc32fast::hash(data.as_bytes()), "New": {"a": 1}});
        let expected = Checkpoint {
            claims: vec![gpu()],
            problems: Vec::new(),
        };
        assert_eq!(parse(sealed.to_string().as_bytes()), expected);
    }

    #[test]
    fn missing_claims_are_no_problem_but_unreadable_ones_are() {
        for data in ["{}", "{\"ClaimInfoStateList\":null}", "{\"ClaimInfoStateList\":[]}"] {
            assert_eq!(parse(&sealed(data)), Checkpoint::default());
        }
        let whole = WRITTEN.replace("CRC", CHECKSUM);
        for cut in 0..whole.len() {
            let checkpoint = parse(&whole.as_bytes()[..cut]);
            assert_eq!((checkpoint.claims.len(), checkpoint.problems.len()), (0, 1), "{cut}");
        }
        for data in ["", "7", "[]x", "{\"ClaimInfoStateList\":7}"] {
            assert_eq!(parse(&sealed(data)).problems.len(), 1, "{data}");
        }
    }

    #[test]
    fn missing_file_is_no_checkpoint() {
        let temp = tempfile::tempdir().unwrap();
        let root = Dir::open(&temp.path().canonicalize().unwrap()).unwrap().unwrap();
        assert_eq!(read(&root), Ok(None));
        std::fs::write(temp.path().join(FILE), sealed("{}")).unwrap();
        assert_eq!(read(&root), Ok(Some(Checkpoint::default())));
    }
}
