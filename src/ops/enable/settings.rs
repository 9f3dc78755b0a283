//! Changes one variable in the text of an environment file.

use crate::node::systemd::environment_file::parse;

/// An edited file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    /// The new text.
    pub text: String,
    /// The value before, if there was one.
    pub before: Option<String>,
}

/// Sets a variable. Comments, other variables and their order stay. `None` if that cannot be done by changing one line: an
/// assignment may continue on the next one.
pub fn set(text: &str, name: &str, value: &str) -> Option<Edited> {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_assignment = |line: &&str| {
        let rest = line.trim_start().strip_prefix(name);
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let is_example = |line: &&str| line.trim_start_matches(['#', ' ']).starts_with(&format!("{name}="));
    let new = format!("{name}={value}\n");
    if let Some(at) = lines.iter().rposition(is_assignment) {
        // Of several assignments, the last one counts. The whole value must be on this line.
        let on_line = parse(lines[at]).pop().map(|(_, value)| value);
        if on_line != current(text, name) {
            return None;
        }
        lines[at] = &new;
    } else {
        let at = lines.iter().rposition(is_example).map_or(lines.len(), |at| at + 1);
        lines.insert(at, &new);
        if at > 0 && !lines[at - 1].ends_with('\n') {
            lines.insert(at, "\n");
        }
    }
    let edited = lines.concat();
    let others = |text: &str| -> Vec<_> { parse(text).into_iter().filter(|(other, _)| other != name).collect() };
    (others(&edited) == others(text) && current(&edited, name).as_deref() == Some(value)).then(|| Edited {
        before: current(text, name),
        text: edited,
    })
}

/// The value that counts.
fn current(text: &str, name: &str) -> Option<String> {
    parse(text)
        .into_iter()
        .rfind(|(other, _)| other == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_line_of_the_variable_changes() {
        for (before, after, value) in [
            ("# a\nP=observe\nQ=1\n", "# a\nP=auto\nQ=1\n", Some("observe")),
            ("P=never\nQ=1\nP=observe", "P=never\nQ=1\nP=auto\n", Some("observe")),
            (
                "# P is what\n#P=auto\n\n#Q=2\n",
                "# P is what\n#P=auto\nP=auto\n\n#Q=2\n",
                None,
            ),
            ("Q=1", "Q=1\nP=auto\n", None),
            ("", "P=auto\n", None),
            ("PQ=1\n", "PQ=1\nP=auto\n", None),
            ("  P = 'observe'  \r\n", "P=auto\n", Some("observe")),
        ] {
            let edited = set(before, "P", "auto").unwrap();
            assert_eq!((&*edited.text, edited.before.as_deref()), (after, value), "{before}");
            let again = set(&edited.text, "P", "auto").unwrap();
            assert_eq!(again.text, edited.text, "{before}");
        }
    }

    #[test]
    fn assignment_of_several_lines_is_refused() {
        for text in ["P=obs\\\nerve\nQ=1\n", "Q=\"1\nP=observe\n\"\n", "Q=1\\\nP=observe\n"] {
            assert_eq!(set(text, "P", "auto"), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn other_variables_never_change(text in "([PQ#= \"'\\\\\n]|auto)*") {
            if let Some(edited) = set(&text, "P", "auto") {
                let others = |text: &str| -> Vec<_> { parse(text).into_iter().filter(|it| it.0 != "P").collect() };
                prop_assert_eq!(others(&edited.text), others(&text));
            }
        }
    }
}
