//! The report of `check`: its table, its JSON, its last line and its exit code.

use std::{fmt::Write as _, path::Path};

use serde::Serialize;

use super::{
    item::{Group, Item},
    row::{Row, Verdict},
};
use crate::{DOCS_URL, INSTALLED_DOCS, model::foreign::ForeignText};

/// sysexits.h `EX_USAGE`.
const USAGE: u8 = 64;
/// sysexits.h `EX_UNAVAILABLE`.
const UNAVAILABLE: u8 = 69;
/// sysexits.h `EX_CONFIG`.
const CONFIGURATION: u8 = 78;

/// All rows, and what follows from them.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether the agent can work here.
    pub is_ready: bool,
    /// The exit code of `check`.
    pub exit_code: u8,
    /// Whether a repeated check cannot have another result.
    #[serde(skip)]
    pub(super) is_final: bool,
    /// The last line of the table.
    pub summary: String,
    /// The rows, sorted by group.
    pub checks: Vec<ReportRow>,
}

/// A row of the report.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReportRow {
    /// The row ID. It is stable. Several problems of one item have a row each.
    pub id: &'static str,
    /// The group of the item.
    pub group: Group,
    /// Name of the item.
    pub name: &'static str,
    /// The result.
    pub result: CheckResult,
    /// The observation.
    pub message: String,
    /// What the user should do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// Its section in the runbook.
    pub see: String,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    /// As it should be.
    Ok,
    /// Does not apply here; the message says why.
    Skipped,
    /// Works, but needs attention.
    Warning,
    /// Prevents the agent from working.
    Failed,
}

// === impl CheckResult ===

impl From<Verdict> for CheckResult {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Ok => Self::Ok,
            Verdict::Skipped => Self::Skipped,
            Verdict::Warning => Self::Warning,
            Verdict::Usage | Verdict::NotGiven | Verdict::Configuration | Verdict::Unreachable | Verdict::Failed => {
                Self::Failed
            }
        }
    }
}

impl CheckResult {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skip",
            Self::Warning => "WARN",
            Self::Failed => "FAIL",
        }
    }
}

// === impl Report ===

impl Report {
    /// Sorts the rows by group, and summarizes them.
    pub fn new(mut rows: Vec<Row>) -> Self {
        // Stable: rows of one group keep their order.
        rows.sort_by_key(|row| row.item.group);
        let exit_code = exit_code(&rows);
        Self {
            is_ready: exit_code == 0,
            is_final: exit_code == 0 || rows.iter().any(|row| row.verdict == Verdict::Usage),
            exit_code,
            summary: summary(&rows, exit_code),
            checks: rows.into_iter().map(ReportRow::from).collect(),
        }
    }

    /// The table. `wide` shows the row IDs, and a section of the runbook for every row.
    pub fn table(&self, wide: bool) -> String {
        let name = |row: &ReportRow| if wide { row.id } else { row.name };
        let width = self.checks.iter().map(|row| name(row).len()).max().unwrap_or(0);
        let (mut out, mut group) = (String::new(), None);
        // Writing to a String cannot fail.
        for row in &self.checks {
            if group.replace(row.group) != Some(row.group) {
                let _ = writeln!(out, "{}", row.group.heading());
            }
            let (word, name, message) = (row.result.word(), name(row), ForeignText::new(&row.message));
            let _ = writeln!(out, "  {word:4}  {name:width$}  {message}");
            if !row.remedy.is_empty() {
                let _ = writeln!(out, "        {:width$}  → {}", "", ForeignText::new(&row.remedy));
            }
            if wide || !matches!(row.result, CheckResult::Ok | CheckResult::Skipped) {
                let _ = writeln!(out, "        {:width$}  see: {}", "", row.see);
            }
        }
        let _ = writeln!(out, "\n{}", self.summary);
        out
    }

    /// Names of the failed items, without repetition.
    pub fn failed(&self) -> Vec<&'static str> {
        let failed = self.checks.iter().filter(|row| row.result == CheckResult::Failed);
        let mut names: Vec<_> = failed.map(|row| row.name).collect();
        names.dedup();
        names
    }
}

// === impl ReportRow ===

impl From<Row> for ReportRow {
    fn from(row: Row) -> Self {
        let Item { group, id, name } = row.item;
        Self {
            id,
            group,
            name,
            result: row.verdict.into(),
            message: row.seen,
            remedy: row.remedy,
            see: format!("{}/how-to/runbook.md#check-{id}", docs(Path::new(INSTALLED_DOCS))),
        }
    }
}

/// Where a user of this node finds the documentation.
fn docs(installed: &Path) -> &str {
    match installed.to_str() {
        Some(path) if installed.is_dir() => path,
        _ => DOCS_URL,
    }
}

/// The exit code of the most severe failure: usage, configuration, unreachable, other.
fn exit_code(rows: &[Row]) -> u8 {
    let any = |verdict| rows.iter().any(|row| row.verdict == verdict);
    if any(Verdict::Usage) {
        USAGE
    } else if any(Verdict::Configuration) || any(Verdict::NotGiven) {
        CONFIGURATION
    } else if any(Verdict::Unreachable) {
        UNAVAILABLE
    } else {
        u8::from(any(Verdict::Failed))
    }
}

fn summary(rows: &[Row], exit_code: u8) -> String {
    let meaning = match exit_code {
        0 => {
            let warnings = rows.iter().filter(|row| row.verdict == Verdict::Warning).count();
            let warnings = match warnings {
                0 => String::new(),
                1 => " (1 warning)".to_owned(),
                more => format!(" ({more} warnings)"),
            };
            return format!("ready: the agent can work here{warnings}");
        }
        USAGE => "the command line is wrong",
        CONFIGURATION if rows.iter().any(|row| row.verdict == Verdict::NotGiven) => {
            "a required setting is missing, and this node has no kubelet of which it can be read"
        }
        CONFIGURATION => "the configuration is wrong",
        UNAVAILABLE => "the API server or the runtime cannot be reached",
        _ => "see the failed checks",
    };
    let failed = rows.iter().filter(|row| row.verdict.is_failure()).count();
    let all = rows.iter().filter(|row| row.verdict != Verdict::Skipped).count();
    let checks = if all == 1 { "check" } else { "checks" };
    format!("not ready: {failed} of {all} {checks} failed; exit code {exit_code}: {meaning}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(verdicts: &[Verdict]) -> Vec<Row> {
        let row = |verdict: &Verdict| Row::new(Item::RUNTIME, *verdict, "", "");
        verdicts.iter().map(row).collect()
    }

    #[test]
    fn most_severe_failure_determines_the_exit_code() {
        let cases: [(&[Verdict], u8); 8] = [
            (&[], 0),
            (&[Verdict::Ok, Verdict::Warning, Verdict::Skipped], 0),
            (&[Verdict::Failed, Verdict::Ok], 1),
            (&[Verdict::Failed, Verdict::Unreachable], 69),
            (&[Verdict::Unreachable, Verdict::Configuration], 78),
            (&[Verdict::Failed, Verdict::Configuration], 78),
            (&[Verdict::Configuration, Verdict::Usage], 64),
            (&[Verdict::Unreachable, Verdict::NotGiven], 78),
        ];
        for (verdicts, code) in cases {
            let report = Report::new(rows(verdicts));
            assert_eq!((report.exit_code, report.is_ready), (code, code == 0), "{verdicts:?}");
        }
    }

    #[test]
    fn last_line_is_the_verdict_and_explains_the_exit_code() {
        let cases: [(&[Verdict], &str); 6] = [
            (&[Verdict::Ok], "ready: the agent can work here"),
            (
                &[Verdict::Ok, Verdict::Warning],
                "ready: the agent can work here (1 warning)",
            ),
            (
                &[Verdict::Ok, Verdict::Unreachable, Verdict::Failed, Verdict::Skipped],
                "not ready: 2 of 3 checks failed; exit code 69: the API server or the runtime cannot be reached",
            ),
            (
                &[Verdict::Usage],
                "not ready: 1 of 1 check failed; exit code 64: the command line is wrong",
            ),
            (
                &[Verdict::NotGiven],
                "not ready: 1 of 1 check failed; exit code 78: a required setting is missing, and this node has no kubelet of which it \
                 can be read",
            ),
            (
                &[Verdict::Failed, Verdict::Warning],
                "not ready: 1 of 2 checks failed; exit code 1: see the failed checks",
            ),
        ];
        for (verdicts, line) in cases {
            let table = Report::new(rows(verdicts)).table(false);
            assert_eq!(table.lines().last(), Some(line));
        }
    }

    fn two_groups() -> Report {
        Report::new(vec![
            Row::new(Item::NODE_IDENTITY, Verdict::Failed, "none", "do this"),
            Row::ok(Item::API_SERVER, "v1.36.3"),
            Row::skipped(Item::K3S, "other runtime"),
        ])
    }

    #[test]
    fn runbook_is_the_installed_one_if_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(docs(dir.path()), dir.path().to_str().unwrap());
        assert_eq!(docs(&dir.path().join("absent")), DOCS_URL);
    }

    #[test]
    fn rows_are_grouped_and_a_failure_shows_remedy_and_runbook_below() {
        let see = format!(
            "{}/how-to/runbook.md#check-node-identity",
            docs(Path::new(INSTALLED_DOCS))
        );
        let table = format!(
            "API server\n  ok    API server     v1.36.3\nNode\n  FAIL  node identity  none\n                       → do this\n                       \
             see: {see}\nKubelet\n  skip  k3s            other runtime\n\nnot ready: 1 of 2 checks failed; exit code 1: see the failed checks\n"
        );
        assert_eq!(two_groups().table(false), table);
    }

    #[test]
    fn wide_table_shows_ids_and_the_runbook_of_every_row() {
        let table = two_groups().table(true);
        assert_eq!(table.matches("see: ").count(), 3, "{table}");
        assert!(table.contains("  ok    api-server     v1.36.3"), "{table}");
    }

    #[test]
    fn json_has_a_stable_id_for_every_row() {
        let json = serde_json::to_value(two_groups()).unwrap();
        assert_eq!(json["isReady"], false);
        assert_eq!(json["exitCode"], 1);
        let see = format!("{}/how-to/runbook.md#check-api-server", docs(Path::new(INSTALLED_DOCS)));
        assert_eq!(
            json["checks"][0],
            serde_json::json!({
                "id": "api-server", "group": "api-server", "name": "API server", "result": "ok", "message": "v1.36.3", "see": see,
            })
        );
        assert_eq!(json["checks"][1]["remedy"], "do this");
    }
}
