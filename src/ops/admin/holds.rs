//! Lists safety holds, and approves them.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    peer::Peer,
    respond::{agent_stopping, error, json_answer, json_response},
    state::PodsAdmin,
};
use crate::{
    handover::guard::holds::{ABSENCE, NODE_UID, SafetyHold, SafetyHolds},
    journal::{JournalError, approval::Approval},
    model::mismatch::Mismatch,
    workers::Overview,
};

/// Path of the list.
pub const HOLDS: &str = "/v1/holds";
/// Path of an approval.
pub const APPROVE: &str = "/v1/approve";
/// Maximum length of a reason, in bytes.
const MAX_REASON: usize = 1024;

/// An approval request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// The item's name, or the UID of a pod.
    pub item: String,
    /// The digest that the user has seen. The approval is refused if it has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Reason of the user. It is logged, and kept with the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

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

/// All safety holds; `None` while the agent stops.
async fn report_of(pods: &PodsAdmin) -> Option<(SafetyHolds, Overview)> {
    // Before the runtime is reached, the workers do not answer and no pod is blocked.
    let reached = pods.runtime.borrow().version.is_some();
    let overview = if reached {
        pods.workers.overview().await?
    } else {
        Overview::default()
    };
    let mut items = pods.guard.safety_holds();
    items.extend(SafetyHold::of_pods(&overview.terminating));
    let blocked = pods.guard.why_blocked_for_good();
    let approvals = pods.journal.last_approvals();
    let report = SafetyHolds {
        blocked,
        items,
        approvals,
    };
    Some((report, overview))
}

/// Lists the safety holds.
pub(super) async fn list(pods: &PodsAdmin) -> Response<Full<Bytes>> {
    match report_of(pods).await {
        Some((report, _)) => json_answer(&report),
        None => agent_stopping(),
    }
}

/// Approves one item.
pub(super) async fn approve(pods: &PodsAdmin, body: &[u8], peer: Peer) -> Response<Full<Bytes>> {
    let request: ApprovalRequest = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(cause) => return error(StatusCode::BAD_REQUEST, &format!("the body is no request: {cause}")),
    };
    if request.reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON) {
        return error(
            StatusCode::BAD_REQUEST,
            &format!("reason is longer than {MAX_REASON} bytes"),
        );
    }
    tracing::info!(
        item = request.item,
        reason = request.reason,
        peer = peer.to_string(),
        "Approval requested"
    );
    // A client that disconnects does not interrupt it, so that the result is logged.
    let approval = tokio::spawn(approve_item(pods.clone(), request, peer));
    approval
        .await
        .unwrap_or_else(|cause| error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()))
}

async fn approve_item(
    pods: PodsAdmin,
    ApprovalRequest {
        item: name,
        digest,
        reason,
    }: ApprovalRequest,
    peer: Peer,
) -> Response<Full<Bytes>> {
    let refused = |code, why: &str| {
        tracing::warn!(item = name, peer = peer.to_string(), why, "Approval refused");
        error(code, why)
    };
    let Some((report, overview)) = report_of(&pods).await else {
        return agent_stopping();
    };
    let item = match report.find(&name) {
        Ok(item) => item.clone(),
        Err(why) => return refused(StatusCode::NOT_FOUND, &why),
    };
    let changed = |now: &SafetyHold| {
        let why = format!(
            "the safety hold {} has changed: see pod-teardown holds; its digest is now {}: {}",
            now.item, now.digest, now.why
        );
        tracing::warn!(item = name, peer = peer.to_string(), why, "Approval refused");
        json_response(StatusCode::CONFLICT, &json!({ "error": why, "item": now }))
    };
    if digest.is_some_and(|digest| digest != item.digest) {
        return changed(&item);
    }
    let approved = match (item.item.as_str(), &item.uid) {
        (NODE_UID, None) => pods.guard.approve_node_uid(&item.digest).await,
        (ABSENCE, None) => pods.guard.approve_absence(&item.digest).await,
        (_, Some(uid)) => match mismatch(&overview, uid) {
            Some(mismatch) => approve_pod(&pods, uid, mismatch).await,
            None => None,
        },
        (_, None) => None,
    };
    let Some(durable) = approved else {
        // New evidence may have come since the report.
        let now = report_of(&pods).await;
        return match now.as_ref().and_then(|(now, _)| now.find(&name).ok()) {
            Some(now) => changed(now),
            None => refused(StatusCode::CONFLICT, "there is no such safety hold any more"),
        };
    };
    let approval = Approval {
        item: item.item.clone(),
        uid: item.uid.clone(),
        at: pods.clock.now().wall,
        by: peer.user(),
        reason: reason.clone(),
        why: item.why.clone(),
    };
    let durable = durable.and(pods.journal.log_approval(approval).await);
    tracing::warn!(
        item = item.item,
        pod.uid = item.uid,
        peer = peer.to_string(),
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

fn mismatch(overview: &Overview, uid: &str) -> Option<Mismatch> {
    let trace = overview.terminating.iter().find(|trace| trace.uid == uid)?;
    trace.mismatch.as_ref().map(|mismatch| mismatch.mismatch.clone())
}

async fn approve_pod(pods: &PodsAdmin, uid: &str, mismatch: Mismatch) -> Option<Result<(), JournalError>> {
    let is_approved = pods.workers.approve(uid.into(), mismatch).await?;
    if is_approved {
        Some(pods.journal.durable().await)
    } else {
        None
    }
}
