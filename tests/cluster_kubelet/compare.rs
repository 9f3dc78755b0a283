//! Two outcomes, field by field.

use std::collections::BTreeSet;

use crate::outcome::Fields;

/// Of a text, in characters.
const SHOWN: usize = 240;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Which.
    pub field: String,
    /// What the kubelet left there, if anything.
    pub kubelet: Option<String>,
    /// What the agent left there, if anything.
    pub agent: Option<String>,
}

/// All differences, in the order of their paths.
pub fn differences(kubelet: &Fields, agent: &Fields) -> Vec<Difference> {
    let paths: BTreeSet<_> = kubelet.keys().chain(agent.keys()).collect();
    let differs = |path: &&String| kubelet.get(*path) != agent.get(*path);
    let difference = |path: &String| Difference {
        field: path.clone(),
        kubelet: kubelet.get(path).cloned(),
        agent: agent.get(path).cloned(),
    };
    let differences = paths.into_iter().filter(differs).map(difference);
    differences.filter(|it| !is_of_older_kubelets(it)).collect()
}

/// Kubelets before 1.37 say of a sandbox that is not ready neither reason nor message.
fn is_of_older_kubelets(difference: &Difference) -> bool {
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

/// Long texts differ at their ends, where they were cut.
fn shortened(text: &str) -> String {
    let characters: Vec<_> = text.chars().collect();
    if characters.len() <= SHOWN {
        return text.to_owned();
    }
    let (head, tail) = (&characters[..SHOWN / 2], &characters[characters.len() - SHOWN / 2..]);
    let part = |part: &[char]| part.iter().collect::<String>();
    format!("{} … {} ({} bytes)", part(head), part(tail), text.len())
}
