//! The status of the garbage collector, and its text form.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    collector::{
        leader_election::{LeaseView, ManagerView, View},
        names::escape_control_chars,
        report::WorkReport,
    },
    ops::{
        output::age_since,
        remedies::{RENEW_COLLECTORS, expiry},
    },
};

/// The status of this agent's collector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(Default, schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GcReport {
    /// It is active, and all kinds are synced.
    pub synced: bool,
    /// The leader election.
    pub election: View,
    /// When its credentials expire, if known.
    pub credentials_expire: Option<Timestamp>,
    /// Its state; `None` while it is on standby.
    pub work: Option<WorkReport>,
}

/// Formats the status. `is_wide`: with the resourceVersion of each kind.
pub fn text(report: &GcReport, is_wide: bool, now: Timestamp) -> String {
    let mut out = leader_election(&report.election, now);
    out.extend(report.credentials_expire.map(|end| credentials(end, now)));
    if let Some(work) = &report.work {
        out.push_str(&work.text(is_wide));
    }
    // Some lines contain owner references, which are untrusted.
    out.lines().map(|line| escape_control_chars(line) + "\n").collect()
}

fn credentials(end: Timestamp, now: Timestamp) -> String {
    let state =
        expiry(end, now, RENEW_COLLECTORS).unwrap_or_else(|| format!("the credentials are good until {end:.0}"));
    format!("           {state}\n")
}

fn leader_election(view: &View, now: Timestamp) -> String {
    let mut out = String::new();
    let state = match (&view.standby, view.active_since) {
        (Some(why), _) => format!("standby: {why}"),
        (None, Some(since)) => format!("active for {}", age_since(since, now)),
        (None, None) => "active".to_owned(),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "collector  {state}");
    let _ = writeln!(out, "identity   {} (--gc {})", view.identity, view.mode);
    if let Some(lease) = &view.lease {
        let _ = writeln!(out, "Lease      {}", lease_holder(view, lease, now));
    }
    // The reason may name it already.
    let is_shown = |error: &str| view.standby.as_ref().is_some_and(|why| why.contains(error));
    if let Some(error) = view.lease_error.as_ref().filter(|error| !is_shown(error)) {
        let _ = writeln!(out, "           {error}");
    }
    if let Some(ManagerView {
        holder, changed, error, ..
    }) = &view.controller_manager
    {
        let lease = match (holder, changed) {
            (None, _) => "no Lease of kube-controller-manager is held".to_owned(),
            (Some(holder), None) => format!("kube-controller-manager's Lease is {holder}'s, not seen to change yet"),
            (Some(holder), Some(changed)) => {
                let age = age_since(*changed, now);
                format!("kube-controller-manager's Lease is {holder}'s, renewed {age} ago")
            }
        };
        let _ = writeln!(out, "others     {lease}");
        if let Some(error) = error {
            let _ = writeln!(out, "           {error}");
        }
    }
    out
}

/// Formats the holder of the Lease. A holder that may have changed is marked as last seen.
fn lease_holder(view: &View, lease: &LeaseView, now: Timestamp) -> String {
    let is_known = view.holds_lease || (view.lease_error.is_none() && !lease.is_own);
    let holder = match &lease.holder {
        None => "no holder".to_owned(),
        Some(_) if lease.is_own => "held by this agent".to_owned(),
        Some(holder) => format!("held by {holder}"),
    };
    let ago = |at: Timestamp| format!("{} ago", age_since(at, now));
    if is_known {
        let since = lease.since.map(|since| format!(", since {} by its clock", ago(since)));
        return holder + &since.unwrap_or_default();
    }
    let seen = lease.seen.map(|seen| format!(", {}", ago(seen)));
    format!(
        "holder unknown; {holder} when it was last read{}",
        seen.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use testbed::schema::violations;
    use tokio::time::Instant;

    use super::*;
    use crate::collector::{
        Mode,
        core::Core,
        graph::{Observed, Reference},
        kinds::{Resource, Scope},
        sync_state::WatchedKind,
        why,
    };

    fn view(is_own: bool, holds_lease: bool, error: bool) -> View {
        let now = Timestamp::UNIX_EPOCH;
        View {
            identity: "one".to_owned(),
            mode: Mode::Always,
            active_since: None,
            standby: None,
            lease: Some(LeaseView {
                holder: Some(if is_own { "one" } else { "other" }.to_owned()),
                is_own,
                seen: Some(now),
                since: Some(now),
            }),
            holds_lease,
            lease_error: error.then(|| "GET /leases: connection refused".to_owned()),
            controller_manager: None,
        }
    }

    #[test]
    fn holder_of_the_lease_is_shown_as_last_seen_once_it_is_uncertain() {
        let now = Timestamp::from_second(40).unwrap();
        let lease_line = |view: View| leader_election(&view, now).lines().nth(2).unwrap().to_owned();
        let known = |holder: &str| format!("Lease      {holder}, since 40s ago by its clock");
        let unknown = |holder: &str| format!("Lease      holder unknown; {holder} when it was last read, 40s ago");
        for (view, expected) in [
            (view(true, true, false), known("held by this agent")),
            // No other agent takes it before this one has stopped by itself.
            (view(true, true, true), known("held by this agent")),
            (view(true, false, true), unknown("held by this agent")),
            (view(false, false, false), known("held by other")),
            (view(false, false, true), unknown("held by other")),
        ] {
            assert_eq!(lease_line(view), expected);
        }
    }

    #[test]
    fn expiry_of_the_credentials_is_shown_with_a_remedy_once_it_is_near() {
        let end: Timestamp = "2026-01-09T00:00:00Z".parse().unwrap();
        for (now, words, renew) in [
            ("2026-01-01T23:59:59Z", "are good until 2026-01-09T00:00:00Z", false),
            ("2026-01-02T00:00:01Z", "expire: 2026-01-09T00:00:00Z", true),
            ("2026-01-09T00:00:00Z", "have expired: 2026-01-09T00:00:00Z", true),
        ] {
            let now = now.parse().unwrap();
            let report = GcReport {
                synced: false,
                election: view(true, true, false),
                credentials_expire: Some(end),
                work: None,
            };
            let shown = text(&report, false, now);
            assert!(shown.contains(&format!("the credentials {words}")), "{now}: {shown}");
            assert_eq!(shown.contains("gc-kubeconfig.sh"), renew, "{now}: {shown}");
            let without_expiry = text(
                &GcReport {
                    credentials_expire: None,
                    ..report
                },
                false,
                now,
            );
            assert!(!without_expiry.contains("credentials"), "{without_expiry}");
        }
    }

    /// A collector state and a report in which no list is empty.
    fn complete_report() -> (Core, Value) {
        let mut core = Core::default();
        let now = Instant::now();
        let owner = |kind: &str, uid: &str| Reference {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            blocking: true,
        };
        let object = |uid: &str, owners: Vec<Reference>| Observed {
            uid: uid.to_owned(),
            name: uid.to_owned(),
            deleting: true,
            foreground: true,
            owners,
            ..Observed::default()
        };
        let pods = core.graph.kinds.id("", "Pod").unwrap();
        core.graph.observe(pods, &object("a", vec![owner("Nowhere", "x")]));
        core.graph.observe(pods, &object("b", vec![owner("Pod", "a")]));
        core.enqueue_items();
        let resource = Resource {
            version: "v1".to_owned(),
            plural: "pods".to_owned(),
            scope: Scope::Namespaced,
            short_names: Vec::new(),
        };
        let mut watched = WatchedKind::new("", resource, 1);
        watched.synced = true;
        core.sync_state.watched.insert(pods, watched);
        let item = core.queue.pop(now).unwrap();
        core.queue.add_rate_limited(item, "no", None, now);
        let refusal = crate::collector::queue::Refusal {
            step: "delete",
            code: 403,
            since: now,
        };
        core.queue.record_refusal(item, refusal);
        let mut election = view(true, true, true);
        election.controller_manager = Some(ManagerView::default());
        let report = GcReport {
            synced: true,
            election,
            credentials_expire: None,
            work: Some(WorkReport::new(&core, now)),
        };
        let value = serde_json::to_value(report).unwrap();
        for list in ["refused", "kinds", "oldest", "deletions", "kept"] {
            assert_ne!(value["work"][list], Value::Array(Vec::new()), "{list}");
        }
        (core, value)
    }

    #[tokio::test(start_paused = true)]
    async fn wide_status_has_the_resource_version_of_each_kind() {
        let (_, status) = complete_report();
        let report: GcReport = serde_json::from_value(status).unwrap();
        let [short, wide] = [false, true].map(|is_wide| text(&report, is_wide, Timestamp::UNIX_EPOCH));
        assert!(
            wide.contains("RESOURCE-VERSION") && !short.contains("RESOURCE-VERSION"),
            "{short}\n{wide}"
        );
        let row = wide.lines().find(|line| line.starts_with("pods/v1")).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells, ["pods/v1", "2", "-", "1", "synced"]);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_a_busy_collector_match_their_schemas() {
        let (core, status) = complete_report();
        let name = "b".parse().unwrap();
        let why = serde_json::to_value(why::explain(&core, &name, Instant::now()).unwrap()).unwrap();
        for (schema, answer) in [("gc-status", status), ("why", why)] {
            assert_eq!(violations(schema, &answer).unwrap(), Vec::<String>::new(), "{answer:#}");
        }
    }
}
