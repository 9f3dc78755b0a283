//! Formats counts, lists and untrusted texts for output.

use std::{io, path::Path, time::Duration};

use nix::errno::Errno;

/// Names that a list shows at most.
const MAX_NAMES: usize = 3;

/// A count with its noun: `1 pod`, `2 pods`.
pub fn format_count(count: u64, thing: &str) -> String {
    format!("{count} {}", plural(count, thing))
}

/// The noun in singular or plural.
pub fn plural(count: u64, thing: &str) -> String {
    format!("{thing}{}", if count == 1 { "" } else { "s" })
}

/// The first three names, and the number of further ones.
pub fn some_of(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<String> = names.by_ref().take(MAX_NAMES).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The prefix of a container's or sandbox's ID that crictl shows.
pub fn short_id(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}

/// A path as one word of a shell command.
pub fn shell_quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:@%,=~".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.into_owned()
    } else {
        format!("'{}'", escape_control_chars(&text).replace('\'', r"'\''"))
    }
}

/// The commands that unmount these, in order.
pub fn unmount_commands<P: AsRef<Path>>(mounted: &[P]) -> String {
    let commands = mounted
        .iter()
        .map(|path| format!("umount {}", shell_quoted(path.as_ref())));
    commands.collect::<Vec<_>>().join(" && ")
}

/// Escapes control characters and line separators; quotes and backslashes stay.
pub fn escape_control_chars(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\'' | '\\' => out.push(letter),
            letter => out.extend(letter.escape_debug()),
        }
    }
    out
}

/// Escapes the text, and truncates it to `width` characters: an ellipsis replaces the middle.
pub fn truncate_middle(text: &str, width: usize) -> String {
    let letters: Vec<char> = escape_control_chars(text).chars().collect();
    let Some(over) = letters.len().checked_sub(width + 1) else {
        return letters.into_iter().collect();
    };
    let (head, tail) = (width / 2, width / 2 + over + 2);
    letters[..head].iter().chain(&['…']).chain(&letters[tail..]).collect()
}

/// Formats milliseconds, such as `1.5s`, `2m3s` or `1h5m`.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{}.{:01}s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{}m{}s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{}h{}m", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// The text of an I/O error without the number of its code.
pub fn io_error(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => Errno::from_raw(code).desc().to_lowercase(),
        None => without_error_codes(&error.to_string()),
    }
}

/// The text without the numbers that the standard library adds to errors of the system, such as ` (os error 2)`.
pub fn without_error_codes(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|digit: char| digit.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) if rest.len() + 1 < part.len() => plain += rest,
            _ => plain.extend([BEGIN, part]),
        }
    }
    plain
}

/// Formats a duration as kubectl does: `42s`, `5m12s`, `3h`, `2d`.
pub fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match (minutes, hours, days) {
        (0..2, ..) => format!("{seconds}s"),
        (2..10, ..) => two(minutes, "m", seconds % 60, "s"),
        (_, 0..3, _) => format!("{minutes}m"),
        (_, 3..8, _) => two(hours, "h", minutes % 60, "m"),
        (_, 8..48, _) => format!("{hours}h"),
        (.., 2..8) => two(days, "d", hours % 24, "h"),
        (.., days) => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_error_has_no_code() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(io_error(&error), "no such file or directory");
        assert_eq!(io_error(&io::Error::other("Unclear")), "Unclear");
        for (text, plain) in [
            ("lock x: No such file (os error 2)", "lock x: No such file"),
            ("a (os error 2), b (os error 111): c", "a, b: c"),
            ("no code (os error )", "no code (os error )"),
            ("no end (os error 2", "no end (os error 2"),
        ] {
            assert_eq!(without_error_codes(text), plain);
        }
    }

    #[test]
    fn noun_agrees_with_its_count() {
        assert_eq!(
            (format_count(1, "pod"), format_count(0, "pod")),
            ("1 pod".into(), "0 pods".into())
        );
    }
}
