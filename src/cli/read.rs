//! Parses the command line and the environment.

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
};

use clap::{Arg, Command, CommandFactory as _, Error, FromArgMatches as _};

use super::Cli;

/// Prefix of the environment variables.
const PREFIX: &str = "POD_TEARDOWN_";

// === impl Cli ===

impl Cli {
    /// Parses command line and environment. An empty variable counts as unset.
    ///
    /// # Errors
    /// When it is wrong, and for help and version.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Error> {
        let unless_empty = |arg: Arg| match arg.get_env() {
            Some(variable) if env::var_os(variable).is_some_and(|value| value.is_empty()) => arg.env(None::<&str>),
            _ => arg,
        };
        let command = change_args(Self::command(), &|arg| unless_empty(arg).hide_env_values(true));
        Self::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }
}

/// Changes the arguments of all commands, also of those below commands.
fn change_args(command: Command, change: &dyn Fn(Arg) -> Arg) -> Command {
    command
        .mut_args(change)
        .mut_subcommands(|command| change_args(command, change))
}

/// Environment variables that have the prefix but are no settings.
pub fn unknown_variables() -> BTreeSet<String> {
    let command = Cli::command();
    let args = command.get_subcommands().flat_map(Command::get_arguments);
    let known: BTreeSet<_> = args.filter_map(Arg::get_env).collect();
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let names = names.filter(|name| name.starts_with(PREFIX));
    names.filter(|name| !known.contains(OsStr::new(name))).collect()
}
