//! Counts in words.

/// One thing, or several.
pub fn counted(count: u64, thing: &str) -> String {
    format!("{count} {}", plural(count, thing))
}

/// What so many of a thing are called.
pub fn plural(count: u64, thing: &str) -> String {
    format!("{thing}{}", if count == 1 { "" } else { "s" })
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
