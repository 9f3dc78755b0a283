//! Init containers, sidecars and ephemeral containers.

use serde_json::json;
use testbed::containerd::TOOL_IMAGE;

use crate::scenario::{
    STUBBORN, Scenario, after, command, container, ends, is, looping_container, phase, pod, runs, scenario, short,
    sidecar, single, with,
};

pub fn scenarios() -> Vec<Scenario> {
    [ordinary(), sidecars(), ephemeral()].into_iter().flatten().collect()
}

fn ordinary() -> Vec<Scenario> {
    let done = command("done", "exit 0");
    let main = || single("Always", &ends(0));
    vec![
        scenario("init_done", after(std::slice::from_ref(&done), main())),
        scenario("init_runs", short(after(&[container("init", STUBBORN)], main()))).until(is("init", "running")),
        scenario(
            "init_ends_well_at_its_signal",
            after(&[container("init", &ends(0))], main()),
        )
        .until(is("init", "running")),
        scenario(
            "init_ends_well_at_its_signal_never",
            after(&[container("init", &ends(0))], single("Never", &ends(0))),
        )
        .until(is("init", "running")),
        scenario(
            "second_init_runs",
            after(
                &[done.clone(), container("init", &ends(6)), command("last", "exit 0")],
                main(),
            ),
        )
        .until(is("init", "running")),
        scenario(
            "init_failed",
            after(&[command("init", "exit 8")], single("Never", &ends(0))),
        )
        .until(phase("Failed")),
        scenario(
            "init_in_a_crash_loop",
            after(&[done, looping_container("init", "exit 8")], main()),
        )
        .looping("init"),
    ]
}

fn sidecars() -> Vec<Scenario> {
    let slow = |code: u8| format!("trap 'sleep 1; exit {code}' TERM");
    let never_started = with(
        sidecar("side", &ends(0)),
        json!({ "startupProbe": { "exec": { "command": ["false"] }, "periodSeconds": 1, "failureThreshold": 1000 } }),
    );
    let crashing = with(
        looping_container("side", "exit 2"),
        json!({ "restartPolicy": "Always" }),
    );
    vec![
        scenario(
            "sidecars",
            after(
                &[sidecar("first", &slow(0)), sidecar("second", &slow(0))],
                single("Always", &slow(0)),
            ),
        )
        .until(runs),
        scenario(
            "sidecar_fails",
            after(&[sidecar("side", &ends(5))], single("Never", &ends(0))),
        ),
        scenario(
            "sidecar_is_killed",
            short(after(&[sidecar("side", STUBBORN)], single("Always", &ends(0)))),
        ),
        scenario(
            "main_fails_beside_a_sidecar",
            after(&[sidecar("side", &ends(0))], single("OnFailure", &ends(1))),
        ),
        scenario(
            "main_done_beside_a_sidecar",
            after(&[sidecar("side", &ends(0))], pod("Never", &[command("main", "exit 0")])),
        )
        .until(phase("Succeeded")),
        scenario(
            "sidecar_that_has_not_started",
            after(&[never_started], single("Always", &ends(0))),
        )
        .until(is("side", "running")),
        scenario(
            "sidecar_in_a_crash_loop",
            after(&[crashing], single("Always", &ends(0))),
        )
        .looping("side"),
        scenario(
            "sidecar_after_init",
            after(
                &[
                    command("init", "exit 0"),
                    sidecar("side", &ends(0)),
                    command("late", "exit 0"),
                ],
                single("Never", &ends(0)),
            ),
        ),
    ]
}

fn ephemeral() -> Vec<Scenario> {
    let debug = |script: &str| {
        json!({ "spec": { "ephemeralContainers": [{
            "name": "debug", "image": TOOL_IMAGE, "command": ["sh", "-c", script],
        }] } })
    };
    let sleeps = "trap 'exit 3' TERM; while :; do read -r _ <>/wait; done";
    vec![
        scenario("ephemeral_runs", single("Always", &ends(0)))
            .write_when_running("/ephemeralcontainers", debug(sleeps))
            .until(is("debug", "running")),
        scenario("ephemeral_has_ended", single("Never", &ends(0)))
            .write_when_running("/ephemeralcontainers", debug("exit 6"))
            .until(is("debug", "terminated")),
    ]
}
