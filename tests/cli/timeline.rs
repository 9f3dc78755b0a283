//! A trace in all output formats.

use serde_json::{Value, json};

use crate::command::run_with_answers;

/// The agent's answer: a trace with all fields except a mismatch.
fn traces() -> Value {
    json!([{
        "namespace": "default", "name": "web-0", "uid": "1234", "began": "2026-01-02T03:04:05Z", "cause": "deleted",
        "graceSeconds": 30, "graceLeftMs": 0, "stage": "terminated", "elapsedMs": 4000, "attempts": 2,
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
        "ended as Failed (Evicted) in 4.00 s, and is kept, 2 attempts",
        "1.00 s → 1.10 s",
        "✗ in use by process 12",
        "3.90 s → …",
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
