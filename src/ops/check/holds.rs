//! Lists the safety holds of the running agent.

use std::path::Path;

use super::{
    item::Item,
    row::{Row, Verdict},
};
use crate::{
    handover::guard::holds::{SafetyHold, SafetyHolds},
    ops::{admin, client},
};

/// Queries the running agent. Without an answer there is no row: the socket has its own.
pub(super) async fn safety_holds(socket: &Path) -> Vec<Row> {
    match client::get::<SafetyHolds>(socket, admin::holds::HOLDS).await {
        Ok(report) => rows(&report.items),
        Err(_) => Vec::new(),
    }
}

fn rows(items: &[SafetyHold]) -> Vec<Row> {
    const WHAT: Item = Item::SAFETY_HOLDS;
    if items.is_empty() {
        return vec![Row::ok(WHAT, "none")];
    }
    let row = |hold: &SafetyHold| {
        let SafetyHold {
            item, uid, why, digest, ..
        } = hold;
        // A hold of one pod does not block others.
        let verdict = if uid.is_some() {
            Verdict::Warning
        } else {
            Verdict::Failed
        };
        let remedy = format!(
            "see `pod-teardown holds` for the facts and for what an approval permits; if they are right, run `pod-teardown approve \
             {item} --digest {digest}`"
        );
        Row::new(WHAT, verdict, format!("{item}: {why}"), &remedy)
    };
    items.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::guard::holds::NODE_UID;

    #[test]
    fn hold_of_the_whole_node_fails_the_check_and_one_of_a_pod_is_a_warning() {
        let item = |item: &str, uid: Option<&str>| SafetyHold {
            item: item.to_owned(),
            uid: uid.map(str::to_owned),
            since: None,
            why: "that is why".to_owned(),
            approval_effect: String::new(),
            facts: Vec::new(),
            digest: "0a1b".to_owned(),
        };
        let rows = rows(&[item(NODE_UID, None), item("pod/ns/web-0", Some("12"))]);
        let verdicts: Vec<_> = rows.iter().map(|row| row.verdict).collect();
        assert_eq!(verdicts, [Verdict::Failed, Verdict::Warning]);
        assert_eq!(rows[0].seen, "node-uid: that is why");
        let approval = "`pod-teardown approve node-uid --digest 0a1b`";
        assert!(rows[0].remedy.ends_with(approval), "{rows:?}");
        assert_eq!(super::rows(&[])[0].verdict, Verdict::Ok);
    }
}
