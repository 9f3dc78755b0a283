//! Untrusted text controls neither systemd nor the terminal.

use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt as _},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::{
    command::{run_command, run_with_answers},
    run::{Agent, api},
    service::Systemd,
};
use testbed::scripted_cri::{ScriptedCri, World};

use crate::command::Flags;

/// Characters that a terminal, a log or systemd interprets.
const CONTROL: &str = "\u{1}\u{7}\u{8}\t\n\u{b}\u{c}\r\u{1b}\u{1f}\u{7f}\u{80}\u{85}\u{90}\u{9b}\u{9d}\u{9f}\u{61c}\u{200e}\u{200f}\
    \u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";

fn is_control(letter: char) -> bool {
    letter != '\n' && (letter.is_control() || CONTROL.contains(letter))
}

/// Replaces each text `x` in the value.
fn filled(value: &Value, replacement: &str) -> Value {
    match value {
        Value::String(text) if text == "x" => replacement.into(),
        Value::Array(items) => items.iter().map(|item| filled(item, replacement)).collect(),
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| (name.clone(), filled(value, replacement)));
            Value::Object(members.collect())
        }
        other => other.clone(),
    }
}

fn trace() -> Value {
    json!({
        "namespace": "x", "name": "x", "uid": "x", "began": "2026-01-02T03:04:05Z", "cause": "deleted",
        "graceSeconds": 30, "graceLeftMs": 0, "graceCountedFrom": "notBegun", "stage": "terminated", "elapsedMs": 4000, "attempts": 2,
        "blocked": [{ "step": "volumes", "target": "x", "reason": "failed", "message": "x" }], "phase": "x", "reason": "x", "awaitingDeletion": true, "finalizers": ["x"],
        "spans": [{ "step": "volumes", "what": "x", "startMs": 0, "endMs": 1000, "failure": "x" }],
    })
}

fn item() -> Value {
    json!({ "item": "x", "uid": "x", "why": "x", "approvalEffect": "x", "facts": ["x"], "digest": "x" })
}

fn observed() -> Value {
    let difference = json!({ "field": "x", "kubelet": "x", "agent": "x" });
    json!({
        "since": "2026-01-02T03:04:05Z", "until": "2026-01-03T03:04:05Z", "terminations": 1, "isObserving": true,
        "verdicts": { "same": 0, "different": 1, "differentAsDocumented": 0, "leftovers": 0, "unknown": 0 },
        "observations": [{
            "namespace": "x", "name": "x", "uid": "x", "finishedAt": "2026-01-02T03:04:05Z", "graceSeconds": 30,
            "elapsedMs": 4000, "verdict": "different", "differences": [difference],
            "leftovers": [{ "kind": "mount", "object": "x", "detail": "x" }], "reason": "x",
        }],
    })
}

/// The arguments of a query, its answer, and the flags for JSON.
type Query = (Vec<&'static str>, Value, Option<&'static [&'static str]>);

fn queries() -> [Query; 12] {
    const JSON: Option<&[&str]> = Some(&["-ojson"]);
    let report = pod_teardown::ops::status::StatusReport {
        takes_pods: true,
        ..Default::default()
    };
    let mut status = serde_json::to_value(report).unwrap();
    for (name, value) in [
        ("blocked", json!("x")),
        ("paused", json!({ "since": "2026-01-02T03:04:05Z", "by": "x" })),
        ("runtime", json!({ "version": "x", "error": "x" })),
        (
            "watch",
            json!({ "state": "watching", "pods": 1, "error": "x", "absenceHold": "x" }),
        ),
        (
            "housekeeping",
            json!({ "leftovers": ["x"], "unmanaged": ["x"], "unusedVolumes": ["x"] }),
        ),
        (
            "pods",
            json!({ "terminating": [trace()], "awaitingDeletion": 1, "awaitingFinalizers": 1 }),
        ),
        ("journalError", json!("x")),
        ("quarantinedFiles", json!(["x"])),
        ("collector", json!({ "standby": "x", "notSynced": "x" })),
        (
            "role",
            json!({
                "role": "standby", "reason": "kubelet-alive", "message": "x", "fencing": { "stopped": 0, "failed": 0, "last": "x" },
                "probes": [{ "probe": "x", "state": "down", "seen": "x" }],
            }),
        ),
    ] {
        status[name] = value;
    }
    let cause = json!({
        "severity": "blocking", "kind": "finalizer", "finalizer": "x", "removedBy": "x", "message": "x", "remedy": "x",
    });
    let why = json!({ "objects": [{ "object": "x", "uid": "x", "facts": ["x"] }], "causes": [cause], "end": "x" });
    let plan = json!({
        "namespace": "x", "name": "x", "uid": "x", "isDeleted": true, "blocked": ["x"], "graceSeconds": 30, "graceCountedFrom": "notBegun",
        "graceLeftSeconds": 30, "unknown": ["x"],
        "waitsFor": { "neededAs": "x", "pods": ["x"], "atMostSeconds": 600 },
        "steps": [{ "step": "volumes", "actions": [{ "action": "unmount", "path": "x", "fsType": "x" }] }],
    });
    let election = json!({
        "identity": "x", "mode": "auto", "dryRun": false, "standby": "x", "holdsLease": false, "leaseError": "x",
        "lease": { "holder": "x", "isOwn": false },
    });
    let pause =
        json!({ "paused": { "since": "2026-01-02T03:04:05Z", "by": "x" }, "inProgress": ["x"], "notDurable": "x" });
    [
        (vec!["status"], status, JSON),
        (vec!["holds"], json!({ "blocked": "x", "items": [item()] }), JSON),
        (vec!["why", "default/web"], why, JSON),
        (vec!["plan", "default/web"], plan, JSON),
        (vec!["timeline", "default/web"], json!([trace()]), Some(&["-o", "json"])),
        (vec!["gc", "graph"], json!(["x"]), None),
        (
            vec!["gc", "status"],
            json!({ "synced": false, "election": election }),
            JSON,
        ),
        (vec!["pause"], pause, None),
        (vec!["handover"], json!({ "inProgress": ["x"] }), None),
        (vec!["report"], observed(), JSON),
        (vec!["report", "-o", "wide"], observed(), None),
        (
            vec!["approve", "absence", "--digest", "0a", "--yes"],
            json!({ "item": item(), "notDurable": "x" }),
            None,
        ),
    ]
}

#[test]
fn answers_do_not_control_the_terminal() {
    let hostile = format!("begin{CONTROL}end");
    for (verb, answer, json) in queries() {
        let shown = |with: &str, more: &[&str]| {
            let output = run_with_answers(&[&verb, more].concat(), &[&filled(&answer, with).to_string()]);
            assert_eq!(
                (output.code, output.err.as_str()),
                (Some(0), ""),
                "{verb:?}: {output:?}"
            );
            let control: Vec<char> = output.out.chars().filter(|letter| is_control(*letter)).collect();
            // Tables and drawings have no control characters and no tabs.
            assert!(control.is_empty(), "{verb:?}: {control:?}");
            output.out
        };
        let (harmless, text) = (shown("begin", &[]), shown(&hostile, &[]));
        assert!(harmless.contains("begin") && text.contains("begin"), "{verb:?}: {text}");
        assert_eq!(text.lines().count(), harmless.lines().count(), "{verb:?}: {text}");
        if let Some(format) = json {
            let same: Value = serde_json::from_str(&shown(&hostile, format)).unwrap();
            assert!(
                same.to_string().contains(&json!(hostile).to_string()),
                "{verb:?}: {same}"
            );
        }
    }
}

#[test]
fn errors_of_the_agent_do_not_control_the_terminal() {
    let answer = json!({ "error": format!("begin{CONTROL}end") }).to_string();
    let length = answer.len();
    let refusal = format!("HTTP/1.1 503 No\r\ncontent-length: {length}\r\n\r\n{answer}");
    for verb in [
        &["status"][..],
        &["status", "-ojson"],
        &["stop", "default/web"],
        &["why", "default/web"],
        &["plan", "default/web"],
    ] {
        let output = crate::command::run_with_raw_answers(verb, &[&refusal]);
        assert_eq!((output.code, output.error_lines().len()), (Some(1), 1), "{output:?}");
        assert!(
            output.err.contains("begin") && !output.err.chars().any(is_control),
            "{output:?}"
        );
    }
}

#[test]
fn invalid_arguments_do_not_control_the_terminal() {
    // An argument cannot contain NUL.
    let hostile = format!("begin{CONTROL}end");
    for arguments in [
        &[hostile.as_str()][..],
        &["status", &hostile],
        &["status", &format!("--{hostile}")],
        &["timeline", "default/web", "-o", &hostile],
        &["stop", &hostile],
        &["stop", "default/web", "--grace-period", &hostile],
        &["handover", &hostile],
        &["gc", &hostile],
    ] {
        let output = run_command(arguments);
        let control: Vec<char> = output
            .err
            .chars()
            .filter(|letter| is_control(*letter) && *letter != '\t')
            .collect();
        assert!(control.is_empty(), "{arguments:?}: {control:?} in {}", output.err);
        assert!(
            output.err.contains("\\u{9b}") && output.err.contains("\\u{202e}"),
            "{output:?}"
        );
    }
}

/// A process that is killed when dropped.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts a fake kubelet with this kubelet root. Its runtime differs from that of other tests' agents.
fn kubelet(flags: &Flags, arguments: &[&str]) -> Process {
    let program = flags.path("kubelet-here");
    fs::create_dir(&program).unwrap();
    let program = program.join("kubelet");
    symlink("/bin/sh", &program).unwrap();
    let mut command = Command::new(program);
    command.arg0("kubelet").args(["-c", "read x"]).stdin(Stdio::piped());
    command.arg(format!("--root-dir={}", flags.path("kubelet").display()));
    command.arg("--container-runtime-endpoint=unix:///another/runtime.sock");
    Process(command.args(arguments).spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_of_a_kubelet_control_neither_systemd_nor_the_terminal_nor_the_log() {
    let api = api().await;
    let cri = ScriptedCri::start(World::new()).await;
    let flags = Flags::for_server(&api)
        .with("cri-endpoint", cri.endpoint())
        .with("mode", "always");
    let (systemd, flags) = Systemd::with_flags(flags);
    let injected = "-x\nMAINPID=1\nWATCHDOG=trigger\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\u{202e}";
    let _kubelet = kubelet(&flags, &[injected, &"long".repeat(10_000)]);
    let mut agent = Agent::start(flags);
    agent
        .until("it sees the kubelet", |agent| agent.status()["blocked"].is_string())
        .await;
    let mut messages = systemd.until("STATUS=blocked: a kubelet").await;
    messages.extend(systemd.until("WATCHDOG=1").await);
    for line in &messages {
        let is_ours = ["READY=1", "STATUS=", "WATCHDOG=1"]
            .iter()
            .any(|own| line.starts_with(own));
        assert!(
            is_ours && line != "WATCHDOG=trigger" && !line.chars().any(is_control),
            "{messages:?}"
        );
    }
    let status = messages.iter().rfind(|line| line.starts_with("STATUS=")).unwrap();
    assert!(!status.contains("MAINPID"), "{status}");
    let socket = agent.flags.socket().to_str().unwrap();
    for verb in [&["status"][..], &["holds"], &["status", "-ojson"]] {
        let output = crate::command::run_command(&[verb, &["--socket", socket]].concat());
        assert!(output.out.contains("a kubelet runs on this node (pid "), "{output:?}");
        assert!(!output.out.contains("MAINPID"), "{output:?}");
    }
    // It and the log have the command line.
    let output = block_in_place(|| agent.flags.run("check"));
    assert!(
        output.out.contains("kubelet -c read x") && !output.out.chars().any(is_control),
        "{output:?}"
    );
    assert!(
        !output.out.lines().any(|line| line.starts_with("MAINPID")),
        "{output:?}"
    );
    assert_eq!(agent.terminate().await, Some(0));
    let log = agent.log();
    assert!(
        log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{log}"
    );
    assert!(
        log.contains("kubelet -c read x") && !log.chars().any(is_control),
        "{log}"
    );
}
