//! Percent-encoding of names in paths.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that are not encoded. Names come from the API and may be hostile.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b'.');

/// Percent-encodes a path segment or query value.
pub fn escape(text: &str) -> String {
    match text {
        "." | ".." => text.replace('.', "%2E"),
        _ => Cow::from(utf8_percent_encode(text, PLAIN)).into_owned(),
    }
}
