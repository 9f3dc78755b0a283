//! Answers with the terminations that were observed.

use std::{collections::BTreeSet, time::Duration};

use super::{
    respond::{Answer, bad_request, json_answer},
    state::PodsAdmin,
};
use crate::{journal::observations::MAX_AGE, model::pod::PodUid, ops::report::Report};

/// Path of the report. `?since=SECONDS` limits its time; at most, and without that, it is 30 days.
pub const REPORT: &str = "/v1/report";

/// The path that queries the report of this time.
pub fn request_path(since: Duration) -> String {
    format!("{REPORT}?since={}", since.as_secs())
}

pub(super) async fn answer(pods: &PodsAdmin, query: Option<&str>) -> Answer {
    let seconds = match query.map(|query| query.strip_prefix("since=").map(str::parse::<u32>)) {
        None => None,
        Some(Some(Ok(seconds))) => Some(i64::from(seconds)),
        Some(_) => return Err(bad_request("the query must be since=SECONDS")),
    };
    let now = pods.clock.wall.now();
    let seconds = seconds.unwrap_or(i64::MAX).min(MAX_AGE.as_secs());
    let since = now.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now);
    let observations = pods.journal.observations();
    let is_observing = pods.guard.only_observes;
    let comparing = match is_observing {
        true => pods.ask(|pods| pods.terminating_uids()).await.unwrap_or_default(),
        false => BTreeSet::new(),
    };
    let is_counted = |uid: &PodUid| observations.iter().any(|it| it.uid == uid.as_str());
    let comparing = comparing.iter().filter(|uid| !is_counted(uid)).count() as u64;
    json_answer(&Report {
        comparing,
        ..Report::new(observations, is_observing, since, now)
    })
}
