//! The service's environment file documents each flag like the command line.

use std::{collections::BTreeMap, fs, time::Duration};

use clap::{Arg, Command, CommandFactory as _};
use pod_teardown::cli::Cli;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/pod-teardown.default");
const UNIT: &str = include_str!("../../systemd/pod-teardown.service");
const DROP_IN: &str = include_str!("../../systemd/kubelet.service.d/10-pod-teardown.conf");
const WIDTH: usize = 100;

const HEAD: &str = "\
# Settings of pod-teardown.service, as environment variables. A commented line shows the default, or an example. After a
# change, run: systemctl restart pod-teardown. To check the settings, run: pod-teardown check --service
#
# An empty variable counts as unset.
";

const TAIL: &str = "
# What is logged: a level, or levels of modules. debug logs more, such as each object that the collector deletes.
#RUST_LOG=info,pod_teardown=debug
";

/// Examples for flags without a default.
const EXAMPLES: [(&str, &str); 8] = [
    ("POD_TEARDOWN_KUBECONFIG", "/etc/kubernetes/kubelet.conf"),
    ("POD_TEARDOWN_CRI_ENDPOINT", "unix:///run/containerd/containerd.sock"),
    ("POD_TEARDOWN_KUBELET_ROOT", "/var/lib/kubelet"),
    ("POD_TEARDOWN_KUBELET_CONFIG", "/var/lib/kubelet/config.yaml"),
    ("POD_TEARDOWN_NODE_NAME", "worker-1"),
    ("POD_TEARDOWN_GC_KUBECONFIG", "/etc/kubernetes/gc.kubeconfig"),
    ("POD_TEARDOWN_METRICS_ADDR", "127.0.0.1:9464"),
    ("POD_TEARDOWN_FENCE_KUBELET", "true"),
];

fn run() -> Command {
    let mut program = Cli::command();
    program.build();
    program.find_subcommand("run").unwrap().clone()
}

fn variables(command: &Command) -> Vec<(&str, &Arg)> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .filter_map(|arg| Some((arg.get_env()?.to_str()?, arg)))
        .collect()
}

/// Environment variables of the unit file.
fn unit_variables() -> BTreeMap<&'static str, &'static str> {
    let set = UNIT.lines().filter_map(|line| line.strip_prefix("Environment="));
    set.filter_map(|it| it.split_once('=')).collect()
}

/// The help of a flag and of its values.
fn descriptions(arg: &Arg) -> Vec<String> {
    let help = arg.get_long_help().or(arg.get_help()).unwrap().to_string();
    let values = arg.get_possible_values();
    let named = values.iter().filter(|_| arg.get_action().takes_values());
    let values: Vec<_> = named
        .filter_map(|value| Some(format!("{}: {}", value.get_name(), value.get_help()?)))
        .collect();
    let full = |text: String| if text.ends_with(['.', ']']) { text } else { text + "." };
    [vec![help], values].concat().into_iter().map(full).collect()
}

fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            out += &(line + "\n");
            line = String::from("#");
        }
        line += " ";
        line += word;
    }
    out + &line + "\n"
}

fn expected() -> String {
    let command = run();
    let unit_variables = unit_variables();
    let parts = variables(&command).into_iter().map(|(variable, arg)| {
        let default = arg.get_default_values().first().and_then(|it| it.to_str());
        let default = default.filter(|_| arg.get_action().takes_values());
        let example = || {
            EXAMPLES
                .iter()
                .find(|(name, _)| *name == variable)
                .map(|(_, value)| *value)
        };
        let value = unit_variables.get(variable).copied().or(default).or_else(example);
        let value = value.unwrap_or_else(|| panic!("{variable} has no default: give it an example here"));
        let help: String = descriptions(arg).iter().map(|it| wrapped(it)).collect();
        format!("\n{help}#{variable}={value}\n")
    });
    HEAD.to_owned() + &parts.collect::<String>() + TAIL
}

#[test]
fn environment_file_has_every_variable_with_its_help_and_default() {
    let (actual, expected) = (fs::read_to_string(FILE).unwrap_or_default(), expected());
    if actual != expected {
        let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/pod-teardown.default");
        fs::write(path, &expected).unwrap();
        panic!("{FILE} does not say what the flags say. If those are right: cp {path} {FILE}");
    }
}

#[test]
fn variables_of_the_unit_and_the_environment_file_are_flags_of_run() {
    let command = run();
    let known: Vec<_> = variables(&command).into_iter().map(|(variable, _)| variable).collect();
    assert!(
        unit_variables().keys().all(|variable| known.contains(variable)),
        "{:?}",
        unit_variables()
    );
    assert_eq!(unit_variables().len(), 0, "the unit sets none");
    let file = fs::read_to_string(FILE).unwrap();
    let settings = file.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(settings.count(), 0, "all are commented out");
}

/// systemd gives the environment of a unit to all its processes: the kubelet would get the token for the OpenTelemetry collector.
#[test]
fn only_the_service_of_the_agent_reads_its_environment_file() {
    assert!(
        UNIT.contains("\nEnvironmentFile=-/etc/default/pod-teardown\n"),
        "{UNIT}"
    );
    assert!(!DROP_IN.contains("Environment"), "{DROP_IN}");
}

/// Otherwise systemd would abort every start of the kubelet while a pod terminates slowly.
#[test]
fn timeout_of_the_handover_is_shorter_than_systemds_start_timeout() {
    let command = DROP_IN.lines().find_map(|line| line.strip_prefix("ExecStartPre=-"));
    let (_, timeout) = command.unwrap().split_once(" handover --timeout ").unwrap();
    let start_timeout = Duration::from_secs(90);
    assert!(humantime::parse_duration(timeout).unwrap() + Duration::from_secs(10) < start_timeout);
}
