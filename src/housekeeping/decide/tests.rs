use super::*;
use crate::watch::Sighted;

fn pod(uid: &str) -> PodRef {
    PodRef {
        uid: uid.into(),
        namespace: "ns".into(),
        name: "web".into(),
    }
}

fn directory() -> Traces {
    Traces {
        directory: true,
        ..Traces::default()
    }
}

fn logs(name: &str) -> Traces {
    Traces {
        logs: vec![("ns".to_owned(), name.to_owned())],
        ..Traces::default()
    }
}

fn sandbox(from_api: bool) -> Traces {
    let pod = pod("u");
    Traces {
        runtime: Some(Sighted {
            pod,
            from_api,
            from_elsewhere: !from_api,
            lives: true,
        }),
        ..Traces::default()
    }
}

/// How one UID of which this is found fares when nothing changes for long.
#[derive(Debug, PartialEq, Eq)]
enum Fares {
    Ended,
    Told,
    Forgotten,
    Nothing,
}

fn fares(facts: &Facts) -> Fares {
    let (mut sightings, start) = (Sightings::default(), Instant::now());
    let mut last = Verdict::default();
    for pass in 0..20 {
        (sightings, last) = decide(sightings, facts, start + pass * Duration::from_secs(30));
    }
    match last {
        Verdict { end, .. } if !end.is_empty() => Fares::Ended,
        Verdict { strangers, .. } if !strangers.is_empty() => Fares::Told,
        Verdict { forget, .. } if !forget.is_empty() => Fares::Forgotten,
        _ => Fares::Nothing,
    }
}

#[test]
fn only_what_is_proven_and_nobodys_is_ended_and_what_is_not_proven_is_told() {
    let known = |uid: &str| BTreeMap::from([(PodUid::from(uid), pod(uid))]);
    let found = |traces: Traces| BTreeMap::from([(PodUid::from("u"), traces)]);
    let seen = |traces| Facts {
        seen: known("u"),
        found: found(traces),
        ..Facts::default()
    };
    let roll = |pods: &[&str], any_of_the_api| Roll {
        pods: pods.iter().map(|&uid| uid.into()).collect(),
        any_of_the_api,
    };
    let table = [
        ("a directory of a pod that was seen", seen(directory()), Fares::Ended),
        ("its logs", seen(logs("web")), Fares::Ended),
        ("logs of another name under its UID", seen(logs("other")), Fares::Told),
        (
            "nothing of a pod that was seen",
            Facts {
                seen: known("u"),
                ..Facts::default()
            },
            Fares::Forgotten,
        ),
        (
            "nothing of a pod that lives",
            Facts {
                seen: known("u"),
                roll: roll(&["u"], true),
                ..Facts::default()
            },
            Fares::Nothing,
        ),
        (
            "a pod that lives",
            Facts {
                roll: roll(&["u"], true),
                ..seen(directory())
            },
            Fares::Nothing,
        ),
        (
            "a pod that ends",
            Facts {
                at_work: ["u".into()].into(),
                ..seen(directory())
            },
            Fares::Nothing,
        ),
        (
            "nobody knows whose",
            Facts {
                found: found(directory()),
                ..Facts::default()
            },
            Fares::Told,
        ),
        (
            "an entry without a worker",
            Facts {
                begun: known("u"),
                ..Facts::default()
            },
            Fares::Ended,
        ),
        (
            "an entry whose worker is at it",
            Facts {
                begun: known("u"),
                at_work: ["u".into()].into(),
                ..Facts::default()
            },
            Fares::Nothing,
        ),
        (
            "a sandbox that a kubelet made by the API server's word",
            Facts {
                found: found(sandbox(true)),
                roll: roll(&["x"], true),
                ..Facts::default()
            },
            Fares::Ended,
        ),
        (
            "the same where the API server knows no pod at all",
            Facts {
                found: found(sandbox(true)),
                ..Facts::default()
            },
            Fares::Nothing,
        ),
        (
            "a sandbox of a static pod: told elsewhere",
            Facts {
                found: found(sandbox(false)),
                roll: roll(&["x"], true),
                ..Facts::default()
            },
            Fares::Nothing,
        ),
        (
            "a sandbox of a static pod that has the UID of a pod that was seen",
            seen(Traces {
                directory: true,
                ..sandbox(false)
            }),
            Fares::Nothing,
        ),
    ];
    for (what, facts, expected) in table {
        assert_eq!(fares(&facts), expected, "{what}");
    }
}

/// When, in seconds, the leftovers of one pod are handed over, each time in vain, with a pass every 30 s.
fn handed_over(passes: u32, found: impl Fn(u32) -> bool) -> Vec<u32> {
    let (mut sightings, start) = (Sightings::default(), Instant::now());
    let mut times = Vec::new();
    for pass in 0..passes {
        let now = start + pass * Duration::from_secs(30);
        let found = found(pass).then(|| ("u".into(), directory()));
        let facts = Facts {
            seen: [("u".into(), pod("u"))].into(),
            found: found.into_iter().collect(),
            ..Facts::default()
        };
        let verdict;
        (sightings, verdict) = decide(sightings, &facts, now);
        for leftover in verdict.end {
            sightings.handed_over(&leftover.pod.uid, now);
            times.push(pass * 30);
        }
    }
    times
}

#[test]
fn what_comes_back_is_left_for_twice_as_long_each_time() {
    assert_eq!(handed_over(60, |_| true), [120, 360, 840]);
    let many = handed_over(2000, |_| true);
    let pauses: Vec<_> = many.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses.iter().max(), Some(&3840));
}

#[test]
fn what_was_gone_in_between_is_observed_anew() {
    assert_eq!(handed_over(8, |pass| pass != 3), Vec::<u32>::new());
    assert_eq!(handed_over(9, |pass| pass != 3), [240]);
}

#[test]
fn two_looks_are_needed_however_far_they_are_apart() {
    let start = Instant::now();
    let facts = Facts {
        seen: [("u".into(), pod("u"))].into(),
        found: [("u".into(), directory())].into(),
        ..Facts::default()
    };
    let (sightings, first) = decide(Sightings::default(), &facts, start);
    let (_, second) = decide(sightings, &facts, start + MIN_AGE);
    assert_eq!((first.end.len(), second.end.len()), (0, 1));
    assert_eq!(second.leftovers, ["ns/web (UID u): directory"]);
}

#[test]
fn a_few_at_a_time_are_ended_those_that_have_been_there_longest_first() {
    let start = Instant::now();
    let uids = |pods: u32| (0..pods).map(|n| format!("{:02}", 20 - n));
    let facts = |pods| Facts {
        seen: uids(pods).map(|uid| (uid.as_str().into(), pod(&uid))).collect(),
        found: uids(pods).map(|uid| (uid.as_str().into(), directory())).collect(),
        ..Facts::default()
    };
    let (sightings, _) = decide(Sightings::default(), &facts(3), start);
    let (sightings, _) = decide(sightings, &facts(10), start + Duration::from_secs(30));
    let (_, verdict) = decide(sightings, &facts(10), start + 2 * MIN_AGE);
    let ended: Vec<_> = verdict.end.iter().map(|left| left.pod.uid.as_str()).collect();
    assert_eq!(ended, ["18", "19", "20", "11"]);
    assert_eq!(verdict.leftovers.len(), 10);
}
