//! Lists safety holds, and approves them.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{
    respond::{self, Answer, Refused, agent_stopping, json_answer, not_found},
    state::PodsAdmin,
};
use crate::{
    cli::ApprovalRequest,
    handover::guard::holds::{ABSENCE, NODE_UID, SafetyHold, SafetyHolds},
    journal::{Approval, JournalError},
    workers::Overview,
};

/// Path of the list.
pub const HOLDS: &str = "/v1/holds";
/// Path of an approval.
pub const APPROVE: &str = "/v1/approve";

/// An approved item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Approved {
    /// The safety hold.
    pub item: SafetyHold,
    /// Why a restart would lose the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_durable: Option<String>,
}

/// All safety holds, and the pods.
async fn report_of(pods: &PodsAdmin) -> Result<(SafetyHolds, Overview), Refused> {
    let overview = pods.overview().await.ok_or_else(agent_stopping)?;
    let mut items = pods.guard.safety_holds();
    items.extend(SafetyHold::of_pods(&overview.terminating));
    let report = SafetyHolds {
        blocked: pods.guard.why_blocked_for_good().map(|blocked| blocked.to_string()),
        items,
        approvals: pods.journal.node(|node| node.approvals.clone()),
    };
    Ok((report, overview))
}

/// Lists the safety holds.
pub(super) async fn list(pods: &PodsAdmin) -> Answer {
    json_answer(&report_of(pods).await?.0)
}

/// Approves one item.
pub(super) async fn approve(pods: &PodsAdmin, body: &[u8], user: String) -> Answer {
    let request: ApprovalRequest = respond::parse(body)?;
    let reason = respond::reason(request.reason.clone())?;
    tracing::info!(item = request.item, reason, "Approval requested");
    let name = &request.item;
    let (report, overview) = report_of(pods).await?;
    let item = report.find(name).map_err(not_found)?.clone();
    if request.digest.as_ref().is_some_and(|digest| *digest != item.digest) {
        let why = format!(
            "the safety hold {} has changed: see pod-teardown holds; its digest is now {}: {}",
            item.item, item.digest, item.why
        );
        return Err(Refused(StatusCode::CONFLICT, why));
    }
    let approved = match (item.item.as_str(), &item.uid) {
        (NODE_UID, None) => pods.guard.approve_node_uid(&item.digest).await,
        (ABSENCE, None) => pods.guard.absence.approve(&item.digest).await,
        (_, Some(uid)) => approve_pod(pods, &overview, uid).await,
        (_, None) => None,
    };
    let Some(durable) = approved else {
        // New evidence may have come since the report.
        let why = format!("the safety hold {name} has changed, or is not there any more: see pod-teardown holds");
        return Err(Refused(StatusCode::CONFLICT, why));
    };
    let approval = Approval {
        item: item.item.clone(),
        uid: item.uid.clone(),
        at: pods.clock.now().wall,
        by: user,
        reason: reason.clone(),
        why: item.why.clone(),
    };
    let durable = durable.and(pods.journal.log_approval(approval).await);
    tracing::warn!(
        item = item.item,
        pod.uid = item.uid,
        reason,
        why = item.why,
        approval_effect = item.approval_effect,
        "Approved"
    );
    let not_durable = durable.err().map(|cause| cause.to_string());
    if let Some(cause) = &not_durable {
        tracing::error!(
            item = item.item,
            cause,
            "Approval is not durable: a restart would lose it"
        );
    }
    json_answer(&Approved { item, not_durable })
}

/// Approves the mismatch of a pod in the overview; `None` if the pod has another one, or none, by now.
async fn approve_pod(pods: &PodsAdmin, overview: &Overview, uid: &str) -> Option<Result<(), JournalError>> {
    let trace = overview.terminating.iter().find(|trace| trace.uid == uid)?;
    let mismatch = trace.mismatch.as_ref()?.mismatch.clone();
    let uid = uid.into();
    match pods.workers.ask(move |pods| pods.approve(&uid, mismatch)).await? {
        true => Some(pods.journal.durable().await),
        false => None,
    }
}
