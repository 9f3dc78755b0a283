//! The grace period in force: it may only shrink, and it never starts again.

use std::time::Duration;

/// A pod without a period of its own, which the API server never lets happen: what it would have filled in.
const DEFAULT_SECONDS: u64 = 30;
/// Below this no container could be stopped politely; also what a forced deletion gets.
const MIN_SECONDS: u64 = 1;
/// Ten years: clocks overflow on what the API accepts.
const MAX_SECONDS: u64 = 10 * 365 * 24 * 3600;

/// What is asked for at one moment. A zero is a value, not "unset".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GraceAsked {
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion: Option<i64>,
    /// From whoever ends the pod for another reason than its deletion.
    pub imposed: Option<i64>,
    /// `spec.terminationGracePeriodSeconds`.
    pub spec: Option<i64>,
}

/// The period in force after `asked`, given the one in force before.
pub fn effective(in_force: Option<Duration>, asked: GraceAsked) -> Duration {
    let shortest = [asked.deletion, asked.imposed]
        .into_iter()
        .flatten()
        .map(seconds)
        .chain(in_force.map(|grace| grace.as_secs()))
        .min();
    let grace = shortest.unwrap_or_else(|| asked.spec.map_or(DEFAULT_SECONDS, seconds));
    Duration::from_secs(grace.clamp(MIN_SECONDS, MAX_SECONDS))
}

/// Negative periods count as none at all.
fn seconds(asked: i64) -> u64 {
    u64::try_from(asked).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(deletion: Option<i64>, imposed: Option<i64>, spec: Option<i64>) -> GraceAsked {
        GraceAsked {
            deletion,
            imposed,
            spec,
        }
    }

    #[test]
    fn each_source_counts_in_its_order() {
        let cases = [
            // in force, deletion, imposed, spec, expected
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
            // Zero is a value: the least there is, not "unset".
            (None, Some(0), Some(30), Some(30), 1),
            (None, Some(0), None, Some(30), 1),
            (None, None, None, Some(0), 1),
            // Absurd values.
            (None, Some(-5), None, Some(30), 1),
            (None, None, None, Some(i64::MIN), 1),
            (None, Some(i64::MAX), None, Some(30), MAX_SECONDS),
        ];
        for (in_force, deletion, imposed, spec, expected) in cases {
            let got = effective(in_force.map(Duration::from_secs), asked(deletion, imposed, spec));
            assert_eq!(
                got.as_secs(),
                expected,
                "in force {in_force:?}, {deletion:?}, {imposed:?}, {spec:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn it_never_grows_and_never_falls_below_a_second(
            start in 1u64..1_000_000,
            requests in prop::collection::vec((any::<Option<i64>>(), any::<Option<i64>>(), any::<Option<i64>>()), 1..20),
        ) {
            let mut grace = Duration::from_secs(start);
            for (deletion, imposed, spec) in requests {
                let next = effective(Some(grace), asked(deletion, imposed, spec));
                prop_assert!(next <= grace);
                prop_assert!(next >= Duration::from_secs(MIN_SECONDS));
                grace = next;
            }
        }
    }
}
