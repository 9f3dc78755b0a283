//! Mistakes on the command line and in what it points to: each one clear line, with thing, remedy and exit code.

use std::fs::{self, File};

use crate::command::{Flags, command, told};

const USAGE: Option<i32> = Some(64);
const CONFIGURATION: Option<i32> = Some(78);

/// Flags, code, and words of the line that complains, the last of them from its remedy.
type Case = (Flags, Option<i32>, [&'static str; 3]);

fn cases() -> Vec<Case> {
    let file = |name: &str, text: &str| {
        let flags = Flags::good();
        fs::write(flags.path(name), text).unwrap();
        flags
    };
    let kubelet = |text: &str| {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        file("config", &format!("{head}{text}\n"))
    };
    vec![
        (
            Flags::good().without("kubeconfig"),
            USAGE,
            ["--kubeconfig", "is missing", "kubelet.conf"],
        ),
        (
            Flags::good().with("shutdown-timeout", "20"),
            USAGE,
            ["--shutdown-timeout", "20", "20s"],
        ),
        (
            Flags::good().with("shutdown-timeout", "soon"),
            USAGE,
            ["--shutdown-timeout", "soon", "20s"],
        ),
        (
            Flags::good().with("take-over-after", "45"),
            USAGE,
            ["--take-over-after", "45", "unit"],
        ),
        (
            Flags::good().with("take-over-after", "1s"),
            USAGE,
            ["--take-over-after", "1s", "2s"],
        ),
        (
            Flags::good().with("metrics-addr", "localhost"),
            USAGE,
            ["--metrics-addr localhost", "with a port", "127.0.0.1:9464"],
        ),
        (
            Flags::good().with("metrics-addr", "127.0.0.1:0"),
            USAGE,
            ["--metrics-addr 127.0.0.1:0", "port 0", "127.0.0.1:9464"],
        ),
        (
            Flags::good().with("node-name", "../n1"),
            USAGE,
            ["--node-name", "../n1", "kubectl get nodes"],
        ),
        (
            Flags::good().with("cri-endpoint", "tcp://1.2.3.4:5"),
            USAGE,
            ["--cri-endpoint", "tcp://", "unix:///"],
        ),
        (
            Flags::good().with("cgroup-root", "/a/../b"),
            USAGE,
            ["--cgroup-root", "..", "cgroupRoot"],
        ),
        (
            Flags::good().with_path("kubeconfig", "absent"),
            CONFIGURATION,
            ["--kubeconfig", "absent", "readable"],
        ),
        (
            file("bad", "clusters: [").with_path("kubeconfig", "bad"),
            CONFIGURATION,
            ["--kubeconfig", "bad", "kubeconfig"],
        ),
        (
            file("empty", "").with_path("kubeconfig", "empty"),
            CONFIGURATION,
            ["--kubeconfig", "empty", "kubeconfig"],
        ),
        (
            Flags::good().with_path("kubelet-root", "absent"),
            CONFIGURATION,
            ["--kubelet-root", "absent", "--root-dir"],
        ),
        (
            file("kubelet/file", "").with_path("kubelet-root", "kubelet/file"),
            CONFIGURATION,
            ["--kubelet-root", "file", "--root-dir"],
        ),
        (
            Flags::good().with_path("kubelet-config", "absent"),
            CONFIGURATION,
            ["--kubelet-config", "absent", "--config"],
        ),
        (
            kubelet("cgroupsPerQOS: false").with_path("kubelet-config", "config"),
            CONFIGURATION,
            ["--kubelet-config", "cgroupsPerQOS", "cannot work on such a node"],
        ),
        (
            kubelet("podLogsDir: logs").with_path("kubelet-config", "config"),
            CONFIGURATION,
            ["--kubelet-config", "podLogsDir", "--config"],
        ),
        (
            kubelet("cgroupRoot: ../../x").with_path("kubelet-config", "config"),
            CONFIGURATION,
            ["--kubelet-config", "cgroupRoot ../../x", "--config"],
        ),
        (
            file("config", "kind: Pod").with_path("kubelet-config", "config"),
            CONFIGURATION,
            ["--kubelet-config", "\"Pod\"", "--config"],
        ),
        (
            file(
                "other",
                &testbed::api::kubeconfig("127.0.0.1:18080", None, "node", "token"),
            )
            .with_path("kubeconfig", "other"),
            CONFIGURATION,
            ["--kubeconfig", "server 127.0.0.1:18080", "https://host:port"],
        ),
        (
            Flags::good().with("state-dir", "/proc/x"),
            CONFIGURATION,
            ["--state-dir /proc/x", "/proc", "write to"],
        ),
        (
            Flags::good().with("socket", "agent.sock"),
            CONFIGURATION,
            ["--socket agent.sock", "absolute", "in full"],
        ),
        (
            Flags::good().with("shutdown-timeout", "0"),
            USAGE,
            ["--shutdown-timeout 0", "no unit", "20s"],
        ),
        (
            file("plain", "").with_path("state-dir", "plain/state"),
            CONFIGURATION,
            ["--state-dir", "is not a directory", "write to"],
        ),
        (
            Flags::good().with("state-dir", "state"),
            CONFIGURATION,
            ["--state-dir", "absolute", "in full"],
        ),
        (
            Flags::good().with_path("socket", "kubelet"),
            CONFIGURATION,
            ["--socket", "is a directory", "name a path"],
        ),
        (
            Flags::good().with("cri-endpoint", "unix:///dev/null"),
            CONFIGURATION,
            ["--cri-endpoint", "is not a socket", "listens"],
        ),
    ]
}

#[test]
fn every_mistake_is_one_line_that_names_the_thing_and_the_remedy() {
    for (flags, code, words) in cases() {
        let told = flags.tell("run");
        assert_eq!(told.code, code, "{words:?}: {told:?}");
        let lines = told.complaints();
        assert_eq!(lines.len(), 1, "{words:?}: {told:?}");
        for word in words {
            assert!(lines[0].contains(word), "{word:?} is not in {told:?}");
        }
        assert!(
            !flags.path("state").exists() && !flags.path("run").exists(),
            "something was made: {told:?}"
        );
    }
}

#[test]
fn check_ends_with_the_same_code_and_shows_the_same_remedy() {
    for (flags, code, words) in cases() {
        let told = flags.tell("check");
        assert_eq!(told.code, code, "{words:?}: {told:?}");
        for word in words {
            assert!(told.out.contains(word), "{word:?} is not in {told:?}");
        }
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let flags = Flags::good()
        .with_path("kubeconfig", "absent")
        .with_path("kubelet-root", "absent")
        .with("cri-endpoint", "unix:///dev/null")
        .with("node-name", "N_1");
    let told = flags.tell("run");
    let lines = told.complaints();
    let named = ["--node-name", "--kubeconfig", "--cri-endpoint", "--kubelet-root"];
    assert_eq!(lines.len(), named.len(), "{told:?}");
    for (line, flag) in lines.iter().zip(named) {
        assert!(line.starts_with("pod-teardown: ") && line.contains(flag), "{line}");
    }
    // Wrong usage comes before wrong configuration.
    assert_eq!(told.code, USAGE);
}

#[test]
fn what_is_no_flag_and_no_verb_is_wrong_usage() {
    for arguments in [
        &["run", "--grace", "5s"][..],
        &["check", "--no-such-flag"],
        &["status", "--kubeconfig", "x"],
        &["timeline"],
        &["timeline", "web-0"],
        &["timeline", "default/web-0", "--format", "png"],
        &["run", "--cgroup-driver", "fancy"],
        &["why"],
        &[],
    ] {
        let told = told(arguments);
        assert_eq!(told.code, USAGE, "{arguments:?}: {told:?}");
        assert!(!told.err.is_empty() && told.out.is_empty(), "{arguments:?}: {told:?}");
    }
    assert!(told(&["run", "--grace", "5s"]).err.contains("--grace"));
    for pod in ["web-0", "a/b/c", "/x", "x/", "a b/c", "a/ü", ""] {
        let told = told(&["timeline", pod]);
        assert_eq!(told.code, USAGE, "{pod:?}: {told:?}");
        assert!(told.err.contains("must be NAMESPACE/NAME"), "{pod:?}: {told:?}");
    }
}

#[test]
fn a_hand_back_keeps_no_kubelet_from_starting_where_no_agent_is() {
    let told = told(&["hand-back", "--socket", "/no/such/socket"]);
    assert_eq!((told.code, told.err.as_str()), (Some(0), ""));
    assert!(
        told.out.contains("nothing to hand back") && told.out.contains("/no/such/socket"),
        "{told:?}"
    );
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = command()
        .args(["hand-back", "--socket", "/no/such/socket"])
        .stdout(full)
        .status();
    assert_eq!(status.unwrap().code(), Some(0), "it could not be told");
}

#[test]
fn a_mistake_in_the_drop_in_keeps_no_kubelet_from_starting() {
    let node = ["--socket", "/no/such/socket"];
    let timed = told(&["hand-back", "--timeout", "60", node[0], node[1]]);
    assert_eq!(timed.code, Some(0), "{timed:?}");
    assert!(timed.err.contains("--timeout 60"), "{timed:?}");
    assert!(
        timed.out.contains("nothing to hand back"),
        "it is asked for all the same: {timed:?}"
    );
    let misspelt = told(&["hand-back", "--time", "60s"]);
    assert_eq!(misspelt.code, Some(0), "{misspelt:?}");
    assert!(
        misspelt.err.contains("--time") && !misspelt.out.is_empty(),
        "it is asked for with the defaults: {misspelt:?}"
    );
    let help = told(&["hand-back", "--help"]);
    assert!(help.code == Some(0) && help.out.contains("--timeout"), "{help:?}");
}

#[test]
fn help_says_what_each_verb_takes_and_how_it_ends() {
    let help = told(&["--help"]);
    assert_eq!(help.code, Some(0));
    for verb in ["run", "check", "status", "timeline", "held", "release", "hand-back"] {
        assert!(help.out.contains(verb), "{verb} is not in {}", help.out);
    }
    let flags = [
        "kubeconfig",
        "node-name",
        "cri-endpoint",
        "kubelet-root",
        "kubelet-config",
        "cgroup-driver",
        "cgroup-root",
        "state-dir",
        "socket",
        "metrics-addr",
        "shutdown-timeout",
        "dry-run",
    ];
    for verb in ["run", "check"] {
        let help = told(&[verb, "--help"]);
        assert_eq!(help.code, Some(0));
        for flag in flags {
            let variable = format!("POD_TEARDOWN_{}", flag.to_uppercase().replace('-', "_"));
            assert!(help.out.contains(&format!("--{flag}")), "{verb}: {flag}");
            assert!(help.out.contains(&variable), "{verb}: {variable}");
        }
    }
    let check = told(&["check", "--help"]).out;
    assert!(
        ["78", "69", "Exit code"].iter().all(|word| check.contains(word)),
        "{check}"
    );
    assert!(told(&["timeline", "--help"]).out.contains("NS/POD"));
    assert!(told(&["status", "--help"]).out.contains("--json"));
}

#[test]
fn a_flag_may_be_given_by_its_environment_variable() {
    let flags = Flags::good()
        .with("shutdown-timeout", "20")
        .with_path("kubelet-root", "absent")
        .by_environment("shutdown-timeout", "POD_TEARDOWN_SHUTDOWN_TIMEOUT")
        .by_environment("kubelet-root", "POD_TEARDOWN_KUBELET_ROOT")
        .by_environment("kubeconfig", "POD_TEARDOWN_KUBECONFIG");
    let told = flags.tell("run");
    let lines = told.complaints();
    assert_eq!(lines.len(), 2, "{told:?}");
    assert!(
        lines[0].contains("--kubelet-root") && lines[1].contains("--shutdown-timeout"),
        "{told:?}"
    );
}

#[test]
fn a_choice_that_there_is_not_hides_no_other_mistake() {
    for verb in ["run", "check"] {
        let flags = Flags::good()
            .with_path("kubelet-root", "absent")
            .with("pods", "sometimes");
        let output = flags.command(verb).env("POD_TEARDOWN_GC", "maybe").output().unwrap();
        let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        for mistake in [
            "--pods sometimes",
            "auto, always, never",
            "--gc maybe",
            "--kubelet-root",
        ] {
            assert!(told.contains(mistake), "{verb}: {mistake}: {told}");
        }
        assert_eq!(output.status.code(), Some(64), "{verb}");
    }
}

#[test]
fn a_setting_that_is_none_is_told() {
    let misspelt = ("POD_TEARDOWN_TAKEOVER_AFTER", "10s");
    let flags = Flags::good().with_path("kubelet-root", "absent");
    for verb in ["run", "check"] {
        let output = flags.command(verb).env(misspelt.0, misspelt.1).output().unwrap();
        let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(told.contains(misspelt.0), "{verb}: {told}");
        assert_eq!(
            output.status.code(),
            Some(78),
            "{verb}: it is no mistake of its own: {told}"
        );
    }
}

#[test]
fn an_empty_variable_is_as_good_as_none_and_a_switch_takes_what_people_write() {
    let with = |variable: &'static str, value: &str| {
        let flags = Flags::good().with_path("kubelet-root", "absent");
        let output = flags.command("run").env(variable, value).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    for (variable, value) in [
        ("POD_TEARDOWN_SHUTDOWN_TIMEOUT", ""),
        ("POD_TEARDOWN_CGROUP_DRIVER", ""),
        ("POD_TEARDOWN_DRY_RUN", ""),
        ("POD_TEARDOWN_DRY_RUN", "1"),
        ("POD_TEARDOWN_DRY_RUN", "no"),
        ("POD_TEARDOWN_DRY_RUN", "true"),
    ] {
        let err = with(variable, value);
        assert!(
            err.lines().count() == 1 && err.contains("--kubelet-root"),
            "{variable}={value}: {err}"
        );
    }
    assert!(with("POD_TEARDOWN_DRY_RUN", "maybe").contains("maybe"));
}

#[test]
fn questions_to_an_agent_that_does_not_run_say_so() {
    let flags = Flags::good();
    let socket = flags.socket().display().to_string();
    for arguments in [
        &["status", "--socket", &socket][..],
        &["status", "--json", "--socket", &socket],
        &["timeline", "default/web-0", "--socket", &socket],
        &["gc", "graph", "--socket", &socket],
        &["gc", "graph", "--uid", "a b&c", "--format", "svg", "--socket", &socket],
    ] {
        let told = told(arguments);
        assert_eq!(told.code, Some(1), "{told:?}");
        assert_eq!(told.complaints().len(), 1, "{told:?}");
        for word in ["no agent answers", &socket, "is it running", "--socket"] {
            assert!(told.err.contains(word), "{word:?} is not in {told:?}");
        }
    }
}
