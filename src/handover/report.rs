//! What `status` says of the kubelet's life.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    judge::Turn,
    signs::{Sign, Signs},
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
    pub signs: Vec<SignReport>,
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
pub struct SignReport {
    /// Which one: `process`, `healthz` or `lease`.
    pub sign: String,
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
    pub fn of(turn: &Turn, signs: &Signs, fenced: &Fenced, before: &Self, wall: Timestamp) -> Self {
        let kind = turn.kind();
        let since = before.since.filter(|_| before.turn == kind);
        Self {
            turn: kind.to_owned(),
            since: since.or(Some(wall)),
            stands_by: match turn {
                Turn::Ours => None,
                Turn::StandsBy(why) => Some(why.to_string()),
            },
            signs: signs.each().map(|(name, sign)| SignReport::of(name, sign, wall)).into(),
            fenced: fenced.clone(),
        }
    }

    /// The signs on one line.
    pub fn seen(&self) -> String {
        let signs = self
            .signs
            .iter()
            .map(|sign| format!("{} {}: {}", sign.sign, sign.shows, sign.seen));
        signs.collect::<Vec<_>>().join("; ")
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

// === impl SignReport ===

impl SignReport {
    fn of(name: &str, sign: &Sign, wall: Timestamp) -> Self {
        let lasts = Instant::now().saturating_duration_since(sign.since);
        Self {
            sign: name.to_owned(),
            shows: sign.look.word().to_owned(),
            since: wall.checked_sub(lasts).ok(),
            seen: sign.look.told().to_owned(),
        }
    }
}
