//! What the guards hold back, and its release.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{JSON, PodsAdmin, error, json_answer, response, stopping};
use crate::{
    handover::guard::holds::{ABSENCE, NODE_UID, SafetyHold, SafetyHolds},
    journal::JournalError,
    model::mismatch::Mismatch,
    workers::Overview,
};

/// Where that is asked for.
pub const HOLDS: &str = "/v1/held";
/// Where a release goes.
pub const APPROVE: &str = "/v1/release";

/// What is to be released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// Its name, or the UID of a pod.
    pub item: String,
    /// The digest that was shown with it: nothing is released if it is another one by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What was released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Approved {
    /// As it was held.
    pub item: SafetyHold,
    /// Why a restart would not know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_durable: Option<String>,
}

/// All that is held; nothing while the agent stops.
async fn report(pods: &PodsAdmin) -> Option<(SafetyHolds, Overview)> {
    // Before the runtime has been reached no pod is held, and the map does not answer.
    let reached = pods.runtime.borrow().version.is_some();
    let overview = if reached {
        pods.workers.overview().await?
    } else {
        Overview::default()
    };
    let mut items = pods.guard.safety_holds();
    items.extend(SafetyHold::of_pods(&overview.terminating));
    let held = pods.guard.why_blocked_for_good();
    Some((SafetyHolds { held, items }, overview))
}

/// What is held, and why.
pub(super) async fn list(pods: &PodsAdmin) -> Response<Full<Bytes>> {
    match report(pods).await {
        Some((report, _)) => json_answer(&report),
        None => stopping(),
    }
}

/// Releases one item, and says what it was.
pub(super) async fn approve(pods: &PodsAdmin, body: &[u8], peer: &str) -> Response<Full<Bytes>> {
    let ask: ApprovalRequest = match serde_json::from_slice(body) {
        Ok(ask) => ask,
        Err(cause) => return error(StatusCode::BAD_REQUEST, &format!("the body is no request: {cause}")),
    };
    tracing::info!(item = ask.item, peer, "Somebody releases what is held");
    // Whoever hangs up does not interrupt it, so that what becomes of it is logged.
    let releasing = tokio::spawn(grant(pods.clone(), ask, peer.to_owned()));
    releasing
        .await
        .unwrap_or_else(|cause| error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()))
}

async fn grant(
    pods: PodsAdmin,
    ApprovalRequest { item: name, digest }: ApprovalRequest,
    peer: String,
) -> Response<Full<Bytes>> {
    let refused = |code, why: &str| {
        tracing::warn!(item = name, peer, why, "A release is refused");
        error(code, why)
    };
    let Some((report, overview)) = report(&pods).await else {
        return stopping();
    };
    let item = match report.find(&name) {
        Ok(item) => item.clone(),
        Err(why) => return refused(StatusCode::NOT_FOUND, &why),
    };
    if digest.is_some_and(|digest| digest != item.digest) {
        let why = format!(
            "what is held as {} is not what was shown: see pod-teardown held; by now it is {}: {}",
            item.item, item.digest, item.why
        );
        tracing::warn!(item = name, peer, why, "A release is refused");
        let body = json!({ "error": why, "item": item });
        return response(StatusCode::CONFLICT, JSON, body.to_string());
    }
    let released = match (item.item.as_str(), &item.uid) {
        (NODE_UID, None) => pods.guard.approve_node_uid().await,
        (ABSENCE, None) => pods.guard.approve_absence().await,
        (_, Some(uid)) => match mismatch(&overview, uid) {
            Some(mismatch) => release_pod(&pods, uid, mismatch).await,
            None => None,
        },
        (_, None) => None,
    };
    let Some(durable) = released else {
        return refused(StatusCode::CONFLICT, "it is held no more");
    };
    tracing::warn!(
        item = item.item,
        pod.uid = item.uid,
        peer,
        why = item.why,
        release = item.release,
        "Released by somebody's word"
    );
    let not_durable = durable.err().map(|cause| cause.to_string());
    if let Some(cause) = &not_durable {
        tracing::error!(
            item = item.item,
            cause,
            "A release is not on the disk yet: a restart would not know it"
        );
    }
    json_answer(&Approved { item, not_durable })
}

fn mismatch(overview: &Overview, uid: &str) -> Option<Mismatch> {
    let story = overview.terminating.iter().find(|story| story.uid == uid)?;
    story.mismatch.as_ref().map(|mismatch| mismatch.mismatch.clone())
}

async fn release_pod(pods: &PodsAdmin, uid: &str, mismatch: Mismatch) -> Option<Result<(), JournalError>> {
    let ends = pods.workers.release(uid.into(), mismatch).await?;
    if ends { Some(pods.journal.durable().await) } else { None }
}
