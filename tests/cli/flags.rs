//! Errors on the command line and in the files that it names: each is one line with object, remedy and exit code.

use std::fs::{self, File};

use clap::CommandFactory as _;
use pod_teardown::cli::Cli;

use crate::command::{Flags, command, run_command};

const USAGE: i32 = 64;
const CONFIGURATION: i32 = 78;

/// Flags, exit code, and words of the error, the last of them from its remedy.
type Case = (Flags, i32, [&'static str; 3]);

/// A flag, its wrong value, the exit code, and words of the remedy.
const WRONG_VALUES: [(&str, &str, i32, &str); 13] = [
    ("shutdown-timeout", "20", USAGE, "20s"),
    ("shutdown-timeout", "soon", USAGE, "20s"),
    ("shutdown-timeout", "0", USAGE, "unit"),
    ("take-over-after", "45", USAGE, "unit"),
    ("take-over-after", "1s", USAGE, "2s"),
    ("metrics-addr", "localhost", USAGE, "127.0.0.1:9464"),
    ("metrics-addr", "127.0.0.1:0", USAGE, "127.0.0.1:9464"),
    ("node-name", "../n1", USAGE, "kubectl get nodes"),
    ("cri-endpoint", "tcp://1.2.3.4:5", USAGE, "unix:///"),
    ("cri-endpoint", "unix:///dev/null", CONFIGURATION, "listens"),
    ("cgroup-root", "/a/../b", USAGE, "cgroupRoot"),
    ("state-dir", "state", USAGE, "begins with /"),
    ("socket", "agent.sock", USAGE, "absolute path"),
];

/// A flag that names this file, the text of the file, and words of the error and of its remedy.
const WRONG_FILES: [(&str, &str, Option<&str>, [&str; 2]); 17] = [
    ("kubeconfig", "absent", None, ["absent", "root can read it"]),
    ("kubeconfig", "bad", Some("clusters: ["), ["bad", "kubeconfig"]),
    ("kubeconfig", "empty", Some(""), ["empty", "kubeconfig"]),
    ("kubelet-root", "absent", None, ["absent", "--root-dir"]),
    ("kubelet-root", "kubelet/file", Some(""), ["file", "--root-dir"]),
    ("kubelet-config", "absent", None, ["absent", "--config"]),
    ("kubelet-config", "config", Some("kind: Pod"), ["kind Pod", "--config"]),
    ("kubelet-config", "kubeconfig", None, ["kubeconfig", "--config"]),
    (
        "kubelet-config",
        "kubeadm",
        Some(KUBEADM),
        ["ClusterConfiguration", "config.yaml"],
    ),
    (
        "kubelet-config",
        "cgroups",
        Some(NO_CGROUPS),
        ["cgroupsPerQOS", "cannot work"],
    ),
    ("kubelet-config", "logs", Some(LOGS), ["podLogsDir", "--config"]),
    ("kubelet-config", "root", Some(ROOT), ["cgroupRoot ../../x", "--config"]),
    (
        "kubeconfig",
        "config",
        Some(LOGS),
        ["KubeletConfiguration", "kubelet.conf"],
    ),
    (
        "kubeconfig",
        "proxy",
        Some(PROXY),
        ["KubeProxyConfiguration", "set --kubeconfig"],
    ),
    ("state-dir", "plain/state", None, ["is not a directory", "can write to"]),
    (
        "state-dir",
        "/proc/pod-teardown",
        None,
        ["is on procfs", "can write to"],
    ),
    (
        "socket",
        "kubelet",
        None,
        ["is a directory", "a path that does not exist"],
    ),
];
const KUBEADM: &str = "kind: ClusterConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\n---\nkind: InitConfiguration\n";
const PROXY: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
const NO_CGROUPS: &str =
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupsPerQOS: false\n";
const LOGS: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodLogsDir: logs\n";
const ROOT: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupRoot: ../../x\n";

fn cases() -> Vec<Case> {
    let mut cases = vec![(
        Flags::valid().without("kubeconfig"),
        CONFIGURATION,
        ["--kubeconfig", "is missing", "kubelet.conf"],
    )];
    for (flag, value, code, remedy) in WRONG_VALUES {
        cases.push((Flags::valid().with(flag, value), code, [flag, value, remedy]));
    }
    for (flag, name, text, [error, remedy]) in WRONG_FILES {
        let flags = Flags::valid();
        fs::write(flags.path("plain"), "").unwrap();
        if let Some(text) = text {
            fs::write(flags.path(name), text).unwrap();
        }
        cases.push((flags.with_path(flag, name), CONFIGURATION, [flag, error, remedy]));
    }
    let server = testbed::api::kubeconfig("127.0.0.1:18080", None, "node", "token");
    let flags = Flags::valid();
    fs::write(flags.path("other"), server).unwrap();
    cases.push((
        flags.with_path("kubeconfig", "other"),
        CONFIGURATION,
        ["--kubeconfig", "server 127.0.0.1:18080", "https://host:port"],
    ));
    cases
}

#[test]
fn every_error_is_one_line_that_names_the_object_and_the_remedy_and_check_has_the_same() {
    for (flags, code, words) in cases() {
        let output = flags.run("run");
        assert_eq!(output.code, Some(code), "{words:?}: {output:?}");
        let lines = output.error_lines();
        assert_eq!(lines.len(), 1, "{words:?}: {output:?}");
        let checked = flags.run("check");
        assert_eq!(checked.code, Some(code), "{words:?}: {checked:?}");
        for word in words {
            assert!(lines[0].contains(word), "{word:?} is not in {output:?}");
            assert!(checked.out.contains(word), "{word:?} is not in {checked:?}");
        }
        assert!(
            !flags.path("state").exists() && !flags.path("run").exists(),
            "something was made: {output:?}"
        );
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
    assert_eq!(output.code, Some(USAGE));
}

#[test]
fn unknown_flags_and_verbs_are_usage_errors() {
    for arguments in [
        &["run", "--grace", "5s"][..],
        &["check", "--no-such-flag"],
        &["status", "--kubeconfig", "x"],
        &["timeline", "a/b/c"],
        &["timeline", "-n", "other", "default/web-0"],
        &["timeline", "default/web-0", "-o", "png"],
        &["run", "--mode", "fancy"],
        &["why"],
        &[],
    ] {
        let output = run_command(arguments);
        assert_eq!(output.code, Some(USAGE), "{arguments:?}: {output:?}");
        assert!(
            !output.err.is_empty() && output.out.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
    assert!(run_command(&["run", "--grace", "5s"]).err.contains("--grace"));
    for pod in ["a/b/c", "/x", "x/", "a b/c", "a/ü", ""] {
        let output = run_command(&["timeline", pod]);
        assert_eq!(output.code, Some(USAGE), "{pod:?}: {output:?}");
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
    assert!(timed.err.contains("--timeout"), "{timed:?}");
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
fn help_of_every_command_fits_100_columns_and_has_an_example() {
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
        assert!(is_group || help.contains("Examples:"), "{name}: {help}");
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
        ("POD_TEARDOWN_FORCE_UNMOUNT", ""),
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
        &["gc", "graph", "deploy", "web", "--socket", &socket],
    ] {
        let output = run_command(arguments);
        assert_eq!(output.code, Some(1), "{output:?}");
        assert_eq!(output.error_lines().len(), 1, "{output:?}");
        for word in ["no agent answers", &socket, "is the agent running", "--socket"] {
            assert!(output.err.contains(word), "{word:?} is not in {output:?}");
        }
    }
}
