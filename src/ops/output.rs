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

/// A column of a table.
pub struct Column<'a, T> {
    header: &'static str,
    /// Only `-o wide` shows it.
    is_wide: bool,
    cell: Box<dyn Fn(&T) -> String + 'a>,
}

/// A column that every table shows.
pub fn column<'a, T>(header: &'static str, cell: impl Fn(&T) -> String + 'a) -> Column<'a, T> {
    Column {
        header,
        is_wide: false,
        cell: Box::new(cell),
    }
}

/// A column that only `-o wide` shows.
pub fn wide_column<'a, T>(header: &'static str, cell: impl Fn(&T) -> String + 'a) -> Column<'a, T> {
    Column {
        is_wide: true,
        ..column(header, cell)
    }
}

/// Formats rows below their header, each column as wide as its widest cell. Each row is one line, whatever its cells contain.
pub fn table<T>(columns: &[Column<'_, T>], rows: &[T], is_wide: bool) -> String {
    let shown = columns.iter().filter(|column| is_wide || !column.is_wide);
    let mut lines = vec![String::new(); rows.len() + 1];
    for column in shown {
        let cells = rows.iter().map(|row| ForeignText::new(&(column.cell)(row)).into());
        let cells: Vec<String> = [column.header.to_owned()].into_iter().chain(cells).collect();
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
        let columns = [
            column("A", |_: &()| "x\ny   z".to_owned()),
            column("B", |_: &()| "\u{1b}[2J\r".to_owned()),
        ];
        let shown = table(&columns, &[()], false);
        assert_eq!(shown, "A          B\nx\\ny   z   \\u{1b}[2J\\r\n");
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        type Row = [&'static str; 4];
        let columns = [
            column("NAME", |row: &Row| row[0].to_owned()),
            wide_column("UID", |row: &Row| row[1].to_owned()),
            column("AGE", |row: &Row| row[2].to_owned()),
            column("STATE", |row: &Row| row[3].to_owned()),
        ];
        let rows = [["web-0", "1", "5s", "ü"], ["b", "2", "12m", ""]];
        assert_eq!(
            table(&columns, &rows, false),
            "NAME    AGE   STATE\nweb-0   5s    ü\nb       12m\n"
        );
        assert!(table(&columns, &rows, true).starts_with("NAME    UID   AGE   STATE\n"));
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
