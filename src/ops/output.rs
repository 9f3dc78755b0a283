//! Prints answers as JSON, YAML or tables.

use std::time::Duration;

use indexmap::IndexMap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_saphyr::DoubleQuoted;

use crate::{
    model::foreign::{self, ForeignText},
    words::age,
};

/// Columns between two columns of a table, as kubectl has them.
const GAP: usize = 3;

/// How an answer is printed.
#[derive(Debug, Clone, Copy)]
pub enum Output<F> {
    /// As JSON.
    Json,
    /// As YAML.
    Yaml,
    /// As text by this function.
    Text(F),
}

// === impl Output ===

impl<F> Output<F> {
    /// Whether it is text.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Formats a value of this program.
    ///
    /// # Errors
    /// When it cannot be serialized.
    pub fn format<T: Serialize + ?Sized>(&self, value: &T) -> Result<String, serde_json::Error>
    where
        F: Fn(&T) -> String,
    {
        match self {
            Self::Text(text) => Ok(text(value)),
            Self::Json => json(&serde_json::to_vec(value)?),
            Self::Yaml => yaml(&serde_json::to_vec(value)?),
        }
    }

    /// The same with a borrowed function.
    pub fn as_ref(&self) -> Output<&F> {
        match self {
            Self::Json => Output::Json,
            Self::Yaml => Output::Yaml,
            Self::Text(text) => Output::Text(text),
        }
    }
}

/// A JSON value whose objects keep their order.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Json {
    Object(IndexMap<String, Json>),
    Array(Vec<Json>),
    /// A string that needs double quotes in YAML: only they permit escapes.
    #[serde(skip_deserializing)]
    Quoted(DoubleQuoted<String>),
    Scalar(Value),
}

// === impl Json ===

impl Json {
    /// Quotes the strings with characters that terminals interpret.
    fn quote_unprintable(self) -> Self {
        match self {
            Self::Object(members) => Self::Object(
                members
                    .into_iter()
                    .map(|(name, value)| (name, value.quote_unprintable()))
                    .collect(),
            ),
            Self::Array(items) => Self::Array(items.into_iter().map(Self::quote_unprintable).collect()),
            Self::Scalar(Value::String(text)) if !foreign::is_printable(&text) => Self::Quoted(DoubleQuoted(text)),
            other => other,
        }
    }

    fn has_printable_names(&self) -> bool {
        match self {
            Self::Object(members) => members
                .iter()
                .all(|(name, value)| foreign::is_printable(name) && value.has_printable_names()),
            Self::Array(items) => items.iter().all(Self::has_printable_names),
            Self::Quoted(_) | Self::Scalar(_) => true,
        }
    }
}

/// Indents an answer. No type stands between: unknown fields stay.
///
/// # Errors
/// When it is no JSON.
pub fn json(answer: &[u8]) -> Result<String, serde_json::Error> {
    let value: Json = serde_json::from_slice(answer)?;
    Ok(foreign::escape_json(serde_json::to_string_pretty(&value)?))
}

/// Converts an answer to YAML.
///
/// # Errors
/// When it is no JSON.
pub fn yaml(answer: &[u8]) -> Result<String, serde_json::Error> {
    let value: Json = serde_json::from_slice(answer)?;
    if !value.has_printable_names() {
        // The library does not quote names. JSON is YAML, too.
        return json(answer);
    }
    let yaml = serde_saphyr::to_string(&value.quote_unprintable()).map_err(serde::ser::Error::custom)?;
    Ok(foreign::escape_quoted_yaml(yaml))
}

/// Formats rows below their header, each column as wide as its widest cell. Each row is one line, whatever its cells contain.
pub fn table<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let header = header.map(str::to_owned);
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| ForeignText::new(cell).into()))
        .collect();
    let lines = || [&header].into_iter().chain(&rows);
    let widths: [usize; N] = std::array::from_fn(|column| {
        let widths = lines().map(|line| line[column].chars().count());
        widths.max().unwrap_or_default()
    });
    let mut out = String::new();
    for line in lines() {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(widths) {
            text.extend([cell.as_str(), &" ".repeat(width + GAP - cell.chars().count())]);
        }
        out.extend([text.trim_end(), "\n"]);
    }
    out
}

/// Formats the time from `since` until `now`, in whole seconds of both; `0s` if it is in the future.
pub fn age_since(since: Timestamp, now: Timestamp) -> String {
    let seconds = u64::try_from(now.as_second() - since.as_second()).unwrap_or(0);
    age(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{"z":1,"a":{"unknown":[true,null,1.5,"x: y"],"b":""},"text":"begin\u001b[31m"}"#;

    #[test]
    fn answer_keeps_its_fields_and_their_order() {
        let json = json(ANSWER.as_bytes()).unwrap();
        let same: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(same, serde_json::from_str::<Value>(ANSWER).unwrap());
        assert!(
            json.starts_with("{\n  \"z\": 1,\n  \"a\": {\n    \"unknown\": ["),
            "{json}"
        );
        assert!(!json.contains('\u{1b}'), "{json}");
    }

    #[test]
    fn yaml_has_the_same_value_and_no_control_characters() {
        let yaml = yaml(ANSWER.as_bytes()).unwrap();
        let same: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(same, serde_json::from_str::<Value>(ANSWER).unwrap(), "{yaml}");
        assert!(yaml.starts_with("z: 1\na:\n"), "{yaml}");
        assert!(yaml.chars().all(|it| it == '\n' || !it.is_control()), "{yaml:?}");
    }

    #[test]
    fn yaml_with_characters_that_terminals_interpret_is_valid_and_has_the_same_value() {
        let text = "a: \u{1b}]0;t\u{7}\r\nfake: b\u{202e}\u{85}\u{2028}\u{9b}31m\u{e0041}\t\"\\'";
        for answer in [
            serde_json::json!({ "a": text, "b": [text, "plain", "two\nlines\n"] }),
            serde_json::json!({ text: text, "b": { text: 1 } }),
        ] {
            let yaml = yaml(&serde_json::to_vec(&answer).unwrap()).unwrap();
            assert_eq!(foreign::escape_lines(&yaml), yaml);
            assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), answer, "{yaml}");
        }
    }

    #[test]
    fn cell_cannot_forge_a_row_of_a_table() {
        let shown = table(["A", "B"], &[["x\ny   z".to_owned(), "\u{1b}[2J\r".to_owned()]]);
        assert_eq!(shown, "A          B\nx\\ny   z   \\u{1b}[2J\\r\n");
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let shown = table(
            ["NAME", "AGE", "STATE"],
            &[row(["web-0", "5s", "ü"]), row(["b", "12m", ""])],
        );
        assert_eq!(shown, "NAME    AGE   STATE\nweb-0   5s    ü\nb       12m\n");
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
