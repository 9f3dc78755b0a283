//! `approve`: shows a safety hold, asks, and sends the approval.

use std::{
    io::{BufRead, Write},
    path::Path,
};

use jiff::Timestamp;

use super::{
    admin::holds::{APPROVE, ApprovalRequest, Approved, HOLDS},
    client, holds,
};
use crate::handover::guard::holds::{SafetyHold, SafetyHolds};

/// An approval that the user wants to give.
#[derive(Debug)]
pub struct Approval {
    /// The item's name, or the UID of a pod.
    pub item: String,
    /// The digest that the user has seen.
    pub digest: Option<String>,
    /// Reason of the user.
    pub reason: Option<String>,
    /// The user is not asked.
    pub yes: bool,
}

/// Approves a safety hold after `confirm` has agreed to it, unless `yes`. `None` if it has not.
///
/// # Errors
/// When there is no such hold, it has changed, or no agent answers.
pub async fn approve(
    socket: &Path,
    approval: Approval,
    confirm: impl FnOnce(&SafetyHold) -> bool,
) -> Result<Option<Approved>, String> {
    let Approval {
        item,
        digest,
        reason,
        yes,
    } = approval;
    let digest = match &digest {
        Some(digest) if yes => digest.clone(),
        _ => {
            let report: SafetyHolds = client::get(socket, HOLDS).await.map_err(|error| error.to_string())?;
            let hold = report.find(&item)?;
            if !yes && !confirm(hold) {
                return Ok(None);
            }
            // What the user has seen, and nothing later.
            digest.clone().unwrap_or_else(|| hold.digest.clone())
        }
    };
    let request = ApprovalRequest {
        item,
        digest: Some(digest),
        reason,
    };
    let approved = client::post(socket, APPROVE, &request).await;
    approved.map(Some).map_err(|error| error.to_string())
}

/// Shows the hold and reads the answer of the user. Anything but yes is no.
pub fn ask(hold: &SafetyHold, mut input: impl BufRead, mut output: impl Write) -> bool {
    let mut answer = String::new();
    let shown = holds::hold_text(hold, false, Timestamp::now());
    let asked = write!(output, "{shown}\nApprove {}? [y/N] ", hold.item).and_then(|()| output.flush());
    asked.is_ok()
        && input.read_line(&mut answer).is_ok()
        && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_approves_and_the_hold_is_shown_first() {
        let hold = SafetyHold {
            item: "absence".to_owned(),
            uid: None,
            since: None,
            why: "the list is empty".to_owned(),
            approval_effect: "the pods are listed again".to_owned(),
            facts: Vec::new(),
            digest: "0a".to_owned(),
        };
        for (answer, approves) in [
            ("y\n", true),
            ("Yes\n", true),
            ("n\n", false),
            ("\n", false),
            ("", false),
            ("yesterday\n", false),
        ] {
            let mut shown = Vec::new();
            assert_eq!(ask(&hold, answer.as_bytes(), &mut shown), approves, "{answer:?}");
            let shown = String::from_utf8(shown).unwrap();
            assert!(
                shown.contains("the list is empty") && shown.ends_with("Approve absence? [y/N] "),
                "{shown}"
            );
        }
    }
}
