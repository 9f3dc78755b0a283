//! `holds` and `approve`: shows safety holds, asks, and sends approvals.

use std::{
    fmt::Write as _,
    io::{BufRead, Write},
    path::Path,
};

use jiff::Timestamp;

use super::{
    admin::holds::{APPROVE, Approved, HOLDS},
    client::{self, ClientError},
    output::{age_since, loss},
};
use crate::{
    cli::ApprovalRequest,
    handover::guard::holds::{SafetyHold, SafetyHolds},
    journal::Approval,
};

/// Lists the safety holds, and the last approvals.
pub fn text(report: &SafetyHolds, now: Timestamp) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    if let Some(why) = &report.blocked {
        let _ = writeln!(out, "Blocked: {why}\n");
    }
    if report.items.is_empty() {
        let _ = writeln!(out, "No safety hold waits for an approval.");
    }
    for hold in &report.items {
        let _ = writeln!(out, "{}", hold_text(hold, now));
    }
    for Approval {
        item, at, by, reason, ..
    } in &report.approvals
    {
        let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let _ = writeln!(out, "Approved: {item} at {at:.0} by {by}{reason}");
    }
    out
}

fn hold_text(hold: &SafetyHold, now: Timestamp) -> String {
    let uid = hold
        .uid
        .as_ref()
        .map_or_else(String::new, |uid| format!("  (UID {uid})"));
    let mut out = format!("{}{uid}\n", hold.item);
    let mut line = |label: &str, text: &str| out += &format!("  {label:<8} {text}\n");
    if let Some(since) = hold.since {
        line("since", &format!("{since:.0}, for {}", age_since(since, now)));
    }
    line("why", &hold.why);
    line("approval", &hold.approval_effect);
    hold.facts.iter().for_each(|fact| line("fact", fact));
    line("digest", &hold.digest);
    out
}

/// Formats an approval.
pub fn approved(Approved { item, not_durable }: &Approved) -> String {
    let lost = loss("the approval", not_durable.as_ref());
    format!("{} is approved: {}{lost}", item.item, item.approval_effect)
}

/// Approves a safety hold. With `confirm`, only if it agrees to the hold; `None` if it does not.
///
/// # Errors
/// When there is no such hold, it has changed, or no agent answers.
pub async fn approve(
    socket: &Path,
    mut request: ApprovalRequest,
    confirm: Option<impl FnOnce(&SafetyHold) -> bool>,
) -> Result<Option<Approved>, ClientError> {
    if confirm.is_some() || request.digest.is_none() {
        let report: SafetyHolds = client::get(socket, HOLDS).await?;
        let hold = report.find(&request.item);
        let hold = hold.map_err(|why| ClientError::Unknown(why.to_string()))?;
        if confirm.is_some_and(|confirm| !confirm(hold)) {
            return Ok(None);
        }
        // What the user has seen, and nothing later.
        request.digest.get_or_insert_with(|| hold.digest.clone());
    }
    client::post(socket, APPROVE, &request).await.map(Some)
}

/// Shows the hold and reads the answer of the user. Anything but yes is no.
pub fn ask(hold: &SafetyHold, mut input: impl BufRead, mut output: impl Write) -> bool {
    let mut answer = String::new();
    let shown = hold_text(hold, Timestamp::now());
    let asked = write!(output, "{shown}\nApprove {}? [y/N] ", hold.item).and_then(|()| output.flush());
    asked.is_ok()
        && input.read_line(&mut answer).is_ok()
        && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(item: &str, uid: Option<&str>) -> SafetyHold {
        SafetyHold {
            item: item.to_owned(),
            uid: uid.map(str::to_owned),
            since: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            why: "that is why".to_owned(),
            approval_effect: "that follows".to_owned(),
            facts: uid.into_iter().map(|_| "container 1".to_owned()).collect(),
            digest: "0a".to_owned(),
        }
    }

    #[test]
    fn each_hold_is_listed_with_its_name_reason_and_effect_of_approval() {
        let report = SafetyHolds {
            blocked: Some("a kubelet runs on this node".to_owned()),
            items: vec![hold("absence", None), hold("pod/ns/web-0", Some("12"))],
            approvals: vec![Approval {
                item: "absence".to_owned(),
                uid: None,
                at: "2026-01-02T03:04:05Z".parse().unwrap(),
                by: "root".to_owned(),
                reason: Some("etcd was restored".to_owned()),
                why: String::new(),
            }],
        };
        let list = text(&report, "2026-01-02T03:06:05Z".parse().unwrap());
        let block = "  since    2026-01-02T03:04:05Z, for 2m\n  why      that is why\n  approval that follows\n";
        let (digest, facts) = ("  digest   0a\n\n", "  fact     container 1\n");
        let expected = format!(
            "Blocked: a kubelet runs on this node\n\nabsence\n{block}{digest}pod/ns/web-0  (UID 12)\n{block}{facts}{digest}\
             Approved: absence at 2026-01-02T03:04:05Z by root: etcd was restored\n"
        );
        assert_eq!(list, expected);
    }

    #[test]
    fn only_yes_approves_and_the_hold_is_shown_first() {
        let hold = hold("absence", None);
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
                shown.contains("that is why") && shown.ends_with("Approve absence? [y/N] "),
                "{shown}"
            );
        }
    }
}
