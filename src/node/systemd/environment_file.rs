//! Reads files of `EnvironmentFile=` (systemd: src/basic/env-file.c, systemd.exec(5)).

use std::{fs, io, path::Path};

/// The settings of the agent's service.
pub const OF_SERVICE: &str = "/etc/default/pod-teardown";

/// Reads the assignments of a file.
///
/// # Errors
/// When the file cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<(String, String)>> {
    fs::read_to_string(path).map(|text| parse(&text))
}

/// The assignments of a text, one a line, with or without quotes around the value. Other lines are ignored, as systemd does.
pub fn parse(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let assignments = lines.filter_map(|line| line.split_once('='));
    assignments
        .map(|(name, value)| (name.trim_end().to_owned(), unquoted(value.trim_start()).to_owned()))
        .collect()
}

fn unquoted(value: &str) -> &str {
    let inner = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_like_by_systemd() {
        for (text, expected) in [
            ("A=1\nB=two words  \n", &[("A", "1"), ("B", "two words")][..]),
            ("# A=1\n; B=2\n\n  C = 3\n", &[("C", "3")]),
            (
                "A='# no comment'\nB=\"x y\"\nC=\n",
                &[("A", "# no comment"), ("B", "x y"), ("C", "")],
            ),
            ("no assignment\nA=' x '\n", &[("A", " x ")]),
            ("A=b=c\n", &[("A", "b=c")]),
        ] {
            let parsed = parse(text);
            let parsed: Vec<_> = parsed.iter().map(|(name, value)| (&**name, &**value)).collect();
            assert_eq!(parsed, expected, "{text}");
        }
    }
}
