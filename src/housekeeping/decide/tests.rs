use super::*;
use crate::watch::RuntimePodSummary;

fn pod(uid: &str) -> PodRef {
    PodRef {
        uid: uid.into(),
        namespace: "ns".into(),
        name: "web".into(),
    }
}

fn directory() -> PodArtifacts {
    PodArtifacts {
        directory: true,
        ..PodArtifacts::default()
    }
}

fn logs(name: &str) -> PodArtifacts {
    PodArtifacts {
        logs: vec![("ns".to_owned(), name.to_owned())],
        ..PodArtifacts::default()
    }
}

fn sandbox(from_api: bool) -> PodArtifacts {
    let pod = pod("u");
    PodArtifacts {
        runtime: Some(RuntimePodSummary {
            pod,
            from_api,
            is_static: !from_api,
            has_ready_sandbox: true,
        }),
        ..PodArtifacts::default()
    }
}

/// The decisions about one UID with these artifacts, if nothing changes for long.
#[derive(Debug, PartialEq, Eq)]
enum Fares {
    Ended,
    Reported,
    Forgotten,
    Nothing,
}

fn fares(facts: &Facts) -> Fares {
    let (mut observations, start) = (Observations::default(), Instant::now());
    let mut last = Verdict::default();
    for pass in 0..20 {
        (observations, last) = decide(observations, facts, start + pass * Duration::from_secs(30));
    }
    match last {
        Verdict { terminate, .. } if !terminate.is_empty() => Fares::Ended,
        Verdict { unmanaged, .. } if !unmanaged.is_empty() => Fares::Reported,
        Verdict { forget, .. } if !forget.is_empty() => Fares::Forgotten,
        _ => Fares::Nothing,
    }
}

#[test]
fn only_proven_leftovers_are_terminated_and_unproven_traces_are_reported() {
    let known = |uid: &str| BTreeMap::from([(PodUid::from(uid), pod(uid))]);
    let found = |artifacts: PodArtifacts| BTreeMap::from([(PodUid::from("u"), artifacts)]);
    let seen = |artifacts| Facts {
        seen: known("u"),
        found: found(artifacts),
        ..Facts::default()
    };
    let snapshot = |pods: &[&str], has_api_pods| PodSnapshot {
        pods: pods.iter().map(|&uid| uid.into()).collect(),
        has_api_pods,
    };
    let table = [
        ("a directory of a pod that was seen", seen(directory()), Fares::Ended),
        ("its logs", seen(logs("web")), Fares::Ended),
        (
            "logs of another name under its UID",
            seen(logs("other")),
            Fares::Reported,
        ),
        (
            "nothing of a pod that was seen",
            Facts {
                seen: known("u"),
                ..Facts::default()
            },
            Fares::Forgotten,
        ),
        (
            "a known pod without artifacts",
            Facts {
                seen: known("u"),
                snapshot: snapshot(&["u"], true),
                ..Facts::default()
            },
            Fares::Nothing,
        ),
        (
            "a known pod",
            Facts {
                snapshot: snapshot(&["u"], true),
                ..seen(directory())
            },
            Fares::Nothing,
        ),
        (
            "a pod that ends",
            Facts {
                with_worker: ["u".into()].into(),
                ..seen(directory())
            },
            Fares::Nothing,
        ),
        (
            "no proof of any pod",
            Facts {
                found: found(directory()),
                ..Facts::default()
            },
            Fares::Reported,
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
            "an entry of the journal with a worker",
            Facts {
                begun: known("u"),
                with_worker: ["u".into()].into(),
                ..Facts::default()
            },
            Fares::Nothing,
        ),
        (
            "a sandbox with config source api",
            Facts {
                found: found(sandbox(true)),
                snapshot: snapshot(&["x"], true),
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
            "a sandbox of a static pod: reported by the watch",
            Facts {
                found: found(sandbox(false)),
                snapshot: snapshot(&["x"], true),
                ..Facts::default()
            },
            Fares::Nothing,
        ),
        (
            "a sandbox of a static pod that has the UID of a pod that was seen",
            seen(PodArtifacts {
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

/// Seconds at which the leftovers of one pod are sent to the workers, if they always reappear, with a pass every 30 s.
fn restart(passes: u32, found: impl Fn(u32) -> bool) -> Vec<u32> {
    let (mut observations, start) = (Observations::default(), Instant::now());
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
        (observations, verdict) = decide(observations, &facts, now);
        for leftover in verdict.terminate {
            observations.restart(&leftover.pod.uid, now);
            times.push(pass * 30);
        }
    }
    times
}

#[test]
fn reappearing_leftovers_are_retried_with_a_backoff() {
    assert_eq!(restart(60, |_| true), [120, 360, 840]);
    let many = restart(2000, |_| true);
    let pauses: Vec<_> = many.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses.iter().max(), Some(&3840));
}

#[test]
fn disappearance_resets_the_observation() {
    assert_eq!(restart(8, |pass| pass != 3), Vec::<u32>::new());
    assert_eq!(restart(9, |pass| pass != 3), [240]);
}

#[test]
fn two_passes_are_needed_at_any_interval() {
    let start = Instant::now();
    let facts = Facts {
        seen: [("u".into(), pod("u"))].into(),
        found: [("u".into(), directory())].into(),
        ..Facts::default()
    };
    let (observations, first) = decide(Observations::default(), &facts, start);
    let (_, second) = decide(observations, &facts, start + MIN_AGE);
    assert_eq!((first.terminate.len(), second.terminate.len()), (0, 1));
    assert_eq!(second.leftovers, ["ns/web (UID u): directory"]);
}

#[test]
fn oldest_few_leftovers_are_terminated_first() {
    let start = Instant::now();
    let uids = |pods: u32| (0..pods).map(|n| format!("{:02}", 20 - n));
    let facts = |pods| Facts {
        seen: uids(pods).map(|uid| (uid.as_str().into(), pod(&uid))).collect(),
        found: uids(pods).map(|uid| (uid.as_str().into(), directory())).collect(),
        ..Facts::default()
    };
    let (observations, _) = decide(Observations::default(), &facts(3), start);
    let (observations, _) = decide(observations, &facts(10), start + Duration::from_secs(30));
    let (_, verdict) = decide(observations, &facts(10), start + 2 * MIN_AGE);
    let ended: Vec<_> = verdict.terminate.iter().map(|left| left.pod.uid.as_str()).collect();
    assert_eq!(ended, ["18", "19", "20", "11"]);
    assert_eq!(verdict.leftovers.len(), 10);
}
