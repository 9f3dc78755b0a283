use super::*;

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
enum Outcome {
    Ended,
    Reported,
    Forgotten,
    Nothing,
}

fn outcome(facts: &Facts) -> Outcome {
    let (mut observations, start) = (Observations::default(), Instant::now());
    let mut last = Verdict::default();
    for pass in 0..20 {
        (observations, last) = decide(observations, facts, start + pass * Duration::from_secs(30));
    }
    match last {
        Verdict { terminate, .. } if !terminate.is_empty() => Outcome::Ended,
        Verdict { unmanaged, .. } if !unmanaged.is_empty() => Outcome::Reported,
        Verdict { forget, .. } if !forget.is_empty() => Outcome::Forgotten,
        _ => Outcome::Nothing,
    }
}

#[test]
fn only_proven_leftovers_are_terminated_and_unproven_traces_are_reported() {
    let nothing = PodArtifacts::default;
    let static_pod = || PodArtifacts {
        directory: true,
        ..sandbox(false)
    };
    // `seen`: the API server has shown the pod. `begun`: the journal has an entry of it. `known`: the watch knows it, or other pods.
    for (evidence, artifacts, expected) in [
        ("seen", directory(), Outcome::Ended),
        ("seen", logs("web"), Outcome::Ended),
        ("seen", logs("other"), Outcome::Reported),
        ("seen", nothing(), Outcome::Forgotten),
        ("seen, known", nothing(), Outcome::Nothing),
        ("seen, known", directory(), Outcome::Nothing),
        ("seen, has a worker", directory(), Outcome::Nothing),
        ("none", directory(), Outcome::Reported),
        ("begun", nothing(), Outcome::Ended),
        ("begun, has a worker", nothing(), Outcome::Nothing),
        ("others are known", sandbox(true), Outcome::Ended),
        // The API server knows no pod at all.
        ("none", sandbox(true), Outcome::Reported),
        ("others are known", sandbox(false), Outcome::Reported),
        ("seen", static_pod(), Outcome::Reported),
    ] {
        let uid = || PodUid::from("u");
        let known = |word: &str| evidence.contains(word).then(|| (uid(), pod("u")));
        let listed = [("seen, known", "u"), ("others are known", "x")];
        let pods = listed.iter().filter(|(words, _)| evidence == *words);
        let facts = Facts {
            seen: known("seen").into_iter().collect(),
            begun: known("begun").into_iter().collect(),
            snapshot: PodSnapshot {
                pods: pods.map(|(_, uid)| PodUid::from(*uid)).collect(),
                has_api_pods: evidence.contains("known"),
            },
            with_worker: evidence.contains("worker").then(uid).into_iter().collect(),
            found: [(uid(), artifacts.clone())]
                .into_iter()
                .filter(|(_, artifacts)| !artifacts.is_empty())
                .collect(),
            unread: None,
        };
        assert_eq!(outcome(&facts), expected, "{evidence}: {artifacts}");
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
fn pass_that_could_not_read_the_disk_forgets_nothing_and_finds_orphans() {
    let start = Instant::now();
    let facts = |found: &[(&str, PodArtifacts)], unread: Option<&str>| Facts {
        seen: ["u", "v"].map(|uid| (uid.into(), pod(uid))).into(),
        found: found
            .iter()
            .map(|(uid, found)| ((*uid).into(), found.clone()))
            .collect(),
        unread: unread.map(Why::new),
        ..Facts::default()
    };
    let directory = [("u", directory())];
    let (observations, _) = decide(Observations::default(), &facts(&directory, None), start);
    let partial = facts(&[("v", sandbox(true))], Some("it hangs"));
    let (observations, verdict) = decide(observations, &partial, start + MIN_AGE / 2);
    assert_eq!((verdict.forget.len(), verdict.terminate.len()), (0, 1));
    let (_, verdict) = decide(observations, &facts(&directory, None), start + MIN_AGE);
    assert_eq!((verdict.forget, verdict.terminate.len()), (vec!["v".into()], 1));
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
fn orphan_in_the_runtime_is_due_at_once_and_then_with_the_backoff_of_leftovers() {
    let start = Instant::now();
    let mut found: BTreeMap<PodUid, _> = (0..20).map(|n| (format!("{n}").as_str().into(), directory())).collect();
    found.extend((30..40).map(|n| (format!("{n}").as_str().into(), sandbox(true))));
    let facts = Facts {
        seen: found.keys().map(|uid| (uid.clone(), pod(uid.as_str()))).collect(),
        found,
        ..Facts::default()
    };
    let orphans = |verdict: &Verdict| verdict.terminate.iter().filter(|it| it.artifacts == "sandbox").count();
    let (mut observations, first) = decide(Observations::default(), &facts, start);
    assert_eq!((orphans(&first), first.terminate.len()), (10, 10));
    for leftover in &first.terminate {
        observations.restart(&leftover.pod.uid, start);
    }
    let (_, second) = decide(observations, &facts, start + MIN_AGE);
    assert_eq!((orphans(&second), second.terminate.len()), (0, 4));
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
