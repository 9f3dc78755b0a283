use super::*;
use crate::apiserver::kinds;
use serde_json::json;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn pod(grace: i64) -> Value {
    json!({
        "metadata": { "name": "a", "generation": 1 },
        "spec": { "nodeName": "n", "terminationGracePeriodSeconds": grace },
        "status": { "phase": "Running" },
    })
}

fn ask(grace: Option<i64>) -> DeleteOptions {
    DeleteOptions {
        grace,
        ..DeleteOptions::default()
    }
}

fn delete(object: &Value, options: &DeleteOptions, now: Timestamp) -> Outcome {
    decide(kinds::find("", "v1", "pods").unwrap(), object, options, now)
}

fn held(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Held(object) => object,
        other => panic!("not held: {other:?}"),
    }
}

#[test]
fn the_first_deletion_takes_the_asked_grace_or_that_of_the_spec() {
    for (asked, expected) in [(None, 30), (Some(5), 5), (Some(90), 90), (Some(-4), 1)] {
        let pod = held(delete(&pod(30), &ask(asked), now()));
        assert_eq!(object::deletion_grace(&pod), Some(expected), "{asked:?}");
        assert_eq!(object::deletion_time(&pod), Some(object::shifted(now(), expected)));
        assert_eq!(object::generation(&pod), 2);
    }
}

#[test]
fn a_repeated_deletion_can_only_shorten() {
    let first = held(delete(&pod(30), &ask(None), now()));
    for asked in [None, Some(30), Some(60)] {
        assert_eq!(delete(&first, &ask(asked), now()), Outcome::Unchanged);
    }
    let second = held(delete(&first, &ask(Some(10)), object::shifted(now(), 5)));
    assert_eq!(object::deletion_time(&second), Some(object::shifted(now(), 10)));
    assert_eq!(object::generation(&second), 2);
}

#[test]
fn a_grace_shortened_into_the_past_ends_now_and_is_stored_as_one() {
    let first = held(delete(&pod(30), &ask(None), now()));
    let late = object::shifted(now(), 20);
    let second = held(delete(&first, &ask(Some(3)), late));
    assert_eq!(
        (object::deletion_time(&second), object::deletion_grace(&second)),
        (Some(late), Some(1))
    );
}

#[test]
fn grace_zero_is_seen_once_more_before_it_goes() {
    let Outcome::Removed { last: Some(last) } = delete(&pod(30), &ask(Some(0)), now()) else {
        panic!("not removed")
    };
    assert_eq!(object::deletion_grace(&last), Some(0));
    assert_eq!(delete(&last, &ask(None), now()), Outcome::Removed { last: None });
}

#[test]
fn an_unbound_or_finished_pod_needs_no_grace() {
    let mut unbound = pod(30);
    unbound["spec"]["nodeName"] = "".into();
    let mut failed = pod(30);
    failed["status"]["phase"] = "Failed".into();
    for pod in [unbound, failed] {
        assert!(matches!(
            delete(&pod, &ask(Some(20)), now()),
            Outcome::Removed { last: Some(_) }
        ));
    }
}

#[test]
fn finalizers_hold_what_has_no_grace_left() {
    let mut pod = pod(30);
    pod["metadata"]["finalizers"] = json!(["ex.io/a"]);
    let stored = held(delete(&pod, &ask(Some(0)), now()));
    assert_eq!(object::finalizers(&stored), ["ex.io/a"]);
    assert_eq!(
        delete(&stored, &ask(Some(0)), object::shifted(now(), 9)),
        Outcome::Unchanged
    );
}

#[test]
fn the_last_policy_that_speaks_decides_on_the_special_finalizers() {
    let maps = kinds::find("", "v1", "configmaps").unwrap();
    let controllers = kinds::find("", "v1", "replicationcontrollers").unwrap();
    let by = |policy| DeleteOptions {
        policy,
        ..DeleteOptions::default()
    };
    let object = json!({ "metadata": { "name": "a" } });
    assert_eq!(decide(maps, &object, &by(None), now()), Outcome::Removed { last: None });
    let foreground = held(decide(maps, &object, &by(Some(Policy::Foreground)), now()));
    assert_eq!(object::finalizers(&foreground), [FOREGROUND]);
    assert_eq!(object::generation(&foreground), 0);
    assert_eq!(decide(maps, &foreground, &by(None), now()), Outcome::Unchanged);
    let orphan = held(decide(maps, &foreground, &by(Some(Policy::Orphan)), now()));
    assert_eq!(object::finalizers(&orphan), [ORPHAN]);
    assert_eq!(
        decide(maps, &orphan, &by(Some(Policy::Background)), now()),
        Outcome::Removed { last: None }
    );
    assert_eq!(
        object::finalizers(&held(decide(controllers, &object, &by(None), now()))),
        [ORPHAN]
    );
}
