//! Formats answers as JSON or tables.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    model::foreign::{self, ForeignText},
    words::age,
};

/// Columns between two columns of a table, as kubectl has them.
const GAP: usize = 3;

/// Formats a value of this program as JSON.
///
/// # Errors
/// When it cannot be serialized.
pub fn json(value: &(impl Serialize + ?Sized)) -> Result<String, serde_json::Error> {
    Ok(foreign::escape_json(serde_json::to_string_pretty(value)?))
}

/// A cell of a table.
pub struct Cell {
    header: &'static str,
    /// Only `-o wide` shows it.
    is_wide: bool,
    text: String,
}

/// A cell below this header, which every table shows.
#[expect(clippy::needless_pass_by_value, reason = "as to_string, it takes references, too")]
pub fn cell(header: &'static str, text: impl ToString) -> Cell {
    Cell {
        header,
        is_wide: false,
        text: text.to_string(),
    }
}

/// A cell that only `-o wide` shows.
pub fn wide_cell(header: &'static str, text: impl ToString) -> Cell {
    Cell {
        is_wide: true,
        ..cell(header, text)
    }
}

/// Formats rows below the headers of the first one, each column as wide as its widest cell. Each row is one line, whatever its
/// cells contain.
pub fn table<const N: usize>(rows: impl IntoIterator<Item = [Cell; N]>, is_wide: bool) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let mut lines = vec![String::new(); rows.len() + 1];
    for (column, head) in rows.iter().take(1).flatten().enumerate() {
        if head.is_wide && !is_wide {
            continue;
        }
        let cells = rows.iter().map(|row| ForeignText::new(&row[column].text).into());
        let cells: Vec<String> = [head.header.to_owned()].into_iter().chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or_default() + GAP;
        for (line, cell) in lines.iter_mut().zip(cells) {
            *line += &format!("{cell:width$}");
        }
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The end of a sentence: why a restart would lose this; empty if it would not.
pub(super) fn loss(what: &str, not_durable: Option<&String>) -> String {
    not_durable.map_or_else(String::new, |cause| {
        format!("; a restart of the agent would lose {what}: {cause}")
    })
}

/// Formats the time from `since` until `now`, in whole seconds of both; `0s` if it is in the future.
pub fn age_since(since: Timestamp, now: Timestamp) -> String {
    let seconds = u64::try_from(now.as_second() - since.as_second()).unwrap_or(0);
    age(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_cannot_forge_a_row_of_a_table() {
        let row = [cell("A", "x\ny   z"), cell("B", "\u{1b}[2J\r")];
        let shown = table([row], false);
        assert_eq!(shown, "A          B\nx\\ny   z   \\u{1b}[2J\\r\n");
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        let row = |[name, uid, age, state]: [&str; 4]| {
            [
                cell("NAME", name),
                wide_cell("UID", uid),
                cell("AGE", age),
                cell("STATE", state),
            ]
        };
        let rows = || [["web-0", "1", "5s", "ü"], ["b", "2", "12m", ""]].map(row);
        assert_eq!(
            table(rows(), false),
            "NAME    AGE   STATE\nweb-0   5s    ü\nb       12m\n"
        );
        assert!(table(rows(), true).starts_with("NAME    UID   AGE   STATE\n"));
    }

    #[test]
    fn ages_are_those_of_kubectl() {
        let shown = [0, 119, 120, 312, 600, 7_300, 10_800, 10_860, 40_000, 180_000, 700_000].map(Duration::from_secs);
        let expected = [
            "0s", "119s", "2m", "5m12s", "10m", "121m", "3h", "3h1m", "11h", "2d2h", "8d",
        ];
        assert_eq!(shown.map(age), expected);
    }
}
