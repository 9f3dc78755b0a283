//! The verdict about one termination. Pure.

use k8s_openapi::api::core::v1::PodStatus;

use super::{fields::differences, leftovers::Left};
use crate::model::observation::{Difference, Leftover, Verdict};

/// What was seen of one termination.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// The kubelet's last status and the agent's. `None` if none was due: the object was deleted without a graceful deletion.
    pub statuses: Option<Statuses>,
    /// Why the statuses cannot be compared.
    pub unseen: Option<String>,
    /// Why the agent would have waited for an approval.
    pub holds: Vec<String>,
    /// What was left on the node when the kubelet's time was over.
    pub left: Left,
}

/// The two statuses.
#[derive(Debug, Clone, Default)]
pub(super) struct Statuses {
    pub kubelet: PodStatus,
    pub agent: PodStatus,
}

/// The verdict with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judgment {
    pub verdict: Verdict,
    pub differences: Vec<Difference>,
    pub leftovers: Vec<Leftover>,
    pub reason: Option<String>,
}

/// Judges. A leftover is a fact, whatever else is unknown. Then, what was not seen makes the verdict unknown.
pub(super) fn judge(facts: Facts) -> Judgment {
    let holds = facts.holds.into_iter().map(|why| Difference {
        field: "hold".to_owned(),
        kubelet: Some("terminated the pod".to_owned()),
        agent: Some(why),
        documented: None,
    });
    let statuses = facts.statuses.as_ref().filter(|_| facts.unseen.is_none());
    let fields = statuses.map(|it| differences(&it.kubelet, &it.agent));
    let differences: Vec<_> = holds.chain(fields.into_iter().flatten()).collect();
    let unread = facts.left.unknown.first();
    let unread = unread.map(|what| format!("whether anything is left on the node: could not read {what}"));
    let reason = facts.unseen.or(unread);
    let verdict = if !facts.left.leftovers.is_empty() {
        Verdict::Leftovers
    } else if reason.is_some() {
        Verdict::Unknown
    } else if !differences.is_empty() {
        Verdict::Different
    } else {
        Verdict::Same
    };
    Judgment {
        verdict,
        differences,
        leftovers: facts.left.leftovers,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::observation::LeftoverKind;

    fn phases(kubelet: &str, agent: &str) -> Option<Statuses> {
        let status = |phase: &str| PodStatus {
            phase: Some(phase.to_owned()),
            ..PodStatus::default()
        };
        Some(Statuses {
            kubelet: status(kubelet),
            agent: status(agent),
        })
    }

    #[test]
    fn leftovers_count_before_unknown_and_unknown_before_differences() {
        let mount = Leftover {
            kind: LeftoverKind::Mount,
            object: "/a".to_owned(),
            detail: String::new(),
        };
        let left = |is_left: bool, unknown: &[&str]| Left {
            leftovers: Vec::from_iter(is_left.then(|| mount.clone())),
            unknown: unknown.iter().map(ToString::to_string).collect(),
        };
        let unseen = || Some("the watch was down".to_owned());
        let hold = || vec!["blocked".to_owned()];
        // Statuses, unseen, holds, left; verdict, number of differences.
        let rows = [
            (
                phases("Failed", "Failed"),
                None,
                vec![],
                left(false, &[]),
                Verdict::Same,
                0,
            ),
            (None, None, vec![], left(false, &[]), Verdict::Same, 0),
            (
                phases("Succeeded", "Failed"),
                None,
                vec![],
                left(false, &[]),
                Verdict::Different,
                1,
            ),
            (
                phases("Failed", "Failed"),
                None,
                hold(),
                left(false, &[]),
                Verdict::Different,
                1,
            ),
            (
                phases("Failed", "Failed"),
                None,
                vec![],
                left(true, &[]),
                Verdict::Leftovers,
                0,
            ),
            (
                phases("Succeeded", "Failed"),
                None,
                vec![],
                left(true, &[]),
                Verdict::Leftovers,
                1,
            ),
            (None, unseen(), vec![], left(true, &[]), Verdict::Leftovers, 0),
            (None, unseen(), vec![], left(false, &[]), Verdict::Unknown, 0),
            // A status that was not seen completely shows no difference.
            (
                phases("Succeeded", "Failed"),
                unseen(),
                vec![],
                left(false, &[]),
                Verdict::Unknown,
                0,
            ),
            (
                phases("Failed", "Failed"),
                None,
                vec![],
                left(false, &["its cgroups"]),
                Verdict::Unknown,
                0,
            ),
            (
                phases("Succeeded", "Failed"),
                None,
                vec![],
                left(false, &["its cgroups"]),
                Verdict::Unknown,
                1,
            ),
            (
                phases("Failed", "Failed"),
                None,
                vec![],
                left(true, &["its cgroups"]),
                Verdict::Leftovers,
                0,
            ),
        ];
        for (index, (statuses, unseen, holds, left, verdict, count)) in rows.into_iter().enumerate() {
            let has_reason = unseen.is_some() || !left.unknown.is_empty();
            let judgment = judge(Facts {
                statuses,
                unseen,
                holds,
                left,
            });
            assert_eq!(judgment.verdict, verdict, "row {index}");
            assert_eq!(judgment.differences.len(), count, "row {index}");
            assert_eq!(judgment.reason.is_some(), has_reason, "row {index}");
        }
    }
}
