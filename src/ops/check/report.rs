//! The report of `check`: its table, its last line and its exit code.

use std::fmt::Write as _;

use serde::Serialize;

use super::row::{CONFIGURATION, Row, UNAVAILABLE, USAGE, Verdict, most_severe};
use crate::{model::foreign::ForeignText, words::format_count};

/// All rows, and what follows from them.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether the agent can work here.
    pub is_ready: bool,
    /// The exit code of `check`.
    pub exit_code: u8,
    /// The last line of the table.
    pub summary: String,
    /// The rows, sorted by group.
    pub checks: Vec<Row>,
}

// === impl Report ===

impl Report {
    /// Sorts the rows by group, and summarizes them.
    pub fn new(mut rows: Vec<Row>) -> Self {
        // Stable: rows of one group keep their order.
        rows.sort_by_key(|row| row.group);
        let failures: Vec<u8> = rows.iter().filter_map(Row::exit_code).collect();
        let exit_code = most_severe(&failures);
        Self {
            is_ready: exit_code == 0,
            exit_code,
            summary: summary(&rows, exit_code),
            checks: rows,
        }
    }

    /// The table. `wide` shows the row IDs, and a section of the runbook for every row.
    pub fn table(&self, wide: bool) -> String {
        let name = |row: &Row| if wide { row.id } else { row.name };
        let width = self.checks.iter().map(|row| name(row).len()).max().unwrap_or(0);
        let (mut out, mut group) = (String::new(), None);
        // Writing to a String cannot fail.
        for row in &self.checks {
            if group.replace(row.group) != Some(row.group) {
                let _ = writeln!(out, "{}", row.group.heading());
            }
            let (name, message) = (name(row), ForeignText::new(&row.message));
            let word = match row.verdict {
                Verdict::Ok => "ok",
                Verdict::Skipped => "skip",
                Verdict::Warning => "WARN",
                Verdict::Failed(_) => "FAIL",
            };
            let _ = writeln!(out, "  {word:4}  {name:width$}  {message}");
            if !row.remedy.is_empty() {
                let _ = writeln!(out, "        {:width$}  → {}", "", ForeignText::new(&row.remedy));
            }
            if wide || !matches!(row.verdict, Verdict::Ok | Verdict::Skipped) {
                let _ = writeln!(out, "        {:width$}  see: {}", "", row.see);
            }
        }
        let _ = writeln!(out, "\n{}", self.summary);
        out
    }
}

fn summary(rows: &[Row], exit_code: u8) -> String {
    let meaning = match exit_code {
        0 => {
            let warnings = rows.iter().filter(|row| row.verdict == Verdict::Warning).count();
            let warnings = match warnings {
                0 => String::new(),
                count => format!(" ({})", format_count(count as u64, "warning")),
            };
            return format!("ready: the agent can work here{warnings}");
        }
        USAGE => "the command line is wrong",
        CONFIGURATION => "the configuration is wrong",
        UNAVAILABLE => "the API server or the runtime cannot be reached",
        _ => "see the failed checks",
    };
    let failed = rows.iter().filter_map(Row::exit_code).count();
    let all = rows.iter().filter(|row| row.verdict != Verdict::Skipped).count();
    let all = format_count(all as u64, "check");
    format!("not ready: {failed} of {all} failed; exit code {exit_code}: {meaning}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        DOCS_URL, INSTALLED_DOCS,
        ops::check::{
            item::Item,
            row::{FAILURE, docs},
        },
    };

    fn rows(verdicts: &[Verdict]) -> Vec<Row> {
        let row = |verdict: &Verdict| Row::new(Item::RUNTIME, *verdict, "", "");
        verdicts.iter().map(row).collect()
    }

    #[test]
    fn most_severe_failure_determines_the_exit_code_and_the_last_line_explains_it() {
        let cases: [(&[Verdict], u8, &str); 8] = [
            (&[Verdict::Ok, Verdict::Skipped], 0, "ready: the agent can work here"),
            (&[Verdict::Ok, Verdict::Warning], 0, "(1 warning)"),
            (
                &[Verdict::Failed(FAILURE), Verdict::Warning],
                1,
                "1 of 2 checks failed; exit code 1: see",
            ),
            (
                &[Verdict::Failed(FAILURE), Verdict::Failed(UNAVAILABLE)],
                69,
                "the API server or the runtime",
            ),
            (
                &[Verdict::Failed(UNAVAILABLE), Verdict::Failed(CONFIGURATION)],
                78,
                "the configuration is wrong",
            ),
            (
                &[Verdict::Failed(FAILURE), Verdict::Failed(CONFIGURATION)],
                78,
                "2 of 2 checks failed",
            ),
            (
                &[Verdict::Failed(CONFIGURATION), Verdict::Failed(USAGE)],
                64,
                "the command line is wrong",
            ),
            (
                &[Verdict::Failed(USAGE)],
                64,
                "not ready: 1 of 1 check failed; exit code 64",
            ),
        ];
        for (verdicts, code, words) in cases {
            let report = Report::new(rows(verdicts));
            assert_eq!((report.exit_code, report.is_ready), (code, code == 0), "{verdicts:?}");
            let table = report.table(false);
            let last = table.lines().last().unwrap();
            assert!(last.contains(words), "{verdicts:?}: {last}");
        }
    }

    fn two_groups() -> Report {
        Report::new(vec![
            Row::new(Item::NODE_IDENTITY, Verdict::Failed(FAILURE), "none", "do this"),
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
}
