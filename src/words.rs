//! Counts and lists in words.

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
