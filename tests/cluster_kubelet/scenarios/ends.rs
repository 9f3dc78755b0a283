//! Exits of containers and their termination messages.

use serde_json::{Value, json};

use crate::scenario::{
    Deletion, STUBBORN, Scenario, both, command, container, ends, is, phase, pod, scenario, short, shows, single, with,
};

const LOGS: &str = "FallbackToLogsOnError";

pub fn scenarios() -> Vec<Scenario> {
    [codes(), messages(), before(), evictions()]
        .into_iter()
        .flatten()
        .collect()
}

/// Exit codes, signals and policies.
fn codes() -> Vec<Scenario> {
    let three = [
        container("fails", &ends(7)),
        container("stubborn", STUBBORN),
        container("works", &ends(0)),
    ];
    vec![
        scenario("exit_0_never", single("Never", &ends(0))),
        scenario("exit_0_on_failure", single("OnFailure", &ends(0))),
        scenario("exit_0_always", single("Always", &ends(0))),
        scenario("exit_1_never", single("Never", &ends(1))),
        scenario("exit_1_on_failure", single("OnFailure", &ends(1))),
        scenario("exit_1_always", single("Always", &ends(1))),
        scenario("killed_when_the_grace_is_over", short(single("Always", STUBBORN))),
        // Without being PID 1, a signal has its default effect.
        scenario(
            "killed_by_its_signal",
            with(
                pod("Never", &[command("main", "exec sleep 600")]),
                json!({ "shareProcessNamespace": true }),
            ),
        ),
        scenario("three_ends", short(pod("Always", &three))),
        scenario("three_ends_never", short(pod("Never", &three))),
        scenario("less_grace_than_the_spec", single("Always", STUBBORN)).deleted(Deletion::Grace(1)),
        scenario("no_grace", single("Always", STUBBORN)).deleted(Deletion::Grace(0)),
        scenario("evicted_by_the_api", single("Always", &ends(0))).deleted(Deletion::Eviction),
        scenario(
            "own_policy",
            pod(
                "Always",
                &[with(container("main", &ends(3)), json!({ "restartPolicy": "Never" }))],
            ),
        ),
        scenario(
            "out_of_memory_at_the_end",
            pod("Never", &[limited("trap 'exec tail /dev/zero' TERM")]),
        ),
        scenario(
            "deadline_passed_before_the_deletion_was_seen",
            single("Always", &ends(0)),
        )
        .write_before_deletion(json!({ "spec": { "activeDeadlineSeconds": 1 } })),
    ]
}

/// Termination messages.
fn messages() -> Vec<Scenario> {
    let says = |text: &str, code: u8| format!("trap '{text} >/dev/termination-log; exit {code}' TERM");
    let logs = |script: &str| with(container("main", script), json!({ "terminationMessagePolicy": LOGS }));
    let long = "i=0; while [ $i -lt 500 ]; do printf 0123456789; i=$((i+1)); done";
    let umlauts = "printf x; i=0; while [ $i -lt 2500 ]; do printf ä; i=$((i+1)); done";
    let lines = "trap 'i=0; while [ $i -lt 120 ]; do echo line $i; i=$((i+1)); done; exit 1' TERM";
    let five = |text: &str| -> Vec<Value> {
        let script = says(text, 1);
        ["a", "b", "c", "d", "e"]
            .iter()
            .map(|name| container(name, &script))
            .collect()
    };
    vec![
        scenario("message_in_the_file", single("Never", &says("echo all is well", 0))),
        scenario("message_of_a_failure", single("Always", &says("printf no", 2))),
        scenario("long_message", single("Never", &says(&format!("({long})"), 1))),
        scenario("long_messages_of_five", pod("Never", &five(&format!("({long})")))),
        scenario(
            "long_messages_of_five_in_two_bytes_each",
            pod("Never", &five(&format!("({umlauts})"))),
        ),
        scenario(
            "message_in_the_log",
            pod("Never", &[logs("trap 'echo it broke; exit 1' TERM")]),
        ),
        scenario("many_lines_in_the_log", pod("Never", &[logs(lines)])),
        scenario(
            "message_in_the_log_of_a_success",
            pod("Never", &[logs("trap 'echo fine; exit 0' TERM")]),
        ),
        scenario(
            "message_in_file_and_log",
            pod("Never", &[logs(&says("echo in the log; echo in the file", 1))]),
        ),
    ]
}

/// Containers that exited before the deletion.
fn before() -> Vec<Scenario> {
    let again = "[ -e /data/mark ] || { : >/data/mark; echo first >/dev/termination-log; exit 5; }";
    let again = with(
        container("main", &format!("{again}\n{}", ends(0))),
        json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }),
    );
    vec![
        scenario("succeeded_before", pod("Never", &[command("main", "exit 0")])).until(phase("Succeeded")),
        scenario(
            "failed_before",
            pod(
                "OnFailure",
                &[with(command("main", "exit 9"), json!({ "restartPolicy": "Never" }))],
            ),
        )
        .until(phase("Failed")),
        scenario(
            "deadline_passed_before",
            with(single("Always", &ends(0)), json!({ "activeDeadlineSeconds": 4 })),
        )
        .until(phase("Failed")),
        scenario(
            "one_done_one_runs",
            pod("Never", &[command("done", "exit 0"), container("runs", &ends(1))]),
        )
        .until(both(is("done", "terminated"), is("runs", "running"))),
        scenario(
            "one_failed_one_runs",
            pod("Never", &[command("done", "exit 4"), container("runs", &ends(0))]),
        )
        .until(both(is("done", "terminated"), is("runs", "running"))),
        scenario(
            "restarted_once",
            with(
                pod("Always", &[again]),
                json!({ "volumes": [{ "name": "data", "emptyDir": {} }] }),
            ),
        )
        .until(both(is("main", "running"), shows("main", "restartCount", 1))),
    ]
}

/// Evictions by the node, with a grace period of one second.
fn evictions() -> Vec<Scenario> {
    let two = [command("done", "exit 0"), container("runs", &ends(0))];
    let evicted = |name, pod| scenario(name, pod).evicted();
    vec![
        evicted("evicted_exit_0", single("Always", &ends(0))),
        evicted("evicted_exit_1", single("Always", &ends(1))),
        evicted("evicted_and_stubborn", single("Always", STUBBORN)),
        evicted("evicted_when_one_is_done", pod("Never", &two))
            .until(both(is("done", "terminated"), is("runs", "running"))),
    ]
}

fn limited(script: &str) -> Value {
    with(
        container("main", script),
        json!({ "resources": { "limits": { "memory": "24Mi" } } }),
    )
}
