//! What `gc status` says to people.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    api::expiry::expires_soon,
    collector::{
        Mode,
        leader_election::{LeaseView, ManagerView, View},
        names::visible,
        report::WorkReport,
    },
    ops::check::RENEW_COLLECTORS,
};

/// How the collector of this agent stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GcReport {
    /// It works, and every kind can be seen.
    pub synced: bool,
    /// Whose turn it is.
    pub turn: View,
    /// When its credentials end, where they tell.
    pub credentials_end: Option<Timestamp>,
    /// What it knows and has to do; nothing while it stands by.
    pub work: Option<WorkReport>,
}

/// For people.
pub fn text(report: &GcReport, now: Timestamp) -> String {
    let mut out = turn(&report.turn, now);
    out.extend(report.credentials_end.map(|end| credentials(end, now)));
    if let Some(work) = &report.work {
        out.push_str(&work.text());
    }
    // Whoever may write an owner reference has a say in some of these lines.
    out.lines().map(|line| visible(line) + "\n").collect()
}

fn credentials(end: Timestamp, now: Timestamp) -> String {
    if end <= now {
        format!("           the credentials have expired: {end:.0}; {RENEW_COLLECTORS}\n")
    } else if expires_soon(end, now) {
        format!("           the credentials expire: {end:.0}; {RENEW_COLLECTORS}\n")
    } else {
        format!("           the credentials are good until {end:.0}\n")
    }
}

fn turn(turn: &View, now: Timestamp) -> String {
    let mut out = String::new();
    let mode = match turn.mode {
        Mode::Auto => "auto",
        Mode::Always => "always",
        Mode::Never => "never",
    };
    let dry_run = if turn.dry_run { ", dry run" } else { "" };
    let stands = match (&turn.stands_by, turn.works_since) {
        (Some(why), _) => format!("stands by: {why}"),
        (None, Some(since)) => format!("works since {} ago", ago(since, now)),
        (None, None) => "works".to_owned(),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "collector  {stands} ({}, --gc {mode}{dry_run})", turn.identity);
    if let Some(lease) = &turn.lease {
        let _ = writeln!(out, "Lease      {}", whose(turn, lease, now));
    }
    if let Some(error) = &turn.lease_error {
        let _ = writeln!(out, "           {error}");
    }
    if let Some(ManagerView {
        holder, changed, error, ..
    }) = &turn.controller_manager
    {
        let lease = match (holder, changed) {
            (None, _) => "no Lease of kube-controller-manager is held".to_owned(),
            (Some(holder), None) => format!("kube-controller-manager's Lease is {holder}'s, not seen to change yet"),
            (Some(holder), Some(changed)) => {
                format!(
                    "kube-controller-manager's Lease is {holder}'s, renewed {} ago",
                    ago(*changed, now)
                )
            }
        };
        let _ = writeln!(out, "others     {lease}");
        if let Some(error) = error {
            let _ = writeln!(out, "           {error}");
        }
    }
    out
}

/// What was seen last is told as such where it may be otherwise by now.
fn whose(turn: &View, lease: &LeaseView, now: Timestamp) -> String {
    let LeaseView {
        holder,
        is_own,
        seen,
        stands_by,
        since,
    } = lease;
    let is_known = turn.holds_lease || (turn.lease_error.is_none() && !is_own);
    let whose = match holder {
        None => "nobody's".to_owned(),
        Some(_) if *is_own => "this agent's".to_owned(),
        Some(holder) => format!("{holder}'s"),
    };
    if !is_known {
        let seen = seen.map_or_else(String::new, |seen| format!(", {} ago", ago(seen, now)));
        return format!("unknown whose it is now; {whose} when it was last seen{seen}");
    }
    let since = since.map_or_else(String::new, |since| {
        format!(", since {} ago by its clock", ago(since, now))
    });
    let yields = if *stands_by {
        "; its holder stands by, and leaves it to an agent with --gc always"
    } else {
        ""
    };
    format!("{whose}{since}{yields}")
}

fn ago(since: Timestamp, now: Timestamp) -> String {
    let seconds = u64::try_from(now.as_second() - since.as_second()).unwrap_or(0);
    humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        api::ApiError,
        collector::{
            Unsynced,
            core::Core,
            graph::{Observed, Reference},
            kinds::{Resource, Scope},
            picture::Picture,
            sync_state::WatchedKind,
            why,
        },
    };

    fn view(is_own: bool, holds_lease: bool, error: bool) -> View {
        let now = Timestamp::UNIX_EPOCH;
        View {
            identity: "one".to_owned(),
            mode: Mode::Always,
            dry_run: false,
            works_since: None,
            stands_by: None,
            lease: Some(LeaseView {
                holder: Some(if is_own { "one" } else { "other" }.to_owned()),
                is_own,
                seen: Some(now),
                stands_by: false,
                since: Some(now),
            }),
            holds_lease,
            lease_error: error.then(|| "GET /leases: connection refused".to_owned()),
            controller_manager: None,
        }
    }

    #[test]
    fn whose_the_lease_is_is_told_only_as_long_as_it_is_known() {
        let now = Timestamp::from_second(40).unwrap();
        let said = |view: View| turn(&view, now).lines().nth(1).unwrap().to_owned();
        let known = |whose: &str| format!("Lease      {whose}, since 40s ago by its clock");
        let unknown =
            |whose: &str| format!("Lease      unknown whose it is now; {whose} when it was last seen, 40s ago");
        for (view, expected) in [
            (view(true, true, false), known("this agent's")),
            // Nobody takes it before this agent has stopped by itself.
            (view(true, true, true), known("this agent's")),
            (view(true, false, true), unknown("this agent's")),
            (view(false, false, false), known("other's")),
            (view(false, false, true), unknown("other's")),
        ] {
            assert_eq!(said(view), expected);
        }
    }

    #[test]
    fn the_end_of_the_credentials_is_told_with_what_to_do_once_it_is_near() {
        let end: Timestamp = "2026-01-09T00:00:00Z".parse().unwrap();
        for (now, words, renew) in [
            ("2026-01-01T23:59:59Z", "are good until 2026-01-09T00:00:00Z", false),
            ("2026-01-02T00:00:01Z", "expire: 2026-01-09T00:00:00Z", true),
            ("2026-01-09T00:00:00Z", "have expired: 2026-01-09T00:00:00Z", true),
        ] {
            let now = now.parse().unwrap();
            let report = GcReport {
                synced: false,
                turn: view(true, true, false),
                credentials_end: Some(end),
                work: None,
            };
            let told = text(&report, now);
            assert!(told.contains(&format!("the credentials {words}")), "{now}: {told}");
            assert_eq!(told.contains("gc-kubeconfig.sh"), renew, "{now}: {told}");
            let untold = text(
                &GcReport {
                    credentials_end: None,
                    ..report
                },
                now,
            );
            assert!(!untold.contains("credentials"), "{untold}");
        }
    }

    /// Names of all fields in it.
    fn fields(value: &Value, all: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    all.insert(name.clone());
                    fields(value, all);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| fields(item, all)),
            _ => {}
        }
    }

    /// Of everything that is told, one.
    fn one_of_each() -> (Core, Value) {
        let mut core = Core::new(Unsynced::Hold);
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
        let watched = WatchedKind {
            group: String::new(),
            resource: Resource {
                version: "v1".to_owned(),
                plural: "pods".to_owned(),
                scope: Scope::Namespaced,
            },
            started: now,
            synced: true,
            progress: 1,
            last_event: None,
            failure: None,
        };
        core.sync_state.watched.insert(pods, watched);
        let error = ApiError::refused("DELETE", "/x", 403, None, b"no");
        core.refusals.record("delete", "pods".to_owned(), &error, now);
        let mut turn = view(true, true, true);
        turn.controller_manager = Some(ManagerView::default());
        let report = GcReport {
            synced: true,
            turn,
            credentials_end: None,
            work: Some(WorkReport::of(&core, now)),
        };
        let value = serde_json::to_value(report).unwrap();
        for list in ["refused", "kinds", "oldest", "deletions", "kept"] {
            assert_ne!(value["work"][list], Value::Array(Vec::new()), "{list}");
        }
        (core, value)
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_is_told_in_json_is_documented() {
        let docs = concat!(
            include_str!("../../docs/garbage-collector.md"),
            include_str!("../../docs/status-json.md")
        );
        let (core, status) = one_of_each();
        let picture = serde_json::to_value(Picture::around(&core.graph, "a")).unwrap();
        let name = "b".parse().unwrap();
        let why = serde_json::to_value(why::explain(&core, &name, Instant::now()).unwrap()).unwrap();
        let mut all = BTreeSet::new();
        for value in [&status, &picture, &why] {
            fields(value, &mut all);
        }
        assert!(all.contains("holdsUp") && all.contains("says"), "{all:?}");
        all.retain(|name| !docs.contains(&format!("`{name}`")));
        assert_eq!(all, BTreeSet::new());
    }
}
