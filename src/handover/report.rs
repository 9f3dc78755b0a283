//! What `status` says of the kubelet's life.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    judge::Role,
    probes::{ProbeHistory, Probes},
};

/// Whose turn it is, and by what that was found out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnReport {
    /// `ours`, or in one word why not: `kubelet`, `wedged`, `unseen`, `not-yet`, `boots`, `resumes`, `unknown`.
    pub turn: String,
    /// Since when.
    pub since: Option<Timestamp>,
    /// Why this agent stands by; nothing while it takes pods down.
    pub stands_by: Option<String>,
    /// What was seen of the kubelet.
    #[serde(rename = "signs")]
    pub probes: Vec<ProbeReport>,
    /// What was done to kubelets that were wedged.
    #[serde(default)]
    pub fenced: Fenced,
}

/// Kubelets that were stopped because they were wedged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fenced {
    /// How many, since this agent runs.
    pub stopped: u64,
    /// How often that has failed.
    pub failed: u64,
    /// What came of the last attempt.
    pub last: Option<String>,
}

/// One sign of a kubelet's life.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    /// Which one: `process`, `healthz` or `lease`.
    #[serde(rename = "sign")]
    pub probe: String,
    /// `lives`, `silent` or `unknown`.
    pub shows: String,
    /// Since when it shows that, without a gap in the looks.
    pub since: Option<Timestamp>,
    /// What the last look has shown.
    pub seen: String,
}

// === impl TurnReport ===

impl TurnReport {
    /// The report of this turn after the one before.
    pub fn of(turn: &Role, probes: &Probes, fenced: &Fenced, before: &Self, wall: Timestamp) -> Self {
        let kind = turn.kind();
        let since = before.since.filter(|_| before.turn == kind);
        Self {
            turn: kind.to_owned(),
            since: since.or(Some(wall)),
            stands_by: match turn {
                Role::Active => None,
                Role::Standby(why) => Some(why.to_string()),
            },
            probes: probes
                .each()
                .map(|(name, probe)| ProbeReport::of(name, probe, wall))
                .into(),
            fenced: fenced.clone(),
        }
    }

    /// The signs on one line.
    pub fn seen(&self) -> String {
        let probes = self
            .probes
            .iter()
            .map(|probe| format!("{} {}: {}", probe.probe, probe.shows, probe.seen));
        probes.collect::<Vec<_>>().join("; ")
    }
}

// === impl Fenced ===

impl Fenced {
    /// Notes what came of an attempt.
    pub fn note(&mut self, stopped: Result<String, String>) {
        match stopped {
            Ok(unit) => {
                tracing::warn!(
                    unit,
                    "The kubelet was wedged, and its unit is stopped; start it again when it is mended"
                );
                self.stopped += 1;
                self.last = Some(format!(
                    "{unit} was stopped, since its kubelet was wedged; systemctl start {unit} when that is mended"
                ));
            }
            Err(why) => {
                tracing::error!(why, "The kubelet is wedged, and cannot be stopped");
                self.failed += 1;
                self.last = Some(why);
            }
        }
    }
}

// === impl ProbeReport ===

impl ProbeReport {
    fn of(name: &str, probe: &ProbeHistory, wall: Timestamp) -> Self {
        let lasts = Instant::now().saturating_duration_since(probe.since);
        Self {
            probe: name.to_owned(),
            shows: probe.look.word().to_owned(),
            since: wall.checked_sub(lasts).ok(),
            seen: probe.look.told().to_owned(),
        }
    }
}
