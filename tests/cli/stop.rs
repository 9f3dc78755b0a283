//! `stop` if the agent exits before the pod has terminated.

use crate::command::{CommandOutput, run_with_answers};

/// The command that the error names.
const REMEDY: &str = "pod-teardown status";

/// Runs `stop` against a fake agent that gives these answers and then exits.
fn stop(answers: &[&str]) -> CommandOutput {
    run_with_answers(&["stop", "default/web"], answers)
}

#[test]
fn request_that_is_not_durable_is_reported_and_its_continuation_is_not_promised() {
    let accepted =
        r#"{"namespace":"default","name":"web","uid":"u","gracePeriodSeconds":30,"notDurable":"no space left"}"#;
    let output = stop(&[accepted]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert_eq!(
        output.error_lines()[0],
        "pod-teardown: default/web (UID u) is terminating, grace period 30s; a restart of the agent would lose this request: \
         no space left"
    );
    assert!(
        output.error_lines()[1].contains("the request was not durable"),
        "{output:?}"
    );
}

#[test]
fn agent_exit_during_the_wait_is_reported_with_the_remedy() {
    for answers in [
        &[r#"{"namespace":"default","name":"web","uid":"u","gracePeriodSeconds":30}"#][..],
        &[
            r#"{"namespace":"default","name":"web","uid":"u","gracePeriodSeconds":30}"#,
            "",
        ],
    ] {
        let output = stop(answers);
        assert_eq!((output.code, output.error_lines().len()), (Some(1), 2), "{output:?}");
        assert_eq!(
            output.error_lines()[0],
            "pod-teardown: default/web (UID u) is terminating, grace period 30s"
        );
        for words in [
            "the agent has exited",
            "continues when the agent starts again",
            REMEDY,
            "timeline default/web",
        ] {
            assert!(
                output.error_lines()[1].contains(words),
                "{words:?} is not in {output:?}"
            );
        }
    }
}

#[test]
fn agent_exit_before_the_answer_is_reported_as_an_unknown_result() {
    let output = stop(&[""]);
    assert_eq!((output.code, output.error_lines().len()), (Some(1), 1), "{output:?}");
    for words in ["has exited before its answer", REMEDY] {
        assert!(output.err.contains(words), "{words:?} is not in {output:?}");
    }
}
