//! `kill` and `evict` where the agent does not stay to the end.

use crate::{
    command::{Flags, Told, answered, told},
    run::Agent,
};

/// What is said of the agent, whoever asked it.
const GONE: &str = "pod-teardown status";

/// Kills a pod by something in the agent's place that gives these answers. What follows finds nobody there.
fn killed(answers: &[&str]) -> Told {
    answered(&["kill", "default/web"], answers)
}

#[test]
fn an_agent_that_dies_while_somebody_waits_is_said_to_go_on_when_it_starts_again() {
    for answers in [
        &[r#"{"uid":"u","graceSeconds":30}"#][..],
        &[r#"{"uid":"u","graceSeconds":30}"#, ""],
    ] {
        let told = killed(answers);
        assert_eq!((told.code, told.complaints().len()), (Some(1), 2), "{told:?}");
        assert_eq!(
            told.complaints()[0],
            "pod-teardown: default/web (UID u) is being ended, grace 30 s"
        );
        for words in [
            "the agent has gone",
            "goes on when the agent starts again",
            GONE,
            "timeline default/web",
        ] {
            assert!(told.complaints()[1].contains(words), "{words:?} is not in {told:?}");
        }
    }
}

#[test]
fn an_agent_that_dies_as_it_is_asked_leaves_it_open_what_became_of_that() {
    let told = killed(&[""]);
    assert_eq!((told.code, told.complaints().len()), (Some(1), 1), "{told:?}");
    for words in ["has gone before it answered", GONE] {
        assert!(told.err.contains(words), "{words:?} is not in {told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_runtime_is_reached_the_reason_is_told() {
    let mut agent = Agent::start(Flags::good());
    agent.says("Container runtime is not to be had").await;
    let socket = agent.flags.socket().to_str().unwrap().to_owned();
    for verb in ["kill", "timeline"] {
        let told = told(&[verb, "default/web", "--socket", &socket]);
        assert_eq!((told.code, told.complaints().len()), (Some(1), 1), "{told:?}");
        for words in ["the container runtime has not been reached yet", "No such file"] {
            assert!(told.err.contains(words), "{words:?} is not in {told:?}");
        }
    }
    assert_eq!(agent.terminate().await, Some(0));
}
