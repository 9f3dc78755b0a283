//! Parses the command line and the environment, and reports all invalid values instead of only the first.

use std::{
    collections::BTreeSet,
    env,
    error::Error as _,
    ffi::{OsStr, OsString},
};

use clap::{
    Arg, Command, CommandFactory as _, Error, FromArgMatches as _,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{
    Cli, Verb,
    service::{ServiceSettings, with_service},
};
use crate::model::problem::Problem;

/// Prefix of the environment variables.
const PREFIX: &str = "POD_TEARDOWN_";

/// Flags of `check` that are no settings of the agent. A mistake in them is no row of its report.
const OF_CHECK_ONLY: [&str; 2] = ["--output", "--wait"];

/// The parsed command line.
#[derive(Debug)]
pub struct Read {
    /// The command. Invalid values are replaced by their defaults.
    pub cli: Cli,
    /// Invalid values of flags of `run`, `check` and `handover`.
    pub mistakes: Vec<Problem>,
    /// Unknown environment variables with the prefix.
    pub unknown_variables: BTreeSet<String>,
}

// === impl Cli ===

impl Cli {
    /// Parses command line and environment. An empty variable counts as unset.
    ///
    /// # Errors
    /// For all other mistakes, and for help and version.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Read, Error> {
        let unless_empty = |arg: Arg| match arg.get_env() {
            Some(variable) if env::var_os(variable).is_some_and(|value| value.is_empty()) => arg.env(None::<&str>),
            _ => arg,
        };
        let command = change_args(Self::command(), &|arg| unless_empty(arg).hide_env_values(true));
        let variables = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let arguments = join_wait(arguments.into_iter().collect());
        Self::read_as(command, arguments, unknown_variables(variables))
    }

    /// Parses the command line of `check --service`: settings of the service replace the environment.
    ///
    /// # Errors
    /// For all other mistakes, and for help and version.
    pub fn read_with_service(
        arguments: impl IntoIterator<Item = OsString>,
        service: ServiceSettings<'_>,
    ) -> Result<Read, Error> {
        let command = change_args(Self::command(), &|arg| arg.env(None::<&str>));
        let arguments = with_service(arguments.into_iter().collect(), service);
        let variables = service.variables.keys().cloned();
        Self::read_as(command, arguments, unknown_variables(variables))
    }

    fn read_as(
        mut command: Command,
        mut arguments: Vec<OsString>,
        unknown_variables: BTreeSet<String>,
    ) -> Result<Read, Error> {
        let (mut first, mut mistakes) = (None, Vec::new());
        let cli = loop {
            let error = match command.clone().try_get_matches_from(&arguments) {
                Ok(matches) => break Self::from_arg_matches(&matches)?,
                Err(error) => error,
            };
            let is_setting = |flag: &str| !OF_CHECK_ONLY.contains(&flag);
            let wrong = wrong_value(&error).filter(|(flag, mistake)| is_setting(flag) && !mistakes.contains(mistake));
            let Some((flag, mistake)) = wrong else {
                return Err(first.unwrap_or(error));
            };
            first.get_or_insert(error);
            mistakes.push(mistake);
            command = without(command, &mut arguments, &flag);
        };
        match first {
            Some(error) if !matches!(cli.verb, Verb::Run(_) | Verb::Check(_) | Verb::Handover { .. }) => Err(error),
            _ => Ok(Read {
                cli,
                mistakes,
                unknown_variables,
            }),
        }
    }
}

/// Joins `--wait true` and `--wait false` by an equals sign: clap takes a separate value for the name of a pod.
fn join_wait(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut joined = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let is_value = |next: &OsString| argument == "--wait" && (next == "true" || next == "false");
        match arguments.next_if(is_value) {
            Some(value) => joined.push([argument.as_os_str(), OsStr::new("="), &value].into_iter().collect()),
            None => joined.push(argument),
        }
    }
    joined
}

/// The flag with the invalid value, and the problem.
fn wrong_value(error: &Error) -> Option<(String, Problem)> {
    let (Some(ContextValue::String(flag)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return None;
    };
    let flag = flag.split_whitespace().next().filter(|flag| flag.starts_with("--"))?;
    let what = format!("{flag} {value}");
    let problem = match (error.kind(), error.get(ContextKind::ValidValue)) {
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(valid))) if value.is_empty() => Problem::usage(
            format!("{flag} needs a value"),
            &format!("it is one of {}", valid.join(", ")),
        ),
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(valid))) => Problem::usage(
            format!("{what}: there is no such choice"),
            &format!("it is one of {}", valid.join(", ")),
        ),
        (ErrorKind::InvalidValue | ErrorKind::ValueValidation, _) => {
            Problem::usage(format!("{what}: {}", cause(error)), remedy(flag))
        }
        _ => return None,
    };
    Some((flag.to_owned(), problem))
}

/// The message of the value's parser.
fn cause(error: &Error) -> String {
    let cause = error.source().map(ToString::to_string);
    cause.unwrap_or_else(|| "it is no value of this".to_owned())
}

/// The remedy for an invalid value.
fn remedy(flag: &str) -> &'static str {
    let command = Cli::command();
    let mut args = command.get_subcommands().flat_map(Command::get_arguments);
    let is_switch = |arg: &Arg| arg.get_long() == flag.strip_prefix("--") && !arg.get_action().takes_values();
    if args.any(is_switch) {
        "set the variable to true or false; the flag has no value"
    } else {
        "see --help for valid values"
    }
}

/// Removes the flag from the arguments, or else its variable.
fn without(command: Command, arguments: &mut Vec<OsString>, flag: &str) -> Command {
    let with_value = format!("{flag}=");
    let is_it = |argument: &OsString| {
        argument
            .to_str()
            .is_some_and(|it| it == flag || it.starts_with(&with_value))
    };
    if let Some(at) = arguments.iter().position(is_it) {
        let takes = if arguments[at] == flag { 2 } else { 1 };
        arguments.drain(at..(at + takes).min(arguments.len()));
        return command;
    }
    let name = flag.trim_start_matches('-');
    change_args(command, &|arg| {
        if arg.get_long() == Some(name) {
            arg.env(None::<&str>)
        } else {
            arg
        }
    })
}

/// Changes the arguments of all commands, also of those below commands.
fn change_args(command: Command, change: &dyn Fn(Arg) -> Arg) -> Command {
    command
        .mut_args(change)
        .mut_subcommands(|command| change_args(command, change))
}

/// The names that have the prefix but are no known variables.
fn unknown_variables(names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let command = Cli::command();
    let args = command.get_subcommands().flat_map(Command::get_arguments);
    let known: BTreeSet<_> = args.filter_map(Arg::get_env).collect();
    let names = names.into_iter().filter(|name| name.starts_with(PREFIX));
    names.filter(|name| !known.contains(OsStr::new(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Read, Error> {
        let all = ["pod-teardown"].iter().chain(arguments);
        Cli::read(all.map(OsString::from))
    }

    fn mistakes(arguments: &[&str]) -> Vec<String> {
        let read = read(arguments).unwrap();
        read.mistakes.into_iter().map(|mistake| mistake.what).collect()
    }

    #[test]
    fn all_invalid_choices_are_reported() {
        let wrong = [
            "run",
            "--mode",
            "sometimes",
            "--gc=maybe",
            "--fence-kubelet",
            "--cgroup-driver",
            "auto",
        ];
        assert_eq!(
            mistakes(&wrong),
            [
                "--mode sometimes: there is no such choice",
                "--gc maybe: there is no such choice"
            ]
        );
        let Verb::Run(flags) = read(&wrong).unwrap().cli.verb else {
            panic!()
        };
        assert!(flags.fence_kubelet, "valid flags apply");
        assert_eq!(mistakes(&["run", "--mode"]), ["--mode needs a value"]);
        assert_eq!(mistakes(&["check", "--mode", "never"]), Vec::<String>::new());
    }

    #[test]
    fn other_mistakes_are_errors_of_clap() {
        for arguments in [
            &["run", "--mode", "sometimes", "--colour"][..],
            &["run", "--colour"],
            &["timeline", "a/b", "-o", "png"],
            &["check", "-o", "png"],
            &["check", "--output", "png"],
            &["check", "--wait", "5"],
            &["timeline", "--sort"],
            &["--version"],
            &[],
        ] {
            assert!(read(arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn value_of_wait_may_follow_a_space_and_is_no_pod() {
        let wait = |arguments: &[&str]| match read(arguments).unwrap().cli.verb {
            Verb::Stop(stop) => (stop.wait, stop.pod.id().unwrap().to_string()),
            _ => panic!("{arguments:?}"),
        };
        for (arguments, waits) in [
            (&["stop", "web", "--wait", "false"][..], false),
            (&["stop", "--wait", "false", "web"], false),
            (&["stop", "--wait=false", "web"], false),
            (&["stop", "--wait", "true", "web"], true),
            (&["stop", "--wait", "web"], true),
            (&["stop", "web"], true),
        ] {
            assert_eq!(wait(arguments), (waits, "default/web".to_owned()), "{arguments:?}");
        }
        assert!(read(&["stop", "--wait", "false"]).is_err(), "without a pod");
        assert!(read(&["stop", "web", "--wait", "no"]).is_err());
    }

    #[test]
    fn unknown_variable_with_the_prefix_is_reported() {
        let names = [
            "POD_TEARDOWN_MODE",
            "POD_TEARDOWN_POD",
            "POD_TEARDOWN_SOCKET",
            "PATH",
            "POD_TEARDOWN_",
        ];
        let unknown_variables: Vec<String> = unknown_variables(names.map(str::to_owned)).into_iter().collect();
        assert_eq!(unknown_variables, ["POD_TEARDOWN_", "POD_TEARDOWN_POD"]);
    }
}
