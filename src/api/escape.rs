//! Names in paths.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What is plainly a name: all others are percent-encoded, since names come from the API and may be hostile.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b'.');

/// Percent-encodes whatever is not plainly a name.
pub fn escape(text: &str) -> String {
    match text {
        "." | ".." => text.replace('.', "%2E"),
        _ => Cow::from(utf8_percent_encode(text, PLAIN)).into_owned(),
    }
}
