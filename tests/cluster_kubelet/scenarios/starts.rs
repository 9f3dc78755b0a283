//! Containers that fail to start.

use serde_json::json;
use testbed::containerd::TOOL_IMAGE;

use crate::scenario::{
    Scenario, after, both, command, container, ends, is, looping_container, phase, pod, restarted_twice, scenario,
    sidecar, vanishing_command, waits, with,
};

const ABSENT: &str = "docker.io/testbed/absent:1";
/// No server listens there.
const UNREACHABLE: &str = "127.0.0.1:1/absent:1";

pub fn scenarios() -> Vec<Scenario> {
    let never_pulled = [with(
        container("main", ""),
        json!({ "image": ABSENT, "imagePullPolicy": "Never" }),
    )];
    let unreachable = with(container("main", ""), json!({ "image": UNREACHABLE }));
    let no_command = json!({ "name": "main", "image": TOOL_IMAGE, "command": ["/absent"] });
    let no_key = with(
        container("main", ""),
        json!({ "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "absent", "key": "a" } } }] }),
    );
    let beside = with(never_pulled[0].clone(), json!({ "name": "absent" }));
    let mounts = json!({ "volumeMounts": [{ "name": "absent", "mountPath": "/absent" }] });
    vec![
        scenario(
            "crash_loop",
            pod(
                "Always",
                &[looping_container("main", "echo broken >/dev/termination-log; exit 4")],
            ),
        )
        .looping("main")
        .until(both(restarted_twice("main"), waits("main", "CrashLoopBackOff")))
        .nudged(),
        scenario(
            "crash_loop_on_failure",
            pod("OnFailure", &[looping_container("main", "exit 4")]),
        )
        .looping("main"),
        scenario(
            "loop_of_successes",
            pod("Always", &[looping_container("main", "exit 0")]),
        )
        .looping("main"),
        scenario(
            "crash_loop_beside_one_that_runs",
            pod(
                "Always",
                &[looping_container("crashes", "exit 4"), container("runs", &ends(0))],
            ),
        )
        .looping("crashes"),
        scenario("command_that_vanished", pod("Always", &[vanishing_command("main")])).looping("main"),
        scenario("image_that_is_never_pulled", pod("Always", &never_pulled)).until(waits("main", "ErrImageNeverPull")),
        scenario("image_that_is_never_pulled_never", pod("Never", &never_pulled))
            .until(waits("main", "ErrImageNeverPull")),
        scenario(
            "image_missing_after_init",
            after(&[command("init", "exit 0")], pod("Always", &never_pulled)),
        )
        .until(waits("main", "ErrImageNeverPull")),
        scenario(
            "image_missing_beside_a_sidecar",
            after(&[sidecar("side", &ends(0))], pod("Always", &never_pulled)),
        )
        .until(waits("main", "ErrImageNeverPull")),
        scenario("image_that_cannot_be_pulled", pod("Always", &[unreachable])).until(waits("main", "ImagePullBackOff")),
        scenario(
            "image_missing_beside_one_that_runs",
            pod("Always", &[beside, container("runs", &ends(0))]),
        )
        .until(both(waits("absent", "ErrImageNeverPull"), is("runs", "running"))),
        scenario("command_that_does_not_exist_never", pod("Never", &[no_command])).until(phase("Failed")),
        scenario("settings_that_do_not_exist", pod("Always", &[no_key]))
            .until(waits("main", "CreateContainerConfigError")),
        scenario(
            "volume_that_does_not_come",
            with(
                pod("Always", &[with(container("main", &ends(0)), mounts)]),
                json!({ "volumes": [{ "name": "absent", "configMap": { "name": "absent" } }] }),
            ),
        )
        .until(waits("main", "ContainerCreating")),
    ]
}
