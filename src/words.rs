//! Counts, lists and others' texts, in words that can be shown.

/// As many of several names are told.
const NAMED: usize = 3;

/// One thing, or several.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {}", plural(count, thing))
}

/// What so many of a thing are called.
pub fn plural(count: u64, thing: &str) -> String {
    format!("{thing}{}", if count == 1 { "" } else { "s" })
}

/// The first of several names, and how many more there are.
pub fn some_of(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<String> = names.by_ref().take(NAMED).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Only what has a shape and stays in its line.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\'' | '\\' => out.push(letter),
            letter => out.extend(letter.escape_debug()),
        }
    }
    out
}

/// Its middle left out where it is longer than so many letters: names tell most at their ends.
pub fn shortened(text: &str, width: usize) -> String {
    let letters: Vec<char> = visible(text).chars().collect();
    let Some(over) = letters.len().checked_sub(width + 1) else {
        return letters.into_iter().collect();
    };
    let (head, tail) = (width / 2, width / 2 + over + 2);
    letters[..head].iter().chain(&['…']).chain(&letters[tail..]).collect()
}

/// As a text or an attribute of XML.
pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// Milliseconds as people read them.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{}.{:01} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_not_several() {
        assert_eq!(
            (counted(1, "pod"), counted(0, "pod")),
            ("1 pod".into(), "0 pods".into())
        );
    }
}
