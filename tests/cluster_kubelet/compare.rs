//! Compares two outcomes field by field.

use std::collections::BTreeSet;

use crate::outcome::Fields;

/// Limit of a shown text, in characters.
const MAX_SHOWN: usize = 240;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Path of the field.
    pub field: String,
    /// The kubelet's value.
    pub kubelet: Option<String>,
    /// The agent's value.
    pub agent: Option<String>,
}

/// All differences, sorted by path.
pub fn differences(kubelet: &Fields, agent: &Fields) -> Vec<Difference> {
    let paths: BTreeSet<_> = kubelet.keys().chain(agent.keys()).collect();
    let differs = |path: &&String| kubelet.get(*path) != agent.get(*path);
    let difference = |path: &String| Difference {
        field: path.clone(),
        kubelet: kubelet.get(path).cloned(),
        agent: agent.get(path).cloned(),
    };
    let differences = paths.into_iter().filter(differs).map(difference);
    differences.filter(|it| !is_due_to_older_kubelet(it)).collect()
}

/// Kubelets before 1.37 give neither reason nor message for a sandbox that is not ready.
fn is_due_to_older_kubelet(difference: &Difference) -> bool {
    let field = difference.field.strip_prefix("conditions[PodReadyToStartContainers].");
    matches!(field, Some("reason" | "message")) && difference.kubelet.is_none()
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |side: &Option<String>| {
            side.as_ref()
                .map_or("nothing".to_owned(), |text| format!("{:?}", shortened(text)))
        };
        write!(f, "{}: {} / {}", self.field, side(&self.kubelet), side(&self.agent))
    }
}

/// Keeps the end of a long text, where truncated texts differ.
fn shortened(text: &str) -> String {
    let characters: Vec<_> = text.chars().collect();
    if characters.len() <= MAX_SHOWN {
        return text.to_owned();
    }
    let (head, tail) = (
        &characters[..MAX_SHOWN / 2],
        &characters[characters.len() - MAX_SHOWN / 2..],
    );
    let part = |part: &[char]| part.iter().collect::<String>();
    format!("{} … {} ({} bytes)", part(head), part(tail), text.len())
}
