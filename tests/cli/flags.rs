//! Errors on the command line and in the files that it names: each is one line with object, remedy and exit code.

use std::fs::{self, File};

use clap::CommandFactory as _;
use pod_teardown::cli::Cli;

use crate::command::{Flags, command, run_command};

const USAGE: Option<i32> = Some(64);
const CONFIGURATION: Option<i32> = Some(78);

/// Flags, exit code, and words of the error, the last of them from its remedy.
type Case = (Flags, Option<i32>, [&'static str; 3]);

fn cases() -> Vec<Case> {
    let file = |name: &str, text: &str| {
        let flags = Flags::valid();
        fs::write(flags.path(name), text).unwrap();
        flags
    };
    let kubelet = |text: &str| {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        file("config", &format!("{head}{text}\n"))
    };
    vec![
        (
            Flags::valid().without("kubeconfig"),
            CONFIGURATION,
            ["--kubeconfig", "is missing", "kubelet.conf"],
        ),
        (
            Flags::valid().with("shutdown-timeout", "20"),
            USAGE,
            ["--shutdown-timeout", "20", "20s"],
        ),
        (
            Flags::valid().with("shutdown-timeout", "soon"),
            USAGE,
            ["--shutdown-timeout", "soon", "20s"],
        ),
        (
            Flags::valid().with("take-over-after", "45"),
            USAGE,
            ["--take-over-after", "45", "unit"],
        ),
        (
            Flags::valid().with("take-over-after", "1s"),
            USAGE,
            ["--take-over-after", "1s", "2s"],
        ),
        (
            Flags::valid().with("metrics-addr", "localhost"),
            USAGE,
            ["--metrics-addr localhost", "with a port", "127.0.0.1:9464"],
        ),
        (
            Flags::valid().with("metrics-addr", "127.0.0.1:0"),
            USAGE,
            ["--metrics-addr 127.0.0.1:0", "port 0", "127.0.0.1:9464"],
        ),
        (
            Flags::valid().with("node-name", "../n1"),
            USAGE,
            ["--node-name", "../n1", "kubectl get nodes"],
        ),
        (
            Flags::valid().with("cri-endpoint", "tcp://1.2.3.4:5"),
            USAGE,
            ["--cri-endpoint", "tcp://", "unix:///"],
        ),
        (
            Flags::valid().with("cgroup-root", "/a/../b"),
            USAGE,
            ["--cgroup-root", "..", "cgroupRoot"],
        ),
        (
            Flags::valid().with_path("kubeconfig", "absent"),
            CONFIGURATION,
            ["--kubeconfig", "absent", "root can read it"],
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
            Flags::valid().with_path("kubelet-root", "absent"),
            CONFIGURATION,
            ["--kubelet-root", "absent", "--root-dir"],
        ),
        (
            file("kubelet/file", "").with_path("kubelet-root", "kubelet/file"),
            CONFIGURATION,
            ["--kubelet-root", "file", "--root-dir"],
        ),
        (
            Flags::valid().with_path("kubelet-config", "absent"),
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
            ["--kubelet-config", "kind Pod", "--config"],
        ),
        (
            kubelet("").with_path("kubeconfig", "config"),
            CONFIGURATION,
            [
                "a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), not a kubeconfig",
                "set --kubelet-config to this file",
                "/etc/kubernetes/kubelet.conf",
            ],
        ),
        (
            file(
                "proxy",
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n",
            )
            .with_path("kubeconfig", "proxy"),
            CONFIGURATION,
            [
                "--kubeconfig",
                "a KubeProxyConfiguration",
                "set --kubeconfig to a kubeconfig",
            ],
        ),
        (
            file(
                "kubeadm",
                "kind: ClusterConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\n---\nkind: InitConfiguration\n",
            )
            .with_path("kubelet-config", "kubeadm"),
            CONFIGURATION,
            [
                "--kubelet-config",
                "a ClusterConfiguration (kubeadm.k8s.io/v1beta4)",
                "config.yaml",
            ],
        ),
        (
            Flags::valid().with_path("kubelet-config", "kubeconfig"),
            CONFIGURATION,
            [
                "this file is a kubeconfig, not a KubeletConfiguration",
                "set --kubeconfig to this file",
                "--kubelet-config",
            ],
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
            Flags::valid().with("state-dir", "/proc/x"),
            CONFIGURATION,
            ["--state-dir /proc/x", "/proc", "can write to"],
        ),
        (
            Flags::valid().with("socket", "agent.sock"),
            USAGE,
            ["--socket agent.sock", "not an absolute path", "use an absolute path"],
        ),
        (
            Flags::valid().with("shutdown-timeout", "0"),
            USAGE,
            ["--shutdown-timeout 0", "no unit", "20s"],
        ),
        (
            file("plain", "").with_path("state-dir", "plain/state"),
            CONFIGURATION,
            ["--state-dir", "is not a directory", "can write to"],
        ),
        (
            Flags::valid().with("state-dir", "state"),
            USAGE,
            ["--state-dir", "not an absolute path", "begins with /"],
        ),
        (
            Flags::valid().with_path("socket", "kubelet"),
            CONFIGURATION,
            ["--socket", "is a directory", "a path that does not exist"],
        ),
        (
            Flags::valid().with("cri-endpoint", "unix:///dev/null"),
            CONFIGURATION,
            ["--cri-endpoint", "is not a socket", "listens"],
        ),
    ]
}

#[test]
fn every_error_is_one_line_that_names_the_object_and_the_remedy() {
    for (flags, code, words) in cases() {
        let output = flags.run("run");
        assert_eq!(output.code, code, "{words:?}: {output:?}");
        let lines = output.error_lines();
        assert_eq!(lines.len(), 1, "{words:?}: {output:?}");
        for word in words {
            assert!(lines[0].contains(word), "{word:?} is not in {output:?}");
        }
        assert!(
            !flags.path("state").exists() && !flags.path("run").exists(),
            "something was made: {output:?}"
        );
    }
}

#[test]
fn check_has_the_same_exit_code_and_remedy() {
    for (flags, code, words) in cases() {
        let output = flags.run("check");
        assert_eq!(output.code, code, "{words:?}: {output:?}");
        for word in words {
            assert!(output.out.contains(word), "{word:?} is not in {output:?}");
        }
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let flags = Flags::valid()
        .with_path("kubeconfig", "absent")
        .with_path("kubelet-root", "absent")
        .with("cri-endpoint", "unix:///dev/null")
        .with("node-name", "N_1");
    let output = flags.run("run");
    let lines = output.error_lines();
    let named = ["--node-name", "--kubeconfig", "--cri-endpoint", "--kubelet-root"];
    assert_eq!(lines.len(), named.len(), "{output:?}");
    for (line, flag) in lines.iter().zip(named) {
        assert!(line.starts_with("pod-teardown: ") && line.contains(flag), "{line}");
    }
    // Wrong usage comes before wrong configuration.
    assert_eq!(output.code, USAGE);
}

#[test]
fn unknown_flags_and_verbs_are_usage_errors() {
    for arguments in [
        &["run", "--grace", "5s"][..],
        &["check", "--no-such-flag"],
        &["status", "--kubeconfig", "x"],
        &["timeline", "-f"],
        &["timeline", "a/b/c"],
        &["timeline", "-n", "other", "default/web-0"],
        &["timeline", "default/web-0", "-o", "png"],
        &["run", "--cgroup-driver", "fancy"],
        &["why"],
        &[],
    ] {
        let output = run_command(arguments);
        assert_eq!(output.code, USAGE, "{arguments:?}: {output:?}");
        assert!(
            !output.err.is_empty() && output.out.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
    assert!(run_command(&["run", "--grace", "5s"]).err.contains("--grace"));
    for pod in ["a/b/c", "/x", "x/", "a b/c", "a/ü", ""] {
        let output = run_command(&["timeline", pod]);
        assert_eq!(output.code, USAGE, "{pod:?}: {output:?}");
        assert!(
            output.err.contains("must be NAME, NAMESPACE/NAME"),
            "{pod:?}: {output:?}"
        );
    }
}

#[test]
fn handover_without_an_agent_does_not_prevent_the_kubelets_start() {
    let output = run_command(&["handover", "--socket", "/no/such/socket"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    assert!(
        output.out.contains("nothing to hand over") && output.out.contains("/no/such/socket"),
        "{output:?}"
    );
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = command()
        .args(["handover", "--socket", "/no/such/socket"])
        .stdout(full)
        .status();
    assert_eq!(status.unwrap().code(), Some(0), "the result could not be printed");
}

#[test]
fn error_in_the_drop_in_does_not_prevent_the_kubelets_start() {
    let node = ["--socket", "/no/such/socket"];
    let timed = run_command(&["handover", "--timeout", "60", node[0], node[1]]);
    assert_eq!(timed.code, Some(0), "{timed:?}");
    assert!(timed.err.contains("--timeout 60"), "{timed:?}");
    assert!(
        timed.out.contains("nothing to hand over"),
        "it is asked for all the same: {timed:?}"
    );
    let misspelt = run_command(&["handover", "--time", "60s"]);
    assert_eq!(misspelt.code, Some(0), "{misspelt:?}");
    assert!(
        misspelt.err.contains("--time") && !misspelt.out.is_empty(),
        "it is asked for with the defaults: {misspelt:?}"
    );
    let help = run_command(&["handover", "--help"]);
    assert!(help.code == Some(0) && help.out.contains("--timeout"), "{help:?}");
}

#[test]
fn help_of_each_verb_has_its_arguments_and_exit_codes() {
    let help = run_command(&["--help"]);
    assert_eq!(help.code, Some(0));
    for verb in ["run", "check", "status", "timeline", "holds", "approve", "handover"] {
        assert!(help.out.contains(verb), "{verb} is not in {}", help.out);
    }
    let flags = [
        "kubeconfig",
        "node-name",
        "cri-endpoint",
        "kubelet-root",
        "kubelet-config",
        "state-dir",
        "socket",
        "metrics-addr",
    ];
    for verb in ["run", "check"] {
        let help = run_command(&[verb, "--help"]);
        assert_eq!(help.code, Some(0));
        let shown = help.out.lines().filter(|line| line.starts_with("      --"));
        assert!(verb == "check" || shown.count() <= 16, "{verb}");
        for flag in flags {
            let variable = format!("POD_TEARDOWN_{}", flag.to_uppercase().replace('-', "_"));
            assert!(help.out.contains(&format!("--{flag}")), "{verb}: {flag}");
            assert!(help.out.contains(&variable), "{verb}: {variable}");
        }
    }
    let check = run_command(&["check", "--help"]).out;
    assert!(
        ["78", "69", "Exit code"].iter().all(|word| check.contains(word)),
        "{check}"
    );
    assert!(run_command(&["timeline", "--help"]).out.contains("POD"));
    assert!(run_command(&["status", "--help"]).out.contains("--output"));
}

#[test]
fn help_of_every_command_fits_100_columns_and_has_examples_and_exit_codes() {
    let mut commands = vec![Cli::command()];
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| {
            let name = format!("{} {}", command.get_bin_name().unwrap_or("pod-teardown"), it.get_name());
            it.clone().bin_name(name)
        }));
        let is_group = command.has_subcommands();
        let name = command.get_bin_name().unwrap_or("pod-teardown").to_owned();
        let arguments: Vec<_> = name.split(' ').skip(1).chain(["--help"]).collect();
        let help = run_command(&arguments).out;
        for part in ["Examples:", "Exit code:"].iter().filter(|_| !is_group) {
            assert!(help.contains(part), "{name}: {part} is missing in {help}");
        }
        assert!(!help.contains("[`"), "{name} shows a name of the source: {help}");
        // An example's command is not broken.
        let long = help
            .lines()
            .find(|it| it.chars().count() > 100 && !it.contains("pod-teardown "));
        assert_eq!(long, None, "{name}");
    }
}

#[test]
fn flag_can_be_set_by_its_environment_variable() {
    let flags = Flags::valid()
        .with("shutdown-timeout", "20")
        .with_path("kubelet-root", "absent")
        .by_environment("shutdown-timeout", "POD_TEARDOWN_SHUTDOWN_TIMEOUT")
        .by_environment("kubelet-root", "POD_TEARDOWN_KUBELET_ROOT")
        .by_environment("kubeconfig", "POD_TEARDOWN_KUBECONFIG");
    let output = flags.run("run");
    let lines = output.error_lines();
    assert_eq!(lines.len(), 2, "{output:?}");
    assert!(
        lines[0].contains("--kubelet-root") && lines[1].contains("--shutdown-timeout"),
        "{output:?}"
    );
}

#[test]
fn invalid_choice_does_not_hide_other_errors() {
    for verb in ["run", "check"] {
        let flags = Flags::valid()
            .with_path("kubelet-root", "absent")
            .with("mode", "sometimes");
        let output = flags.command(verb).env("POD_TEARDOWN_GC", "maybe").output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        for mistake in [
            "--mode sometimes",
            "auto, always, never",
            "--gc maybe",
            "--kubelet-root",
        ] {
            assert!(text.contains(mistake), "{verb}: {mistake}: {text}");
        }
        assert_eq!(output.status.code(), Some(64), "{verb}");
    }
}

#[test]
fn unknown_setting_is_reported() {
    let misspelt = ("POD_TEARDOWN_TAKEOVER_AFTER", "10s");
    let flags = Flags::valid().with_path("kubelet-root", "absent");
    for verb in ["run", "check"] {
        let output = flags.command(verb).env(misspelt.0, misspelt.1).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(text.contains(misspelt.0), "{verb}: {text}");
        assert_eq!(output.status.code(), Some(78), "{verb}: it is not an error: {text}");
    }
}

#[test]
fn empty_variable_counts_as_unset_and_a_switch_accepts_common_values() {
    let with = |variable: &'static str, value: &str| {
        let flags = Flags::valid().with_path("kubelet-root", "absent");
        let output = flags.command("run").env(variable, value).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    for (variable, value) in [
        ("POD_TEARDOWN_SHUTDOWN_TIMEOUT", ""),
        ("POD_TEARDOWN_CGROUP_DRIVER", ""),
        ("POD_TEARDOWN_FENCE_KUBELET", ""),
        ("POD_TEARDOWN_FENCE_KUBELET", "1"),
        ("POD_TEARDOWN_FENCE_KUBELET", "no"),
        ("POD_TEARDOWN_FENCE_KUBELET", "true"),
    ] {
        let err = with(variable, value);
        assert!(
            err.lines().count() == 1 && err.contains("--kubelet-root"),
            "{variable}={value}: {err}"
        );
    }
    assert!(with("POD_TEARDOWN_FENCE_KUBELET", "maybe").contains("maybe"));
    for verb in [&["status"][..], &["gc", "status"]] {
        let output = command().args(verb).env("POD_TEARDOWN_SOCKET", "").output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(err.contains("/run/pod-teardown/"), "{verb:?}: {err}");
    }
}

#[test]
fn queries_without_an_agent_have_an_error() {
    let flags = Flags::valid();
    let socket = flags.socket().display().to_string();
    for arguments in [
        &["status", "--socket", &socket][..],
        &["status", "-ojson", "--socket", &socket],
        &["timeline", "default/web-0", "--socket", &socket],
        &["gc", "graph", "--socket", &socket],
        &["gc", "graph", "--uid", "a b&c", "-o", "json", "--socket", &socket],
    ] {
        let output = run_command(arguments);
        assert_eq!(output.code, Some(1), "{output:?}");
        assert_eq!(output.error_lines().len(), 1, "{output:?}");
        for word in ["no agent answers", &socket, "is the agent running", "--socket"] {
            assert!(output.err.contains(word), "{word:?} is not in {output:?}");
        }
    }
}
