//! Colors of the verdicts in tables.

use std::io::IsTerminal;

use clap::builder::styling::{AnsiColor, Style};

const GOOD: Style = AnsiColor::Green.on_default();
const FAINT: Style = Style::new().dimmed();
const ATTENTION: Style = AnsiColor::Yellow.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
/// Label of the role in `status`. Its value is bold.
const ROLE: &str = "Role      ";
/// Starts of lines, and the styles of these words.
const VERDICTS: [(&str, Style); 12] = [
    ("  ok", GOOD),
    ("  skip", FAINT),
    ("  WARN", ATTENTION),
    ("  FAIL", BAD),
    ("BLOCKED", BAD),
    ("WAITS", ATTENTION),
    ("Blocked", BAD),
    ("Blocked:", BAD),
    ("Hold", BAD),
    ("Paused", ATTENTION),
    ("NOT SYNCED", BAD),
    ("REFUSED", BAD),
];

/// Whether colors may be printed to this stream: a terminal, unless `NO_COLOR` or `TERM=dumb` is set.
pub fn are_allowed(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Colors the verdicts of a table. Its control characters are escaped already.
pub fn paint(table: &str) -> String {
    table.split_inclusive('\n').map(paint_line).collect()
}

fn paint_line(line: &str) -> String {
    if let Some(value) = line.strip_prefix(ROLE) {
        let (word, rest) = value.split_at(value.find([' ', '\n']).unwrap_or(value.len()));
        let bold = Style::new().bold();
        return format!("{ROLE}{bold}{word}{bold:#}{rest}");
    }
    for (start, style) in VERDICTS {
        let is_word = |rest: &&str| rest.is_empty() || rest.starts_with([' ', '\n']);
        if let Some(rest) = line.strip_prefix(start).filter(is_word) {
            let word = start.trim_start();
            let indent = &start[..start.len() - word.len()];
            return format!("{indent}{style}{word}{style:#}{rest}");
        }
    }
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_verdicts_at_the_start_of_a_line_are_colored() {
        let table = "Role      standby (kubelet-alive)\nBlocked   why\n  FAIL  runtime  FAIL\nBLOCKEDS\nok\n  ok\n";
        let painted = "Role      \u{1b}[1mstandby\u{1b}[0m (kubelet-alive)\n\
            \u{1b}[1m\u{1b}[31mBlocked\u{1b}[0m   why\n\
            \x20 \u{1b}[1m\u{1b}[31mFAIL\u{1b}[0m  runtime  FAIL\nBLOCKEDS\nok\n\
            \x20 \u{1b}[32mok\u{1b}[0m\n";
        assert_eq!(paint(table), painted);
    }
}
