//! Helpers for errors of files.

use std::{fmt, path::Path};

/// Whether the path provably does not exist.
pub(super) fn is_absent(path: &Path) -> bool {
    matches!(path.try_exists(), Ok(false))
}

/// The first line of an error. YAML errors quote the source in further lines.
pub(super) fn first_line(error: &dyn fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
