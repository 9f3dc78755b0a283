//! Reads files of `EnvironmentFile=` (systemd: src/basic/env-file.c, systemd.exec(5)).

use std::{fs, io, iter::Peekable, path::Path, str::Chars};

/// The settings of the agent's service.
pub const OF_SERVICE: &str = "/etc/default/pod-teardown";

/// Reads the assignments of a file.
///
/// # Errors
/// When the file cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<(String, String)>> {
    fs::read_to_string(path).map(|text| parse(&text))
}

/// The assignments of a text. Lines without an assignment are ignored, as systemd does.
pub fn parse(text: &str) -> Vec<(String, String)> {
    let mut assignments = Vec::new();
    let mut rest = text.chars().peekable();
    while rest.peek().is_some() {
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        if matches!(rest.peek(), Some('#' | ';')) {
            skip_comment(&mut rest);
            continue;
        }
        let mut name = String::new();
        while let Some(c) = rest.next_if(|c| !matches!(c, '=' | '\n' | '\r')) {
            name.push(c);
        }
        if rest.next_if_eq(&'=').is_some() {
            let value = value(&mut rest);
            assignments.push((name.trim_end().to_owned(), value));
        }
    }
    assignments
}

/// A backslash at the end of a comment continues it.
fn skip_comment(rest: &mut Peekable<Chars<'_>>) {
    while let Some(c) = rest.next() {
        match c {
            '\\' => drop(rest.next()),
            '\n' | '\r' => return,
            _ => {}
        }
    }
}

/// The value up to the end of the line. Quotes are removed; unquoted whitespace at both ends, too.
fn value(rest: &mut Peekable<Chars<'_>>) -> String {
    while rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
    let mut value = String::new();
    // The length without unquoted whitespace at the end.
    let mut end = 0;
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\r' => break,
            '\'' => {
                value.extend(rest.by_ref().take_while(|c| *c != '\''));
                end = value.len();
            }
            '"' => {
                double_quoted(rest, &mut value);
                end = value.len();
            }
            '\\' => {
                // Before the end of a line it continues the line.
                value.extend(rest.next().filter(|c| !matches!(c, '\n' | '\r')));
                end = value.len();
            }
            c => {
                value.push(c);
                if !c.is_whitespace() {
                    end = value.len();
                }
            }
        }
    }
    value.truncate(end);
    value
}

fn double_quoted(rest: &mut Peekable<Chars<'_>>, value: &mut String) {
    while let Some(c) = rest.next() {
        match c {
            '"' => return,
            '\\' => match rest.next() {
                Some('\n') | None => {}
                Some(escaped @ ('"' | '\\' | '`' | '$')) => value.push(escaped),
                Some(other) => value.extend(['\\', other]),
            },
            c => value.push(c),
        }
    }
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
                "A='# no comment'\nB=\"x \\\"y\\\" \\$z\"\n",
                &[("A", "# no comment"), ("B", "x \"y\" $z")],
            ),
            ("A=one \\\ntwo\nB=\n", &[("A", "one two"), ("B", "")]),
            ("# continued \\\nA=1\nB=2", &[("B", "2")]),
            ("no assignment\nA=' x '\n", &[("A", " x ")]),
            ("A=\"\\d\"\n", &[("A", "\\d")]),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
