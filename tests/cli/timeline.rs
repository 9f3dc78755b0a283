//! One story in the formats that people and programs ask for.

use serde_json::{Value, json};

use crate::command::answered;

/// What an agent answers, with all that a story may have but a doubt.
fn stories() -> Value {
    json!([{
        "namespace": "default", "name": "web-0", "uid": "1234", "began": "2026-01-02T03:04:05Z", "cause": "deleted",
        "graceSeconds": 30, "graceLeftMs": 0, "stage": "terminated", "elapsedMs": 4000, "attempts": 2,
        "blocked": [{ "step": "volumes", "target": "data", "reason": "failed", "message": "in use by process 12" }], "phase": "Failed", "reason": "Evicted", "kept": true,
        "finalizers": ["example.com/hold"],
        "spans": [
            { "step": "term", "what": "main", "startMs": 0, "endMs": 1000 },
            { "step": "volumes", "what": "data", "startMs": 1000, "endMs": 1100, "failure": "in use by process 12" },
            { "step": "volumes", "what": "data", "startMs": 3900 },
        ],
    }])
}

fn printed(format: &[&str]) -> String {
    let answer = stories().to_string();
    let told = answered(&[&["timeline", "default/web-0"], format].concat(), &[&answer]);
    assert_eq!((told.code, told.err.as_str()), (Some(0), ""), "{told:?}");
    told.out
}

#[test]
fn a_program_gets_the_stories_just_as_the_socket_gives_them() {
    let printed: Value = serde_json::from_str(&printed(&["--format", "json"])).unwrap();
    assert_eq!(printed, stories());
}

#[test]
fn the_drawing_for_a_browser_tells_what_the_one_for_a_terminal_tells() {
    let text = printed(&[]);
    assert_eq!(text, printed(&["--format", "text"]));
    let drawing = printed(&["--format", "svg"]);
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
            all.iter().any(|told| told.contains(words)),
            "{words:?} is not in {all:?}"
        );
    }
    let bars = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("volumes"));
    assert_eq!(bars.count(), 2);
}
