//! Builds the command line of `check --service`: the flags of the service, unless others are given.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
};

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

/// Environment and `ExecStart=` of the service.
#[derive(Debug, Clone, Copy)]
pub struct ServiceSettings<'a> {
    /// Arguments, the program first.
    pub command: &'a [String],
    /// Variables, also those of other programs.
    pub variables: &'a BTreeMap<String, String>,
}

/// Extends the arguments of `check` by those of the service. Arguments override `ExecStart=`, which overrides variables.
pub(super) fn with_service(arguments: Vec<OsString>, service: ServiceSettings<'_>) -> Vec<OsString> {
    let command = Cli::command();
    let Some(check) = command.find_subcommand("check") else {
        return arguments;
    };
    let mut given: BTreeSet<String> = arguments.iter().filter_map(|it| flag_name(it.to_str()?)).collect();
    let mut all = arguments;
    for words in exec_start_flags(check, service.command) {
        let is_new = words
            .first()
            .and_then(|flag| flag_name(flag))
            .is_some_and(|name| given.insert(name));
        all.extend(words.into_iter().filter(|_| is_new).map(OsString::from));
    }
    for arg in check.get_arguments() {
        let (Some(name), Some(variable)) = (arg.get_long(), arg.get_env().and_then(|name| name.to_str())) else {
            continue;
        };
        if let Some(value) = service.variables.get(variable).filter(|value| !value.is_empty())
            && !given.contains(name)
        {
            all.extend(from_variable(arg, name, value));
        }
    }
    all
}

/// The name of the flag `--NAME` or `--NAME=VALUE`.
fn flag_name(word: &str) -> Option<String> {
    let name = word.strip_prefix("--")?;
    Some(name.split('=').next().unwrap_or(name).to_owned())
}

/// The flags of `ExecStart=`, each with its value. Those that `check` does not have are left out.
fn exec_start_flags(check: &Command, command: &[String]) -> Vec<Vec<String>> {
    let mut words = command.iter().skip(1).skip_while(|word| !word.starts_with("--"));
    let mut flags = Vec::new();
    while let Some(word) = words.next() {
        let Some(name) = flag_name(word) else { continue };
        let Some(arg) = check.get_arguments().find(|arg| arg.get_long() == Some(&name)) else {
            continue;
        };
        let mut flag = vec![word.clone()];
        if arg.get_action().takes_values() && !word.contains('=') {
            flag.extend(words.next().cloned());
        }
        flags.push(flag);
    }
    flags
}

/// A switch has no value on the command line: clap's `BoolishValueParser` decides for its variable.
fn from_variable(arg: &Arg, name: &str, value: &str) -> Option<OsString> {
    if arg.get_action().takes_values() {
        return Some(format!("--{name}={value}").into());
    }
    let is_off = ["n", "no", "f", "false", "off", "0"].contains(&value.to_lowercase().as_str());
    (!is_off).then(|| format!("--{name}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(given: &[&str], command: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let pairs = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let variables = pairs.collect();
        let service = ServiceSettings {
            command: &command,
            variables: &variables,
        };
        let given = ["pod-teardown", "check"]
            .iter()
            .chain(given)
            .map(OsString::from)
            .collect();
        let all = with_service(given, service);
        all.into_iter().skip(2).map(|it| it.into_string().unwrap()).collect()
    }

    #[test]
    fn arguments_override_the_command_of_the_service_which_overrides_its_variables() {
        let command = [
            "/usr/bin/pod-teardown",
            "run",
            "--node-name",
            "exec",
            "--mode=always",
            "--unknown",
            "x",
        ];
        let variables = [
            ("POD_TEARDOWN_NODE_NAME", "variable"),
            ("POD_TEARDOWN_KUBECONFIG", "/k"),
            ("POD_TEARDOWN_SOCKET", ""),
            ("POD_TEARDOWN_FENCE_KUBELET", "True"),
            ("PATH", "/bin"),
        ];
        let flags = merged(&["--mode", "never"], &command, &variables);
        assert_eq!(
            flags,
            [
                "--mode",
                "never",
                "--node-name",
                "exec",
                "--kubeconfig=/k",
                "--fence-kubelet"
            ]
        );
    }

    #[test]
    fn service_without_settings_adds_nothing() {
        assert_eq!(
            merged(&[], &["/usr/bin/pod-teardown", "run"], &[]),
            Vec::<String>::new()
        );
    }
}
