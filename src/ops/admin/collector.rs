//! Answers requests about the collector.

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

use super::respond::{Answer, Refused, json_answer, name, not_found};
use crate::{
    api::{MetadataClient, escape},
    collector::{
        core::Core, counts::Totals, graph::Graph, leader_election::LeaderElection, picture, report::WorkReport,
        shared::Shared, why,
    },
    counters::Counters,
    explanation::Explanation,
    object_name::ObjectName,
    ops::{gc_status::GcReport, status::CollectorReport},
};

/// Path of the graph, with or without `?of=` and a UID or a name.
pub const GRAPH: &str = "/v1/gc/graph";
/// Path of the collector's status.
pub const STATUS: &str = "/v1/gc/status";
const NO_COLLECTOR: &str = "this agent does not collect: it was started without --gc-kubeconfig, or with --gc never";

/// Answers requests about the collector.
#[derive(Clone)]
pub struct CollectorAdmin {
    /// The collector's API client.
    pub client: MetadataClient,
    /// The leader election.
    pub election: LeaderElection,
    /// State of the collector; `None` while it is on standby.
    pub current: watch::Sender<Option<Arc<Shared>>>,
    /// Totals of earlier terms as leader.
    pub earlier: watch::Sender<Totals>,
    /// Counters of its events.
    pub counters: Arc<Counters>,
}

// === impl CollectorAdmin ===

impl CollectorAdmin {
    /// Summary for `status`.
    pub(super) fn summary(&self) -> CollectorReport {
        let unsynced = self.query(|core, now| core.sync_state.unsynced_reason(now));
        CollectorReport {
            standby: self.election.view().standby,
            not_synced: unsynced.unwrap_or_else(|| Some("it starts".to_owned())),
        }
    }

    /// Its status.
    pub(in crate::ops) fn report(&self) -> GcReport {
        let work = self.query(WorkReport::new);
        GcReport {
            synced: work.as_ref().is_some_and(|work| work.synced),
            election: self.election.view(),
            credentials_expire: self.client.credentials_expiry(),
            work,
        }
    }

    /// Queries the present state; `None` while the collector is on standby.
    fn query<T>(&self, query: impl FnOnce(&Core, Instant) -> T) -> Option<T> {
        let current = self.current.borrow().clone();
        current.map(|shared| query(&shared.lock(), Instant::now()))
    }
}

/// The path that queries the graph around an object, or of all active objects.
pub fn graph_path(center: Option<&ObjectName>) -> String {
    center.map_or_else(
        || GRAPH.to_owned(),
        |name| format!("{GRAPH}?of={}", escape(&name.to_string())),
    )
}

/// Explains why an object still exists.
///
/// # Errors
/// When the collector does not know the object, is on standby or does not exist.
pub(super) fn why(gc: Option<&CollectorAdmin>, name: &ObjectName) -> Result<Explanation, Refused> {
    let gc = gc.ok_or_else(|| not_found(NO_COLLECTOR))?;
    let known = gc.query(|core, now| why::explain(core, name, now).map_err(not_found));
    known.unwrap_or_else(|| Err(unknown(gc)))
}

/// Answers with the collector's status.
pub(super) fn status(gc: Option<&CollectorAdmin>) -> Answer {
    json_answer(&gc.ok_or_else(|| not_found(NO_COLLECTOR))?.report())
}

/// Answers with the active objects of the graph, or those that the query selects.
pub(super) fn graph(gc: Option<&CollectorAdmin>, query: Option<&str>) -> Answer {
    let gc = gc.ok_or_else(|| not_found(NO_COLLECTOR))?;
    gc.query(|core, _| draw(&core.graph, query))
        .unwrap_or_else(|| Err(unknown(gc)))
}

/// The error while this collector is on standby. It names the active one.
fn unknown(gc: &CollectorAdmin) -> Refused {
    let view = gc.election.view();
    let why = view.standby.unwrap_or_else(|| "it starts".to_owned());
    let holder = view.lease.filter(|lease| !lease.is_own).and_then(|lease| lease.holder);
    let remedy = holder.map_or_else(String::new, |holder| {
        let node = holder.rsplit_once('_').map_or(&*holder, |(node, _)| node);
        format!("; {holder} holds the Lease: ask the agent of node {node}")
    });
    not_found(format!("the collector of this agent knows nothing: {why}{remedy}"))
}

fn draw(graph: &Graph, query: Option<&str>) -> Answer {
    if query.is_none() {
        return dot_answer(&picture::active(graph));
    }
    let uid = match name(query, "of", "object")? {
        ObjectName::Uid(uid) => uid,
        name => graph.uid(why::find(&name, graph).map_err(not_found)?),
    };
    let picture = picture::around(graph, &uid).ok_or_else(|| {
        not_found(format!(
            "the collector knows no owner and no dependent with UID {uid:?}; its graph lacks objects that are neither and are \
             not being deleted"
        ))
    });
    dot_answer(&picture?)
}

/// DOT as a list of lines: a client escapes line breaks in texts.
fn dot_answer(dot: &str) -> Answer {
    json_answer(&dot.lines().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::{collector::graph::Observed, ops::admin::respond::Refused};

    /// A graph of one object with this UID that is being deleted.
    fn graph_of(uid: &str) -> Graph {
        let mut graph = Graph::default();
        let kind = graph.kinds.id("", "Pod").unwrap();
        let object = Observed {
            uid: uid.to_owned(),
            deleting: true,
            ..Observed::default()
        };
        graph.observe(kind, &object);
        graph
    }

    async fn read(answer: Answer) -> (u16, String) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(Refused(code, why)) => return (code.as_u16(), why),
        };
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn query(graph: &Graph, path: &str) -> (u16, String) {
        let query = path.strip_prefix(GRAPH).unwrap().strip_prefix('?');
        read(draw(graph, query)).await
    }

    #[tokio::test]
    async fn uid_with_special_characters_is_transmitted_unchanged() {
        for uid in ["0b9a8230-aace-4480-91d0-db24e46eb609", "a b&uid=c%20?\"\n#é+"] {
            let graph = graph_of(uid);
            for path in [graph_path(Some(&ObjectName::Uid(uid.to_owned()))), graph_path(None)] {
                let (code, body) = query(&graph, &path).await;
                assert_eq!(code, 200, "{body}");
                let picture: Vec<String> = serde_json::from_str(&body).unwrap();
                assert!(picture.join("").contains("n0 [label="), "{uid}: {picture:?}");
            }
        }
    }

    #[tokio::test]
    async fn failed_graph_query_has_a_reason() {
        let graph = graph_of("a");
        let (code, body) = query(&graph, &format!("{GRAPH}?of=b")).await;
        assert!(code == 404 && body.contains("no dependent with UID"), "{code} {body}");
        let (code, body) = query(&graph, &format!("{GRAPH}?of=")).await;
        assert!(code == 400 && body.contains("must be a UID"), "{code} {body}");
        let (code, body) = read(super::graph(None, None)).await;
        assert!(code == 404 && body.contains("does not collect"), "{code} {body}");
    }
}
