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
    /// `ours`, or in one word why not: `kubelet`, `wedged`, `unseen`, `not-yet`, `boots`, `unknown`.
    pub turn: String,
    /// Since when.
    pub since: Option<Timestamp>,
    /// Why this agent stands by; nothing while it takes pods down.
    pub stands_by: Option<String>,
    /// What was seen of the kubelet.
    pub signs: Vec<SignReport>,
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
    pub fn of(turn: &Turn, signs: &Signs, before: &Self, wall: Timestamp) -> Self {
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
