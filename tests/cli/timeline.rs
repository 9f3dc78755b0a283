//! A trace in all output formats.

use serde_json::{Value, json};

use crate::command::{run_command, run_with_answers};

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
fn svg_shows_the_same_texts_as_the_terminal() {
    let text = printed(&[]);
    assert_eq!(text, printed(&["-o", "table"]));
    let drawing = printed(&["-o", "svg"]);
    let document = roxmltree::Document::parse(&drawing).unwrap();
    let all: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
    for words in [
        "default/web-0  uid 1234",
        "terminated as Failed (Evicted) in 4.00s, awaits its deletion, 2 attempts",
        "1.00s → 1.10s",
        "✗ in use by process 12",
        "3.90s → …",
        "3.00s   grace period expires",
        "waits for: volumes data: in use by process 12",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
        assert!(
            all.iter().any(|text| text.contains(words)),
            "{words:?} is not in {all:?}"
        );
    }
    let bars = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("volumes"));
    assert_eq!(bars.count(), 2);
}

#[test]
fn terminations_are_listed_without_a_pod() {
    let entry = |namespace: &str, name: &str| {
        json!({
            "namespace": namespace, "name": name, "uid": "1234", "began": "2026-01-02T03:04:05Z", "cause": "deleted",
            "stage": "finished", "elapsedMs": 4000, "graceSeconds": 30, "attempts": 1, "phase": "Failed", "new": "field",
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
        list(&["-o", "json"]).contains("\"new\": \"field\""),
        "unknown fields stay"
    );
    assert!(list(&["-o", "yaml"]).contains("new: field"));
    for arguments in [&["timeline", "-f"][..], &["timeline", "-o", "svg"]] {
        let output = run_command(arguments);
        assert_eq!((output.code, output.error_lines().len()), (Some(64), 1), "{output:?}");
        assert!(output.err.contains("need a POD"), "{output:?}");
    }
}

#[test]
fn followed_timeline_is_printed_once_it_is_finished() {
    let stage = |stage: &str| {
        let mut all = traces();
        all[0]["awaitingDeletion"] = false.into();
        all[0]["stage"] = stage.into();
        all.to_string()
    };
    let (terminating, finished) = (stage("terminating"), stage("finished"));
    let answers = [terminating.as_str(), &terminating, &finished, &finished];
    let output = run_with_answers(&["timeline", "-f", "web-0"], &answers);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(output.out.matches("uid 1234").count(), 1, "{output:?}");
    assert!(output.out.contains("finished in 4.00s"), "{output:?}");
}
