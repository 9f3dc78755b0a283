//! preStop hooks.

use serde_json::{Value, json};

use crate::scenario::{Scenario, after, container, ends, pod, scenario, sidecar, single, with};

pub fn scenarios() -> Vec<Scenario> {
    let exec = |script: &str| json!({ "exec": { "command": ["sh", "-c", script] } });
    let get = json!({ "httpGet": { "port": 8080, "path": "/" } });
    let serves = format!("{}\nhttpd -p 8080 -h /tmp", ends(0));
    vec![
        scenario("hook_that_works", hooked(&ends(0), &exec("exit 0"))),
        scenario("hook_that_fails", hooked(&ends(0), &exec("echo a secret; exit 3"))),
        scenario("hook_that_takes_too_long", slow(hooked(&ends(0), &exec("sleep 60")))),
        scenario(
            "hook_that_takes_too_long_before_a_kill",
            slow(hooked("trap '' TERM", &exec("sleep 60"))),
        ),
        scenario(
            "hook_that_sleeps",
            hooked(&ends(0), &json!({ "sleep": { "seconds": 1 } })),
        ),
        scenario("hook_that_asks", hooked(&serves, &get)),
        scenario("http_hook_without_a_server", hooked(&ends(0), &get)),
        scenario(
            "hook_of_a_sidecar_that_fails",
            after(
                &[with(
                    sidecar("side", &ends(0)),
                    json!({ "lifecycle": { "preStop": exec("exit 1") } }),
                )],
                single("Always", &ends(0)),
            ),
        ),
    ]
}

fn hooked(script: &str, hook: &Value) -> Value {
    let main = container("main", script);
    pod("Always", &[with(main, json!({ "lifecycle": { "preStop": hook } }))])
}

/// A grace period in which the hook begins even on a busy node, and does not finish.
fn slow(pod: Value) -> Value {
    with(pod, json!({ "terminationGracePeriodSeconds": 15 }))
}
