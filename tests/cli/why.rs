//! `why --watch` against a fake agent.

use serde_json::{Value, json};

use crate::command::{CommandOutput, run_with_raw_answers};

fn explanation(end: &str, is_gone: bool) -> Value {
    json!({ "objects": [{ "object": "Pod default/db-0", "uid": "1234", "facts": [] }], "end": end, "isGone": is_gone })
}

fn watch(format: &str, answers: &[(&str, Value)]) -> CommandOutput {
    let answers: Vec<String> = answers
        .iter()
        .map(|(status, answer)| {
            let answer = answer.to_string();
            format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len())
        })
        .collect();
    let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
    run_with_raw_answers(&["why", "db-0", "-w", "-o", format], &answers)
}

#[test]
fn watch_prints_each_change_once_and_ends_when_the_pod_is_gone() {
    let waits = || ("200 OK", explanation("It waits.", false));
    let gone = ("200 OK", explanation("Nothing is left.", true));
    let output = watch("table", &[waits(), waits(), gone]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output:?}");
    let count = |words| output.out.matches(words).count();
    assert_eq!((count("It waits."), count("Nothing is left.")), (1, 1), "{output:?}");
}

/// A kubelet has terminated it: the agent has no trace of it.
#[test]
fn watch_ends_when_the_agent_no_longer_knows_the_pod_and_json_stays_json() {
    let answers = || {
        [
            ("200 OK", explanation("It waits.", false)),
            (
                "503 Service Unavailable",
                json!({ "error": "the agent has only just started" }),
            ),
            ("404 Not Found", json!({ "error": "no such pod is known here" })),
        ]
    };
    let output = watch("table", &answers());
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.ends_with("no such pod is known here\n"), "{output:?}");
    let [waits, _, unknown] = answers();
    let output = watch("json", &[waits.clone(), unknown.clone()]);
    let printed: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((output.code, printed), (Some(0), waits.1));
    let output = watch("table", &[unknown]);
    assert_eq!(output.code, Some(1), "a pod that was never known: {output:?}");
}
