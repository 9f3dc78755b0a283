//! A trace in all output formats.

use serde_json::{Value, json};

use crate::command::run_with_answers;

/// The agent's answer: a trace with all fields except a mismatch.
fn traces() -> Value {
    json!([{
        "namespace": "default", "name": "web-0", "uid": "1234", "began": "2026-01-02T03:04:05Z", "cause": "deleted",
        "graceSeconds": 3, "graceLeftMs": 0, "graceEndMs": 3000, "graceCountedFrom": "termination", "stage": "terminated", "elapsedMs": 4000, "attempts": 2,
        "blocked": [{ "step": "volumes", "target": "data", "reason": "failed", "message": "in use by process 12" }], "phase": "Failed", "reason": "Evicted", "awaitingDeletion": true,
        "finalizers": ["example.com/hold"],
        "spans": [
            { "step": "term", "what": "main", "startMs": 0, "endMs": 1000 },
            { "step": "volumes", "what": "data", "startMs": 1000, "endMs": 1100, "failure": "in use by process 12" },
            { "step": "volumes", "what": "data", "startMs": 3900 },
        ],
    }])
}

fn printed(format: &[&str]) -> String {
    let answer = traces().to_string();
    let output = run_with_answers(&[&["timeline", "default/web-0"], format].concat(), &[&answer]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output:?}");
    output.out
}

#[test]
fn json_format_is_the_unchanged_answer() {
    let printed: Value = serde_json::from_str(&printed(&["-o", "json"])).unwrap();
    assert_eq!(printed, traces());
}

#[test]
fn terminations_are_listed_without_a_pod() {
    let entry = |namespace: &str, name: &str| {
        json!({
            "namespace": namespace, "name": name, "uid": "1234", "began": "2026-01-02T03:04:05Z", "cause": "deleted",
            "stage": "finished", "elapsedMs": 4000, "graceSeconds": 30, "graceLeftMs": 0, "graceCountedFrom": "termination",
            "attempts": 1, "phase": "Failed", "spans": [], "new": "field",
        })
    };
    let answer = json!([entry("default", "web-0"), entry("shop", "db-0")]).to_string();
    let list = |arguments: &[&str]| {
        let output = run_with_answers(&[&["timeline"], arguments].concat(), &[&answer]);
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{output:?}");
        output.out
    };
    let table = list(&[]);
    assert!(
        table.starts_with("NAMESPACE   NAME    STATE      DURATION   GRACE   AGE\n"),
        "{table}"
    );
    assert!(
        table.contains("default     web-0   finished   4.00s      30s"),
        "{table}"
    );
    assert!(list(&["-o", "wide"]).contains("1234"));
    let one = list(&["-n", "shop"]);
    assert!(one.contains("db-0") && !one.contains("web-0"), "{one}");
    assert!(
        list(&["-o", "json"]).contains("\"new\":\"field\""),
        "unknown fields stay"
    );
}
