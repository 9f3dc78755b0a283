//! Detects from the records whether kubelet and agent acted on one pod at the same time. Pure.
//!
//! Times are seconds since the start of the run. A kubelet's life lasts from the start of its process to its exit.

use std::collections::{BTreeMap, BTreeSet};

/// Side that acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Kubelet,
    Agent,
}

/// An act on a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    pub side: Side,
    pub uid: String,
    /// Such as `StopContainer`, `unmount /…/volumes/…`, `patch pods/status`.
    pub what: String,
    pub begin: f64,
    pub end: f64,
    pub done: bool,
}

/// Handover before a kubelet's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handover {
    /// None: the kubelet was unannounced, or the agent was standby.
    None,
    /// All pods were at a safe point.
    Clean,
    /// These pods (namespace and name) were not at a safe point.
    CutShort(BTreeSet<String>),
}

/// One life of the kubelet.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    pub start: f64,
    pub end: f64,
    pub before: Handover,
    /// End of the agent's reservation for it; `f64::MIN` for an unannounced one.
    pub reserved_until: f64,
}

impl Life {
    fn has_cut_short(&self, uid: &str, names: &BTreeMap<String, String>) -> bool {
        matches!(&self.before, Handover::CutShort(pods) if names.get(uid).is_some_and(|name| pods.contains(name)))
    }
}

/// Result of the comparison.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// Acts of one side during an act of the other on the same pod, or of the agent after a clean handover.
    pub overlaps: Vec<String>,
    /// Hooks that the agent finished and that ran again, after a clean handover.
    pub run_again: Vec<String>,
    /// The same after a handover that timed out.
    pub run_again_late: usize,
    /// The same before an unannounced kubelet.
    pub run_again_unasked: usize,
    /// Hooks of the agent that were interrupted and begun again.
    pub begun_again: usize,
    /// Hooks that a kubelet had begun at its death and the agent began again.
    pub repeated_after_death: usize,
    /// Acts that the agent began before it detected an unannounced kubelet.
    pub unseen: usize,
    /// Latest of them, in seconds after the kubelet's start.
    pub latest_unseen: f64,
    /// Acts of the agent that an unannounced kubelet interrupted.
    pub in_flight: usize,
}

/// Seconds within which the agent has to detect an unannounced kubelet: it probes once a second.
const DETECTION_LIMIT: f64 = 2.0;

/// Compares the acts. `names` maps a UID to namespace and name.
pub fn judge(lives: &[Life], acts: &[Act], names: &BTreeMap<String, String>) -> Verdict {
    let mut verdict = Verdict::default();
    for (index, life) in lives.iter().enumerate() {
        let since = index.checked_sub(1).map_or(f64::MIN, |before| lives[before].end);
        let mut first = BTreeMap::<&str, &Act>::new();
        for act in of(acts, Side::Kubelet).filter(|act| act.begin >= life.start && act.begin <= life.end) {
            let seen = first.entry(&act.uid).or_insert(act);
            if act.begin < seen.begin {
                *seen = act;
            }
        }
        // Acts of a dead kubelet or its children may continue.
        let left: Vec<_> = of(acts, Side::Kubelet)
            .filter(|act| act.begin < life.start && act.end > since)
            .collect();
        // The agent's acts between two kubelets come before the next one's.
        for act in of(acts, Side::Agent).filter(|act| act.begin > since && act.begin <= life.end) {
            let theirs = left
                .iter()
                .find(|theirs| theirs.uid == act.uid && theirs.end >= act.begin);
            let first = || first.get(act.uid.as_str()).filter(|theirs| act.end > theirs.begin);
            if let Some(theirs) = theirs.or_else(first) {
                verdict
                    .overlaps
                    .push(format!("{} and {}", describe(act, names), describe(theirs, names)));
                continue;
            }
            let is_begun_late = act.begin > life.start;
            let is_kept = act.begin <= life.reserved_until;
            if is_begun_late && !is_kept && act.begin < life.start + DETECTION_LIMIT {
                verdict.unseen += 1;
                verdict.latest_unseen = verdict.latest_unseen.max(act.begin - life.start);
            } else if is_begun_late {
                verdict.overlaps.push(format!(
                    "{} begun {:.3} s after a kubelet was there (before: {:?})",
                    describe(act, names),
                    act.begin - life.start,
                    life.before
                ));
            } else if act.end > life.start && !is_kept {
                verdict.in_flight += 1;
            } else if act.end > life.start && !life.has_cut_short(&act.uid, names) {
                verdict.overlaps.push(format!(
                    "{} went on {:.3} s after its handover",
                    describe(act, names),
                    act.end - life.start
                ));
            }
        }
    }
    hooks(lives, acts, names, &mut verdict);
    verdict
}

/// Counts hooks that ran more than once; each pod has one.
fn hooks(lives: &[Life], acts: &[Act], names: &BTreeMap<String, String>, verdict: &mut Verdict) {
    let mut runs = BTreeMap::<&str, Vec<&Act>>::new();
    for act in acts.iter().filter(|act| act.what == HOOK) {
        runs.entry(&act.uid).or_default().push(act);
    }
    for (uid, mut runs) in runs {
        runs.sort_by(|one, other| one.begin.total_cmp(&other.begin));
        for pair in runs.windows(2) {
            let (one, again) = (pair[0], pair[1]);
            match (one.side, again.side) {
                (Side::Kubelet, Side::Agent) => verdict.repeated_after_death += 1,
                // Each kubelet repeats hooks of its predecessor.
                (Side::Kubelet, Side::Kubelet) => {}
                (Side::Agent, _) if !one.done => verdict.begun_again += 1,
                // Its journal has the end of the first, whatever kubelets ran meanwhile.
                (Side::Agent, Side::Agent) => {
                    verdict
                        .run_again
                        .push(format!("{}, and then {}", describe(one, names), describe(again, names)));
                }
                (Side::Agent, Side::Kubelet) => {
                    // The kubelet that ran it again, if any. It may have started just before and not be detected yet.
                    let next = lives
                        .iter()
                        .rfind(|life| life.end > one.begin && life.start <= again.begin);
                    match next {
                        Some(life) if one.begin > life.reserved_until => verdict.run_again_unasked += 1,
                        Some(life) if life.has_cut_short(uid, names) => verdict.run_again_late += 1,
                        _ => {
                            let (one, again) = (describe(one, names), describe(again, names));
                            verdict
                                .run_again
                                .push(format!("{one}, and then {again}; between them {next:?}"));
                        }
                    }
                }
            }
        }
    }
}

/// Acts of the agent on pods before their deletion. `asked` has the deletion times by UID; pods of `ended` had terminated
/// without one.
pub fn acts_before_deletion(
    acts: &[Act],
    asked: &BTreeMap<String, f64>,
    ended: &BTreeSet<String>,
    names: &BTreeMap<String, String>,
) -> Vec<String> {
    let is_before = |act: &&Act| asked.get(&act.uid).is_none_or(|asked| act.begin < *asked);
    of(acts, Side::Agent)
        .filter(|act| !ended.contains(&act.uid))
        .filter(is_before)
        .map(|act| format!("{}, deleted at {:?}", describe(act, names), asked.get(&act.uid)))
        .collect()
}

/// Exec calls of these pods are hooks.
pub const HOOK: &str = "ExecSync";
/// Prefixes of mount acts.
pub const MOUNT: &str = "mount ";
pub const UNMOUNT: &str = "unmount ";
/// Part of acts on the API server.
pub const WRITE: &str = " pods/";

fn of(acts: &[Act], side: Side) -> impl Iterator<Item = &Act> {
    acts.iter().filter(move |act| act.side == side)
}

fn describe(act: &Act, names: &BTreeMap<String, String>) -> String {
    let name = names.get(&act.uid).map_or("?", String::as_str);
    format!(
        "{:?}: {} of {name} {} ({:.3} s to {:.3} s)",
        act.side, act.what, act.uid, act.begin, act.end
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(side: Side, what: &str, begin: f64, end: f64) -> Act {
        Act {
            side,
            uid: "u".to_owned(),
            what: what.to_owned(),
            begin,
            end,
            done: true,
        }
    }

    fn agent(begin: f64, end: f64) -> Act {
        act(Side::Agent, "StopContainer", begin, end)
    }

    fn kubelet(begin: f64, end: f64) -> Act {
        act(Side::Kubelet, "StopContainer", begin, end)
    }

    /// A kubelet that died at 10, and one started at 50 after this handover, within its reservation.
    fn verdict(before: Handover, acts: &[Act]) -> Verdict {
        let reserved_until = if before == Handover::None { f64::MIN } else { 60.0 };
        with_reservation(before, reserved_until, acts)
    }

    fn with_reservation(before: Handover, reserved_until: f64, acts: &[Act]) -> Verdict {
        in_lives(&[life(50.0, 100.0, before, reserved_until)], acts)
    }

    fn life(start: f64, end: f64, before: Handover, reserved_until: f64) -> Life {
        Life {
            start,
            end,
            before,
            reserved_until,
        }
    }

    fn in_lives(lives: &[Life], acts: &[Act]) -> Verdict {
        let first = life(0.0, 10.0, Handover::None, f64::MIN);
        let lives = [&[first], lives].concat();
        let names = BTreeMap::from([("u".to_owned(), "ns/pod".to_owned())]);
        judge(&lives, acts, &names)
    }

    fn cut_short() -> Handover {
        Handover::CutShort(["ns/pod".to_owned()].into())
    }

    #[test]
    fn successive_acts_are_no_overlap() {
        let acts = [
            kubelet(5.0, 9.0),
            agent(20.0, 30.0),
            agent(31.0, 49.0),
            kubelet(60.0, 70.0),
        ];
        assert_eq!(verdict(Handover::Clean, &acts), Verdict::default());
        assert_eq!(verdict(Handover::None, &acts), Verdict::default());
    }

    #[test]
    fn simultaneous_acts_are_an_overlap() {
        for before in [Handover::None, Handover::Clean, cut_short()] {
            for acts in [
                [agent(49.0, 61.0), kubelet(60.0, 70.0)],
                [kubelet(60.0, 61.0), agent(80.0, 81.0)],
                [agent(8.0, 9.0), kubelet(5.0, 6.0)],
            ] {
                assert_eq!(verdict(before.clone(), &acts).overlaps.len(), 1, "{before:?} {acts:?}");
            }
        }
    }

    #[test]
    fn mount_or_unmount_within_the_other_sides_act_is_an_overlap() {
        let mount = |side, at| act(side, "mount /pods/u/volumes/v", at, at);
        let unmount = |side, at| act(side, "unmount /pods/u/volumes/v", at, at);
        for before in [Handover::None, Handover::Clean, cut_short()] {
            for acts in [
                [agent(49.0, 61.0), mount(Side::Kubelet, 60.0)],
                [kubelet(60.0, 61.0), unmount(Side::Agent, 60.5)],
                [mount(Side::Kubelet, 60.0), unmount(Side::Agent, 60.1)],
                [unmount(Side::Agent, 8.0), unmount(Side::Kubelet, 7.0)],
            ] {
                assert_eq!(verdict(before.clone(), &acts).overlaps.len(), 1, "{before:?} {acts:?}");
            }
            let in_turn = [
                mount(Side::Kubelet, 5.0),
                unmount(Side::Agent, 20.0),
                unmount(Side::Kubelet, 60.0),
            ];
            assert_eq!(verdict(before, &in_turn), Verdict::default());
        }
        let handed_back = [unmount(Side::Agent, 50.1)];
        assert_eq!(verdict(Handover::Clean, &handed_back).overlaps.len(), 1);
    }

    #[test]
    fn act_that_outlives_a_kubelet_is_an_overlap_only_if_the_agent_has_begun() {
        let orphan = |at| act(Side::Kubelet, "unmount /pods/u/volumes/v", at, at);
        for (theirs, many) in [
            (orphan(10.1), 0),
            (kubelet(9.0, 10.1), 0),
            (orphan(20.5), 1),
            (orphan(22.0), 1),
            (kubelet(9.0, 20.5), 1),
        ] {
            let acts = [theirs, agent(20.0, 21.0)];
            assert_eq!(verdict(Handover::Clean, &acts).overlaps.len(), many, "{acts:?}");
        }
    }

    #[test]
    fn agent_begins_nothing_after_a_handover_and_only_interrupted_acts_continue() {
        assert_eq!(verdict(Handover::Clean, &[agent(50.5, 50.6)]).overlaps.len(), 1);
        assert_eq!(verdict(Handover::Clean, &[agent(49.0, 50.6)]).overlaps.len(), 1);
        assert_eq!(verdict(cut_short(), &[agent(49.0, 50.6)]), Verdict::default());
        assert_eq!(verdict(cut_short(), &[agent(50.5, 50.6)]).overlaps.len(), 1);
    }

    #[test]
    fn kubelet_after_an_expired_reservation_counts_as_unannounced() {
        let late = |acts: &[Act]| with_reservation(Handover::Clean, 45.0, acts);
        let seen = late(&[agent(46.0, 50.6), agent(50.7, 50.8)]);
        assert_eq!((seen.unseen, seen.in_flight, seen.overlaps.len()), (1, 1, 0));
        for acts in [
            [agent(44.0, 50.6), agent(46.0, 47.0)],
            [agent(46.0, 47.0), agent(52.5, 52.6)],
            [agent(46.0, 61.0), kubelet(60.0, 70.0)],
        ] {
            assert_eq!(late(&acts).overlaps.len(), 1, "{acts:?}");
        }
        let soon = with_reservation(Handover::Clean, 50.5, &[agent(50.4, 50.6)]);
        assert_eq!(soon.overlaps.len(), 1);
    }

    #[test]
    fn unannounced_kubelet_is_detected_within_two_seconds() {
        let seen = verdict(Handover::None, &[agent(49.0, 50.6), agent(50.7, 50.8)]);
        assert_eq!((seen.unseen, seen.in_flight, seen.overlaps.len()), (1, 1, 0));
        assert!((seen.latest_unseen - 0.7).abs() < 1e-9, "{}", seen.latest_unseen);
        assert_eq!(verdict(Handover::None, &[agent(52.5, 52.6)]).overlaps.len(), 1);
    }

    #[test]
    fn acts_of_the_agent_before_the_deletion_of_a_pod_are_reported() {
        let acts = [kubelet(1.0, 2.0), agent(20.0, 21.0)];
        let many = |asked: Option<f64>, ended: &[&str]| {
            let asked = asked.map(|at| ("u".to_owned(), at)).into_iter().collect();
            let ended = ended.iter().map(ToString::to_string).collect();
            acts_before_deletion(&acts, &asked, &ended, &BTreeMap::new()).len()
        };
        assert_eq!(many(Some(19.9), &[]), 0);
        assert_eq!(many(Some(20.1), &[]), 1);
        assert_eq!(many(None, &[]), 1);
        assert_eq!(many(None, &["u"]), 0);
    }

    #[test]
    fn finished_hook_is_rerun_only_without_a_handover() {
        let hook = |side, begin, end| act(side, HOOK, begin, end);
        let again = [hook(Side::Agent, 20.0, 25.0), hook(Side::Kubelet, 60.0, 65.0)];
        assert_eq!(verdict(Handover::Clean, &again).run_again.len(), 1);
        for (before, counted) in [(Handover::None, (0, 1)), (cut_short(), (1, 0))] {
            let verdict = verdict(before, &again);
            assert!(verdict.run_again.is_empty());
            assert_eq!((verdict.run_again_late, verdict.run_again_unasked), counted);
        }
        let unseen = [hook(Side::Agent, 50.1, 50.2), hook(Side::Kubelet, 60.0, 60.1)];
        let unseen = verdict(Handover::None, &unseen);
        assert_eq!((unseen.run_again.len(), unseen.run_again_unasked), (0, 1));
        let seen_for_a_moment = [
            life(30.0, 31.0, Handover::None, f64::MIN),
            life(50.0, 100.0, Handover::Clean, 60.0),
        ];
        assert_eq!(in_lives(&seen_for_a_moment, &again).run_again.len(), 1);
        let by_itself = [hook(Side::Agent, 20.0, 25.0), hook(Side::Agent, 30.0, 31.0)];
        assert_eq!(verdict(Handover::Clean, &by_itself).run_again.len(), 1);
        // A kubelet that just appeared ran in between.
        let over_a_life = [hook(Side::Agent, 20.0, 25.0), hook(Side::Agent, 110.0, 111.0)];
        let later = [
            life(50.0, 100.0, Handover::None, f64::MIN),
            life(150.0, 200.0, Handover::None, f64::MIN),
        ];
        assert_eq!(in_lives(&later, &over_a_life).run_again.len(), 1);
        let begun_by_a_kubelet = [hook(Side::Kubelet, 9.0, 10.0), hook(Side::Agent, 30.0, 31.0)];
        assert_eq!(verdict(Handover::Clean, &begun_by_a_kubelet).repeated_after_death, 1);
        let mut interrupted = again;
        interrupted[0].done = false;
        let interrupted = verdict(Handover::Clean, &interrupted);
        assert_eq!((interrupted.run_again.len(), interrupted.begun_again), (0, 1));
    }
}
