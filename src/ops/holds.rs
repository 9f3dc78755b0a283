//! Formats safety holds and approvals for `holds` and `approve`.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::admin::holds::Approved;
use crate::{
    handover::guard::holds::{SafetyHold, SafetyHolds},
    journal::approval::Approval,
    words::{seconds, some_of},
};

/// Lists the safety holds. `is_wide`: with all facts and all approvals, instead of some facts and the last approval.
pub fn text(report: &SafetyHolds, is_wide: bool, now: Timestamp) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    if let Some(why) = &report.blocked {
        let _ = writeln!(out, "Blocked: {why}\n");
    }
    if report.items.is_empty() {
        let _ = writeln!(out, "No safety hold waits for an approval.");
    }
    for hold in &report.items {
        let _ = writeln!(out, "{}", hold_text(hold, is_wide, now));
    }
    match report.approvals.as_slice() {
        [] => {}
        approvals if is_wide => {
            let _ = writeln!(out, "Approvals:");
            for approval in approvals {
                let _ = writeln!(out, "  {}", approval_text(approval));
            }
        }
        [.., last] => {
            let _ = writeln!(out, "Last approval: {}", approval_text(last));
        }
    }
    out
}

fn approval_text(approval: &Approval) -> String {
    let Approval {
        item, at, by, reason, ..
    } = approval;
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{item} at {at:.0} by {by}{reason}")
}

/// Describes one safety hold. `is_wide`: each fact has a line.
pub(super) fn hold_text(hold: &SafetyHold, is_wide: bool, now: Timestamp) -> String {
    let SafetyHold {
        item,
        uid,
        since,
        why,
        approval_effect,
        facts,
        digest,
    } = hold;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let uid = uid.as_ref().map_or_else(String::new, |uid| format!("  (UID {uid})"));
    let _ = writeln!(out, "{item}{uid}");
    if let Some(since) = since {
        let ms = u64::try_from(now.as_millisecond() - since.as_millisecond()).unwrap_or_default();
        let _ = writeln!(out, "  since    {since:.0}, for {}", seconds(ms));
    }
    let _ = writeln!(out, "  why      {why}");
    let _ = writeln!(out, "  approval {approval_effect}");
    if is_wide {
        for fact in facts {
            let _ = writeln!(out, "  fact     {fact}");
        }
    } else if !facts.is_empty() {
        let _ = writeln!(out, "  facts    {}", some_of(facts.iter().cloned()));
    }
    let _ = writeln!(out, "  digest   {digest}");
    out
}

/// Formats an approval.
pub fn approved(Approved { item, not_durable }: &Approved) -> String {
    let text = format!("{} is approved: {}", item.item, item.approval_effect);
    match not_durable {
        Some(cause) => format!("{text}; a restart of the agent would lose the approval: {cause}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hold_is_listed_with_its_name_reason_and_effect_of_approval() {
        let since: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let item = |item: &str, uid: Option<&str>| SafetyHold {
            item: item.to_owned(),
            uid: uid.map(str::to_owned),
            since: Some(since),
            why: "that is why".to_owned(),
            approval_effect: "that follows".to_owned(),
            facts: uid.into_iter().map(|_| "container 1".to_owned()).collect(),
            digest: "0a".to_owned(),
        };
        let report = SafetyHolds {
            blocked: None,
            items: vec![item("absence", None), item("pod/ns/web-0", Some("12"))],
            approvals: Vec::new(),
        };
        let list = text(&report, false, "2026-01-02T03:06:05Z".parse().unwrap());
        let block = "  since    2026-01-02T03:04:05Z, for 2m0s\n  why      that is why\n  approval that follows\n";
        let (digest, facts) = ("  digest   0a\n\n", "  facts    container 1\n");
        let expected = format!("absence\n{block}{digest}pod/ns/web-0  (UID 12)\n{block}{facts}{digest}");
        assert_eq!(list, expected);

        let report = SafetyHolds {
            blocked: Some("a kubelet runs on this node".to_owned()),
            items: Vec::new(),
            approvals: vec![Approval {
                item: "absence".to_owned(),
                uid: None,
                at: since,
                by: "root".to_owned(),
                reason: Some("etcd was restored".to_owned()),
                why: String::new(),
            }],
        };
        let list = text(&report, false, since);
        assert!(list.contains("Blocked: a kubelet runs") && list.contains("No safety hold"));
        let last = "Last approval: absence at 2026-01-02T03:04:05Z by root: etcd was restored\n";
        assert!(list.ends_with(last), "{list}");
    }
    #[test]
    fn wide_list_has_every_fact_and_every_approval() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let approval = |item: &str| Approval {
            item: item.to_owned(),
            uid: None,
            at,
            by: "root".to_owned(),
            reason: None,
            why: String::new(),
        };
        let facts: Vec<String> = (1..=9).map(|number| format!("container {number}")).collect();
        let report = SafetyHolds {
            blocked: None,
            items: vec![SafetyHold {
                item: "pod/ns/web-0".to_owned(),
                uid: None,
                since: None,
                why: "that is why".to_owned(),
                approval_effect: "that follows".to_owned(),
                facts: facts.clone(),
                digest: "0a".to_owned(),
            }],
            approvals: vec![approval("absence"), approval("node-uid")],
        };
        let [short, wide] = [false, true].map(|is_wide| text(&report, is_wide, at));
        let has_all = |list: &str| facts.iter().all(|fact| list.contains(fact)) && list.contains("absence at 2026");
        assert!(has_all(&wide) && !has_all(&short), "{wide}\n{short}");
    }
}
