//! Whether two hands were on one pod, and what came of it, from what was recorded of both. Pure.
//!
//! Times are seconds since the run's begin. A kubelet's life lasts from the moment its process is one until that has ended.

use std::collections::{BTreeMap, BTreeSet};

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Kubelet,
    Agent,
}

/// What was done to a pod.
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

/// How a kubelet came to its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandBack {
    /// Nobody asked for it: it just appeared, or there was nothing to hand back.
    None,
    /// Everything was at a safe point.
    Clean,
    /// These pods, by namespace and name, were not.
    CutShort(BTreeSet<String>),
}

/// One life of the kubelet.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    pub start: f64,
    pub end: f64,
    pub before: HandBack,
    /// How long the agent kept the node for it. Nobody has kept it for one that just appears: since ever.
    pub kept_until: f64,
}

impl Life {
    fn has_cut_short(&self, uid: &str, names: &BTreeMap<String, String>) -> bool {
        matches!(&self.before, HandBack::CutShort(pods) if names.get(uid).is_some_and(|name| pods.contains(name)))
    }
}

/// What is counted.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// Acts of one side within the other's interval on the same pod, or of the agent after a clean hand-back.
    pub overlaps: Vec<String>,
    /// Hooks that ran to their end by the agent's hand, and once more by anybody's; but for pods whose hand-back came to
    /// its timeout, or that were not handed back.
    pub run_again: Vec<String>,
    /// The same of pods whose hand-back came to its timeout.
    pub run_again_late: usize,
    /// The same of pods that were not handed back at all: a kubelet just appeared.
    pub run_again_unasked: usize,
    /// Hooks by the agent's hand that were interrupted, and begun again by anybody's.
    pub begun_again: usize,
    /// Hooks that a kubelet had begun when it died, and that the agent began again.
    pub repeated_after_death: usize,
    /// Acts that the agent began when a kubelet had appeared unannounced and was not seen yet.
    pub unseen: usize,
    /// How many seconds after the kubelet the latest of them was begun.
    pub latest_unseen: f64,
    /// Acts of the agent that a kubelet cut short by its unannounced appearance.
    pub in_flight: usize,
}

/// So long after a kubelet has appeared unannounced may the agent begin something: it looks once a second.
const SEEN_WITHIN: f64 = 2.0;

/// What these acts come to. `names` tells a pod's namespace and name by its UID.
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
        // What a dead one has begun, or its children have, may go on.
        let left: Vec<_> = of(acts, Side::Kubelet)
            .filter(|act| act.begin < life.start && act.end > since)
            .collect();
        // From the death of one kubelet to that of the next the agent's acts come before that one's.
        for act in of(acts, Side::Agent).filter(|act| act.begin > since && act.begin <= life.end) {
            let theirs = left
                .iter()
                .find(|theirs| theirs.uid == act.uid && theirs.end >= act.begin);
            let first = || first.get(act.uid.as_str()).filter(|theirs| act.end > theirs.begin);
            if let Some(theirs) = theirs.or_else(first) {
                verdict
                    .overlaps
                    .push(format!("{} and {}", told(act, names), told(theirs, names)));
                continue;
            }
            let is_begun_late = act.begin > life.start;
            let is_kept = act.begin <= life.kept_until;
            if is_begun_late && !is_kept && act.begin < life.start + SEEN_WITHIN {
                verdict.unseen += 1;
                verdict.latest_unseen = verdict.latest_unseen.max(act.begin - life.start);
            } else if is_begun_late {
                verdict.overlaps.push(format!(
                    "{} begun {:.3} s after a kubelet was there (before: {:?})",
                    told(act, names),
                    act.begin - life.start,
                    life.before
                ));
            } else if act.end > life.start && !is_kept {
                verdict.in_flight += 1;
            } else if act.end > life.start && !life.has_cut_short(&act.uid, names) {
                verdict.overlaps.push(format!(
                    "{} went on {:.3} s after its hand-back",
                    told(act, names),
                    act.end - life.start
                ));
            }
        }
    }
    hooks(lives, acts, names, &mut verdict);
    verdict
}

/// Hooks that were run more than once, one of each pod.
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
                // Each kubelet does so with those of the one before.
                (Side::Kubelet, Side::Kubelet) => {}
                (Side::Agent, _) if !one.done => verdict.begun_again += 1,
                (Side::Agent, _) => {
                    // That of whoever ran it again, if it was a kubelet. It may have come just before, and not have been seen yet.
                    let next = lives
                        .iter()
                        .rfind(|life| life.end > one.begin && life.start <= again.begin);
                    match next {
                        Some(life) if one.begin > life.kept_until => verdict.run_again_unasked += 1,
                        Some(life) if life.has_cut_short(uid, names) => verdict.run_again_late += 1,
                        _ => {
                            let (one, again) = (told(one, names), told(again, names));
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

/// What the agent did to pods before anybody had asked for their deletion, or that nobody has. `asked` tells when that was by
/// UID; those of `ended` were at their end without it.
pub fn untimely(
    acts: &[Act],
    asked: &BTreeMap<String, f64>,
    ended: &BTreeSet<String>,
    names: &BTreeMap<String, String>,
) -> Vec<String> {
    let is_before = |act: &&Act| asked.get(&act.uid).is_none_or(|asked| act.begin < *asked);
    of(acts, Side::Agent)
        .filter(|act| !ended.contains(&act.uid))
        .filter(is_before)
        .map(|act| format!("{}, deleted at {:?}", told(act, names), asked.get(&act.uid)))
        .collect()
}

/// The only commands that these pods are asked to run.
pub const HOOK: &str = "ExecSync";
/// How acts begin that are these.
pub const MOUNT: &str = "mount ";
pub const UNMOUNT: &str = "unmount ";
/// What those to the API server hold.
pub const WRITE: &str = " pods/";

fn of(acts: &[Act], side: Side) -> impl Iterator<Item = &Act> {
    acts.iter().filter(move |act| act.side == side)
}

fn told(act: &Act, names: &BTreeMap<String, String>) -> String {
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

    /// A kubelet that died at 10, and one that came at 50 in this way, in time.
    fn verdict(before: HandBack, acts: &[Act]) -> Verdict {
        let kept_until = if before == HandBack::None { f64::MIN } else { 60.0 };
        kept(before, kept_until, acts)
    }

    fn kept(before: HandBack, kept_until: f64, acts: &[Act]) -> Verdict {
        in_lives(&[life(50.0, 100.0, before, kept_until)], acts)
    }

    fn life(start: f64, end: f64, before: HandBack, kept_until: f64) -> Life {
        Life {
            start,
            end,
            before,
            kept_until,
        }
    }

    fn in_lives(lives: &[Life], acts: &[Act]) -> Verdict {
        let first = life(0.0, 10.0, HandBack::None, f64::MIN);
        let lives = [&[first], lives].concat();
        let names = BTreeMap::from([("u".to_owned(), "ns/pod".to_owned())]);
        judge(&lives, acts, &names)
    }

    fn cut_short() -> HandBack {
        HandBack::CutShort(["ns/pod".to_owned()].into())
    }

    #[test]
    fn one_after_the_other_is_no_overlap() {
        let acts = [
            kubelet(5.0, 9.0),
            agent(20.0, 30.0),
            agent(31.0, 49.0),
            kubelet(60.0, 70.0),
        ];
        assert_eq!(verdict(HandBack::Clean, &acts), Verdict::default());
        assert_eq!(verdict(HandBack::None, &acts), Verdict::default());
    }

    #[test]
    fn both_at_a_time_is_an_overlap_however_the_kubelet_came() {
        for before in [HandBack::None, HandBack::Clean, cut_short()] {
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
    fn a_mount_or_unmount_in_the_others_interval_is_an_overlap() {
        let mount = |side, at| act(side, "mount /pods/u/volumes/v", at, at);
        let unmount = |side, at| act(side, "unmount /pods/u/volumes/v", at, at);
        for before in [HandBack::None, HandBack::Clean, cut_short()] {
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
        assert_eq!(verdict(HandBack::Clean, &handed_back).overlaps.len(), 1);
    }

    #[test]
    fn what_outlives_a_kubelet_is_an_overlap_only_if_the_agent_has_begun() {
        let orphan = |at| act(Side::Kubelet, "unmount /pods/u/volumes/v", at, at);
        for (theirs, many) in [
            (orphan(10.1), 0),
            (kubelet(9.0, 10.1), 0),
            (orphan(20.5), 1),
            (orphan(22.0), 1),
            (kubelet(9.0, 20.5), 1),
        ] {
            let acts = [theirs, agent(20.0, 21.0)];
            assert_eq!(verdict(HandBack::Clean, &acts).overlaps.len(), many, "{acts:?}");
        }
    }

    #[test]
    fn after_a_hand_back_the_agent_begins_nothing_and_only_what_was_cut_short_goes_on() {
        assert_eq!(verdict(HandBack::Clean, &[agent(50.5, 50.6)]).overlaps.len(), 1);
        assert_eq!(verdict(HandBack::Clean, &[agent(49.0, 50.6)]).overlaps.len(), 1);
        assert_eq!(verdict(cut_short(), &[agent(49.0, 50.6)]), Verdict::default());
        assert_eq!(verdict(cut_short(), &[agent(50.5, 50.6)]).overlaps.len(), 1);
    }

    #[test]
    fn a_kubelet_that_comes_when_its_hand_back_has_run_out_just_appears() {
        let late = |acts: &[Act]| kept(HandBack::Clean, 45.0, acts);
        let seen = late(&[agent(46.0, 50.6), agent(50.7, 50.8)]);
        assert_eq!((seen.unseen, seen.in_flight, seen.overlaps.len()), (1, 1, 0));
        for acts in [
            [agent(44.0, 50.6), agent(46.0, 47.0)],
            [agent(46.0, 47.0), agent(52.5, 52.6)],
            [agent(46.0, 61.0), kubelet(60.0, 70.0)],
        ] {
            assert_eq!(late(&acts).overlaps.len(), 1, "{acts:?}");
        }
        let soon = kept(HandBack::Clean, 50.5, &[agent(50.4, 50.6)]);
        assert_eq!(soon.overlaps.len(), 1);
    }

    #[test]
    fn a_kubelet_that_just_appears_is_seen_within_two_seconds() {
        let seen = verdict(HandBack::None, &[agent(49.0, 50.6), agent(50.7, 50.8)]);
        assert_eq!((seen.unseen, seen.in_flight, seen.overlaps.len()), (1, 1, 0));
        assert!((seen.latest_unseen - 0.7).abs() < 1e-9, "{}", seen.latest_unseen);
        assert_eq!(verdict(HandBack::None, &[agent(52.5, 52.6)]).overlaps.len(), 1);
    }

    #[test]
    fn what_the_agent_does_to_a_pod_before_its_deletion_is_told_whoever_it_was_that_deleted_it_later() {
        let acts = [kubelet(1.0, 2.0), agent(20.0, 21.0)];
        let many = |asked: Option<f64>, ended: &[&str]| {
            let asked = asked.map(|at| ("u".to_owned(), at)).into_iter().collect();
            let ended = ended.iter().map(ToString::to_string).collect();
            untimely(&acts, &asked, &ended, &BTreeMap::new()).len()
        };
        assert_eq!(many(Some(19.9), &[]), 0);
        assert_eq!(many(Some(20.1), &[]), 1);
        assert_eq!(many(None, &[]), 1);
        assert_eq!(many(None, &["u"]), 0);
    }

    #[test]
    fn a_hook_that_the_agent_has_run_to_its_end_runs_again_only_without_a_hand_back() {
        let hook = |side, begin, end| act(side, HOOK, begin, end);
        let again = [hook(Side::Agent, 20.0, 25.0), hook(Side::Kubelet, 60.0, 65.0)];
        assert_eq!(verdict(HandBack::Clean, &again).run_again.len(), 1);
        for (before, counted) in [(HandBack::None, (0, 1)), (cut_short(), (1, 0))] {
            let verdict = verdict(before, &again);
            assert!(verdict.run_again.is_empty());
            assert_eq!((verdict.run_again_late, verdict.run_again_unasked), counted);
        }
        let unseen = [hook(Side::Agent, 50.1, 50.2), hook(Side::Kubelet, 60.0, 60.1)];
        let unseen = verdict(HandBack::None, &unseen);
        assert_eq!((unseen.run_again.len(), unseen.run_again_unasked), (0, 1));
        let seen_for_a_moment = [
            life(30.0, 31.0, HandBack::None, f64::MIN),
            life(50.0, 100.0, HandBack::Clean, 60.0),
        ];
        assert_eq!(in_lives(&seen_for_a_moment, &again).run_again.len(), 1);
        let by_itself = [hook(Side::Agent, 20.0, 25.0), hook(Side::Agent, 30.0, 31.0)];
        assert_eq!(verdict(HandBack::Clean, &by_itself).run_again.len(), 1);
        let begun_by_a_kubelet = [hook(Side::Kubelet, 9.0, 10.0), hook(Side::Agent, 30.0, 31.0)];
        assert_eq!(verdict(HandBack::Clean, &begun_by_a_kubelet).repeated_after_death, 1);
        let mut interrupted = again;
        interrupted[0].done = false;
        let interrupted = verdict(HandBack::Clean, &interrupted);
        assert_eq!((interrupted.run_again.len(), interrupted.begun_again), (0, 1));
    }
}
