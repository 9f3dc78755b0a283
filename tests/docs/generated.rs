//! Pages that are generated from the definition of the command line.

use std::{fmt::Write as _, fs};

use clap::{Arg, Command, CommandFactory as _, builder::PossibleValue};
use pod_teardown::cli::{Cli, kubectl::KubectlCli};

use crate::pages;

const UPDATE: &str = "UPDATE_DOCS=1 cargo test --features system-tests --test docs generated";

const CLI: &str = "\
# Command line

For users of the commands `pod-teardown` and `kubectl teardown`: every verb, argument and flag. To set up the agent, see [Configuration](configuration.md).

- A pod is named as `NAMESPACE/NAME`, as `[-n NAMESPACE] NAME`, or by its UID. Without a namespace it is `default`, as with kubectl.
- `-o FORMAT` of a verb that shows something is `table`, the default, `wide` with more columns, or `json` for the agent's answer unchanged (see
  [Admin API](admin-api.md)).
- `--socket PATH` of a verb that queries the agent selects its admin socket. The default is `POD_TEARDOWN_SOCKET` in `/etc/default/pod-teardown`, else
  `/run/pod-teardown/pod-teardown.sock`.
- `--help` of each verb and the man pages have examples.
- No verb repeats itself: use `watch pod-teardown status`.
- `kubectl teardown` is the same program: see [See it from the cluster](../how-to/see-from-the-cluster.md).
- Optional arguments are in brackets.
- All verbs except `help`, `version` and `completion` are for root.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | any other failure; also: no agent answers, or it does not know the object |
| 64 | the command line is wrong |
| 69 | `check`: the API server or the runtime cannot be reached |
| 78 | wrong configuration |

`handover` always exits with 0, so that it never prevents the start of a kubelet.

This page is generated from the program.
";

const CONFIGURATION: &str = "\
# Configuration

For operators who configure the agent: every setting of `pod-teardown run` and `pod-teardown check`.

- Each setting is a flag and an environment variable. The flag takes precedence. An empty variable counts as unset.
- The service reads variables from `/etc/default/pod-teardown`. After a change, run `systemctl restart pod-teardown`.
- Most nodes need no setting: see [Where the settings come from](../how-to/install.md#where-the-settings-come-from).
- Durations need a unit: `20s`, `1500ms`, `2m`.
- All mistakes in values and files are reported at once, except flags and choices that do not exist.
- `RUST_LOG=info,pod_teardown=debug` sets what is logged.

This page is generated from the program.
";

/// Text of a table cell.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

/// The complete help of an argument, with its possible values.
fn help(arg: &Arg) -> String {
    let text = arg.get_long_help().or_else(|| arg.get_help());
    let mut text = cell(&text.map(ToString::to_string).unwrap_or_default());
    if let Some(default) = named_default(arg) {
        // It has a column of its own.
        text = text.replace(&format!(" [default: {default}]"), "");
    }
    let values: Vec<_> = arg.get_possible_values();
    if arg.get_action().takes_values() {
        for value in values.iter().filter(|value| !value.is_hide_set()) {
            let meaning = value.get_help().map(ToString::to_string).unwrap_or_default();
            let separator = if meaning.is_empty() { "" } else { ": " };
            let _ = write!(text, "<br>`{}`{separator}{}", value.get_name(), cell(&meaning));
        }
    }
    text
}

fn name(arg: &Arg) -> String {
    let value = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let takes_value = arg.get_action().takes_values();
    let flag = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => return format!("`{value}`"),
    };
    match value.as_str() {
        value if takes_value && !value.is_empty() => format!("`{flag} {}`", value.replace('|', "\\|")),
        _ => format!("`{flag}`"),
    }
}

/// A default that the help names, because it depends on the node.
fn named_default(arg: &Arg) -> Option<String> {
    let text = arg.get_long_help().or_else(|| arg.get_help())?.to_string();
    let (_, default) = text.split_once("[default: ")?;
    Some(cell(default.split_once(']')?.0))
}

fn default(arg: &Arg) -> String {
    let values: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    match values.join(" ") {
        values if values.is_empty() || !arg.get_action().takes_values() => named_default(arg).unwrap_or_default(),
        values => format!("`{values}`"),
    }
}

fn variable(arg: &Arg) -> Option<String> {
    Some(arg.get_env()?.to_string_lossy().into_owned())
}

/// Whether the argument is a setting of the agent, which has a page of its own.
fn is_setting(arg: &Arg) -> bool {
    arg.get_env().is_some()
}

fn visible(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_visible = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    command.get_arguments().filter(is_visible)
}

/// The group of a setting. Flags that other verbs share have none.
fn heading(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or("Agent")
}

/// The arguments of a verb on the page of the command line. The beginning of the page describes those that many verbs have.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    let of_agent = is_of_agent(command);
    visible(command).filter(move |arg| !(is_common(arg) || of_agent && is_setting(arg)))
}

fn is_of_agent(command: &Command) -> bool {
    matches!(command.get_name(), "run" | "check")
}

fn is_common(arg: &Arg) -> bool {
    let is_format = |value: &PossibleValue| matches!(value.get_name(), "table" | "wide" | "json");
    match arg.get_id().as_str() {
        "socket" => true,
        "output" => arg.get_possible_values().iter().all(is_format),
        _ => matches!(
            &*help(arg),
            "The pod: its name, NAMESPACE/NAME, or its UID" | "Namespace of the pod"
        ),
    }
}

/// All groups, in the order of their first setting.
fn headings<'a>(args: &[&'a Arg]) -> Vec<&'a str> {
    let mut headings = Vec::new();
    for arg in args {
        if !headings.contains(&heading(arg)) {
            headings.push(heading(arg));
        }
    }
    headings
}

/// The text below the flags, without the examples.
fn after(command: &Command, out: &mut String) {
    let text = command.get_after_long_help().or_else(|| command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let is_prose = |paragraph: &&str| {
        let is_indented = paragraph.lines().all(|line| line.starts_with("  "));
        !is_indented && !paragraph.starts_with("Example")
    };
    for paragraph in text.split("\n\n").filter(is_prose) {
        let text = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.is_empty() {
            let _ = writeln!(out, "\n{text}");
        }
    }
}

fn verb(command: &Command, path: &str, out: &mut String) {
    let path = format!("{path} {}", command.get_name());
    let is_shown = |verb: &&Command| !verb.is_hide_set() && verb.get_name() != "help";
    let children: Vec<_> = command.get_subcommands().filter(is_shown).collect();
    if children.is_empty() {
        let about = command.get_long_about().or_else(|| command.get_about());
        let about = about.map(ToString::to_string).unwrap_or_default();
        let usage = command.clone().render_usage().to_string();
        let (_, rest) = usage.split_once(command.get_name()).unwrap_or_default();
        let rest = rest.replace(" [OPTIONS]", "").replace(['<', '>'], "");
        let _ = writeln!(out, "\n## {path}{rest}\n\n{}", about.trim());
        let args: Vec<_> = arguments(command).collect();
        if !args.is_empty() {
            out.push_str("\n| argument | default | meaning |\n|---|---|---|\n");
            for arg in args {
                let _ = writeln!(out, "| {} | {} | {} |", name(arg), default(arg), help(arg));
            }
        }
        if is_of_agent(command) {
            out.push_str("\nAll settings of the agent: [Configuration](configuration.md).\n");
        }
        after(command, out);
    }
    for child in children {
        verb(child, &path, out);
    }
}

fn cli_page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut out = CLI.to_owned();
    for command in root
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
    {
        verb(command, root.get_name(), &mut out);
    }
    let mut plugin = KubectlCli::command();
    plugin.build();
    for command in plugin.get_subcommands().filter(|verb| verb.get_name() != "help") {
        verb(command, "kubectl teardown", &mut out);
    }
    out
}

fn configuration_page() -> String {
    let root = Cli::command();
    let run = root.find_subcommand("run").unwrap();
    let args: Vec<_> = visible(run).collect();
    let mut out = CONFIGURATION.to_owned();
    for group in headings(&args) {
        let _ = writeln!(out, "\n## {group}\n");
        out.push_str("| flag | environment variable | default | meaning |\n|---|---|---|---|\n");
        for arg in args.iter().filter(|arg| heading(arg) == group) {
            let variable = variable(arg).map(|name| format!("`{name}`")).unwrap_or_default();
            let _ = writeln!(out, "| {} | {variable} | {} | {} |", name(arg), default(arg), help(arg));
        }
    }
    out += "\n## Rarely needed\n\nThe help and the settings file do not show these.\n\n";
    out += "| environment variable | default | meaning |\n|---|---|---|\n";
    for arg in run.get_arguments().filter(|arg| arg.is_hide_set()) {
        let Some(variable) = variable(arg) else { continue };
        let _ = writeln!(out, "| `{variable}` | {} | {} |", default(arg), help(arg));
    }
    out
}

pub fn assert_generated(page: &str, text: &str) {
    let path = pages::root().join("docs/reference").join(page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    let differs = text.lines().zip(stored.lines()).find(|(new, old)| new != old);
    assert!(
        text == stored,
        "{page} is not what the program says: run {UPDATE}\n{differs:?}"
    );
}

#[test]
fn generated_page_of_the_command_line_is_up_to_date() {
    assert_generated("cli.md", &cli_page());
}

#[test]
fn generated_page_of_the_configuration_is_up_to_date() {
    assert_generated("configuration.md", &configuration_page());
}
