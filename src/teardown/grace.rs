//! The grace period in force. It only gets shorter, and never restarts.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    clock::{Mark, between},
    journal::PodEntry,
    model::{
        pod::{Deletion, PodView},
        termination::{GraceStart, Terminator},
    },
};

/// Default of the API server for a pod without a grace period.
const DEFAULT_SECONDS: u64 = 30;
/// With less time no container could exit by itself. A forced deletion gets this, too.
const MIN_SECONDS: u64 = 1;
/// Ten years: clocks overflow with what the API accepts.
const MAX_SECONDS: u64 = 10 * 365 * 24 * 3600;

/// This agent's grace period of a pod. It begins when this agent begins to terminate the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnGrace {
    /// The whole of it.
    pub total: Duration,
    /// What has passed; `None` if it has not begun.
    pub used: Option<Duration>,
}

/// The grace period of a pod, as the process that terminates it counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedGrace {
    /// The whole of it, if known.
    pub total_seconds: Option<u64>,
    /// Zero if it has expired.
    pub left: Duration,
    /// Time since it expired.
    pub overdue: Duration,
    /// What it is counted from.
    pub counted_from: GraceStart,
}

// === impl OwnGrace ===

impl OwnGrace {
    /// `entry`: what the journal has of the pod.
    pub fn new(view: &PodView, entry: Option<&PodEntry>, now: &Mark) -> Self {
        let begun = entry.filter(|entry| entry.has_begun());
        Self {
            total: of_pod(entry.map(|entry| entry.grace), view, None),
            used: begun.map(|entry| used(&entry.begun, now)),
        }
    }

    /// What is left of it.
    pub fn left(self) -> Duration {
        self.total.saturating_sub(self.used.unwrap_or_default())
    }

    /// The grace period as `terminator` counts it.
    pub fn counted_by(self, terminator: Terminator, deletion: Option<Deletion>, now: Timestamp) -> CountedGrace {
        match (terminator, deletion) {
            (Terminator::Kubelet, Some(deletion)) => CountedGrace::by_kubelet(deletion, now),
            (Terminator::Kubelet | Terminator::Agent | Terminator::NoProcess, _) => CountedGrace {
                total_seconds: Some(self.total.as_secs()),
                left: self.left(),
                overdue: self.used.unwrap_or_default().saturating_sub(self.total),
                counted_from: match self.used {
                    Some(_) => GraceStart::Termination,
                    None => GraceStart::NotBegun,
                },
            },
        }
    }
}

// === impl CountedGrace ===

impl CountedGrace {
    /// The grace period as a kubelet counts it: from the delete request, since it is not known when the kubelet began.
    pub fn by_kubelet(deletion: Deletion, now: Timestamp) -> Self {
        let total_seconds = deletion.grace.and_then(|total| u64::try_from(total).ok());
        let total = total_seconds.map_or(Duration::MAX, Duration::from_secs);
        Self {
            total_seconds,
            // The clock of the API server may be ahead.
            left: between(now, deletion.timestamp).min(total),
            overdue: between(deletion.timestamp, now),
            counted_from: GraceStart::DeleteRequest,
        }
    }
}

/// The period in force after the requests in the pod's object, and perhaps that of a user or of another cause, in seconds. `in_force`
/// is the one before.
pub fn of_pod(in_force: Option<Duration>, view: &PodView, grace_override: Option<i64>) -> Duration {
    let deletion = view.deletion.and_then(|deletion| deletion.grace);
    effective(in_force, [deletion, grace_override], view.spec_grace)
}

/// The period in force after these requests, in seconds. A zero is a value, not "unset". `spec` counts only without another one.
pub fn effective(in_force: Option<Duration>, requested: [Option<i64>; 2], spec: Option<i64>) -> Duration {
    let requested = requested.into_iter().flatten().map(seconds);
    let shortest = requested.chain(in_force.map(|grace| grace.as_secs())).min();
    let grace = shortest.unwrap_or_else(|| spec.map_or(DEFAULT_SECONDS, seconds));
    Duration::from_secs(grace.clamp(MIN_SECONDS, MAX_SECONDS))
}

/// The part of a period begun at `begun` that has passed at `now`.
///
/// After a reboot it is unknown how long the node was off. Nothing that runs is older than the boot, so at least the uptime has
/// passed. A container that was started since the boot still gets the rest, with the same deadline after any number of restarts
/// of the agent.
pub fn used(begun: &Mark, now: &Mark) -> Duration {
    begun.elapsed(now).unwrap_or(now.since_boot)
}

/// Negative periods count as zero.
fn seconds(asked: i64) -> u64 {
    u64::try_from(asked).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sources_of_the_grace_period_apply_in_order() {
        let cases = [
            // in force, deletion, grace_override, spec, expected
            (None, None, None, Some(30), 30),
            (None, None, None, None, 30),
            (None, Some(10), None, Some(30), 10),
            // A deletion may ask for more than the spec.
            (None, Some(60), None, Some(30), 60),
            (None, Some(60), Some(5), Some(30), 5),
            (None, None, Some(45), Some(30), 45),
            // Nothing lengthens what is in force.
            (Some(10), Some(60), Some(40), Some(30), 10),
            (Some(10), None, None, Some(2), 10),
            (Some(10), Some(4), None, Some(30), 4),
            // A zero is the shortest period, not "unset".
            (None, Some(0), Some(30), Some(30), 1),
            (None, Some(0), None, Some(30), 1),
            (None, None, None, Some(0), 1),
            // Extreme values.
            (None, Some(-5), None, Some(30), 1),
            (None, None, None, Some(i64::MIN), 1),
            (None, Some(i64::MAX), None, Some(30), MAX_SECONDS),
        ];
        for (in_force, deletion, grace_override, spec, expected) in cases {
            let got = effective(in_force.map(Duration::from_secs), [deletion, grace_override], spec);
            assert_eq!(
                got.as_secs(),
                expected,
                "in force {in_force:?}, {deletion:?}, {grace_override:?}, {spec:?}"
            );
        }
    }

    #[test]
    fn no_more_than_all_of_the_kubelets_grace_period_is_left() {
        let own = OwnGrace {
            total: Duration::from_secs(30),
            used: None,
        };
        let deletion = Deletion {
            timestamp: Timestamp::from_second(131).unwrap(),
            grace: Some(30),
        };
        for (now, left, overdue) in [(100, 30, 0), (111, 20, 0), (141, 0, 10)] {
            let now = Timestamp::from_second(now).unwrap();
            let grace = own.counted_by(Terminator::Kubelet, Some(deletion), now);
            assert_eq!((grace.left.as_secs(), grace.overdue.as_secs()), (left, overdue));
        }
    }

    #[test]
    fn after_a_reboot_at_least_the_uptime_is_used() {
        for (boot, up, expected) in [("a", 107, 7), ("b", 5, 5), ("b", 4000, 4000), ("a", 90, 0)] {
            // The wall clock may have jumped.
            for wall in [0, 5_000_000, 9_000_000_000] {
                let used = used(&Mark::at("a", 100, 5_000_000), &Mark::at(boot, up, wall));
                assert_eq!(used.as_secs(), expected, "{boot} {up} {wall}");
            }
        }
    }

    proptest! {
        #[test]
        fn deadline_stays_over_any_number_of_restarts(
            began in 0u64..1_000_000, grace in 1u64..1_000_000, starts in prop::collection::vec((0u64..1_000_000, any::<u32>()), 2..10),
            rebooted in any::<bool>(),
        ) {
            let begun = Mark::at("a", began, 0);
            let boot = if rebooted { "b" } else { "a" };
            let first = if rebooted { 0 } else { began };
            let grace = Duration::from_secs(grace);
            let ends = starts.into_iter().map(|(later, wall)| {
                let now = Mark::at(boot, first + later, i64::from(wall));
                let left = grace.saturating_sub(used(&begun, &now));
                prop_assert!(left <= grace);
                // A passed deadline stays passed.
                Ok((left > Duration::ZERO).then(|| now.since_boot + left))
            }).collect::<Result<Vec<_>, _>>()?;
            let mut ends: Vec<_> = ends.into_iter().flatten().collect();
            ends.dedup();
            prop_assert!(ends.len() <= 1, "{:?}", ends);
        }

        #[test]
        fn grace_period_never_grows_and_is_at_least_a_second(
            start in 1u64..1_000_000,
            requests in prop::collection::vec((any::<Option<i64>>(), any::<Option<i64>>(), any::<Option<i64>>()), 1..20),
        ) {
            let mut grace = Duration::from_secs(start);
            for (deletion, grace_override, spec) in requests {
                let next = effective(Some(grace), [deletion, grace_override], spec);
                prop_assert!(next <= grace);
                prop_assert!(next >= Duration::from_secs(MIN_SECONDS));
                grace = next;
            }
        }
    }
}
