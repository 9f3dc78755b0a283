//! What `gc status` says to people.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    cli::GcFlag,
    gc::{names::visible, report::WorkReport},
    standby::{CanaryView, LeaseView, ManagerView, View},
};

/// How the collector of this agent stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GcReport {
    /// It works, and every kind can be seen.
    pub synced: bool,
    /// Whose turn it is.
    pub turn: View,
    /// What it knows and has to do; nothing while it stands by.
    pub work: Option<WorkReport>,
}

/// For people.
pub fn text(report: &GcReport, now: Timestamp) -> String {
    let mut out = turn(&report.turn, now);
    if let Some(work) = &report.work {
        out.push_str(&work.text());
    }
    // Whoever may write an owner reference has a say in some of these lines.
    out.lines().map(|line| visible(line) + "\n").collect()
}

fn turn(turn: &View, now: Timestamp) -> String {
    let mut out = String::new();
    let mode = match turn.mode {
        GcFlag::Auto => "auto",
        GcFlag::Always => "always",
        GcFlag::Never => "never",
    };
    let dry_run = if turn.dry_run { ", dry run" } else { "" };
    let stands = match (&turn.stands_by, turn.works_since) {
        (Some(why), _) => format!("stands by: {why}"),
        (None, Some(since)) => format!("works since {} ago", ago(since, now)),
        (None, None) => "works".to_owned(),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "collector  {stands} ({}, --gc {mode}{dry_run})", turn.identity);
    if let Some(LeaseView {
        holder,
        is_own,
        stands_by,
        since,
    }) = &turn.lease
    {
        let whose = match holder {
            None => "nobody's".to_owned(),
            Some(_) if *is_own => "this agent's".to_owned(),
            Some(holder) => format!("{holder}'s"),
        };
        let since = since.map_or_else(String::new, |since| {
            format!(", since {} ago by its clock", ago(since, now))
        });
        let yields = if *stands_by {
            "; its holder stands by, and leaves it to an agent with --gc always"
        } else {
            ""
        };
        let _ = writeln!(out, "Lease      {whose}{since}{yields}");
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
    if let Some(CanaryView {
        survived,
        vanished,
        error,
        ..
    }) = &turn.canary
    {
        if let Some(vanished) = vanished {
            let _ = writeln!(
                out,
                "           another collector deleted the canary {} ago",
                ago(*vanished, now)
            );
        }
        if let Some(survived) = survived {
            let _ = writeln!(
                out,
                "           none deleted the canary until {} ago",
                ago(*survived, now)
            );
        }
        if let Some(error) = error {
            let _ = writeln!(out, "           {error}");
        }
    }
    out
}

fn ago(since: Timestamp, now: Timestamp) -> String {
    let seconds = u64::try_from(now.as_second() - since.as_second()).unwrap_or(0);
    humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string()
}
