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
    /// Such as `StopContainer`, `umount2 /…/volumes/…`, `patch pods/status`.
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
}

/// What is counted.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// Acts of one side within the other's interval on the same pod, or of the agent after a clean hand-back.
    pub overlaps: Vec<String>,
    /// Hooks that ran to their end by the agent's hand, and once more by anybody's; but for pods whose hand-back came to
    /// its timeout, or that were not handed back.
    pub run_again: Vec<String>,
    /// The same of pods that were not handed back in time, or not at all.
    pub run_again_unasked: usize,
    /// Hooks that a kubelet had begun when it died, and that the agent began again.
    pub repeated_after_death: usize,
    /// Acts that the agent began when a kubelet had appeared unannounced and was not seen yet.
    pub unseen: usize,
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
        for act in of(acts, Side::Kubelet).filter(|act| act.begin >= since && act.begin <= life.end) {
            let seen = first.entry(&act.uid).or_insert(act);
            if act.begin < seen.begin {
                *seen = act;
            }
        }
        // From the death of one kubelet to that of the next the agent's acts come before that one's.
        for act in of(acts, Side::Agent).filter(|act| act.begin > since && act.begin <= life.end) {
            if let Some(theirs) = first.get(act.uid.as_str()).filter(|theirs| act.end > theirs.begin) {
                verdict
                    .overlaps
                    .push(format!("{} and {}", told(act, names), told(theirs, names)));
                continue;
            }
            let was_cut = matches!(&life.before, HandBack::CutShort(pods) if names.get(&act.uid).is_some_and(|name| pods.contains(name)));
            let is_begun_late = act.begin > life.start;
            match &life.before {
                HandBack::None if is_begun_late && act.begin < life.start + SEEN_WITHIN => verdict.unseen += 1,
                _ if is_begun_late => verdict.overlaps.push(format!(
                    "{} begun {:.3} s after a kubelet was there (before: {:?})",
                    told(act, names),
                    act.begin - life.start,
                    life.before
                )),
                HandBack::None if act.end > life.start => verdict.in_flight += 1,
                _ if act.end > life.start && !was_cut => verdict.overlaps.push(format!(
                    "{} went on {:.3} s after its hand-back",
                    told(act, names),
                    act.end - life.start
                )),
                _ => {}
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
                // It was cut short itself, and takes what is left for another one.
                (Side::Agent, _) if !one.done => verdict.run_again_unasked += usize::from(again.side == Side::Kubelet),
                (Side::Agent, _) => {
                    let next = lives
                        .iter()
                        .find(|life| life.start > one.begin && life.start <= again.begin);
                    let excused = next.is_some_and(|life| match &life.before {
                        HandBack::None => true,
                        HandBack::Clean => false,
                        HandBack::CutShort(pods) => names.get(uid).is_some_and(|name| pods.contains(name)),
                    });
                    if excused {
                        verdict.run_again_unasked += 1;
                    } else {
                        let (one, again) = (told(one, names), told(again, names));
                        verdict.run_again.push(format!("{one}, and then {again}"));
                    }
                }
            }
        }
    }
}

/// The only commands that these pods are asked to run.
pub const HOOK: &str = "ExecSync";

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

    /// A kubelet that died at 10, and one that came at 50 in this way.
    fn lives(before: HandBack) -> [Life; 2] {
        let life = |start, end, before| Life { start, end, before };
        [life(0.0, 10.0, HandBack::None), life(50.0, 100.0, before)]
    }

    fn verdict(before: HandBack, acts: &[Act]) -> Verdict {
        let names = BTreeMap::from([("u".to_owned(), "ns/pod".to_owned())]);
        judge(&lives(before), acts, &names)
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
    fn after_a_hand_back_the_agent_begins_nothing_and_only_what_was_cut_short_goes_on() {
        assert_eq!(verdict(HandBack::Clean, &[agent(50.5, 50.6)]).overlaps.len(), 1);
        assert_eq!(verdict(HandBack::Clean, &[agent(49.0, 50.6)]).overlaps.len(), 1);
        assert_eq!(verdict(cut_short(), &[agent(49.0, 50.6)]), Verdict::default());
        assert_eq!(verdict(cut_short(), &[agent(50.5, 50.6)]).overlaps.len(), 1);
    }

    #[test]
    fn a_kubelet_that_just_appears_is_seen_within_two_seconds() {
        let seen = verdict(HandBack::None, &[agent(49.0, 50.6), agent(50.7, 50.8)]);
        assert_eq!((seen.unseen, seen.in_flight, seen.overlaps.len()), (1, 1, 0));
        assert_eq!(verdict(HandBack::None, &[agent(52.5, 52.6)]).overlaps.len(), 1);
    }

    #[test]
    fn a_hook_that_the_agent_has_run_to_its_end_runs_again_only_without_a_hand_back() {
        let hook = |side, begin, end| act(side, HOOK, begin, end);
        let again = [hook(Side::Agent, 20.0, 25.0), hook(Side::Kubelet, 60.0, 65.0)];
        assert_eq!(verdict(HandBack::Clean, &again).run_again.len(), 1);
        for before in [HandBack::None, cut_short()] {
            let verdict = verdict(before, &again);
            assert_eq!((verdict.run_again.len(), verdict.run_again_unasked), (0, 1));
        }
        let by_itself = [hook(Side::Agent, 20.0, 25.0), hook(Side::Agent, 30.0, 31.0)];
        assert_eq!(verdict(HandBack::Clean, &by_itself).run_again.len(), 1);
        let begun_by_a_kubelet = [hook(Side::Kubelet, 9.0, 10.0), hook(Side::Agent, 30.0, 31.0)];
        assert_eq!(verdict(HandBack::Clean, &begun_by_a_kubelet).repeated_after_death, 1);
    }
}
