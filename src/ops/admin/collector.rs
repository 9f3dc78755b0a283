//! Answers requests about the collector.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;
use tokio::{sync::watch, time::Instant};

use super::respond::{error, json_answer};
use crate::{
    api::{MetadataClient, escape},
    collector::{
        core::Core, counts::SharedTotals, graph::Graph, leader_election::LeaderElection, picture::Picture,
        report::WorkReport, shared::Shared, why,
    },
    counters::Counters,
    explanation::Explanation,
    object_name::ObjectName,
    ops::{gc_status::GcReport, status::CollectorReport},
};

/// Path of the graph, with or without `?uid=UID`.
pub const GRAPH: &str = "/v1/gc/graph";
/// Path of the collector's status.
pub const STATUS: &str = "/v1/gc/status";
const NO_COLLECTOR: &str = "this agent does not collect: it was started without --gc-kubeconfig, or with --gc never";

/// Answers requests about the collector.
pub struct CollectorAdmin {
    /// The collector's API client.
    pub client: MetadataClient,
    /// The leader election.
    pub election: LeaderElection,
    /// State of the collector; `None` while it is on standby.
    pub current: watch::Receiver<Option<Arc<Shared>>>,
    /// Totals of earlier terms as leader.
    pub earlier: SharedTotals,
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

    /// Queries the present state; `None` while the collector is on standby.
    pub(in crate::ops) fn query<T>(&self, query: impl FnOnce(&Core, Instant) -> T) -> Option<T> {
        let current = self.current.borrow().clone();
        current.map(|shared| query(&shared.lock(), Instant::now()))
    }
}

/// The path that queries the graph around an object, or of all active objects. A UID can be any text.
pub fn graph_path(center: Option<&ObjectName>) -> String {
    match center {
        Some(ObjectName::Uid(uid)) => format!("{GRAPH}?uid={}", escape(uid)),
        Some(name) => format!("{GRAPH}?of={}", escape(&name.to_string())),
        None => GRAPH.to_owned(),
    }
}

/// Answers a GET request; `None` if the path is not one of the collector's.
pub(super) fn answer(gc: Option<&CollectorAdmin>, path: &str, query: Option<&str>) -> Option<Response<Full<Bytes>>> {
    if ![GRAPH, STATUS].contains(&path) {
        return None;
    }
    let Some(gc) = gc else {
        return Some(error(StatusCode::NOT_FOUND, NO_COLLECTOR));
    };
    Some(match path {
        STATUS => status(gc),
        _ => gc
            .query(|core, _| draw(&core.graph, query))
            .unwrap_or_else(|| error(StatusCode::NOT_FOUND, &unknown(gc))),
    })
}

/// Explains why an object still exists.
///
/// # Errors
/// When the collector does not know the object, is on standby or does not exist.
pub(super) fn why(gc: Option<&CollectorAdmin>, name: &ObjectName) -> Result<Explanation, String> {
    let gc = gc.ok_or_else(|| NO_COLLECTOR.to_owned())?;
    let known = gc.query(|core, now| why::explain(core, name, now));
    known.unwrap_or_else(|| Err(unknown(gc)))
}

fn status(gc: &CollectorAdmin) -> Response<Full<Bytes>> {
    let work = gc.query(WorkReport::new);
    json_answer(&GcReport {
        synced: work.as_ref().is_some_and(|work| work.synced),
        election: gc.election.view(),
        credentials_expire: gc.client.credentials_expiry(),
        work,
    })
}

/// The error while this collector is on standby. It names the active one.
fn unknown(gc: &CollectorAdmin) -> String {
    let view = gc.election.view();
    let why = view.standby.unwrap_or_else(|| "it starts".to_owned());
    let holder = view.lease.filter(|lease| !lease.is_own).and_then(|lease| lease.holder);
    let remedy = holder.map_or_else(String::new, |holder| {
        let node = holder.rsplit_once('_').map_or(&*holder, |(node, _)| node);
        format!("; {holder} holds the Lease: ask the agent of node {node}")
    });
    format!("the collector of this agent knows nothing: {why}{remedy}")
}

fn draw(graph: &Graph, query: Option<&str>) -> Response<Full<Bytes>> {
    let Some((key, value)) = query.map(|query| query.split_once('=').unwrap_or((query, ""))) else {
        return json_answer(&Picture::from_active(graph));
    };
    let value = percent_decode_str(value).decode_utf8_lossy();
    let uid = match key {
        "uid" if !value.is_empty() => value,
        "of" => match value.parse().map_err(|syntax| format!("the object {syntax}")) {
            Err(why) => return error(StatusCode::BAD_REQUEST, &why),
            Ok(name) => match why::find(&name, graph) {
                Ok(id) => graph.uid(id).into(),
                Err(not_found) => return error(StatusCode::NOT_FOUND, &not_found),
            },
        },
        _ => {
            return error(
                StatusCode::BAD_REQUEST,
                "the query must be uid=UID or of=KIND[.GROUP]/[NAMESPACE/]NAME, or missing",
            );
        }
    };
    match Picture::around(graph, &uid) {
        Some(picture) => json_answer(&picture),
        None => error(
            StatusCode::NOT_FOUND,
            &format!(
                "the collector knows no owner and no dependent with UID {uid:?}; its graph lacks objects that are neither and are \
                 not being deleted"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::collector::graph::Observed;

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

    async fn read(answer: Response<Full<Bytes>>) -> (u16, String) {
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
                let picture: Picture = serde_json::from_str(&body).unwrap();
                assert_eq!(picture.objects[0].uid, uid);
            }
        }
    }

    #[tokio::test]
    async fn failed_graph_query_has_a_reason() {
        let graph = graph_of("a");
        let (code, body) = query(&graph, &format!("{GRAPH}?uid=b")).await;
        assert!(code == 404 && body.contains("no dependent with UID"), "{code} {body}");
        let (code, body) = query(&graph, &format!("{GRAPH}?uid=")).await;
        assert!(code == 400 && body.contains("must be uid=UID"), "{code} {body}");
        let (code, body) = read(answer(None, GRAPH, None).unwrap()).await;
        assert!(code == 404 && body.contains("does not collect"), "{code} {body}");
    }
}
