//! Histograms of durations.

use std::fmt;

use super::page::Page;
use crate::{
    api::{ApiClient, RequestLabels},
    histogram::{Buckets, REQUEST_BOUNDS, Snapshot, TEARDOWN_BOUNDS},
    model::trace::Step,
    node::cri::CallLabels,
    ops::admin::{Admin, PodsAdmin},
};

/// The histograms of one scrape.
#[derive(Debug, Default)]
pub struct Durations {
    /// Those about pods; `None` with `--mode never`.
    pub pods: Option<PodDurations>,
    /// Requests of both clients; `None` if the agent has none.
    pub api: Option<Snapshot<RequestLabels>>,
}

/// Histograms about pods.
#[derive(Debug, Default)]
pub struct PodDurations {
    /// Finished teardowns.
    pub teardowns: Snapshot,
    /// Their steps.
    pub steps: Snapshot<Step>,
    /// Durable writes of the journal.
    pub commits: Option<Buckets>,
    /// Calls to the container runtime.
    pub runtime: Snapshot<CallLabels>,
}

// === impl Durations ===

impl Durations {
    pub(super) fn collect(admin: &Admin) -> Self {
        let node = admin.pods.as_ref().map(|pods| {
            let client = pods.api.get();
            client.map(ApiClient::request_durations).unwrap_or_default()
        });
        let collector = admin.gc.as_ref().map(|gc| gc.client.request_durations());
        Self {
            pods: admin.pods.as_ref().map(PodDurations::collect),
            api: match (node, collector) {
                (Some(mut all), Some(collector)) => {
                    for (labels, buckets) in collector {
                        all.entry(labels)
                            .or_insert_with(|| Buckets::empty(REQUEST_BOUNDS))
                            .add(&buckets);
                    }
                    Some(all)
                }
                (node, collector) => node.or(collector),
            },
        }
    }

    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        if let Some(pods) = &self.pods {
            pods.write(page)?;
        }
        let Some(api) = &self.api else { return Ok(()) };
        page.histograms(
            "api_request_duration",
            "Duration of requests to the API server, by HTTP verb and status. A watch counts until its first answer.",
            api.iter()
                .map(|((verb, code), buckets)| ([("verb", (*verb).to_owned()), ("code", code.to_string())], buckets)),
        )
    }
}

// === impl PodDurations ===

impl PodDurations {
    fn collect(pods: &PodsAdmin) -> Self {
        Self {
            teardowns: pods.counters.teardown_durations(),
            steps: pods.counters.step_durations(),
            commits: Some(pods.journal.commit_durations()),
            runtime: pods.runtime_calls.snapshot(),
        }
    }

    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let empty = Buckets::empty(TEARDOWN_BOUNDS);
        page.histogram(
            "teardown_duration",
            "Duration of finished teardowns, from the start of the termination.",
            self.teardowns.get(&()).unwrap_or(&empty),
        )?;
        page.histograms(
            "teardown_step_duration",
            "Duration of the steps of finished teardowns. A step that was retried counts for each attempt.",
            self.steps
                .iter()
                .map(|(step, buckets)| ([("step", step.to_string())], buckets)),
        )?;
        let empty = Buckets::empty(REQUEST_BOUNDS);
        page.histogram(
            "journal_commit_duration",
            "Duration of durable writes of the journal. One write serves all pods that had changes.",
            self.commits.as_ref().unwrap_or(&empty),
        )?;
        page.histograms(
            "runtime_request_duration",
            "Duration of CRI calls to the container runtime, by method and gRPC status code.",
            self.runtime
                .iter()
                .map(|((method, code), buckets)| ([("method", *method), ("code", *code)], buckets)),
        )
    }
}
