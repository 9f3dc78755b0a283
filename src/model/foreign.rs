//! Untrusted text: command lines, names, paths, and the messages of drivers, of the runtime and of the API server.
//!
//! A newline in it could forge a line of a log or of a message to systemd, and an escape sequence could control the reader's
//! terminal. It is escaped and truncated at the input, and escaped again at each output.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    ops::Deref,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::words::escape_control_chars;

/// Longest foreign text in bytes (`PATH_MAX`).
const LONGEST: usize = 4096;

/// Foreign text on one line. Control characters, line separators and marks that change the direction of text are escaped. A text
/// that is too long is cut in the middle. A `ForeignText` that is read again stays unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct ForeignText(String);

// === impl ForeignText ===

impl ForeignText {
    /// Escapes the text, and truncates it to 4096 bytes.
    pub fn new(text: &str) -> Self {
        Self::within(text, LONGEST)
    }

    /// The same for bytes that may not be UTF-8.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::new(&String::from_utf8_lossy(bytes))
    }

    /// Escapes the text, and truncates it to `limit` bytes, which must be at least 8.
    pub fn within(text: &str, limit: usize) -> Self {
        // Truncate first to avoid a copy of a huge text; escaping may make it longer again.
        Self(cut(&escape_control_chars(&cut(text, limit)), limit).into_owned())
    }
}

impl Deref for ForeignText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ForeignText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl From<ForeignText> for String {
    fn from(text: ForeignText) -> Self {
        text.0
    }
}

impl From<String> for ForeignText {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl From<&str> for ForeignText {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// Truncates the text to `limit` bytes: head and tail stay, the middle is replaced by an ellipsis.
pub fn cut(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let half = limit / 2;
    let head = &text[..text.floor_char_boundary(half - '…'.len_utf8())];
    let tail = &text[text.ceil_char_boundary(text.len() - half)..];
    Cow::Owned(format!("{head}…{tail}"))
}

/// Escapes each line of a text for a terminal. Newlines and tabs stay.
pub fn escape_lines(text: &str) -> String {
    let ends = ['\n', '\t'];
    let pieces = text.split_inclusive(ends).map(|piece| {
        let shown = piece.strip_suffix(ends).unwrap_or(piece);
        escape_control_chars(shown) + &piece[shown.len()..]
    });
    pieces.collect()
}

/// Escapes all strings in a JSON value, keys too.
pub fn escape_value(answer: Value) -> Value {
    match answer {
        Value::String(text) => Value::String(ForeignText::new(&text).into()),
        Value::Array(items) => items.into_iter().map(escape_value).collect(),
        Value::Object(members) => {
            let shown = members
                .into_iter()
                .map(|(name, value)| (ForeignText::new(&name).into(), escape_value(value)));
            Value::Object(shown.collect())
        }
        other => other,
    }
}

/// Escapes characters in JSON that JSON permits and terminals interpret. They occur only in its strings.
pub fn escape_json(json: String) -> String {
    let is_plain = |byte| byte == b'\n' || (b' '..=b'~').contains(&byte);
    if json.bytes().all(is_plain) {
        return json;
    }
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        let escaped = escape_control_chars(letter.encode_utf8(&mut [0; 4]));
        if letter == '\n' || escaped.chars().eq([letter]) {
            out.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(test)]
mod tests;
